"""What a game's own numbers say against them."""

from __future__ import annotations

import pytest

from saddlepoint.evaluation.bootstrap import Estimate
from saddlepoint.games.runs.record import Exposed, Played
from saddlepoint.games.runs.symptoms import signs


def about(value: float, half: float = 0.001) -> Estimate:
    return Estimate(value, value - half, value + half, 1000)


def found(
    *, value=None, pure=0.55, exploitability=None, need=None, gains=None, copies=0
) -> dict[str, tuple[str, str]]:
    """By default all is well: the gain is far beyond the noise and carries over to other images and attackers."""
    need = {
        "aimer": about(0.60),
        "expected_loss": about(0.60),
        "per_image": about(0.58),
        **(need or {}),
    }
    exposed = Exposed("NEED", (1.0,), about(0.9), 0.60, **need)
    gained = {
        "clean": about(0.0),
        "aimer": about(0.05),
        "expected_loss": about(0.05),
        "per_image": about(0.04),
        **(gains or {}),
    }
    value = value or about(0.60)
    rows = [Played("pgd", (1,), 21, 20, 1.0, copies)]
    return {
        s.name: (s.level, s.message)
        for s in signs(value, pure, exploitability, 0.003, [exposed], gained, rows)
    }


def test_a_gain_beyond_the_noise_that_carries_over_raises_no_doubt():
    assert found() == {}
    assert found(exploitability=0.002) == {}


@pytest.mark.parametrize(
    ("case", "name", "level", "says"),
    [
        ({"exploitability": 0.01}, "exploitable", "serious", "1.00 points"),
        (
            {"value": about(0.60, 0.04)},
            "NEED's gain is within the noise",
            "warning",
            "gains 5.0 points",
        ),
        (
            {"need": {"aimer": about(0.50)}},
            "the promise does not carry over",
            "warning",
            "promised 60.0 %",
        ),
        (
            {"need": {"expected_loss": about(0.55)}},
            "an attack outside the game is stronger",
            "warning",
            "leaves 55.0 %",
        ),
        (
            {"gains": {"per_image": about(-0.02)}},
            "the gain is lost to an attacker who chooses per image",
            "warning",
            "-2.0 points",
        ),
        ({"copies": 3}, "clean copies", "warning", "3 proposals"),
    ],
)
def test_each_doubt_is_named_alone(case, name, level, says):
    [(told, (graded, message))] = [item for item in found(**case).items() if item[0] == name]
    assert (told, graded) == (name, level)
    assert says in message
    others = set(found(**case)) - {name}
    assert others <= {
        "an attack outside the game is stronger"
    }  # a lower AIMER changes what it is compared with
