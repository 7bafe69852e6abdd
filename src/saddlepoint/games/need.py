"""The defense NEED: draw exits from the equilibrium of the exit game."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from saddlepoint.attacks.losses import merge_rejection, misclassified
from saddlepoint.attacks.spaces import Ball
from saddlepoint.defenses import Mix, MultiExit, Trace, exits_mean
from saddlepoint.evaluation.threat import Threat
from saddlepoint.games.exit_game import exit_game
from saddlepoint.games.payoffs import ExitGame
from saddlepoint.games.strategies import as_mix


class NEED(MultiExit):
    """Nash equilibrium enhanced defense: draws a subset of exits per example.

    The probabilities are the defender's equilibrium strategy of the exit game,
    s* = argmax_s min_a (M s)_a (Xu et al., Sec. 3.4). `expected` gives its accuracy without draws.

    Args:
        net: a network that returns a list of logits, one per exit.
        mix: the subsets of exits and their probabilities.
        rejects: the last column of the logits is "reject".
    """

    strategy: Mix

    def __init__(self, net: nn.Module, mix: Mix, *, rejects: bool = False) -> None:
        super().__init__(net, mix)
        self.rejects = rejects

    @classmethod
    def of(cls, net: nn.Module, game: ExitGame, *, rejects: bool = False) -> NEED:
        """The equilibrium strategy of a game that was played on other images."""
        return cls(net, as_mix(game, game.equilibrium().defender), rejects=rejects)

    @classmethod
    def fit(
        cls,
        net: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        threat: Threat | Ball,
        rejects: bool = False,
        **options: Any,
    ) -> NEED:
        """Play an exit game on these images and use its equilibrium; evaluate it on other images.

        Args:
            net: a network that returns a list of logits, one per exit.
            x: clean inputs, [N, ...].
            y: labels, [N].
            threat: the threat model, or only its perturbation set.
            rejects: the last column of the logits is "reject".
            options: further arguments of `exit_game`.
        """
        defense = MultiExit(net)
        defense.rejects = rejects
        game = exit_game(defense, x, y, threat=threat, **options)
        return cls.of(net, game, rejects=rejects)

    def expected(self, trace: Trace, y: Tensor) -> Tensor:
        """The probability of a correct output over the draw of exits, [N].

        sum_j s_j 1[mean logits of E_j are correct]; a rejection is correct.

        Args:
            trace: the exits of N examples.
            y: labels, [N].
        """
        correct = []
        for subset in self.strategy.subsets:
            logits = merge_rejection(exits_mean(subset)(trace), y, self.rejects)
            correct.append(~misclassified(logits, y))
        outcomes = torch.stack(correct).double()  # [S, N]
        s = torch.tensor(self.strategy.probabilities, dtype=torch.float64, device=outcomes.device)
        return s @ outcomes
