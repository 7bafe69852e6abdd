"""What a strategy over exits is worth: against the game's best row, against its own expected loss, and image by image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from saddlepoint.attacks.aims import Aim, Gate, mean_of_losses
from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.losses import Loss, cross_entropy, fooled
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Ball
from saddlepoint.defenses import (
    Context,
    Defense,
    Mix,
    MultiExit,
    Static,
    Strategy,
    Subset,
    Trace,
    exits_mean,
    mean_logits,
    refuse_subset,
)
from saddlepoint.defenses.gates import frequencies
from saddlepoint.evaluation.adversary import Adversary
from saddlepoint.evaluation.combinators import MaxLossPoint
from saddlepoint.evaluation.direct import Direct
from saddlepoint.evaluation.bootstrap import Estimate, mean_of
from saddlepoint.evaluation.referee import Episode, FixedPoints, Progress, play
from saddlepoint.evaluation.threat import Threat
from saddlepoint.games.exit_attacks import Craft
from saddlepoint.games.exit_game import (
    Actions,
    ExitGame,
    Offense,
    Send,
    columns_of,
    exit_game,
    game_base,
)
from saddlepoint.games.matrix import mix


class NEED(MultiExit):
    """Nash-equilibrium-enhanced defense: a subset of exits drawn per example from the equilibrium of the exit game.

    s* = argmax_s min_a (M s)_a (Xu et al., Sec. 3.4). What it scores is known without drawing: `expected`.
    """

    strategy: Mix

    def __init__(self, net: nn.Module, mixed: Mix) -> None:
        super().__init__(net, mixed)

    @classmethod
    def of(cls, net: nn.Module, game: ExitGame) -> NEED:
        """The equilibrium mix of a game that was played on images of its own."""
        return cls(net, mixed(game, game.equilibrium().defender))

    @classmethod
    def fit(
        cls, net: nn.Module, x: Tensor, y: Tensor, *, threat: Threat | Ball, **played: Any
    ) -> NEED:
        """The mix from a game played on these images (see `exit_game`); score it on others."""
        return cls.of(net, exit_game(MultiExit(net), x, y, threat=threat, **played))

    def expected(self, trace: Trace, y: Tensor) -> Tensor:
        """[N] the probability of a right answer, over the draw: sum_j s_j 1[mean logits of E_j are right]."""
        right = torch.stack(
            [~fooled(exits_mean(subset)(trace), y) for subset in self.strategy.subsets]
        ).double()  # [S, N]
        return (
            torch.tensor(self.strategy.probabilities, dtype=torch.float64, device=right.device)
            @ right
        )


def mixed(game: ExitGame, probabilities: Tensor) -> Mix:
    """The columns that are played with a probability above rounding."""
    p = mix(probabilities, len(game.subsets))
    played = p > 1e-9
    kept = p[played] / p[played].sum()
    return Mix(
        tuple(s for s, k in zip(game.subsets, played.tolist(), strict=True) if k),
        tuple(kept.tolist()),
    )


@dataclass(frozen=True)
class Exposure:
    """A strategy's accuracy under attackers that know more and more, on images that did not build the game.

    `restricted` is what the game promised: its worst row, on its own images. An attacker may do better than any row of the game.
    """

    strategy: Tensor  # [D] over the game's columns; for a dynamic strategy, how often each was used under the all-exits attack
    clean: Estimate
    restricted: float
    aimer: Estimate  # the game's best response, mean over its ties (Xu et al., Eq. 6-7)
    expected_loss: Estimate  # ascends the expected loss of the strategy, or through its gate
    per_image: Estimate  # the worst of all attacks played here, image by image
    rows: tuple[str, ...]  # of `correct`
    correct: Tensor  # [A, N] probability of a right answer, exact over the strategy's draw
    response: Tensor  # [A] how often AIMER sends each row
    own: int  # the row that ascends the strategy's own expected loss

    def __str__(self) -> str:
        lines = [
            ("clean", str(self.clean)),
            (
                "worst row, as the game promised",
                f"{100 * self.restricted:.1f} % (on the game's own images)",
            ),
            ("AIMER: the game's best response", str(self.aimer)),
            ("expected loss of the strategy", str(self.expected_loss)),
            ("worst of all, image by image", str(self.per_image)),
        ]
        return "\n".join(f"{name:<34}{figure}" for name, figure in lines)


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
    craft: Craft | None = None,
    subsets: Actions = "all",
    all_rows: bool = True,
    seed: int = 0,
    batch_size: int = 128,
    progress: Progress | None = None,
) -> Exposure:
    """Adaptive evaluation of a strategy: attack the exits it uses, as often as it uses them (Xu et al., Sec. 3.3), and more.

    Without `game`, the first half of the images builds one and the other half is scored; with it, hand in images that it has not
    seen. `strategy`: a `Static`, `Mix` or gate, a subset such as (3,), or probabilities [D] over the game's columns.
    `all_rows=False` sends only AIMER's rows and the expected-loss attack; `per_image` then covers only these.
    """
    threat = threat if isinstance(threat, Threat) else Threat(threat)
    settings: dict[str, Any] = {
        "attack": attack,
        "loss": loss,
        "aim": aim,
        "craft": craft,
        "seed": seed,
        "batch_size": batch_size,
    }
    if game is None:
        half = len(x) // 2
        if half < 1:
            raise ValueError(
                f"aimer needs images for the game and others to score, got {len(x)}. Give at least 2, or a `game`."
            )
        game = exit_game(
            defense,
            x[:half],
            y[:half],
            threat=threat,
            subsets=subsets,
            progress=progress,
            **settings,
        )
        x = x[half:]
        y = y[half:]
    base = game_base(defense)
    names = base.trace(x[:1], Context.seeded(0, 1)).names
    offense = Offense(names, attack or PGD(20, threat.space.radius / 4), loss, aim, craft)
    chosen = _strategy(strategy, game)
    known = distribution(game, base, chosen)
    response = game.best_response(known).tolist()
    sent = [
        (target, p)
        for target, p in zip(game.targets, response, strict=True)
        if target and (p > 0 or all_rows)
    ]
    rows: list[Adversary] = [
        FixedPoints(),
        *(offense.partial(target) for target, _ in sent),
        _adaptive(offense, game, chosen, known),
    ]
    scored = _Scored(base, chosen, threat, seed, batch_size, progress)
    correct = torch.stack([scored(row, x, y) for row in rows])  # [A, N]
    # A row of the game that ascended the expected loss of some mix is answered here by the row that ascends this strategy's.
    weights = [
        0.0,
        *(p for _, p in sent),
        sum(p for target, p in zip(game.targets, response, strict=True) if target is None),
    ]
    return _exposure(game, known, [row.name for row in rows], correct, weights, len(rows) - 1)


class Scored(NamedTuple):
    """Several mixes of a game's columns on the same images."""

    episodes: tuple[
        Episode, ...
    ]  # the clean images, the game's rows, and the attack on the expected loss of each mix
    exposures: Mapping[str, Exposure]


