"""Estimators: value, gradient and success around the forward pass."""

from __future__ import annotations

import math

import pytest
import torch
from tests.problems import (
    Affine,
    Exits,
    Noisy,
    Purifier,
    Static,
    keys,
    normal,
    oracle,
    smooth,
    uniform,
)
from torch import Tensor

from saddlepoint.attacks.losses import cross_entropy, margin
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.defenses import Defense, Plain
from saddlepoint.gradients import (
    SPSA,
    Backprop,
    EoT,
    Estimator,
    Evaluation,
    FixedRandomness,
    Smoothed,
    ValueAndGradient,
)
from saddlepoint.rng import Keys

Y = torch.tensor([0, 1, 2, 3, 0])
X = uniform(0, 5, 6)


def objective(defense: Defense) -> AttackObjective:
    return AttackObjective([defense], Y, cross_entropy)


def assert_same(a: ValueAndGradient, b: ValueAndGradient, atol: float) -> None:
    torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=atol)
    torch.testing.assert_close(a.evaluation.value, b.evaluation.value, rtol=0, atol=atol)
    assert torch.equal(a.evaluation.success, b.evaluation.success)


def test_backprop_is_the_finite_difference() -> None:
    """Central differences of step h err by h^2 from the third derivative and by eps / h from rounding: 1e-8 at h = 1e-5."""
    f = objective(Purifier(smooth(1)))
    h = 1e-5
    slope = Backprop().value_and_grad(f, X, keys(5))
    for j in range(6):
        e = h * torch.eye(6, dtype=torch.float64)[j]
        rise = (f(X + e, keys(5)).value - f(X - e, keys(5)).value) / (2 * h)
        torch.testing.assert_close(slope.grad[:, j], rise, rtol=0, atol=1e-8)


def test_eot_of_one_draw_is_its_inner_estimator() -> None:
    f = objective(Noisy(smooth(1)))
    assert_same(
        EoT(1).value_and_grad(f, X, keys(5)), Backprop().value_and_grad(f, X, keys(5)), atol=0
    )
    assert torch.equal(
        EoT(1).evaluate(f, X, keys(5)).value, Backprop().evaluate(f, X, keys(5)).value
    )


@pytest.mark.parametrize("draws", [1, 2, 3, 7, 20])
def test_eot_on_a_deterministic_defense_is_backprop_whatever_the_draws(draws: int) -> None:
    f = objective(Static(smooth(1)))
    assert_same(
        EoT(draws).value_and_grad(f, X, keys(5)),
        Backprop().value_and_grad(f, X, keys(5)),
        atol=1e-14,
    )  # a mean of equal numbers rounds


def test_eot_is_the_mean_over_draws_and_its_success_their_majority() -> None:
    """One row, success by a scripted coin: the last draw says the opposite of the majority."""
    says = iter([True, True, True, False, False])

    def scripted(x: Tensor, _: Keys) -> Evaluation:
        return Evaluation(x.sum(1), torch.tensor([next(says)]))

    assert EoT(5).evaluate(scripted, torch.ones(1, 3), keys(1)).success.item()
    says = iter([False, False, True, True])  # half is not a majority
    assert not EoT(4).evaluate(scripted, torch.ones(1, 3), keys(1)).success.item()

    f = objective(Noisy(smooth(1), 0.5))
    seen = []

    def recorded(x: Tensor, c: Keys) -> Evaluation:
        seen.append(Backprop().value_and_grad(f, x.detach(), c))
        return f(x, c)

    slope = EoT(9).value_and_grad(recorded, X, keys(5))
    torch.testing.assert_close(
        slope.grad, torch.stack([s.grad for s in seen]).mean(0), rtol=0, atol=1e-15
    )
    torch.testing.assert_close(
        slope.evaluation.value,
        torch.stack([s.evaluation.value for s in seen]).mean(0),
        rtol=0,
        atol=1e-15,
    )
    assert torch.equal(
        slope.evaluation.success, torch.stack([s.evaluation.success for s in seen]).sum(0) >= 5
    )
    assert (
        len(torch.unique(torch.stack([s.evaluation.value for s in seen])[:, 0])) == 9
    )  # fresh draws


