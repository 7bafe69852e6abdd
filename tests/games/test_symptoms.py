"""The warnings about the numbers of a game."""

from __future__ import annotations

import pytest

from saddlepoint.evaluation.bootstrap import Estimate
from saddlepoint.games.runs.record import AdversaryRecord, StrategyRecord
from saddlepoint.games.runs.symptoms import find_symptoms


def about(value: float, half: float = 0.001) -> Estimate:
    return Estimate(value, value - half, value + half, 1000)


def found(
    *, value=None, pure=0.55, exploitability=None, need=None, gains=None, copies=0, mix=(0.5, 0.5)
) -> dict[str, tuple[str, str]]:
    """The symptoms of a game; by default none: the gain exceeds the noise and generalizes."""
    need = {
        "aimer": about(0.60),
        "expected_loss": about(0.60),
        "per_image": about(0.58),
        **(need or {}),
    }
    exposed = StrategyRecord("NEED", mix, about(0.9), 0.60, **need)
    best_pure = StrategyRecord("best pure answer: 1", (1.0, 0.0), about(0.9), 0.60, **need)
    gained = {
        "clean": about(0.0),
        "aimer": about(0.05),
        "expected_loss": about(0.05),
        "per_image": about(0.04),
        **(gains or {}),
    }
    value = value or about(0.60)
    rows = [AdversaryRecord("pgd", (1,), 21, 20, 1.0, copies)]
    return {
        s.name: (s.level, s.message)
        for s in find_symptoms(
            value, pure, exploitability, 0.003, [exposed, best_pure], gained, rows
        )
    }


def test_a_gain_beyond_the_noise_that_generalizes_has_no_symptoms():
    assert found() == {}
    assert found(exploitability=0.002) == {}


def test_a_strategy_is_not_compared_with_itself():
    """NEED may be the best pure answer; then the gain of mixing is exactly 0, not uncertain."""
    zero = {name: about(0.0, 0.0) for name in ("aimer", "expected_loss", "per_image")}
    wide = about(0.60, 0.04)
    assert found(mix=(1.0, 0.0), value=wide, pure=0.60, gains=zero) == {}
    assert set(found(mix=(0.5, 0.5), value=wide, pure=0.60, gains=zero)) == {
        "NEED's gain is within the noise"
    }


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
            "the value does not generalize",
            "warning",
            "own images is 60.0 %",
        ),
        (
            {"need": {"expected_loss": about(0.55)}},
            "an attack outside the game is stronger",
            "warning",
            "of NEED is 55.0 %",
        ),
        (
            {"gains": {"per_image": about(-0.02)}},
            "the gain is lost if the attacker chooses per image",
            "warning",
            "-2.0 points",
        ),
        ({"copies": 3}, "clean copies", "warning", "3 proposed points"),
    ],
)
def test_each_symptom_has_its_name_level_and_message(case, name, level, says):
    symptoms = found(**case)
    found_level, message = symptoms[name]
    assert found_level == level
    assert says in message
    # A lower accuracy under AIMER also changes the comparison with the attack outside the game.
    assert set(symptoms) - {name} <= {"an attack outside the game is stronger"}
