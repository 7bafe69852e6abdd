"""Which early state to answer with."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Ball
from saddlepoint.defenses import view
from saddlepoint.evaluation import Direct, MaxLossPoint, evaluate
from saddlepoint.zoo.deq.model import DEQ, EarlyState, FinalState


class Choice(NamedTuple):
    """The state with the highest accuracy against a ready-made attack, and the accuracy of every state."""

    state: EarlyState
    accuracy: tuple[float, ...]  # of z_1, ..., z_T


def early_state(
    defense: DEQ, x: Tensor, y: Tensor, space: Ball, *, steps: int = 10, seed: int = 0
) -> Choice:
    """The n for which z_n withstands the ready-made attack best on x, y; the smallest of several.

    The attack is PGD on the final state's cross-entropy, which never looks at the states on the way: that they withstand it says
    little about attacks that do (Yang et al. 2022, Sec. 5.2). x and y are data of their own, a split of the training set: chosen
    on the test set, the state is tuned on what it is judged by.
    """
    ready_made = MaxLossPoint(
        Direct("ready-made", PGD(steps), loss=cross_entropy, keep=frozenset({FinalState.name}))
    )
    numbers = range(1, defense.method.steps + 1)
    answers = {EarlyState(n).name: view(EarlyState(n).name) for n in numbers}
    accuracy = evaluate(
        defense, [ready_made], x, y, threat=space, answers=answers, seed=seed
    ).accuracy()[0]  # [T]
    return Choice(EarlyState(1 + int(accuracy.argmax())), tuple(accuracy.tolist()))
