"""AIMER: the adaptive evaluation of one defender strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from saddlepoint.attacks.aims import Aim, Gate, mean_of_losses
from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.losses import Loss, cross_entropy
from saddlepoint.attacks.spaces import Ball
from saddlepoint.defenses import (
    Answer,
    Context,
    Defense,
    Mix,
    Static,
    Strategy,
    Subset,
    Trace,
    mean_logits,
)
from saddlepoint.evaluation.adversary import Adversary
from saddlepoint.evaluation.combinators import MaxLossPoint
from saddlepoint.evaluation.direct import Direct
from saddlepoint.evaluation.referee import FixedPoints, Progress
from saddlepoint.evaluation.threat import Threat
from saddlepoint.games.exit_attacks import AttackSettings, ExitAttack
from saddlepoint.games.exit_game import (
    Actions,
    actions,
    attack_settings,
    columns_of,
    full_game,
    game_base,
)
from saddlepoint.games.payoffs import ExitGame
from saddlepoint.games.players import DirectPlayer
from saddlepoint.games.strategies import as_strategy, distribution
from saddlepoint.games.strategy_robustness import StrategyRobustness


def aimer(
    defense: Defense | nn.Module,
    strategy: Strategy | Subset | Tensor,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat | Ball,
    game: ExitGame | None = None,
    attack: Attack[Any] | None = None,
    loss: Loss = cross_entropy,
    aim: Aim = mean_of_losses,
    exit_attack: ExitAttack | None = None,
    subsets: Actions = "all",
    all_rows: bool = True,
    seed: int = 0,
    batch_size: int = 128,
    progress: Progress | None = None,
) -> StrategyRobustness:
    """Evaluate a strategy under attacks that are adapted to it (Xu et al., Sec. 3.3).

    Besides AIMER, which attacks the exits of the game's best response, the expected loss of the
    strategy is attacked directly, and the strongest attack is chosen per image. Arguments that are
    not listed are those of `exit_game`.

    Args:
        defense: a deterministic multi-exit network, or a defense with several views.
        strategy: a `Static`, `Mix` or gate, a subset such as (3,), or probabilities [D] over the
            columns of the game.
        x: clean inputs, [N, ...].
        y: labels, [N].
        threat: the threat model, or only its perturbation set.
        game: a game that was played on other images; None: the first half of the images builds a
            game, and the strategy is evaluated on the other half.
        all_rows: attack with all rows of the game. If False, only with the rows of the best
            response and on the expected loss; `per_image` then covers only these.

    Raises:
        ValueError: there are too few images, or the strategy does not fit the game.
    """
    threat = threat if isinstance(threat, Threat) else Threat(threat)
    base = game_base(defense)
    settings = attack_settings(base, x, threat, attack, loss, aim, exit_attack)
    evaluation = _Evaluation(base, threat, settings, seed, batch_size, progress)
    if game is None:
        half = _half(len(x))
        game = evaluation.new_game(x[:half], y[:half], subsets)
        x = x[half:]
        y = y[half:]
    return evaluation(as_strategy(strategy, game), game, x, y, all_rows=all_rows)


def _half(images: int) -> int:
    """The number of images that build the game."""
    half = images // 2
    if half < 1:
        raise ValueError(
            "aimer needs images for the game and other images for the evaluation, "
            f"got {images}. Give at least 2, or a `game`."
        )
    return half


class _Row(NamedTuple):
    """An attack and its probability in the best response."""

    adversary: Adversary
    probability: float


def _rows(
    game: ExitGame, settings: AttackSettings, strategy: Strategy, known: Tensor, *, all_rows: bool
) -> Sequence[_Row]:
    """The clean images, the attacks on subsets, and the attack on the strategy itself."""
    response = list(zip(game.targets, game.best_response(known).tolist(), strict=True))
    rows = [_Row(FixedPoints(), 0.0)]
    for target, p in response:
        if target and (p > 0 or all_rows):
            rows.append(_Row(settings.on_subset(target), p))
    # A row of the game on the expected loss of some mixed strategy is replaced by the attack on
    # the expected loss of this one.
    own = sum(p for target, p in response if target is None)
    return [*rows, _Row(_adaptive(settings, game, strategy, known), own)]


def _adaptive(
    settings: AttackSettings, game: ExitGame, strategy: Strategy, known: Tensor
) -> Adversary:
    """The attack on the strategy itself: on its expected loss, or through its gate."""
    if isinstance(strategy, Static | Mix):
        return settings.on_expected_loss(game.subsets, known)
    gate = Gate(strategy)
    return MaxLossPoint(Direct("through the gate", settings.attack, settings.loss, gate))


@dataclass(frozen=True)
class _Evaluation:
    """The evaluation of strategies of one defense."""

    base: Defense  # without a strategy
    threat: Threat
    settings: AttackSettings
    seed: int
    batch_size: int
    progress: Progress | None

    def new_game(self, x: Tensor, y: Tensor, subsets: Actions) -> ExitGame:
        """The full game on these images."""
        columns = actions(subsets, len(self.settings.views))
        return full_game(self.settings, columns, self._player(x, y, columns_of(columns)))

    def __call__(
        self, strategy: Strategy, game: ExitGame, x: Tensor, y: Tensor, *, all_rows: bool
    ) -> StrategyRobustness:
        """The accuracy of the strategy under all attacks.

        It is exact over the draws of a mixed strategy: every subset is a column, weighted by its
        probability.
        """
        known = distribution(game, self.base, strategy)
        rows = _rows(game, self.settings, strategy, known, all_rows=all_rows)
        answers: Mapping[str, Answer] = {"strategy": _answer_with(strategy)}
        weights: Sequence[float] = [1.0]
        if isinstance(strategy, Mix):
            answers = columns_of(strategy.subsets)
            weights = strategy.probabilities
        episodes = self._player(x, y, answers)([row.adversary for row in rows])
        probabilities = torch.tensor(weights, dtype=torch.float64, device=x.device)
        correct = [probabilities @ episode.correct.to(x.device) for episode in episodes]
        names = [episode.adversary for episode in episodes]
        response = [row.probability for row in rows]
        return StrategyRobustness.of(
            game, known, names, torch.stack(correct), response, len(rows) - 1
        )

    def _player(self, x: Tensor, y: Tensor, answers: Mapping[str, Answer]) -> DirectPlayer:
        return DirectPlayer(
            self.base, x, y, self.threat, answers, self.seed, self.batch_size, self.progress
        )


def _answer_with(strategy: Strategy) -> Answer:
    """The answer with the exits that a deterministic strategy selects."""

    def answer(trace: Trace) -> Tensor:
        logits = trace.logits
        return mean_logits(logits, strategy.pick(logits, Context.seeded(0, logits.shape[1])))

    return answer
