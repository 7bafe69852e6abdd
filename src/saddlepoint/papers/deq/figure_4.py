"""Figure 4: the accuracy of every state under attacks with every adjoint state."""

from __future__ import annotations

import torch
from torch import Tensor

from saddlepoint.evaluation import Outcomes
from saddlepoint.papers.deq.experiment import DEQExperiment
from saddlepoint.papers.deq.gradients import adjoint_at, adjoint_final
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, HeatMap, Result, Row, Table
from saddlepoint.zoo.deq import EarlyState


def run(request: Request) -> Result:
    """Reproduce Figure 4."""
    experiment = DEQExperiment.open(request)
    subject = experiment.subject("unrolled")
    states = experiment.states(subject)
    numbers = range(1, subject.steps + 1)
    gradients = [*(adjoint_at(n) for n in numbers), adjoint_final()]
    attacks = [gradient.pgd(experiment.setting.pgd) for gradient in gradients]
    episodes = experiment.play(subject, attacks, subject.test)
    outcomes = Outcomes.of(episodes, subject.defense.names, "example")
    columns = [outcomes.answers.index(EarlyState(n).name) for n in numbers]
    accuracy = 100 * (1 - outcomes.payoff()[:, columns])  # [u_1..u_T and the final one, z_1..z_T]
    adjoint_names = tuple(f"u{n}" for n in range(1, len(accuracy) + 1))
    state_names = tuple(f"z{n}" for n in numbers)
    rows = [
        Row((name,), tuple(Cell((value,)) for value in values))
        for name, values in zip(adjoint_names, accuracy.tolist(), strict=True)
    ]
    rows.append(
        Row(("residual",), tuple(states.residual_cell(EarlyState(n).name) for n in numbers))
    )
    title = "Accuracy of the state z under PGD-10 with the gradient at u, %"
    table = Table(title, ("adjoint",), state_names, tuple(rows), experiment.setting.test_images)
    heat_map = HeatMap(
        "figure-4",
        f"{subject.title}: accuracy, %",
        adjoint_names,
        state_names,
        tuple(map(tuple, accuracy.tolist())),
        "adjoint",
        "state",
    )
    return experiment.result(
        "figure-4",
        [table, states.table()],
        states=[states],
        notes=(
            "the last adjoint state belongs to the solver's best state, from which the final state "
            "is computed, and uses the loss of the final state",
        ),
        findings=alignment(accuracy),
        charts=[heat_map],
    )


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
