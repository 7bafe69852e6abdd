"""Choose the early solver state that a deep equilibrium model answers with."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Ball
from saddlepoint.defenses import view
from saddlepoint.evaluation import Direct, MaxLossPoint, evaluate
from saddlepoint.zoo.deq.model import DEQ, EarlyState, FinalState


class EarlyStateChoice(NamedTuple):
    """The early state with the highest robust accuracy, and the robust accuracy of every state."""

    state: EarlyState
    accuracy: tuple[float, ...]  # of z_1, ..., z_T


def early_state(
    defense: DEQ, x: Tensor, y: Tensor, space: Ball, *, steps: int = 10, seed: int = 0
) -> EarlyStateChoice:
    """Choose the n for which z_n has the highest accuracy against a ready-made attack.

    The attack is PGD on the cross-entropy of the final state. It does not use the intermediate
    states, so a high accuracy says little about attacks that do (Yang et al. 2022, Sec. 5.2).

    Args:
        defense: The model; its `state` is not used.
        x: Images [N, ...] inside the box of `space`. Take them from the training set: a state that
            is chosen on the test set is tuned on the data that evaluates it.
        y: Labels [N].
        space: The perturbation set.
        steps: Steps of PGD, 10 by default.
        seed: Decides the randomness of the attack.

    Returns:
        The state, with the smallest n if several are equally accurate, and the accuracy of each of
        z_1, ..., z_T.

    Raises:
        ValueError: `x` is empty or outside the box of `space`, or there is not one label per image.
    """
    ready_made = MaxLossPoint(
        Direct("ready-made", PGD(steps), loss=cross_entropy, keep=frozenset({FinalState.name}))
    )
    numbers = range(1, defense.method.steps + 1)
    answers = {EarlyState(n).name: view(EarlyState(n).name) for n in numbers}
    accuracy = evaluate(
        defense, [ready_made], x, y, threat=space, answers=answers, seed=seed
    ).accuracy()[0]  # [T]
    return EarlyStateChoice(EarlyState(1 + int(accuracy.argmax())), tuple(accuracy.tolist()))
