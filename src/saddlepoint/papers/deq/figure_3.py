"""Figure 3: attacks with the gradient at every state, by the adjoint process and by unrolling."""

from __future__ import annotations

from saddlepoint.papers.deq import EXPERIMENTS
from saddlepoint.papers.deq.experiment import Lab, States, Subject, accuracy
from saddlepoint.papers.deq.gradients import Gradient
from saddlepoint.papers.deq.states import label
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cloud, Result, Row, Table
from saddlepoint.zoo.deq import EarlyState, FinalState

NETWORKS = ("exact-short", "unrolled")


def run(request: Request) -> Result:
    lab = Lab.open(request)
    tables = list[Table]()
    told = list[str]()
    charts = list[Cloud]()
    states = list[States]()
    for name in NETWORKS:
        subject = lab.subject(name)
        walking, unrolling = lab.candidates(subject)
        shown = lab.states(subject)
        early = lab.early(subject)
        kinds = (
            {"adjoint": walking}
            if name != "unrolled"
            else {"adjoint": walking, "unrolled": unrolling}
        )
        for kind, gradients in kinds.items():
            table = ablation(lab, shown, early, kind, gradients)
            tables.append(table)
            told.append(_strongest(table, subject, early))
            charts.append(_chart(f"figure-3-{subject.name}-{kind}", table, gradients))
        tables.append(shown.table())
        states.append(shown)
    notes = ("the residual is that of the state whose gradient is used",)
    return lab.result(
        EXPERIMENTS[7], tables, states=states, findings=told, charts=charts, notes=notes
    )


def ablation(
    lab: Lab, states: States, early: EarlyState, kind: str, gradients: list[Gradient]
) -> Table:
    """A row per gradient: what it leaves of the final and of the early state."""
    subject = states.subject
    episodes = lab.play(subject, [one.pgd(lab.setting.pgd) for one in gradients], subject.test)
    rows = [
        Row(
            (one.name,),
            (
                *(accuracy(subject.right(e, name)) for name in (FinalState.name, early.name)),
                states.far(one.state.name),
            ),
        )
        for one, e in zip(gradients, episodes, strict=True)
    ]
    columns = ("final, %", f"early ({label(early.name)}), %", "residual")
    return Table(
        f"{subject.title}: PGD-10, {kind}", ("gradient",), columns, tuple(rows), len(subject.test.x)
    )


def _strongest(table: Table, subject: Subject, early: EarlyState) -> str:
    means = {row.labels[0]: cell.mean for row in table.rows if (cell := row.cells[1])}
    lowest = min(means.values())
    who = [name for name, mean in means.items() if mean == lowest]
    return f"{subject.title}: of the early state {label(early.name)}, {' and '.join(who)} leaves least, {lowest:.1f} %."


def _chart(name: str, table: Table, gradients: list[Gradient]) -> Cloud:
    """The early state's accuracy over n, a color per way to estimate the gradient there."""
    points: dict[str, tuple[tuple[float, float], ...]] = {}
    for row, one in zip(table.rows, gradients, strict=True):
        cell = row.cells[1]
        assert isinstance(one.state, EarlyState)
        assert cell is not None
        way = one.name.partition(f"{one.state.n}")[2].strip() or "adjoint"
        points[way] = (*points.get(way, ()), (float(one.state.n), cell.mean))
    return Cloud(name, table.title, "state n", "accuracy of the early state, %", points)
