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


def test_backprop_equals_finite_differences() -> None:
    """Central differences with step h have a truncation error of order h^2.

    Their rounding error is of order eps / h: together 1e-8 at h = 1e-5.
    """
    f = objective(Purifier(smooth(1)))
    h = 1e-5
    result = Backprop().value_and_grad(f, X, keys(5))
    for j in range(6):
        e = h * torch.eye(6, dtype=torch.float64)[j]
        difference = (f(X + e, keys(5)).value - f(X - e, keys(5)).value) / (2 * h)
        torch.testing.assert_close(result.grad[:, j], difference, rtol=0, atol=1e-8)


def test_eot_with_one_draw_equals_its_inner_estimator() -> None:
    f = objective(Noisy(smooth(1)))
    assert_same(
        EoT(1).value_and_grad(f, X, keys(5)), Backprop().value_and_grad(f, X, keys(5)), atol=0
    )
    assert torch.equal(
        EoT(1).evaluate(f, X, keys(5)).value, Backprop().evaluate(f, X, keys(5)).value
    )


@pytest.mark.parametrize("draws", [1, 2, 3, 7, 20])
def test_eot_on_a_deterministic_defense_equals_backprop(draws: int) -> None:
    f = objective(Static(smooth(1)))
    assert_same(
        EoT(draws).value_and_grad(f, X, keys(5)),
        Backprop().value_and_grad(f, X, keys(5)),
        atol=1e-14,  # a mean of equal numbers rounds
    )


def test_eot_is_the_mean_over_draws_and_its_success_their_majority() -> None:
    """Success follows a fixed list of outcomes; the last draw differs from the majority."""
    outcomes = iter([True, True, True, False, False])

    def scripted(x: Tensor, _: Keys) -> Evaluation:
        return Evaluation(x.sum(1), torch.tensor([next(outcomes)]))

    assert EoT(5).evaluate(scripted, torch.ones(1, 3), keys(1)).success.item()
    outcomes = iter([False, False, True, True])  # half is not a majority
    assert not EoT(4).evaluate(scripted, torch.ones(1, 3), keys(1)).success.item()

    f = objective(Noisy(smooth(1), 0.5))
    results = []

    def recorded(x: Tensor, c: Keys) -> Evaluation:
        results.append(Backprop().value_and_grad(f, x.detach(), c))
        return f(x, c)

    result = EoT(9).value_and_grad(recorded, X, keys(5))
    torch.testing.assert_close(
        result.grad, torch.stack([s.grad for s in results]).mean(0), rtol=0, atol=1e-15
    )
    torch.testing.assert_close(
        result.evaluation.value,
        torch.stack([s.evaluation.value for s in results]).mean(0),
        rtol=0,
        atol=1e-15,
    )
    assert torch.equal(
        result.evaluation.success, torch.stack([s.evaluation.success for s in results]).sum(0) >= 5
    )
    values = torch.stack([s.evaluation.value for s in results])
    assert len(torch.unique(values[:, 0])) == 9  # independent draws


def test_eot_converges_to_the_expected_gradient() -> None:
    """E d/dx (w (x + n))^2 = 2 w (w x).

    The standard deviation of one draw is 2 |w|^2 scale, that of n draws is 1 / sqrt(n) of it. The
    bound is five of the latter.
    """
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


def test_invalid_settings_raise_errors() -> None:
    with pytest.raises(ValueError, match="at least one draw, got draws=0"):
        EoT(0)
    with pytest.raises(ValueError, match="samples >= 1 and sigma > 0, got samples=0"):
        SPSA(0)
    with pytest.raises(ValueError, match="samples >= 1 and width > 0, got samples=8 and width=0"):
        Smoothed(width=0)


def test_fixed_randomness_is_deterministic_and_backprop_is_not() -> None:
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


def test_fixed_randomness_of_eot_fixes_all_draws() -> None:
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
    """g_i = w_i + sum_{j != i} w_j u_i u_j is unbiased with variance |w|^2 - w_i^2 per sample.

    The bound is five standard deviations of the mean of 4000 samples.
    """
    net = Affine.binary(normal(1, 6))
    samples = 4000
    y = torch.zeros(3, dtype=torch.long)
    result = SPSA(samples).value_and_grad(
        AttackObjective([Static(net)], y), uniform(0, 3, 6), keys(3)
    )
    want = net.weight[1] - net.weight[0]
    bound = 5 * ((want.square().sum() - want.square()) / samples).sqrt()
    assert ((result.grad - want).abs() < bound).all()


def test_smoothed_has_the_gradient_of_the_mean_over_a_cube_and_the_value_of_the_point() -> None:
    """The mean of sin(k (x + width u)) has the derivative k cos(k x) sin(k width) / (k width).

    The bound is five standard deviations of order k / sqrt(samples).
    """
    k = 40.0
    width = 0.1
    samples = 4000
    x = 0.2 + 0.6 * uniform(0, 5, 6)

    def wave(v: Tensor, c: Keys) -> Evaluation:
        assert ((v >= 0) & (v <= 1)).all()
        return Evaluation((k * v).sin().sum(1), v.sum(1) > 0)

    result = Smoothed(samples, width).value_and_grad(wave, x, keys(5))
    want = k * (k * x).cos() * math.sin(k * width) / (k * width)
    assert (result.grad - want).abs().amax() < 5 * k / math.sqrt(2 * samples) * 1.01
    assert torch.equal(result.evaluation.value, wave(x, keys(5)).value)
    # At the edge of the box, neighbors stay inside: `wave` asserts it.
    Smoothed(8, width).value_and_grad(wave, uniform(1, 5, 6).round(), keys(5))


