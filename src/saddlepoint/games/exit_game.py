"""Play an exit game: attack subsets of exits and evaluate all subsets on the attacked points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor, nn

from saddlepoint.attacks.aims import Aim, mean_of_losses
from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.losses import Loss, cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Ball
from saddlepoint.defenses import (
    Answer,
    Context,
    Defense,
    MultiExit,
    Static,
    Subset,
    all_subsets,
    check_subset,
    exits_mean,
    intervals,
    subset_name,
)
from saddlepoint.evaluation.referee import FixedPoints, Progress, RunAdversaries
from saddlepoint.evaluation.threat import Threat
from saddlepoint.games.double_oracle import double_oracle
from saddlepoint.games.exit_attacks import AttackSettings, ExitAttack
from saddlepoint.games.exit_views import NumberedExits, with_strategy
from saddlepoint.games.payoffs import ExitGame
from saddlepoint.games.players import DirectPlayer

Actions = Literal["all", "intervals"] | Sequence[Subset]


def exit_game(
    defense: Defense | nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat | Ball,
    attack: Attack[Any] | None = None,
    loss: Loss = cross_entropy,
    aim: Aim = mean_of_losses,
    exit_attack: ExitAttack | None = None,
    subsets: Actions = "all",
    rows: Literal["all", "double-oracle"] = "all",
    tolerance: float = 0.003,
    seed: int = 0,
    batch_size: int = 128,
    progress: Progress | None = None,
    run_adversaries: RunAdversaries | None = None,
) -> ExitGame:
    """Attack subsets of exits, and evaluate every subset on the points of every attack.

    Each row costs one attack. One forward pass of its points evaluates all columns.

    Args:
        defense: a deterministic multi-exit network, or a defense with several views.
        x: clean inputs, [N, ...].
        y: labels, [N].
        threat: the threat model, or only its perturbation set.
        attack: the optimizer of the rows; default: PGD-20 with steps of a quarter of the radius.
        loss: per-example loss of one exit.
        aim: how the losses of several exits are combined.
        exit_attack: builds the attack on a subset instead, such as `ATTACKS["autoattack"]`.
        subsets: subsets that may be attacked or answer: "all", "intervals" (neighboring exits), or
            a list such as [(1,), (2, 3)].
        rows: rows of the payoff matrix. "all" attacks every subset; "double-oracle" attacks only
            subsets that are likely to lower the value.
        tolerance: the double oracle ends when another row is expected to lower the accuracy by
            less than this.
        seed: seed of all random keys.
        batch_size: examples per batch.
        progress: called with the number of examples after every batch.
        run_adversaries: plays the adversaries instead, for example with a cache.

    Raises:
        ValueError: the defense is randomized or couples rows, or `subsets` or `rows` is invalid.
    """
    if rows not in ("all", "double-oracle"):
        raise ValueError(f"rows must be 'all' or 'double-oracle', got {rows!r}.")
    threat = threat if isinstance(threat, Threat) else Threat(threat)
    base = game_base(defense)
    settings = attack_settings(base, x, threat, attack, loss, aim, exit_attack)
    columns = actions(subsets, len(settings.views))
    answers = columns_of(columns)
    direct = DirectPlayer(base, x, y, threat, answers, seed, batch_size, progress)
    if rows == "double-oracle":
        return double_oracle(settings, columns, run_adversaries or direct, tolerance)
    return full_game(settings, columns, run_adversaries or direct)


def full_game(
    settings: AttackSettings, columns: tuple[Subset, ...], run_adversaries: RunAdversaries
) -> ExitGame:
    """The game in which every subset is attacked."""
    attacks = [settings.on_subset(subset) for subset in columns]
    clean, *episodes = run_adversaries([FixedPoints(), *attacks])
    return ExitGame.of(columns, columns, episodes, len(settings.views), clean)


def attack_settings(
    base: Defense,
    x: Tensor,
    threat: Threat,
    attack: Attack[Any] | None,
    loss: Loss,
    aim: Aim,
    exit_attack: ExitAttack | None,
) -> AttackSettings:
    """The attack settings of a game; arguments as in `exit_game`."""
    views = base.trace(x[:1], Context.seeded(0, 1)).names
    attack = attack or PGD(20, threat.space.radius / 4)
    return AttackSettings(views, attack, loss, aim, exit_attack)


def game_base(defense: Defense | nn.Module) -> Defense:
    """The defense without its strategy, since the columns of the game say which exits answer.

    Raises:
        ValueError: the defense is randomized or its rows depend on each other.
    """
    if isinstance(defense, MultiExit):
        base: Defense = with_strategy(defense, Static())
    elif isinstance(defense, Defense):
        base = NumberedExits(defense)
    else:
        base = MultiExit(defense)
    if base.random or base.unit != "example":
        raise ValueError(
            "an exit game needs a deterministic defense with independent rows: "
            "otherwise a column is not a fixed function of the example."
        )
    return base


def actions(subsets: Actions, exits: int) -> tuple[Subset, ...]:
    """The subsets of exits that may be attacked or answer; `subsets` as in `exit_game`."""
    if subsets == "all":
        return all_subsets(exits)
    if subsets == "intervals":
        return intervals(exits)
    if isinstance(subsets, str) or not subsets:
        raise ValueError(
            f"subsets must be 'all', 'intervals' or a list such as [(1,), (2, 3)], got {subsets!r}."
        )
    for subset in subsets:
        check_subset(tuple(subset), exits)
    return tuple(tuple(subset) for subset in subsets)


def columns_of(subsets: Sequence[Subset]) -> dict[str, Answer]:
    """The columns of a game, by name: the mean logits of each subset."""
    return {subset_name(subset): exits_mean(subset) for subset in subsets}