def test_eot_converges_to_the_expected_gradient() -> None:
    """E d/dx (w (x + n))^2 = 2 w (w x). Sigma of one draw is 2 |w|^2 scale, of n draws 1 / sqrt(n) of it; five sigma."""
    w = normal(1, 6)
    x = uniform(2, 5, 6)
    scale = 0.3
    draws = 2000

    def square(v: Tensor, c: Keys) -> Evaluation:
        value = (v + scale * c.normal((6,), v.dtype)) @ w
        return Evaluation(value**2, value > 0)

    want = 2 * (x @ w)[:, None] * w
    bound = 5 * 2 * float(w.square().sum()) * scale / math.sqrt(draws)
    assert (EoT(draws).value_and_grad(square, x, keys(5)).grad - want).abs().amax() < bound


def test_an_estimate_from_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one draw, got draws=0"):
        EoT(0)
    with pytest.raises(ValueError, match="samples >= 1 and sigma > 0, got samples=0"):
        SPSA(0)
    with pytest.raises(ValueError, match="samples >= 1 and width > 0, got samples=8 and width=0"):
        Smoothed(width=0)


def test_fixed_coins_is_one_function_and_backprop_is_not() -> None:
    f = objective(Noisy(smooth(1)))
    c = keys(5).as_root()
    fixed = [FixedRandomness().value_and_grad(f, X, c.fold_in(k)) for k in range(3)]
    assert_same(fixed[0], fixed[1], atol=0)
    assert_same(fixed[0], fixed[2], atol=0)
    assert torch.equal(
        FixedRandomness().evaluate(f, X, c.fold_in(9)).value, fixed[0].evaluation.value
    )
    free = [Backprop().evaluate(f, X, c.fold_in(k)).value for k in range(2)]
    assert (free[0] != free[1]).all()


def test_fixed_coins_of_eot_fixes_all_draws() -> None:
    f = objective(Noisy(smooth(1)))
    c = keys(5).as_root()
    estimator = FixedRandomness(EoT(4))
    assert_same(
        estimator.value_and_grad(f, X, c.fold_in(1)),
        estimator.value_and_grad(f, X, c.fold_in(2)),
        atol=0,
    )
    assert_same(
        estimator.value_and_grad(f, X, c.fold_in(1)), EoT(4).value_and_grad(f, X, c), atol=0
    )


def test_spsa_converges_to_the_gradient_of_a_linear_function() -> None:
    """g_i = w_i + sum_{j != i} w_j u_i u_j: unbiased, variance |w|^2 - w_i^2 per sample; five sigma of 4000 samples."""
    net = Affine.binary(normal(1, 6))
    samples = 4000
    y = torch.zeros(3, dtype=torch.long)
    slope = SPSA(samples).value_and_grad(
        AttackObjective([Static(net)], y), uniform(0, 3, 6), keys(3)
    )
    want = net.weight[1] - net.weight[0]
    bound = 5 * ((want.square().sum() - want.square()) / samples).sqrt()
    assert ((slope.grad - want).abs() < bound).all()


def test_a_smoothed_gradient_is_that_of_the_mean_over_a_cube_and_its_value_that_of_the_point() -> (
    None
):
    """mean over u of sin(k (x + width u)) has the slope k cos(k x) sin(k width) / (k width); five sigma of k / sqrt(samples)."""
    k = 40.0
    width = 0.1
    samples = 4000
    x = 0.2 + 0.6 * uniform(0, 5, 6)

    def wave(v: Tensor, c: Keys) -> Evaluation:
        assert ((v >= 0) & (v <= 1)).all()
        return Evaluation((k * v).sin().sum(1), v.sum(1) > 0)

    slope = Smoothed(samples, width).value_and_grad(wave, x, keys(5))
    want = k * (k * x).cos() * math.sin(k * width) / (k * width)
    assert (slope.grad - want).abs().amax() < 5 * k / math.sqrt(2 * samples) * 1.01
    assert torch.equal(slope.evaluation.value, wave(x, keys(5)).value)
    Smoothed(8, width).value_and_grad(
        wave, uniform(1, 5, 6).round(), keys(5)
    )  # at the edge of the box neighbors stay inside


def test_spsa_rows_do_not_see_each_other() -> None:
    """Each row's estimate is that of the row alone, to the last rounding of a matrix product."""
    f = objective(Purifier(smooth(1)))
    together = SPSA(16).value_and_grad(f, X, keys(5))
    for i in range(5):
        alone = SPSA(16).value_and_grad(
            AttackObjective([Purifier(smooth(1))], Y[i : i + 1], cross_entropy),
            X[i : i + 1],
            keys(5)[torch.tensor([i])],
        )
        torch.testing.assert_close(
            alone.grad[0], together.grad[i], rtol=0, atol=1e-10
        )  # eps / sigma = 1e-13, times sums
    other = X.clone()
    other[1:] = 0.5
    assert torch.equal(SPSA(16).value_and_grad(f, other, keys(5)).grad[0], together.grad[0])