def exposures(
    game: ExitGame, strategies: Mapping[str, Tensor], offense: Offense, send: Send
) -> Scored:
    """`aimer` for several mixes [D] of columns at once: rows are played once, and every mix adds the attack on its expected loss.

    `per_image` is over all of them, since the attack on one mix may hurt another. `send` plays on images the game has not seen.
    """
    known = {name: mix(strategy, len(game.subsets)) for name, strategy in strategies.items()}
    targets = [target for target in game.targets if target]
    adaptive = [
        offense.expected(game.subsets, strategy, f"expected loss of {name}")
        for name, strategy in known.items()
    ]
    episodes = send([FixedPoints(), *(offense.partial(target) for target in targets), *adaptive])
    names = [episode.adversary for episode in episodes]
    found = {}
    right = torch.stack([episode.correct for episode in episodes]).cpu().double()  # [A, D, N]
    for own, (name, strategy) in enumerate(known.items(), start=1 + len(targets)):
        weights = [0.0] * len(names)
        for target, p in zip(game.targets, game.best_response(strategy).tolist(), strict=True):
            weights[1 + targets.index(target) if target else own] += p
        found[name] = _exposure(
            game, strategy, names, torch.einsum("d,adn->an", strategy, right), weights, own
        )
    return Scored(tuple(episodes), found)


