"""Section 3.3: closed-loop control under an attacker who knows it more and more."""

from __future__ import annotations

from dataclasses import replace

from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.evaluation import Adversary, Direct, FixedPoints, Transfer
from saddlepoint.gradients import BPDA
from saddlepoint.papers.adaptive import published
from saddlepoint.papers.adaptive.attacks import long, on_closed_loop, short
from saddlepoint.papers.adaptive.experiment import Lab, apart, right
from saddlepoint.papers.deq.experiment import accuracy
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result, Row, Table

CLEAN = "clean"
BLIND = "transfer PGD"
HELD = "PGD + BPDA"
LONGER = "APGD + BPDA"
THROUGH = "APGD through all updates (ours)"
COLUMNS = (CLEAN, BLIND, HELD, LONGER, THROUGH)
NOTES = (
    "BPDA: the gradient of the last pass, with the controls that were found as constants; PGD starts at the image, its steps are a "
    "quarter of the radius",
    "through all updates: the exact gradient, also of the controls, which the paper's authors replaced",
    "of the static net, PGD and APGD with its own gradient",
)


def run(request: Request) -> Result:
    lab = Lab.open(request)
    subject = lab.subject("ClosedLoopControl")
    spend = lab.setting.spend
    held = replace(short(spend, "PGD+BPDA"), rules={"control": BPDA()})
    blind = Transfer(short(spend), subject.static)
    through = Direct("APGD", APGD(spend.through), loss=cross_entropy)
    sent: list[Adversary] = [
        FixedPoints(),
        blind,
        held,
        on_closed_loop(subject.defense, spend),
        through,
    ]
    found = dict(zip(COLUMNS, (right(one) for one in lab.play(subject, sent)), strict=True))
    clean, pgd, apgd = (
        right(one) for one in lab.play_static(subject, [FixedPoints(), short(spend), long(spend)])
    )
    rows = (
        Row(
            ("closed-loop control",),
            tuple(accuracy(found[name], published.CLOSED_LOOP.get(name)) for name in COLUMNS),
        ),
        Row(
            ("static",),
            (
                accuracy(clean),
                accuracy(pgd, published.CLOSED_LOOP_STATIC),
                None,
                accuracy(apgd),
                None,
            ),
        ),
    )
    title = f"Accuracy, %, on {subject.data} in {subject.space}"
    falls = [(BLIND, HELD), (HELD, LONGER), (LONGER, THROUGH)]
    return lab.result(
        "closed-loop",
        [Table(title, ("net",), COLUMNS, rows, len(subject.test.x), digits=1)],
        subjects=[subject],
        notes=[
            *NOTES,
            f"batches of {subject.batch}, whose mean centers the projections and whose loss picks the controls, as released",
        ],
        findings=[
            _fell(found[before].mean().item(), found[after].mean().item(), before, after)
            for before, after in falls
        ]
        + [_apart(apart(found[LONGER], apgd).interval)],
    )


def _fell(high: float, low: float, before: str, after: str) -> str:
    known = published.CLOSED_LOOP
    reported = (
        f" (the paper: {known[before]} to {known[after]} %)"
        if before in known and after in known
        else ""
    )
    verb = "falls" if low < high else "stays" if low == high else "rises"
    return f"From {before} to {after} the accuracy {verb} from {100 * high:.1f} to {100 * low:.1f} %{reported}."


def _apart(interval: tuple[float, float] | None) -> str:
    assert interval is not None
    low, high = interval
    return f"Under APGD + BPDA it is {low:+.1f} to {high:+.1f} points from its static net under APGD; the paper has +5.6."