@pytest.mark.parametrize(
    ("estimator", "read", "slope"),
    [
        (Backprop(), 1, (1, 1)),
        (EoT(7), 7, (7, 7)),
        (EoT(3, SPSA(5)), 3, (33, 0)),
        (FixedRandomness(EoT(2)), 2, (2, 2)),
        (SPSA(10), 1, (21, 0)),
        (Smoothed(4), 1, (5, 4)),
        (EoT(3, Smoothed(1)), 3, (6, 3)),
    ],
    ids=repr,
)
def test_an_estimator_costs_what_it_says(
    estimator: Estimator, read: int, slope: tuple[int, int]
) -> None:
    counted = 0

    class Counting(Static):
        def trace(self, x, ctx):
            nonlocal counted
            counted += 1
            return super().trace(x, ctx)

    seat = oracle(Counting(smooth(1)), Y, estimator=estimator)
    seat.score(X)
    assert counted == estimator.cost == read
    assert seat.meter.forward.tolist() == [read] * 5
    counted = 0
    seat.gradient(X)
    assert counted == estimator.gradient_cost[0] == slope[0]
    assert seat.meter.forward.tolist() == [read + slope[0]] * 5
    assert seat.meter.backward.tolist() == [slope[1]] * 5


@pytest.mark.parametrize("estimator", [Backprop(), EoT(3), Smoothed(3), SPSA(2000, 1e-4)], ids=repr)
def test_facets_are_the_margins_of_all_other_classes_and_their_gradients(
    estimator: Estimator,
) -> None:
    net = Affine.random(1, 4, 6)
    seat = oracle(Static(net), Y, estimator=estimator)
    slope = seat.class_margins(X)
    targets = torch.stack([(Y + k) % 4 for k in range(1, 4)])  # [C-1, N]
    rows = net.weight[targets] - net.weight[Y]
    exact = not isinstance(estimator, SPSA)
    torch.testing.assert_close(
        slope.grad, rows, rtol=0, atol=1e-13 if exact else 5 * 1.5 / math.sqrt(2000)
    )
    torch.testing.assert_close(
        slope.evaluation.value.amax(0), margin(net(X), Y), rtol=0, atol=1e-13
    )
    assert seat.meter.backward.tolist() == [3 * estimator.gradient_cost[1]] * 5


def test_a_gradient_that_cannot_reach_the_input_is_an_error_that_says_so() -> None:
    """Also where the net's own parameters still ask for gradients, as in every freshly built module."""
    net = torch.nn.Linear(6, 4, dtype=torch.float64)
    for learning in (True, False):
        net.requires_grad_(learning)
        with pytest.raises(
            ValueError,
            match=r"no gradient reaches the input. Give the site that cuts it a rule such as BPDA",
        ):
            Backprop().value_and_grad(objective(Static(lambda x: net(x.detach()))), X, keys(5))


def test_a_net_with_hidden_noise_is_a_function_of_its_coins_and_leaves_no_trace() -> None:
    net = torch.nn.Sequential(
        torch.nn.Dropout(0.5), torch.nn.Linear(6, 4, dtype=torch.float64)
    ).train()
    f = objective(Plain(net, random=True))
    before = torch.random.get_rng_state()
    first, again, other = (Backprop().evaluate(f, X, keys(5, seed)).value for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_success_is_about_the_answer_and_not_about_the_aim() -> None:
    """Exits answer with the mean of the last two views; the aim looks at the last alone."""
    up = Affine.random(1, 4, 6)
    down = Affine.random(5, 4, 6)
    evaluation = objective(Exits((up, up, down)))(X, keys(5))
    torch.testing.assert_close(evaluation.value, cross_entropy(down(X), Y))
    assert torch.equal(evaluation.success, ((up(X) + down(X)) / 2).argmax(1) != Y)


def test_a_slope_is_the_same_inside_no_grad() -> None:
    f = objective(Static(smooth(1)))
    outside = Backprop().value_and_grad(f, X, keys(5))
    with torch.no_grad():
        assert_same(Backprop().value_and_grad(f, X, keys(5)), outside, atol=0)
