"""Figure 2: accuracy under the ready-made PGD-10 and relative error, state by state, for networks trained in several ways."""

from __future__ import annotations

from saddlepoint.papers.deq import EXPERIMENTS
from saddlepoint.papers.deq.experiment import Lab, accuracy
from saddlepoint.papers.deq.nets import recipes
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Cloud, Result, Row, Table
from saddlepoint.zoo.deq import EarlyState, FinalState

COLUMNS = (
    "final state, %",
    "early state, %",
    "n of the early state",
    "residual, early",
    "residual, final",
)


def run(request: Request) -> Result:
    lab = Lab.open(request)
    rows = list[Row]()
    told = list[str]()
    found = []
    errors = {}
    exact = [name for name in recipes(request.scale) if name.startswith("exact-")]
    for name in (*exact, "unrolled"):
        subject = lab.subject(name)
        states = lab.states(subject)
        early = lab.early(subject)
        final, best = (
            accuracy(subject.right(states.attacked, state))
            for state in (FinalState.name, early.name)
        )
        far = states.far(early.name), states.far(FinalState.name)
        rows.append(Row((subject.title,), (final, best, Cell((float(early.n),)), *far)))
        told.append(states.accumulation(early))
        medians = [
            float(states.residual[EarlyState(n).name].median()) for n in range(1, subject.steps + 1)
        ]
        last = float(states.residual[FinalState.name].median())
        errors[subject.title] = tuple(
            (float(n), error) for n, error in enumerate([*medians, last], 1)
        )
        told.append(
            f"{subject.title}: the median relative error is lowest at z{medians.index(min(medians)) + 1}, {min(medians):.2g}."
        )
        found.append(states)
    table = Table(
        "Accuracy under the ready-made PGD-10",
        ("network",),
        COLUMNS,
        tuple(rows),
        lab.setting.scored,
    )
    chart = Cloud(
        "figure-2", "relative error of every state", "state", "median relative error", errors
    )
    return lab.result(
        EXPERIMENTS[6], [table, *(one.table() for one in found)], states=found, findings=told, charts=[chart],
        notes=["the last point of each line is the final state, made of the solver's best one"],
    )  # fmt: skip
