"""Warning signs about the numbers of a game."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from saddlepoint.audits.verdict import Level, Symptom, SymptomName
from saddlepoint.evaluation.bootstrap import Estimate
from saddlepoint.games.runs.record import AdversaryRecord, StrategyRecord, same_strategy
from saddlepoint.phrases import agree, count, percent, points, signed, signed_points

_SMALLEST = 0.01  # a difference of fewer images than this fraction is no warning


def find_symptoms(
    value: Estimate,
    pure_value: float,
    exploitability: float | None,
    tolerance: float,
    strategies: Sequence[StrategyRecord],
    gains: Mapping[str, Estimate],
    rows: Sequence[AdversaryRecord],
) -> Iterator[Symptom]:
    """The warnings about a game.

    Args:
        value: value of the game with its bootstrap interval.
        pure_value: value of the best subset without randomization.
        exploitability: of the double oracle; None: all rows were played.
        tolerance: of the double oracle.
        strategies: strategies on the other images; NEED, then the best pure answer.
        gains: NEED minus the best pure answer on the other images, by attacker.
        rows: all attacks.
    """
    need = strategies[0]
    gain = value.value - pure_value
    yield from _exploitable(exploitability, tolerance)
    if not same_strategy(need, strategies[1]):
        yield from _noise(value, gain, gains)
    yield from _generalization(need)
    yield from _outside_attack(need)
    yield from _per_image(gain, gains)
    yield from _clean_copies(rows)


def _exploitable(exploitability: float | None, tolerance: float) -> Iterator[Symptom]:
    if exploitability is not None and exploitability >= tolerance:
        yield Symptom(
            SymptomName.EXPLOITABLE,
            Level.SERIOUS,
            f"the double oracle ended with an exploitability of {points(exploitability, 2)}, "
            f"more than the tolerance of {points(tolerance, 2)}, because the last attack on the "
            "expected loss still lowered the value: it is too high by about that.",
        )


def _noise(value: Estimate, gain: float, gains: Mapping[str, Estimate]) -> Iterator[Symptom]:
    width = value.high - value.low
    if width > gain:
        yield Symptom(
            SymptomName.GAIN_IN_NOISE,
            Level.WARNING,
            f"on the game's own images the mixed strategy gains {points(gain)} over the "
            f"best pure answer, but the interval of its value is {points(width)} wide. On "
            f"other images the gain under AIMER is {_points(gains['aimer'])}. Use more images.",
        )


def _generalization(need: StrategyRecord) -> Iterator[Symptom]:
    if need.restricted > need.aimer.high:
        yield Symptom(
            SymptomName.NO_GENERALIZATION,
            Level.WARNING,
            f"the value on the game's own images is {percent(need.restricted)}, but on other "
            f"images the accuracy under the game's best response is {need.aimer}: the strategy is "
            "overfitted to few images. Use more images.",
        )


def _outside_attack(need: StrategyRecord) -> Iterator[Symptom]:
    if need.aimer.value - need.expected_loss.value >= _SMALLEST:
        yield Symptom(
            SymptomName.OUTSIDE_ATTACK,
            Level.WARNING,
            "the accuracy under the attack on the expected loss of NEED is "
            f"{percent(need.expected_loss.value)}, under the game's best response "
            f"{percent(need.aimer.value)}: the game lacks a row that the attacker has.",
        )


def _per_image(gain: float, gains: Mapping[str, Estimate]) -> Iterator[Symptom]:
    if gains["per_image"].value < 0 < gain:
        yield Symptom(
            SymptomName.LOST_PER_IMAGE,
            Level.WARNING,
            f"against one row for all images NEED gains {points(gain)} in the game, "
            f"against the worst row per image {_points(gains['per_image'])}.",
        )


def _clean_copies(rows: Sequence[AdversaryRecord]) -> Iterator[Symptom]:
    copies = sum(row.copies for row in rows)
    if copies:
        yield Symptom(
            SymptomName.CLEAN_COPIES,
            Level.WARNING,
            f"{count(copies, 'proposed point')} {agree(copies, 'is', 'are')} the clean image, "
            "which does not attack any exit.",
        )


def _points(gain: Estimate) -> str:
    return f"{signed_points(gain.value)} ({signed(gain.low)} to {signed(gain.high)})"
