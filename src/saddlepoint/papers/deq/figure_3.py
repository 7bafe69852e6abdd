"""Figure 3: attacks with the gradient at every state, by the adjoint process and by unrolling."""

from __future__ import annotations

from saddlepoint.papers.cells import accuracy_cell
from saddlepoint.papers.deq.experiment import DEQExperiment
from saddlepoint.papers.deq.gradients import Gradient
from saddlepoint.papers.deq.states import StateResults, label
from saddlepoint.papers.deq.subjects import DEQSubject
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Plot, Result, Row, Table
from saddlepoint.zoo.deq import EarlyState, FinalState

NETWORKS = ("exact-short", "unrolled")


def run(request: Request) -> Result:
    """Reproduce Figure 3."""
    experiment = DEQExperiment.open(request)
    tables = list[Table]()
    findings = list[str]()
    charts = list[Plot]()
    results = list[StateResults]()
    for name in NETWORKS:
        subject = experiment.subject(name)
        adjoint, unrolled = experiment.candidates(subject)
        states = experiment.states(subject)
        early = experiment.early(subject)
        estimators = {"adjoint": adjoint}
        if name == "unrolled":
            estimators["unrolled"] = unrolled
        for estimator, gradients in estimators.items():
            table = ablation(experiment, states, early, estimator, gradients)
            tables.append(table)
            findings.append(_strongest(table, subject, early))
            charts.append(_chart(f"figure-3-{subject.name}-{estimator}", table, gradients))
        tables.append(states.table())
        results.append(states)
    return experiment.result(
        "figure-3",
        tables,
        states=results,
        findings=findings,
        charts=charts,
        notes=("the residual is that of the state at which the gradient is taken",),
    )


def ablation(
    experiment: DEQExperiment,
    states: StateResults,
    early: EarlyState,
    estimator: str,
    gradients: list[Gradient],
) -> Table:
    """Attack with each gradient and measure the accuracy of the final and of the early state.

    Args:
        experiment: runs the attacks.
        states: the states of the attacked network.
        early: the early state.
        estimator: name of the gradient estimator, for the title.
        gradients: the gradients, one row each.
    """
    subject = states.subject
    attacks = [gradient.pgd(experiment.setting.pgd) for gradient in gradients]
    episodes = experiment.play(subject, attacks, subject.test)
    rows = []
    for gradient, episode in zip(gradients, episodes, strict=True):
        cells = (
            accuracy_cell(subject.correct(episode, FinalState.name)),
            accuracy_cell(subject.correct(episode, early.name)),
            states.residual_cell(gradient.state.name),
        )
        rows.append(Row((gradient.name,), cells))
    columns = ("final, %", f"early ({label(early.name)}), %", "residual")
    title = f"{subject.title}: PGD-10, {estimator}"
    return Table(title, ("gradient",), columns, tuple(rows), len(subject.test.x))


def _strongest(table: Table, subject: DEQSubject, early: EarlyState) -> str:
    means = {row.labels[0]: cell.mean for row in table.rows if (cell := row.cells[1])}
    lowest = min(means.values())
    names = [name for name, mean in means.items() if mean == lowest]
    return (
        f"{subject.title}: the strongest attack on the early state {label(early.name)} uses "
        f"{' or '.join(names)}; the accuracy is {lowest:.1f} %."
    )


def _chart(name: str, table: Table, gradients: list[Gradient]) -> Plot:
    """Plot the accuracy of the early state over n, one series per estimator of the gradient."""
    points: dict[str, tuple[tuple[float, float], ...]] = {}
    for row, gradient in zip(table.rows, gradients, strict=True):
        cell = row.cells[1]
        state = gradient.state
        assert isinstance(state, EarlyState)
        assert cell is not None
        series = gradient.name.partition(f"{state.n}")[2].strip() or "adjoint"
        points[series] = (*points.get(series, ()), (float(state.n), cell.mean))
    return Plot(name, table.title, "state n", "accuracy of the early state, %", points)