def _exposure(
    game: ExitGame, known: Tensor, rows: list[str], correct: Tensor, weights: list[float], own: int
) -> Exposure:
    """`weights` [A] are AIMER's; the first row is clean."""
    response = torch.tensor(weights, dtype=torch.float64)
    return Exposure(
        strategy=known,
        clean=mean_of(correct[0]),
        restricted=float(game.accuracy(known).amin()),
        aimer=mean_of(response @ correct.cpu()),
        expected_loss=mean_of(correct[own]),
        per_image=mean_of(correct.amin(0)),
        rows=tuple(rows),
        correct=correct,
        response=response,
        own=own,
    )


def distribution(game: ExitGame, base: Defense, strategy: Strategy) -> Tensor:
    """[D] the strategy as probabilities over the game's columns.

    A choice that depends on the input has none; how often each exit answers under the all-exits attack stands in for them (Xu et
    al., Sec. 3.3). The game's own points of that attack are used, so it must have been a row of it.
    """
    if isinstance(strategy, Static):
        return game.one_hot(strategy.subset or (game.exits,))
    if isinstance(strategy, Mix):
        return sum(
            (
                p * game.one_hot(subset)
                for subset, p in zip(strategy.subsets, strategy.probabilities, strict=True)
            ),
            torch.zeros(len(game.subsets), dtype=torch.float64),
        )
    everything = tuple(range(1, game.exits + 1))
    if (
        not isinstance(base, MultiExit)
        or everything not in game.targets
        or not game.outcomes.episodes
    ):
        raise ValueError(
            "how often a gate uses each exit is measured under the attack on all exits of a multi-exit network: play the game with "
            "subsets='all' or 'intervals' on a MultiExit."
        )
    points = game.outcomes.episodes[game.targets.index(everything)].points
    return frequencies(
        MultiExit(base.net, strategy), points, game.subsets, Context.seeded(0, len(points))
    )


def _strategy(strategy: Strategy | Subset | Tensor, game: ExitGame) -> Strategy:
    if isinstance(strategy, Tensor):
        return mixed(game, strategy)
    if isinstance(strategy, tuple):
        refuse_subset(strategy, game.exits)
        return Static(strategy)
    return strategy


def _adaptive(offense: Offense, game: ExitGame, strategy: Strategy, known: Tensor) -> Adversary:
    """The attack on what the strategy answers: through its gate, or on its expected loss."""
    if isinstance(strategy, Static | Mix):
        return offense.expected(game.subsets, known)
    return MaxLossPoint(Direct("through the gate", offense.attack, offense.loss, Gate(strategy)))


@dataclass(frozen=True)
class _Scored:
    """How probable a right answer of the strategy is, exactly: every set that it may draw answers, weighted by its probability."""

    base: Defense
    strategy: Strategy
    threat: Threat
    seed: int
    batch_size: int
    progress: Progress | None

    def __call__(self, row: Adversary, x: Tensor, y: Tensor) -> Tensor:  # [N]
        s = self.strategy
        if isinstance(s, Mix):
            answers = columns_of(s.subsets)
            weights = list(s.probabilities)
        else:
            answers = {"strategy": self._picked}
            weights = [1.0]
        episode = play(
            self.base,
            row,
            x,
            y,
            self.threat,
            answers=answers,
            seed=self.seed,
            batch_size=self.batch_size,
            progress=self.progress,
        )
        return torch.tensor(weights, dtype=torch.float64, device=x.device) @ episode.correct.to(
            x.device
        )

    def _picked(self, trace: Trace) -> Tensor:
        logits = trace.logits
        return mean_logits(logits, self.strategy.pick(logits, Context.seeded(0, logits.shape[1])))
