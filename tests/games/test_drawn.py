"""A mixed strategy of the attacker: each example is attacked by one adversary, drawn at random."""

from __future__ import annotations

import pytest
import torch
from tests.problems import Centring, Static, smooth, uniform

from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.evaluation import BatchControl, Direct, FixedPoints, Threat
from saddlepoint.evaluation.referee import play
from saddlepoint.games.exit_adversaries import Drawn

N = 400
RADIUS = 0.1
X = 0.2 + 0.6 * uniform(0, N, 6)
THREAT = Threat(Linf(RADIUS))


def moved(by: float) -> FixedPoints:
    return FixedPoints(f"by {by}", X + by)


def points(drawn: Drawn, rows: slice = slice(None), seed: int = 0) -> torch.Tensor:
    ids = torch.arange(N)[rows]
    return play(
        Static(smooth(0)),
        drawn,
        X[rows],
        torch.zeros(N, dtype=torch.long)[rows],
        THREAT,
        ids=ids,
        seed=seed,
    ).points


def test_each_example_has_the_points_of_one_adversary_with_the_given_frequency() -> None:
    found = points(Drawn("mix", (moved(0.05), moved(-0.05)), (0.3, 0.7)))
    up = (found == X + 0.05).all(1)
    down = (found == X - 0.05).all(1)
    assert bool((up ^ down).all())
    # A frequency over 400 draws at 0.3 lies within 4 standard deviations, 0.092.
    assert float(up.double().mean()) == pytest.approx(0.3, abs=4 * (0.3 * 0.7 / N) ** 0.5)


def test_with_probability_one_it_is_the_adversary_itself() -> None:
    assert torch.equal(points(Drawn("mix", (moved(0.05), moved(-0.05)), (0.0, 1.0))), X - 0.05)


def test_the_draw_depends_on_the_example_and_the_seed_only() -> None:
    mix = Drawn("mix", (moved(0.05), moved(-0.05)), (0.5, 0.5))
    assert torch.equal(points(mix)[7:19], points(mix, slice(7, 19)))
    assert not torch.equal(points(mix), points(mix, seed=1))


def test_invalid_probabilities_and_coupled_defenses_raise_errors() -> None:
    with pytest.raises(ValueError, match="sum to one"):
        Drawn("mix", (moved(0.0), moved(0.0)), (0.5, 0.6))
    with pytest.raises(ValueError, match="one probability for each"):
        Drawn("mix", (moved(0.0),), (0.5, 0.5))
    mix = Drawn("mix", (moved(0.0), moved(0.01)), (0.5, 0.5))
    with pytest.raises(ValueError, match="independent rows"):
        play(Centring(smooth(0)), mix, X, torch.zeros(N, dtype=torch.long), THREAT)


def test_the_defense_is_restricted_to_the_rows_of_each_drawn_adversary() -> None:
    """Under partial control of the batch, the queried defense has one entry per row."""
    mix = Drawn("mix", (Direct("a", PGD(1)), Direct("b", PGD(2))), (0.5, 0.5))
    threat = Threat(Linf(RADIUS), batch_control=BatchControl(0.5))
    labels = torch.zeros(N, dtype=torch.long)
    episode = play(Static(smooth(0)), mix, X, labels, threat)
    assert set(episode.forward.tolist()) == {2, 3}
