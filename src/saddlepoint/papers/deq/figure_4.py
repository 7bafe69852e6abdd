"""Figure 4: the accuracy of every state under attacks with every adjoint state."""

from __future__ import annotations

import torch
from torch import Tensor

from saddlepoint.evaluation.bootstrap import mean_of
from saddlepoint.papers.deq.experiment import DEQExperiment, stack_correct
from saddlepoint.papers.deq.gradients import adjoint_at, adjoint_final
from saddlepoint.papers.deq.states import StateResults
from saddlepoint.papers.deq.subjects import DEQSubject
from saddlepoint.papers.deq.three_ways import Effect, effects_table
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, HeatMap, Result, Row, Table
from saddlepoint.zoo.deq import EarlyState, FinalState

NEXT = "mean over states z_n: attack with u_n minus attack with u_(n+1)"


def run(request: Request) -> Result:
    """Reproduce Figure 4, and show the same with an adjoint process that does not use z_0."""
    experiment = DEQExperiment.open(request)
    subject = experiment.subject("unrolled")
    states = experiment.states(subject)
    correct = {start: _correct(experiment, subject, start=start) for start in (True, False)}
    accuracy = {start: 100 * values.mean(-1) for start, values in correct.items()}
    titles = {
        True: "Accuracy of the state z under PGD-10 with the gradient at u, %",
        False: "The same with the loss of z_1 instead of z_0 in the first adjoint step (ours), %",
    }
    tables = [
        _table(experiment, states, titles[start], values) for start, values in accuracy.items()
    ]
    heat_map = HeatMap(
        "figure-4",
        f"{subject.title}: accuracy, %",
        _names("u", len(accuracy[True])),
        _names("z", subject.steps),
        tuple(map(tuple, accuracy[True].tolist())),
        "adjoint",
        "state",
    )
    return experiment.result(
        "figure-4",
        [*tables, states.table(), effects_table([_effect(states, correct[True])])],
        states=[states],
        notes=(
            "the last adjoint state belongs to the solver's best state, from which the final state "
            "is computed, and uses the loss of the final state",
        ),
        findings=[*alignment(accuracy[True]), *_compared(accuracy[True], accuracy[False])],
        charts=[heat_map],
    )


def _correct(experiment: DEQExperiment, subject: DEQSubject, *, start: bool) -> Tensor:
    """[T + 1, T, N] correct predictions of z_1..z_T by the adjoint state of the attack."""
    numbers = range(1, subject.steps + 1)
    gradients = [*(adjoint_at(n, start=start) for n in numbers), adjoint_final()]
    attacks = [gradient.pgd(experiment.setting.pgd) for gradient in gradients]
    episodes = experiment.play(subject, attacks, subject.test)
    return stack_correct(subject, episodes, [EarlyState(n).name for n in numbers])


def _effect(states: StateResults, correct: Tensor) -> Effect:
    """How much stronger u_(n+1) is on z_n than u_n, from correct predictions [T + 1, T, N]."""
    n = torch.arange(correct.shape[1])
    difference = mean_of((correct[n, n] - correct[n + 1, n]).mean(0))
    residual = states.residual_cell(FinalState.name)
    return Effect(states.subject.title, NEXT, difference, residual)


def _table(experiment: DEQExperiment, states: StateResults, title: str, accuracy: Tensor) -> Table:
    """A table of accuracies [T + 1, T], with the residuals of the states below."""
    numbers = range(1, accuracy.shape[1] + 1)
    adjoints = _names("u", len(accuracy))
    rows = [
        Row((name,), tuple(Cell((value,)) for value in values))
        for name, values in zip(adjoints, accuracy.tolist(), strict=True)
    ]
    rows.append(
        Row(("residual",), tuple(states.residual_cell(EarlyState(n).name) for n in numbers))
    )
    columns = _names("z", accuracy.shape[1])
    return Table(title, ("adjoint",), columns, tuple(rows), experiment.setting.test_images)


def _names(letter: str, count: int) -> tuple[str, ...]:
    return tuple(f"{letter}{n}" for n in range(1, count + 1))


def _compared(paper: Tensor, ours: Tensor) -> list[str]:
    """Say how much lower the strongest attack on each state is without z_0."""
    difference = ours.amin(0) - paper.amin(0)
    return [
        "With the loss of z_1 instead of z_0 in the first adjoint step, the accuracy under the "
        f"strongest attack on a state changes by {float(difference.amin()):+.1f} to "
        f"{float(difference.amax()):+.1f} points."
    ]


def alignment(accuracy: Tensor) -> list[str]:
    """Count the states z_n for which u_{n+1} is the strongest, as Eq. 10 suggests.

    Args:
        accuracy: [T + 1, T] accuracy in percent by adjoint state and state.
    """
    count = accuracy.shape[1]
    lowest = accuracy.amin(0)
    n = torch.arange(count)
    next_strongest = accuracy[n + 1, n] <= lowest
    same_strongest = accuracy[n, n] <= lowest
    gap = (accuracy[n + 1, n] - lowest).amax()
    return [
        "The attack with u_(n+1) is the strongest on z_n, alone or with others, for "
        f"{int(next_strongest.sum())} of {count} states, the attack with u_n for "
        f"{int(same_strongest.sum())}; in the paper u_(n+1) is the strongest for all. The "
        f"accuracy under u_(n+1) is at most {float(gap):.1f} points above that under the strongest "
        "attack."
    ]
