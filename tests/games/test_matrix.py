"""Matrix games with known values, and properties of every value."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from saddlepoint.games.matrix import (
    as_distribution,
    best_response,
    least_per_example,
    solve,
    solve_per_example,
)


def matrix(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


KNOWN = {
    "matching pennies": (matrix([1, -1], [-1, 1]), 0.0, [0.5, 0.5]),
    "hide and seek": (matrix([0, 1], [1, 0]), 0.5, [0.5, 0.5]),
    "rock paper scissors": (matrix([0, 1, -1], [-1, 0, 1], [1, -1, 0]), 0.0, [1 / 3, 1 / 3, 1 / 3]),
    "2 x 2 without saddle": (matrix([0.40, 0.55], [0.60, 0.45]), 0.50, [1 / 3, 2 / 3]),
    "three exits, matched .4, mismatched .6": (
        0.6 - 0.2 * torch.eye(3, dtype=torch.float64),
        0.6 - 0.2 / 3,
        [1 / 3] * 3,
    ),
    "saddle point": (matrix([0.5, 0.2], [0.6, 0.1]), 0.5, [1.0, 0.0]),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_games_have_their_known_value_and_strategy(name: str) -> None:
    payoff, value, defender = KNOWN[name]
    found = solve(payoff)
    assert found.value == pytest.approx(value, abs=1e-12)
    assert found.gap < 1e-12
    assert_close(found.defender, torch.tensor(defender, dtype=torch.float64), rtol=0, atol=1e-12)


def test_the_attacker_of_a_2_x_2_game_has_the_strategy_of_the_closed_form() -> None:
    assert_close(
        solve(KNOWN["2 x 2 without saddle"][0]).attacker,
        torch.full((2,), 0.5, dtype=torch.float64),
        rtol=0,
        atol=1e-12,
    )


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**31))
def test_no_player_gains_by_deviating_from_equilibrium(rows: int, columns: int, seed: int) -> None:
    payoff = torch.rand(
        rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    found = solve(payoff)
    assert found.gap < 1e-9
    assert float((payoff @ found.defender).amin()) == pytest.approx(found.value, abs=1e-9)
    assert float((found.attacker @ payoff).amax()) == pytest.approx(found.value, abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_a_127_x_127_game_is_certified_to_1e_9(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    # Accuracies on 100 images have ties.
    accuracy = torch.randint(0, 101, (127, 127), generator=generator).double() / 100
    assert solve(accuracy).gap < 1e-9


def test_a_dominated_column_does_not_change_the_value_which_shifts_and_scales() -> None:
    payoff = KNOWN["2 x 2 without saddle"][0]
    worse = torch.cat([payoff, payoff[:, :1] - 0.1], dim=1)
    assert solve(worse).value == pytest.approx(0.5, abs=1e-12)
    assert solve(3 * payoff + 2).value == pytest.approx(3 * 0.5 + 2, abs=1e-12)


def test_the_best_response_is_uniform_over_ties_and_at_most_the_value() -> None:
    payoff = KNOWN["three exits, matched .4, mismatched .6"][0]
    found = solve(payoff)
    assert_close(
        best_response(payoff, found.defender), torch.full((3,), 1 / 3, dtype=torch.float64)
    )
    pure = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    assert_close(best_response(payoff, pure), pure)
    for seed in range(20):
        other = torch.rand(3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        other = other / other.sum()
        assert float(best_response(payoff, other) @ payoff @ other) <= found.value + 1e-12


def test_the_per_example_game_on_equal_examples_or_with_one_row_is_the_matrix_game() -> None:
    outcomes = (torch.rand(6, 5, 1, generator=torch.Generator().manual_seed(1)) < 0.6).double()
    found = solve_per_example(outcomes.expand(6, 5, 30))  # equal examples have the same worst row
    assert found.value == pytest.approx(solve(outcomes[:, :, 0]).value, abs=1e-9)
    alone = outcomes[:1].expand(1, 5, 7)
    assert solve_per_example(alone).value == pytest.approx(float(alone.mean(-1).amax()), abs=1e-9)


def test_per_example_matching_pennies_has_the_value_one_half() -> None:
    # Example 0 is wrong if the row matches the column, example 1 if it does not: under any one
    # row, one of the two is correct.
    match = torch.eye(2, dtype=torch.float64)
    outcomes = torch.stack([1 - match, match], dim=-1)  # [A, D, N]
    assert solve(outcomes.mean(-1)).value == pytest.approx(0.5, abs=1e-12)
    # With equal probabilities, each example is correct half of the time.
    assert solve_per_example(outcomes).value == pytest.approx(0.5, abs=1e-9)
    pure = least_per_example(outcomes, torch.tensor([1.0, 0.0]))
    assert_close(pure, torch.zeros(2, dtype=torch.float64))


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 12), st.integers(0, 2**31))
def test_the_per_example_strategy_is_optimal_against_the_per_example_attacker(
    a: int, d: int, n: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    outcomes = (torch.rand(a, d, n, generator=generator) < 0.7).double()
    found = solve_per_example(outcomes)
    assert found.gap < 1e-9
    assert float(least_per_example(outcomes, found.defender).mean()) == pytest.approx(
        found.value, abs=1e-9
    )
    assert found.value <= solve(outcomes.mean(-1)).value + 1e-9
    rivals = [*torch.eye(d, dtype=torch.float64), solve(outcomes.mean(-1)).defender]
    for rival in rivals:
        assert float(least_per_example(outcomes, rival).mean()) <= found.value + 1e-9


def test_invalid_games_and_strategies_raise_errors() -> None:
    with pytest.raises(ValueError, match="sum to one"):
        as_distribution(torch.tensor([0.5, 0.4]), 2)
    with pytest.raises(ValueError, match="needs 3 probabilities"):
        as_distribution(torch.tensor([0.5, 0.5]), 3)
    with pytest.raises(ValueError, match="finite"):
        solve(torch.tensor([[float("nan")]]))
    with pytest.raises(ValueError, match="matrix"):
        solve(torch.zeros(3))


def test_among_equal_columns_the_preferred_one_is_played() -> None:
    clean = torch.tensor([0.4, 0.9, 0.7])
    assert solve(torch.zeros(5, 3), [clean]).defender.tolist() == [0.0, 1.0, 0.0]


def test_the_second_preference_decides_where_the_first_is_equal() -> None:
    first = torch.tensor([0.9, 0.9, 0.7])
    second = torch.tensor([0.1, 0.2, 0.9])
    assert solve(torch.ones(2, 3), [first, second]).defender.tolist() == [0.0, 1.0, 0.0]


def test_a_preference_selects_a_point_of_the_known_face() -> None:
    # Columns 0 and 1 must be played equally. Column 2 equals their mixture, so that every
    # (a, a, 1 - 2 a) is optimal.
    payoff = matrix([0.0, 1.0, 0.5], [1.0, 0.0, 0.5])
    mixed = solve(payoff, [torch.tensor([0.9, 0.9, 0.8])])
    assert_close(mixed.defender, torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64))
    pure = solve(payoff, [torch.tensor([0.9, 0.7, 0.85])])
    assert_close(pure.defender, torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))


def test_the_smallest_support_is_played_where_all_preferences_are_equal() -> None:
    payoff = matrix([0.0, 1.0, 0.5], [1.0, 0.0, 0.5])
    assert solve(payoff, [torch.ones(3)]).support == (2,)
    # Of six columns in three complementary pairs, one pair is enough.
    pairs = torch.cat([torch.eye(2).repeat(1, 3)], dim=0).double()
    assert len(solve(pairs, [torch.ones(6), pairs.mean(0)]).support) == 2


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 15), st.integers(1, 15), st.integers(0, 2**31))
def test_a_preference_changes_neither_the_value_nor_the_certificate(
    rows: int, columns: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    payoff = torch.randint(0, 4, (rows, columns), generator=generator).double() / 4
    clean = torch.rand(columns, generator=generator, dtype=torch.float64)
    anything = solve(payoff)
    found = solve(payoff, [clean, payoff.mean(0)])
    assert found.value == pytest.approx(anything.value, abs=1e-8)
    assert found.gap < 1e-8
    assert float(clean @ found.defender) >= float(clean @ anything.defender) - 1e-8
