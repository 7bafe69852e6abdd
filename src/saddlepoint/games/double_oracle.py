"""The double oracle: solves an exit game with attacks on few subsets of exits.

Partial attacks come first, so that the value against them is that of the full game up to rows that
were not played. Attacks on an expected loss follow; they are not in the full game.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from saddlepoint.defenses import Subset
from saddlepoint.evaluation.episode import Episode
from saddlepoint.evaluation.referee import FixedPoints, RunAdversaries
from saddlepoint.games.exit_attacks import AttackSettings
from saddlepoint.games.payoffs import ExitGame, jaccard_distances

_NOISE = 0.1  # variance of a row's accuracy, in units of the variance between rows


def double_oracle(
    settings: AttackSettings,
    columns: tuple[Subset, ...],
    run_adversaries: RunAdversaries,
    tolerance: float,
) -> ExitGame:
    """Grow an exit game until new rows are not expected to lower its value.

    The exact best response would cost one attack per subset, so it is guessed. The first row
    attacks all exits. Each round adds the subset with the lowest `Forecast`. This ends when the
    lowest forecast, one standard deviation included, lowers the accuracy of the equilibrium
    strategy by less than the tolerance, but not before there are L rows for L exits, from which the
    standard deviation is estimated. Then each round attacks the expected loss of the equilibrium
    strategy of all rows, until this lowers its accuracy by less than the tolerance; at most L
    times.

    Args:
        settings: how rows are attacked.
        columns: the subsets of exits that may be attacked or answer.
        run_adversaries: plays adversaries on the examples of the game.
        tolerance: a row that lowers the accuracy by less than this is not needed.

    Returns:
        The game. `ExitGame.partial_value` is its value against partial attacks alone.
    """
    exits = len(settings.views)
    everything = tuple(range(1, exits + 1))
    clean, first = run_adversaries([FixedPoints(), settings.on_subset(everything)])
    growing = _GrowingGame(columns, exits, clean, (everything,), (first,))
    growing, missed = _add_partial_attacks(growing, settings, run_adversaries, tolerance)
    growing, gain = _add_expected_losses(growing, settings, run_adversaries, tolerance)
    return replace(growing.game, exploitability=max(missed, gain))


class Forecast(NamedTuple):
    """The expected accuracy of a strategy under the attack on a subset that was not attacked yet.

    `low` is one standard deviation below the mean.
    """

    subset: Subset
    low: float


def lowest_forecast(game: ExitGame, defender: Tensor) -> Forecast | None:
    """The subset that was not attacked yet with the lowest confidence bound mu(E) - sigma(E).

    v_i = (M s)_i is the accuracy of strategy s under attack i, with M the accuracy matrix. Attacks
    on similar subsets have similar effects, so v is modeled as a Gaussian process over the attacked
    subsets. The covariance k of two subsets A and B is their Jaccard similarity
    |A n B| / |A u B|, which is positive definite. With K the covariance of the played rows, noise
    included, m the mean of v and `spread` its standard deviation,
    mu(E) = m + k_E^T K^-1 (v - m),  sigma^2(E) = spread^2 (1 - k_E^T K^-1 k_E).
    The lower bound weighs a low expected accuracy against uncertainty (Srinivas et al. 2010).

    Args:
        game: the game so far.
        defender: the defender's mixed strategy s, [D].

    Returns:
        A subset of exits and its bound; None if all were attacked.
    """
    tried = [target for target in game.targets if target is not None]
    untried = [subset for subset in game.subsets if subset not in tried]
    if not untried:
        return None
    rows = [a for a, target in enumerate(game.targets) if target is not None]
    v = game.accuracy(defender)[rows].cpu()
    noise = _NOISE * torch.eye(len(tried), dtype=torch.float64)
    inner = 1 - jaccard_distances(tried, tried, game.exits) + noise  # K
    outer = 1 - jaccard_distances(untried, tried, game.exits)  # k_E, [U, T]
    weights = torch.linalg.solve(inner, outer.T).T  # k_E^T K^-1
    mean = v.mean() + weights @ (v - v.mean())
    one_image = 1 / game.correct.shape[-1]  # the spread if rows do not differ
    spread = max(float(v.std()) if len(v) > 1 else 0.0, one_image)
    deviation = spread * (1 - (weights * outer).sum(1)).clamp(min=0).sqrt()
    bound = mean - deviation
    return Forecast(untried[int(bound.argmin())], float(bound.amin()))


@dataclass(frozen=True)
class _GrowingGame:
    """The rows that were played so far."""

    columns: tuple[Subset, ...]
    exits: int
    clean: Episode
    targets: tuple[Subset | None, ...]  # None: the row attacks an expected loss
    episodes: tuple[Episode, ...]

    @property
    def game(self) -> ExitGame:
        return ExitGame.of(self.columns, self.targets, self.episodes, self.exits, self.clean)

    def plus(self, target: Subset | None, episodes: Sequence[Episode]) -> _GrowingGame:
        targets = (*self.targets, target)
        return replace(self, targets=targets, episodes=(*self.episodes, *episodes))


def _add_partial_attacks(
    growing: _GrowingGame,
    settings: AttackSettings,
    run_adversaries: RunAdversaries,
    tolerance: float,
) -> tuple[_GrowingGame, float]:
    """Add partial attacks; also return by how much another one may lower the accuracy."""
    while True:
        game = growing.game
        equilibrium = game.equilibrium()
        forecast = lowest_forecast(game, equilibrium.defender)
        if forecast is None:
            return growing, 0.0
        gain = max(0.0, equilibrium.value - forecast.low)
        if gain < tolerance and len(growing.targets) >= growing.exits:
            return growing, gain
        added = run_adversaries([settings.on_subset(forecast.subset)])
        growing = growing.plus(forecast.subset, added)


def _add_expected_losses(
    growing: _GrowingGame,
    settings: AttackSettings,
    run_adversaries: RunAdversaries,
    tolerance: float,
) -> tuple[_GrowingGame, float]:
    """Add attacks on the expected loss; also return by how much the last lowers the accuracy."""
    gain = 0.0
    for number in range(1, growing.exits + 1):
        equilibrium = growing.game.equilibrium()
        defender = equilibrium.defender
        name = f"expected loss {number}"
        added = run_adversaries([settings.on_expected_loss(growing.columns, defender, name)])
        accuracy = added[0].correct.double().mean(-1)
        gain = max(0.0, equilibrium.value - float(accuracy @ defender.to(accuracy)))
        growing = growing.plus(None, added)
        if gain < tolerance:
            break
    return growing, gain
