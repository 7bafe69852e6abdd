"""What speaks against the numbers of a game."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from saddlepoint.audits.result import Symptom
from saddlepoint.evaluation.bootstrap import Estimate
from saddlepoint.games.runs.record import Exposed, Played

_LEAST = 0.01  # a share of the images below which a difference is not worth a warning


def signs(
    value: Estimate,
    pure_value: float,
    exploitability: float | None,
    tolerance: float,
    strategies: Sequence[Exposed],
    gains: Mapping[str, Estimate],
    rows: Sequence[Played],
) -> Iterator[Symptom]:
    """NEED is the first strategy."""
    need = strategies[0]
    gain = value.value - pure_value
    if exploitability is not None and exploitability >= tolerance:
        yield Symptom(
            "exploitable", "serious",
            f"the double oracle ran out of rows with an exploitability of {100 * exploitability:.2f} points, more than the "
            f"{100 * tolerance:.2f} that were allowed: the value is too high by at least that. Play all rows.",
        )  # fmt: skip
    if value.high - value.low > gain:
        yield Symptom(
            "NEED's gain is within the noise", "warning",
            f"on its own images the mix gains {100 * gain:.1f} points over the best pure answer, but its value is known only to "
            f"within {100 * (value.high - value.low):.1f}. On other images the gain under AIMER is {_points(gains['aimer'])}. Take "
            "more images.",
        )  # fmt: skip
    if need.restricted > need.aimer.high:
        yield Symptom(
            "the promise does not carry over", "warning",
            f"the game promised {100 * need.restricted:.1f} %, on other images its best response leaves {need.aimer}: a mix that "
            "is optimal on few images is too good to be true there. Take more images.",
        )  # fmt: skip
    if need.aimer.value - need.expected_loss.value >= _LEAST:
        yield Symptom(
            "an attack outside the game is stronger", "warning",
            f"ascending the expected loss of NEED's mix leaves {100 * need.expected_loss.value:.1f} %, the game's best response "
            f"{100 * need.aimer.value:.1f} %: the value is that of a game in which the attacker lacks a row.",
        )  # fmt: skip
    if gains["per_image"].value < 0 < gain:
        yield Symptom(
            "the gain is lost to an attacker who chooses per image", "warning",
            f"against one row for all images NEED gains {100 * gain:.1f} points by the game, against the worst row of each image "
            f"{_points(gains['per_image'])}.",
        )  # fmt: skip
    copies = sum(row.copies for row in rows)
    if copies:
        yield Symptom(
            "clean copies", "warning",
            f"{copies} proposals were the clean image itself: an attack that does not move is no attack on the exits it did not "
            "aim at.",
        )  # fmt: skip


def _points(gain: Estimate) -> str:
    return f"{100 * gain.value:+.1f} points ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})"
