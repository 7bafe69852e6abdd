"""Table 1: a network whose solver does not converge, under the exact gradient, the unrolled one, and none."""

from __future__ import annotations

from torch import Tensor

from saddlepoint.attacks.losses import margin
from saddlepoint.evaluation import Direct, MaxLossPoint
from saddlepoint.evaluation.bootstrap import mean_of
from saddlepoint.papers.deq import EXPERIMENTS, published
from saddlepoint.papers.deq.experiment import Lab, States, accuracy
from saddlepoint.papers.deq.gradients import ready_made, unrolled_final
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result, Row, Table
from saddlepoint.zoo.deq import FinalState

COLUMNS = ("clean", "PGD-10", "PGD-1000", "Square", "residual")
GRADIENTS = ("exact", "unrolled")


def run(request: Request) -> Result:
    lab = Lab.open(request)
    subject = lab.subject("exact-short")
    states = lab.states(subject)
    setting = lab.setting
    final = FinalState.name
    gradients = dict(
        zip(
            GRADIENTS,
            (ready_made(subject.net), unrolled_final(subject.net, max(setting.unrolled))),
            strict=True,
        )
    )
    square = MaxLossPoint(Direct("square", setting.square, margin, keep=frozenset({final})))
    clean, blind = (
        subject.right(e, final)
        for e in (states.clean, lab.play(subject, [square], subject.test)[0])
    )
    rows = list[Row]()
    found = {"Square": blind}
    for name, gradient in gradients.items():
        episodes = lab.play(
            subject, [gradient.pgd(attack) for attack in (setting.pgd, setting.long)], subject.test
        )
        short, long = (subject.right(e, final) for e in episodes)
        found |= {f"PGD-10, {name}": short, f"PGD-1000, {name}": long}
        papers = published.TABLE_1[name]
        first = name == GRADIENTS[0]  # the paper prints what no gradient changes once
        rows.append(
            Row(
                (subject.title, name),
                (
                    accuracy(clean, published.TABLE_1_CLEAN) if first else None,
                    accuracy(short, papers[0]),
                    accuracy(long, papers[1]),
                    accuracy(blind, published.TABLE_1_SQUARE) if first else None,
                    states.far(final) if first else None,
                ),
            )
        )
    table = Table(
        "Accuracy of the final state, %",
        ("network", "gradient"),
        COLUMNS,
        tuple(rows),
        len(subject.test.x),
    )
    return lab.result(
        EXPERIMENTS[0],
        [table, states.table()],
        states=[states],
        notes=[
            f"unrolled gradient: {max(setting.unrolled)} steps with damping 0.5 from the state at which the solver ended"
        ],
        findings=[*masking(found), *_settled(states), states.accumulation(lab.early(subject))],
    )


def masking(found: dict[str, Tensor]) -> list[str]:
    """Does another gradient, or none, find what the exact gradient does not? On the same images, with intervals."""
    told = []
    for other in ("PGD-10, unrolled", "PGD-1000, unrolled", "Square"):
        against = "PGD-1000, exact" if "1000" in other else "PGD-10, exact"
        apart = mean_of(found[against] - found[other])
        verdict = (
            "the exact gradient is masked" if apart.low > 0
            else "the exact gradient finds more" if apart.high < 0
            else "no masking that these images could show"
        )  # fmt: skip
        left = " and ".join(
            f"{name} leaves {100 * float(found[name].mean()):.1f} %" for name in (against, other)
        )
        told.append(
            f"{left}, {100 * apart.value:+.1f} points apart ({100 * apart.low:+.1f} to {100 * apart.high:+.1f}): {verdict}."
        )
    return told


def _settled(states: States) -> list[str]:
    low = min(
        float(residual.median())
        for name, residual in states.residual.items()
        if name.startswith("solve/")
    )
    return [
        f"The smallest median residual of a solver's state is {low:.2g}; in the paper all are above 0.75."
    ]
