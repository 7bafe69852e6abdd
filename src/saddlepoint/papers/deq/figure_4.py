"""Figure 4: every adjoint state against every state, one matrix game."""

from __future__ import annotations

import torch
from torch import Tensor

from saddlepoint.evaluation import Outcomes
from saddlepoint.papers.deq import EXPERIMENTS
from saddlepoint.papers.deq.experiment import Lab
from saddlepoint.papers.deq.gradients import adjoint_at, adjoint_final
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Heat, Result, Row, Table
from saddlepoint.zoo.deq import EarlyState


def run(request: Request) -> Result:
    lab = Lab.open(request)
    subject = lab.subject("unrolled")
    states = lab.states(subject)
    numbers = range(1, subject.steps + 1)
    gradients = [*(adjoint_at(n) for n in numbers), adjoint_final()]
    episodes = lab.play(subject, [one.pgd(lab.setting.pgd) for one in gradients], subject.test)
    outcomes = Outcomes.of(episodes, subject.defense.names, "example")
    columns = [outcomes.answers.index(EarlyState(n).name) for n in numbers]
    left = 100 * (1 - outcomes.payoff()[:, columns])  # [u_1..u_T and the final one, z_1..z_T]
    down = tuple(f"u{n}" for n in range(1, len(left) + 1))
    across = tuple(f"z{n}" for n in numbers)
    rows = [
        Row((name,), tuple(Cell((value,)) for value in line))
        for name, line in zip(down, left.tolist(), strict=True)
    ]
    rows.append(Row(("residual",), tuple(states.far(EarlyState(n).name) for n in numbers)))
    table = Table(
        "Accuracy of the state z under PGD-10 with the gradient at u, %",
        ("adjoint",),
        across,
        tuple(rows),
        lab.setting.scored,
    )
    heat = Heat(
        "figure-4",
        f"{subject.title}: accuracy, %",
        down,
        across,
        tuple(map(tuple, left.tolist())),
        "adjoint",
        "state",
    )
    notes = (
        "the last adjoint state belongs to the solver's best state, from which the final one is made, and to its loss",
    )
    return lab.result(
        EXPERIMENTS[8],
        [table, states.table()],
        states=[states],
        notes=notes,
        findings=aligned(left),
        charts=[heat],
    )


def aligned(left: Tensor) -> list[str]:
    """[T + 1, T]: for how many states is the adjoint state one further on the strongest, as Eq. 10 suggests?"""
    count = left.shape[1]
    lowest = left.amin(0)
    at = torch.arange(count)
    next_one, same = (left[at + shift, at] <= lowest for shift in (1, 0))
    gap = (left[at + 1, at] - lowest).amax()
    return [
        f"u_(n+1) leaves least of z_n, alone or with others, for {int(next_one.sum())} of {count} states, u_n for "
        f"{int(same.sum())}; the paper finds u_(n+1) for all. Where it is not the strongest it is {float(gap):.1f} points off "
        "at most."
    ]
