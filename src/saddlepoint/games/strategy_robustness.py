"""The robust accuracy of defender strategies under attackers that know more and more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from saddlepoint.evaluation.bootstrap import Estimate, mean_of
from saddlepoint.evaluation.episode import Episode
from saddlepoint.evaluation.referee import FixedPoints, RunAdversaries
from saddlepoint.games.exit_attacks import AttackSettings
from saddlepoint.games.matrix import as_distribution
from saddlepoint.games.payoffs import ExitGame
from saddlepoint.phrases import percent


@dataclass(frozen=True)
class StrategyRobustness:
    """The accuracy of one strategy under several attackers, on images that did not build the game.

    `restricted` is the lowest accuracy in the game, on the game's own images. An attacker may be
    stronger than every row of the game.
    """

    # [D] probabilities of the columns; for a gate, the frequencies under the attack on all exits
    strategy: Tensor
    clean: Estimate
    restricted: float
    aimer: Estimate  # under the best response of the game, mean over ties (Xu et al., Eq. 6-7)
    expected_loss: Estimate  # under the attack on its expected loss, or through its gate
    per_image: Estimate  # under the strongest of all attacks here, chosen per image
    rows: tuple[str, ...]  # [A] names of the attacks; the first is clean
    correct: Tensor  # [A, N] probability of a correct output, exact over the draws of the strategy
    response: Tensor  # [A] the best response: probability of each attack
    own_row: int  # the attack on the strategy's own expected loss

    @classmethod
    def of(
        cls,
        game: ExitGame,
        strategy: Tensor,
        rows: Sequence[str],
        correct: Tensor,
        response: Sequence[float],
        own_row: int,
    ) -> StrategyRobustness:
        """Summarize the outcomes [A, N] of the attacks; the first row is clean."""
        weights = torch.tensor(response, dtype=torch.float64)
        return cls(
            strategy=strategy,
            clean=mean_of(correct[0]),
            restricted=float(game.accuracy(strategy).amin()),
            aimer=mean_of(weights @ correct.cpu()),
            expected_loss=mean_of(correct[own_row]),
            per_image=mean_of(correct.amin(0)),
            rows=tuple(rows),
            correct=correct,
            response=weights,
            own_row=own_row,
        )

    def __str__(self) -> str:
        lines = [
            ("clean", str(self.clean)),
            ("worst row of the game", f"{percent(self.restricted)} (on the game's own images)"),
            ("AIMER, the game's best response", str(self.aimer)),
            ("attack on the expected loss", str(self.expected_loss)),
            ("strongest attack per image", str(self.per_image)),
        ]
        return "\n".join(f"{name:<34}{number}" for name, number in lines)


class StrategyEvaluations(NamedTuple):
    """Several mixed strategies on the same images."""

    # The clean images, the rows of the game, and the attack on the expected loss of each strategy
    episodes: tuple[Episode, ...]
    robustness: Mapping[str, StrategyRobustness]  # by name of the strategy


def evaluate_strategies(
    game: ExitGame,
    strategies: Mapping[str, Tensor],
    settings: AttackSettings,
    run_adversaries: RunAdversaries,
) -> StrategyEvaluations:
    """`aimer` for several mixed strategies at once.

    The rows of the game are played once, and each strategy adds the attack on its expected loss.
    `per_image` covers all of them, since the attack on one strategy may be strong against another.

    Args:
        game: the game.
        strategies: probabilities of the columns, [D], by name.
        settings: how subsets are attacked.
        run_adversaries: plays adversaries against all columns, on images that did not build the
            game.
    """
    count = len(game.subsets)
    known = {name: as_distribution(strategy, count) for name, strategy in strategies.items()}
    targets = [target for target in game.targets if target]
    adaptive = [
        settings.on_expected_loss(game.subsets, strategy, f"expected loss of {name}")
        for name, strategy in known.items()
    ]
    attacks = [settings.on_subset(target) for target in targets]
    episodes = run_adversaries([FixedPoints(), *attacks, *adaptive])
    names = [episode.adversary for episode in episodes]
    robustness = {}
    for own_row, (name, strategy) in enumerate(known.items(), start=1 + len(targets)):
        response = [0.0] * len(names)
        for target, p in zip(game.targets, game.best_response(strategy).tolist(), strict=True):
            response[1 + targets.index(target) if target else own_row] += p
        # One attack at a time: [D, N] in double precision, not [A, D, N].
        correct = torch.stack([strategy @ one.correct.cpu().double() for one in episodes])  # [A, N]
        robustness[name] = StrategyRobustness.of(game, strategy, names, correct, response, own_row)
    return StrategyEvaluations(tuple(episodes), robustness)