def test_spsa_rows_are_independent() -> None:
    """The estimate of a row equals that of the row alone, up to the rounding of matrix products."""
    f = objective(Purifier(smooth(1)))
    together = SPSA(16).value_and_grad(f, X, keys(5))
    for i in range(5):
        alone = SPSA(16).value_and_grad(
            AttackObjective([Purifier(smooth(1))], Y[i : i + 1], cross_entropy),
            X[i : i + 1],
            keys(5)[torch.tensor([i])],
        )
        # eps / sigma = 1e-13, times sums.
        torch.testing.assert_close(alone.grad[0], together.grad[i], rtol=0, atol=1e-10)
    other = X.clone()
    other[1:] = 0.5
    assert torch.equal(SPSA(16).value_and_grad(f, other, keys(5)).grad[0], together.grad[0])


@pytest.mark.parametrize(
    ("estimator", "evaluation_cost", "gradient_cost"),
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
def test_the_declared_cost_is_the_number_of_passes(
    estimator: Estimator, evaluation_cost: int, gradient_cost: tuple[int, int]
) -> None:
    counted = 0

    class Counting(Static):
        def trace(self, x, ctx):
            nonlocal counted
            counted += len(x) / len(X)  # several draws may share a batch
            return super().trace(x, ctx)

    attacked = oracle(Counting(smooth(1)), Y, estimator=estimator)
    attacked.score(X)
    assert counted == estimator.cost == evaluation_cost
    assert attacked.meter.forward.tolist() == [evaluation_cost] * 5
    counted = 0
    attacked.gradient(X)
    assert counted == estimator.gradient_cost[0] == gradient_cost[0]
    assert attacked.meter.forward.tolist() == [evaluation_cost + gradient_cost[0]] * 5
    assert attacked.meter.backward.tolist() == [gradient_cost[1]] * 5


@pytest.mark.parametrize("estimator", [Backprop(), EoT(3), Smoothed(3), SPSA(2000, 1e-4)], ids=repr)
def test_class_margins_are_those_of_all_other_classes_with_gradients(
    estimator: Estimator,
) -> None:
    net = Affine.random(1, 4, 6)
    attacked = oracle(Static(net), Y, estimator=estimator)
    result = attacked.class_margins(X)
    targets = torch.stack([(Y + k) % 4 for k in range(1, 4)])  # [C-1, N]
    rows = net.weight[targets] - net.weight[Y]
    exact = not isinstance(estimator, SPSA)
    torch.testing.assert_close(
        result.grad, rows, rtol=0, atol=1e-13 if exact else 5 * 1.5 / math.sqrt(2000)
    )
    torch.testing.assert_close(
        result.evaluation.value.amax(0), margin(net(X), Y), rtol=0, atol=1e-13
    )
    assert attacked.meter.backward.tolist() == [3 * estimator.gradient_cost[1]] * 5


def test_a_gradient_that_does_not_reach_the_input_raises_an_error() -> None:
    """Also if the parameters of the net require gradients, as in every new module."""
    net = torch.nn.Linear(6, 4, dtype=torch.float64)
    for requires_grad in (True, False):
        net.requires_grad_(requires_grad)
        with pytest.raises(
            ValueError,
            match=r"no gradient reaches the input. Set a rule such as BPDA for the site",
        ):
            Backprop().value_and_grad(objective(Static(lambda x: net(x.detach()))), X, keys(5))


def test_hidden_noise_of_a_net_is_a_function_of_the_keys_and_restores_the_generators() -> None:
    net = torch.nn.Sequential(
        torch.nn.Dropout(0.5), torch.nn.Linear(6, 4, dtype=torch.float64)
    ).train()
    f = objective(Plain(net, random=True))
    before = torch.random.get_rng_state()
    first, again, other = (Backprop().evaluate(f, X, keys(5, seed)).value for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_success_is_that_of_the_final_output_and_not_of_the_aim() -> None:
    """`Exits` answers with the mean of the last two views; the aim uses the last one only."""
    up = Affine.random(1, 4, 6)
    down = Affine.random(5, 4, 6)
    evaluation = objective(Exits((up, up, down)))(X, keys(5))
    torch.testing.assert_close(evaluation.value, cross_entropy(down(X), Y))
    assert torch.equal(evaluation.success, ((up(X) + down(X)) / 2).argmax(1) != Y)


def test_a_gradient_is_the_same_inside_no_grad() -> None:
    f = objective(Static(smooth(1)))
    outside = Backprop().value_and_grad(f, X, keys(5))
    with torch.no_grad():
        assert_same(Backprop().value_and_grad(f, X, keys(5)), outside, atol=0)
