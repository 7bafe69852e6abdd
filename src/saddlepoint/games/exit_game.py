"""The game on exits: the attacker aims at some views, the defender answers with some, neither knows the other's draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from saddlepoint.attacks.aims import Aim, mean_of_losses, mixture
from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.losses import Loss, cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Ball
from saddlepoint.defenses import (
    Answer,
    Context,
    Defense,
    MultiExit,
    Numbered,
    Subset,
    all_subsets,
    exits_mean,
    intervals,
    membership,
    refuse_subset,
    subset_name,
)
from saddlepoint.evaluation.adversary import Adversary
from saddlepoint.evaluation.combinators import MaxLossPoint
from saddlepoint.evaluation.direct import Direct
from saddlepoint.evaluation.bootstrap import Estimate, bootstrap
from saddlepoint.evaluation.outcomes import Outcomes
from saddlepoint.evaluation.referee import Episode, Progress, play
from saddlepoint.evaluation.threat import Threat
from saddlepoint.games.exit_attacks import Craft
from saddlepoint.games.matrix import (
    Equilibrium,
    PerExample,
    best_response,
    mix,
    solve,
    solve_per_example,
)

Actions = Literal["all", "intervals"] | Sequence[Subset]
Send = Callable[
    [Sequence[Adversary]], list[Episode]
]  # plays adversaries against all columns, here or elsewhere

_NOISE = 0.1  # of a row's accuracy, in units of the rows' spread squared


@dataclass(frozen=True)
class Offense:
    """How a set of exits is attacked: one optimizer, one loss, and how the losses of several exits are put together."""

    views: tuple[str, ...]  # of the defense, in order: exit 1, 2, ...
    attack: Attack[Any]
    loss: Loss = cross_entropy
    aim: Aim = mean_of_losses
    craft: Craft | None = None  # makes the rows instead, such as `ATTACKS["autoattack"]`

    def partial(self, subset: Subset) -> Adversary:
        """max mean_{i in E} loss(f_i(x'), y), the max-value point, since it will be scored on other exits (Xu et al., Eq. 4)."""
        refuse_subset(subset, len(self.views))
        if self.craft is not None:
            return self.craft(subset)
        keep = frozenset(self.views[number - 1] for number in subset)
        return MaxLossPoint(
            Direct(subset_name(subset), self.attack, self.loss, self.aim, keep=keep)
        )

    def expected(
        self, subsets: Sequence[Subset], probabilities: Tensor, name: str = "expected loss"
    ) -> MaxLossPoint:
        """max sum_j s_j loss(mean logits of E_j): what a known mix really answers, in expectation, with no draw left to chance."""
        aim = mixture(membership(subsets, len(self.views)), mix(probabilities, len(subsets)))
        return MaxLossPoint(Direct(name, self.attack, self.loss, aim))


@dataclass(frozen=True)
class ExitGame:
    """Who is right how often when the attacker aims at one set of exits and the defender answers with another.

    Rows are attacks, columns subsets; `payoff` is the defender's accuracy M^d (Xu et al., Eq. 5). The value is that of a restricted
    game: the attacker has these rows, and sends one of them to all examples. `per_example` lets it choose for each.
    """

    subsets: tuple[Subset, ...]  # [D] columns
    targets: tuple[
        Subset | None, ...
    ]  # [A] what each row aimed at; None: at the expected loss of a mix
    outcomes: Outcomes
    exits: int
    exploitability: float | None = (
        None  # of the mix when the double oracle stopped; None: all rows were played
    )

    @property
    def payoff(self) -> Tensor:  # [A, D]
        return self.outcomes.accuracy()

    @property
    def correct(self) -> Tensor:  # [A, D, N]
        return self.outcomes.correct

    def accuracy(self, strategy: Tensor) -> Tensor:
        """[A] expected accuracy of a mix of columns against each row, exactly: no draw is simulated."""
        return self.payoff @ mix(strategy, len(self.subsets)).to(self.payoff.device)

    def best_response(self, strategy: Tensor) -> Tensor:
        """[A] AIMER: uniform over the rows that hurt this mix of columns most (Xu et al., Eq. 6)."""
        return best_response(self.payoff, strategy)

    def equilibrium(self) -> Equilibrium:
        """NEED: the mix of columns that is most accurate against its best response (Xu et al., Sec. 3.4)."""
        return solve(self.payoff)

    def per_example(self) -> PerExample:
        """The mix of columns that is most accurate against an attacker who picks a row for every example."""
        return solve_per_example(self.correct)

    def mismatch(self, attacker: Tensor, defender: Tensor) -> float:
        """R_mis = sum_ij s_i t_j (1 - |E_i n E_j| / |E_i u E_j|) (Xu et al., Eq. 10-11)."""
        a = mix(attacker, len(self.targets))
        d = mix(defender, len(self.subsets))
        if any(
            target is None and p > 0 for target, p in zip(self.targets, a.tolist(), strict=True)
        ):
            raise ValueError(
                "a row that aims at an expected loss has no set of exits, so its mismatch is not defined."
            )
        rows = [target or self.subsets[0] for target in self.targets]
        return float(a @ mismatch_rates(rows, self.subsets, self.exits) @ d)

    def one_hot(self, subset: Subset) -> Tensor:
        """[D] the strategy that always answers with this subset."""
        if subset not in self.subsets:
            raise ValueError(
                f"{subset} is no column of this game, which has {', '.join(map(subset_name, self.subsets))}."
            )
        return torch.nn.functional.one_hot(
            torch.tensor(self.subsets.index(subset)), len(self.subsets)
        ).double()

    def beaten_matches(self) -> int:
        """Columns in which some other row beats the row that aims at exactly these exits, against Assumption 3.5."""
        beaten = 0
        for d, subset in enumerate(self.subsets):
            if subset in self.targets:
                column = self.payoff[:, d]
                beaten += bool(column.amin() < column[self.targets.index(subset)])
        return beaten

    def interval(
        self, statistic: Callable[[ExitGame], float], *, draws: int = 200, seed: int = 0
    ) -> Estimate:
        """Any number of the game with its bootstrap interval: `game.interval(lambda g: g.equilibrium().value)`."""
        return bootstrap(
            lambda rows: statistic(self.on(rows)), self.correct.shape[-1], draws=draws, seed=seed
        )

    def on(self, examples: Tensor) -> ExitGame:
        """The same game on some of its examples."""
        o = self.outcomes
        parts = Outcomes(
            o.adversaries,
            o.answers,
            o.correct[..., examples],
            o.chosen[..., examples],
            o.batch[examples],
            o.unit,
        )
        return replace(self, outcomes=parts)


def mismatch_rates(rows: Sequence[Subset], columns: Sequence[Subset], exits: int) -> Tensor:
    """[A, D] 1 - |E_a n E_d| / |E_a u E_d| (Xu et al., Eq. 10)."""
    a = membership(rows, exits).double()
    d = membership(columns, exits).double()
    common = a @ d.T
    return 1 - common / (a.sum(1)[:, None] + d.sum(1)[None] - common)


def exit_game(
    defense: Defense | nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat | Ball,
    attack: Attack[Any] | None = None,
    loss: Loss = cross_entropy,
    aim: Aim = mean_of_losses,
    craft: Craft | None = None,
    subsets: Actions = "all",
    rows: Literal["all", "double-oracle"] = "all",
    tolerance: float = 0.003,
    seed: int = 0,
    batch_size: int = 128,
    progress: Progress | None = None,
    send: Send | None = None,
) -> ExitGame:
    """Every set of exits attacked, every set answering: one attack per row, one forward pass of its points for all columns.

    Without `attack` it is PGD-20 with steps of a quarter of the radius; `craft` makes other rows, such as
    `game.partial.ATTACKS["autoattack"]`. `rows="double-oracle"` attacks only the sets that matter:
    it starts with all exits and adds rows against the current equilibrium until several in succession lower it by less than
    `tolerance`.
    """
    threat = threat if isinstance(threat, Threat) else Threat(threat)
    base = game_base(defense)
    names = base.trace(x[:1], Context.seeded(0, 1)).names
    columns = actions(subsets, len(names))
    offense = Offense(names, attack or PGD(20, threat.space.radius / 4), loss, aim, craft)
    answers = columns_of(columns)

    def here(adversaries: Sequence[Adversary]) -> list[Episode]:
        return [
            play(
                base,
                a,
                x,
                y,
                threat,
                answers=answers,
                seed=seed,
                batch_size=batch_size,
                progress=progress,
            )
            for a in adversaries
        ]

    if rows == "double-oracle":
        return _double_oracle(offense, columns, send or here, tolerance)
    if rows != "all":
        raise ValueError(f"rows must be 'all' or 'double-oracle', got {rows!r}.")
    return _game(
        offense, columns, columns, (send or here)([offense.partial(subset) for subset in columns])
    )


def game_base(defense: Defense | nn.Module) -> Defense:
    """The defense without its strategy: columns, not the defense, say who answers."""
    if isinstance(defense, MultiExit):
        return MultiExit(defense.net)
    base = Numbered(defense) if isinstance(defense, Defense) else MultiExit(defense)
    if base.random or base.unit != "example":
        raise ValueError(
            "an exit game needs a deterministic defense that answers row by row: else a column is no fixed answer."
        )
    return base


def actions(subsets: Actions, exits: int) -> tuple[Subset, ...]:
    """The sets of exits that may be played."""
    if subsets == "all":
        return all_subsets(exits)
    if subsets == "intervals":
        return intervals(exits)
    if isinstance(subsets, str) or not subsets:
        raise ValueError(
            f"subsets must be 'all', 'intervals' or a list such as [(1,), (2, 3)], got {subsets!r}."
        )
    for subset in subsets:
        refuse_subset(tuple(subset), exits)
    return tuple(tuple(subset) for subset in subsets)


def columns_of(subsets: Sequence[Subset]) -> dict[str, Answer]:
    return {subset_name(subset): exits_mean(subset) for subset in subsets}


def _double_oracle(
    offense: Offense, columns: tuple[Subset, ...], send: Send, tolerance: float
) -> ExitGame:
    """Rows added one round at a time: the most promising untried set of exits, and the expected loss of a mix not met before.

    The best response itself would cost as many attacks as there are sets. A guess at it may miss, so the game counts as solved only
    when L - 1 rounds in succession, for L exits, lowered their mix by less than the tolerance, or no row is left.
    """
    everything = tuple(range(1, len(offense.views) + 1))
    targets: list[Subset | None] = [everything]
    episodes = send([offense.partial(everything)])
    quiet = 0
    exploitability = 0.0
    known = torch.zeros(len(columns), dtype=torch.float64)
    while quiet < max(len(everything) - 1, 1):
        game = _game(offense, columns, tuple(targets), episodes)
        found = game.equilibrium()
        tried: list[Subset | None] = [
            *promising(game, found.defender),
            *([None] if _differs(found.defender, known) else []),
        ]
        if not tried:
            break
        name = f"expected loss {targets.count(None) + 1}"
        added = send(
            [
                offense.partial(t) if t else offense.expected(columns, found.defender, name)
                for t in tried
            ]
        )
        against = torch.stack([episode.correct.mean(-1) for episode in added]) @ found.defender.to(
            added[0].correct
        )
        gain = max(0.0, found.value - float(against.amin()))
        quiet, exploitability = (
            (0, gain)
            if gain >= tolerance
            else (quiet + 1, max(exploitability, gain) if quiet else gain)
        )
        targets = [*targets, *tried]
        episodes = [*episodes, *added]
        known = found.defender
    return replace(_game(offense, columns, tuple(targets), episodes), exploitability=exploitability)


def promising(game: ExitGame, defender: Tensor) -> list[Subset]:
    """The untried set of exits on which an attack may hurt this mix most, if any is left: argmin_E mu(E) - sigma(E).

    Rows that aim at similar sets do similarly, whether or not they match the mix: v_i = (M s)_i is taken for a Gaussian process
    over sets with the covariance k = 1 - r_mis, Jaccard's, which is positive definite. With K that of the rows played, noise
    included, and m their mean: mu(E) = m + k_E^T K^-1 (v - m), sigma^2(E) = spread^2 (1 - k_E^T K^-1 k_E). The lower bound weighs
    what looks weak against what nobody has looked at (Srinivas et al. 2010).
    """
    tried = [target for target in game.targets if target is not None]
    untried = [subset for subset in game.subsets if subset not in tried]
    if not untried:
        return []
    rows = [a for a, target in enumerate(game.targets) if target is not None]
    v = game.accuracy(defender)[rows].cpu()
    inner = (
        1
        - mismatch_rates(tried, tried, game.exits)
        + _NOISE * torch.eye(len(tried), dtype=torch.float64)
    )
    outer = 1 - mismatch_rates(untried, tried, game.exits)  # [U, T]
    weights = torch.linalg.solve(inner, outer.T).T  # k_E^T K^-1
    mean = v.mean() + weights @ (v - v.mean())
    spread = max(
        float(v.std()) if len(v) > 1 else 0.0, 1 / game.correct.shape[-1]
    )  # one image, where rows do not differ
    deviation = spread * (1 - (weights * outer).sum(1)).clamp(min=0).sqrt()
    return [untried[int((mean - deviation).argmin())]]


def _differs(mix: Tensor, other: Tensor) -> bool:
    return float((mix - other).abs().amax()) > 1e-9


def _game(
    offense: Offense,
    columns: tuple[Subset, ...],
    targets: Sequence[Subset | None],
    episodes: list[Episode],
) -> ExitGame:
    outcomes = Outcomes.of(episodes, tuple(map(subset_name, columns)), "example")
    return ExitGame(columns, tuple(targets), outcomes, len(offense.views))
