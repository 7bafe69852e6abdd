"""What `saddlepoint game` prints: warnings, the payoff matrix, its solution, and the strategies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from saddlepoint.cli.console import STYLES, output, percent, say, table
from saddlepoint.phrases import count, count_of, points, signed

if TYPE_CHECKING:
    from saddlepoint.evaluation.bootstrap import Estimate
    from saddlepoint.games.runs.record import GameRecord, StrategyRecord

_MAX_COLUMNS = 16  # of the payoff matrix; of a larger one, only the most important are printed
_ATTACKERS = (("AIMER", "aimer"), ("expected loss", "expected_loss"), ("per image", "per_image"))


def show(record: GameRecord, folder: Path) -> None:
    """Print the record of a game.

    Args:
        record: The record.
        folder: The folder that contains it, named where the matrix is shortened.
    """
    from saddlepoint.games.runs.record import same_strategy

    show_symptoms(record, say)
    _matrix(record, folder)
    _solution(record)
    rows = [_strategy_row(strategy) for strategy in record.strategies]
    say(
        f"Accuracy on {count(record.scored_on, 'image')} that the game was not built on, for "
        "attackers with increasing knowledge:"
    )
    output().print(
        table(("strategy", "clean", "in the game", "AIMER", "expected loss", "per image"), rows)
    )
    if same_strategy(record.strategies[0], record.strategies[1]):
        say("NEED is the best pure strategy, so there is nothing to gain from mixing.")
        return
    gains = "; ".join(f"{name} {_points(record.gains[key])}" for name, key in _ATTACKERS)
    say(f"Accuracy of NEED minus that of the best pure strategy, paired by image: {gains}.")


def show_symptoms(record: GameRecord, write: Callable[[str, str], None]) -> None:
    """Print warnings and notes, which may change what the numbers mean.

    Args:
        record: The record.
        write: Prints a line in a style: `say` or `note`.
    """
    for symptom in record.symptoms:
        write(f"{symptom.level} ({symptom.name}): {symptom.message}", STYLES[symptom.level])


def _matrix(record: GameRecord, folder: Path) -> None:
    from saddlepoint.games.runs.record import best_pure, support

    columns = list(range(len(record.subsets)))
    omitted = ""
    if len(columns) > _MAX_COLUMNS:
        important = dict.fromkeys([*support(record.equilibrium.mix), *best_pure(record)])
        columns = list(important)[:_MAX_COLUMNS]
        omitted = (
            f"; {count_of(len(columns), len(record.subsets), 'column')}, those of NEED's mix and "
            f"the best pure ones (all are in {folder / 'game.json'})"
        )
    say(
        f"Accuracy in % on the {count(record.built_on, 'image')} of the game, with a row for the "
        f"exits that are attacked and a column for the exits that predict{omitted}:"
    )
    payoff = record.payoff
    rows = [
        [row.name, *(_cell(float(payoff[a, d]), row.target == record.subsets[d]) for d in columns)]
        for a, row in enumerate(record.rows)
    ]
    output().print(table(("", *(record.columns[d] for d in columns)), rows))


def _cell(accuracy: float, matched: bool) -> str:
    return f"{100 * accuracy:.1f}" + ("*" if matched else "")


def _solution(record: GameRecord) -> None:
    from saddlepoint.games.runs.record import format_mix

    columns = record.columns
    attacks = [row.name for row in record.rows]
    best_pure = columns[record.subsets.index(record.pure)]
    alone = record.per_example
    if record.mismatch is None:
        mismatch = "not defined: a row attacks no subset of exits"
    else:
        mismatch = f"{record.mismatch:.3f}"
    lines = [
        (
            "restricted value",
            f"{record.value}; the best pure strategy, {best_pure}: {percent(record.pure_value)}",
        ),
        ("NEED's mix", format_mix(record.equilibrium.mix, columns)),
        ("attacker's mix", format_mix(record.attacker, attacks)),
        ("duality gap", f"{record.equilibrium.gap:.1e}"),
        ("AIMER's best response", format_mix(record.response, attacks)),
        ("mismatch R_mis", mismatch),
        (
            "matched rows beaten",
            f"in {count_of(record.beaten, record.matched, 'column')} an attack on other exits "
            "reduces the accuracy more than the attack on the same exits (*)",
        ),
        (
            "per-image game",
            f"{percent(alone.value)} by {format_mix(alone.mix, columns)}; certified to within "
            f"{alone.gap:.1e}",
        ),
    ]
    if record.exploitability is not None:
        lines += [
            (
                "against partial attacks",
                f"{percent(record.partial_value)}, {count(record.partial_attacks, 'attack')}; with "
                f"attacks on the expected loss: {percent(record.value.value)}",
            ),
            (
                "exploitability",
                f"{points(record.exploitability, 2)} when the double oracle stopped",
            ),
        ]
    output().print(table(("", ""), lines))


def _strategy_row(strategy: StrategyRecord) -> Sequence[str]:
    estimates = (strategy.aimer, strategy.expected_loss, strategy.per_image)
    return [
        strategy.name,
        percent(strategy.clean.value),
        percent(strategy.restricted),
        *map(_with_interval, estimates),
    ]


def _with_interval(estimate: Estimate) -> str:
    return f"{percent(estimate.value)} ({100 * estimate.low:.1f}–{100 * estimate.high:.1f})"


def _points(gain: Estimate) -> str:
    return f"{signed(gain.value)} ({signed(gain.low)} to {signed(gain.high)})"
