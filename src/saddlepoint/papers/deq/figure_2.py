"""Figure 2: accuracy under the ready-made PGD-10 and relative error of every state."""

from __future__ import annotations

from saddlepoint.papers.cells import accuracy_cell
from saddlepoint.papers.deq.experiment import DEQExperiment
from saddlepoint.papers.deq.states import StateResults
from saddlepoint.papers.deq.three_ways import Effect, Profile, effects_table
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Plot, Result, Row, Table
from saddlepoint.zoo.deq import EarlyState, FinalState

COLUMNS = (
    "final state, %",
    "early state, %",
    "n of the early state",
    "residual, early",
    "residual, final",
)


def run(request: Request) -> Result:
    """Reproduce Figure 2."""
    experiment = DEQExperiment.open(request)
    rows = list[Row]()
    findings = list[str]()
    results = list[StateResults]()
    effects = list[Effect]()
    errors = {}
    accuracies = {}
    for name in (*experiment.exact_networks, "unrolled"):
        subject = experiment.subject(name)
        states = experiment.states(subject)
        early = experiment.early(subject)
        medians = _median_errors(states)
        results.append(states)
        rows.append(_row(states, early))
        errors[subject.title] = tuple((float(n), error) for n, error in enumerate(medians, 1))
        robust = _accuracies(states)
        accuracies[subject.title] = tuple((float(n), value) for n, value in enumerate(robust, 1))
        findings.append(states.accumulation(early))
        effects.append(Profile(states, early).effect)
        findings.append(_lowest_error(subject.title, medians[:-1]))
    title = "Accuracy under the ready-made PGD-10"
    scored = experiment.setting.test_images
    table = Table(title, ("network",), COLUMNS, tuple(rows), scored)
    chart = Plot(
        "figure-2", "relative error of every state", "state", "median relative error", errors
    )
    accuracy_chart = Plot(
        "figure-2-accuracy",
        "ready-made PGD-10",
        "state",
        "accuracy of every state, %",
        accuracies,
        joined=True,
    )
    return experiment.result(
        "figure-2",
        [table, *(states.table() for states in results), effects_table(effects)],
        states=results,
        findings=findings,
        charts=[chart, accuracy_chart],
        notes=[
            "the last error of each series is that of the final state, computed from the solver's "
            "best state"
        ],
    )


def _row(states: StateResults, early: EarlyState) -> Row:
    subject = states.subject
    cells = (
        accuracy_cell(subject.correct(states.attacked, FinalState.name)),
        accuracy_cell(subject.correct(states.attacked, early.name)),
        Cell((float(early.n),)),
        states.residual_cell(early.name),
        states.residual_cell(FinalState.name),
    )
    return Row((subject.title,), cells)


def _median_errors(states: StateResults) -> list[float]:
    """Return the median relative errors of z_1, ..., z_T and of the final state."""
    names = [EarlyState(n).name for n in range(1, states.subject.steps + 1)]
    return [float(states.residual[name].median()) for name in (*names, FinalState.name)]


def _accuracies(states: StateResults) -> list[float]:
    """Return the accuracy in percent of z_1, ..., z_T under the ready-made attack."""
    subject = states.subject
    return [
        100 * float(subject.correct(states.attacked, EarlyState(n).name).mean())
        for n in range(1, subject.steps + 1)
    ]


def _lowest_error(title: str, medians: list[float]) -> str:
    low = min(medians)
    return f"{title}: the median relative error is lowest at z{medians.index(low) + 1}, {low:.2g}."
