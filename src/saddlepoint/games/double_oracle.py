"""The double oracle: solves an exit game with attacks on few subsets of exits.

It attacks only subsets that are likely to lower the value of the game.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from saddlepoint.defenses import Subset
from saddlepoint.evaluation.adversary import Adversary
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
    """Grow an exit game until new rows no longer lower its value.

    The first row attacks all exits. Each round adds the most promising subset that was not
    attacked yet, and the attack on the expected loss of the current equilibrium strategy if that
    strategy is new. The exact best response would cost one attack per subset. The guess may miss
    it, so the game counts as solved only after L - 1 rounds in a row, for L exits, that lowered
    the accuracy of the current strategy by less than the tolerance, or when no row is left.

    Args:
        settings: how rows are attacked.
        columns: the subsets of exits that may be attacked or answer.
        run_adversaries: plays adversaries on the examples of the game.
        tolerance: a round that lowers the accuracy by less than this counts as no progress.
    """
    exits = len(settings.views)
    everything = tuple(range(1, exits + 1))
    # The subset that each row attacks; None: the row attacks an expected loss.
    targets: list[Subset | None] = [everything]
    clean, *episodes = run_adversaries([FixedPoints(), settings.on_subset(everything)])
    progress = _Progress()
    previous = torch.zeros(len(columns), dtype=torch.float64)
    while progress.quiet_rounds < max(exits - 1, 1):
        game = ExitGame.of(columns, targets, episodes, exits, clean)
        equilibrium = game.equilibrium()
        defender = equilibrium.defender
        candidate = next_target(game, defender)
        new: list[Subset | None] = [] if candidate is None else [candidate]
        if _differ(defender, previous):
            new.append(None)
        if not new:
            break
        name = f"expected loss {targets.count(None) + 1}"
        adversaries = [_adversary(settings, columns, target, defender, name) for target in new]
        added = run_adversaries(adversaries)
        gain = max(0.0, equilibrium.value - _lowest_accuracy(added, defender))
        progress = progress.after(gain, tolerance)
        targets = [*targets, *new]
        episodes = [*episodes, *added]
        previous = defender
    game = ExitGame.of(columns, targets, episodes, exits, clean)
    return replace(game, exploitability=progress.exploitability)


def next_target(game: ExitGame, defender: Tensor) -> Subset | None:
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
        A subset of exits; None if all were attacked.
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
    return untried[int((mean - deviation).argmin())]


@dataclass(frozen=True)
class _Progress:
    """The rounds in a row without a gain, and the largest gain within them."""

    quiet_rounds: int = 0
    exploitability: float = 0.0

    def after(self, gain: float, tolerance: float) -> _Progress:
        """The progress after a round that lowered the accuracy by `gain`."""
        if gain >= tolerance:
            return _Progress(0, gain)
        largest = max(self.exploitability, gain) if self.quiet_rounds else gain
        return _Progress(self.quiet_rounds + 1, largest)


def _adversary(
    settings: AttackSettings,
    columns: tuple[Subset, ...],
    target: Subset | None,
    defender: Tensor,
    name: str,
) -> Adversary:
    if target is None:
        return settings.on_expected_loss(columns, defender, name)
    return settings.on_subset(target)


def _lowest_accuracy(episodes: list[Episode], defender: Tensor) -> float:
    accuracy = torch.stack([episode.correct.mean(-1) for episode in episodes])
    return float((accuracy @ defender.to(accuracy)).amin())


def _differ(strategy: Tensor, other: Tensor) -> bool:
    return float((strategy - other).abs().amax()) > 1e-9
