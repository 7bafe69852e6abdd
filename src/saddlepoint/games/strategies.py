"""Strategies of the defender: mixed strategies over the columns of a game, and gates."""

from __future__ import annotations

import torch
from torch import Tensor

from saddlepoint.defenses import (
    Context,
    Defense,
    Mix,
    MultiExit,
    Static,
    Strategy,
    Subset,
    check_subset,
)
from saddlepoint.defenses.gates import frequencies
from saddlepoint.games.exit_views import with_strategy
from saddlepoint.games.matrix import as_distribution
from saddlepoint.games.payoffs import ExitGame

_POSITIVE = 1e-9  # a smaller probability is a rounding error


def as_mix(game: ExitGame, probabilities: Tensor) -> Mix:
    """The mixed strategy with these probabilities, [D], without columns of probability zero."""
    p = as_distribution(probabilities, len(game.subsets))
    positive = p > _POSITIVE
    kept = p[positive] / p[positive].sum()
    subsets = zip(game.subsets, positive.tolist(), strict=True)
    return Mix(tuple(subset for subset, keep in subsets if keep), tuple(kept.tolist()))


def as_strategy(strategy: Strategy | Subset | Tensor, game: ExitGame) -> Strategy:
    """A strategy given as such, as a subset of exits, or as probabilities, [D]."""
    if isinstance(strategy, Tensor):
        return as_mix(game, strategy)
    if isinstance(strategy, tuple):
        check_subset(strategy, game.exits)
        return Static(strategy)
    return strategy


def distribution(game: ExitGame, base: Defense, strategy: Strategy) -> Tensor:
    """The strategy as probabilities over the columns of a game.

    The choice of a gate depends on the input, so it has no such probabilities. They are replaced by
    the frequencies of the exits under the attack on all exits (Xu et al., Sec. 3.3), on the points
    of this attack in the game.

    Args:
        game: the game.
        base: the defense without its strategy.
        strategy: a fixed subset, a mixed strategy, or a gate.

    Returns:
        [D] probabilities.

    Raises:
        ValueError: the strategy is a gate, and the game has no attack on all exits of a MultiExit.
    """
    if isinstance(strategy, Static):
        return game.one_hot(strategy.subset or (game.exits,))
    if isinstance(strategy, Mix):
        total = torch.zeros(len(game.subsets), dtype=torch.float64)
        for subset, p in zip(strategy.subsets, strategy.probabilities, strict=True):
            total = total + p * game.one_hot(subset)
        return total
    everything = tuple(range(1, game.exits + 1))
    episodes = game.outcomes.episodes
    if not isinstance(base, MultiExit) or everything not in game.targets or not episodes:
        raise ValueError(
            "the frequency of each exit of a gate is measured under the attack on all exits of a "
            "multi-exit network: play the game with subsets='all' or 'intervals' on a MultiExit."
        )
    points = episodes[game.targets.index(everything)].points
    gated = with_strategy(base, strategy)
    return frequencies(gated, points, game.subsets, Context.seeded(0, len(points)))
