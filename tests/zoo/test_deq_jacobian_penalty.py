"""The Jacobian penalty is an unbiased estimate, and the stack shares the weights of its network."""

import pytest
import torch
from tests.problems import keys, normal, uniform

from saddlepoint.attacks.spaces import Ball
from saddlepoint.data import load_data
from saddlepoint.rng import Keys
from saddlepoint.training import Adam, Recipe, Standard, fit
from saddlepoint.zoo.deq import JacobianPenalty, Stack, mean_square_jacobian
from saddlepoint.zoo.nets import DenseDEQNet, mdeq_digits


def test_the_estimate_is_unbiased_for_the_squared_frobenius_norm():
    """E ||v^T A||^2 = ||A||_F^2 with variance 2 ||A A^T||_F^2.

    The mean of n = 20 000 probes is within 4 standard errors.
    """
    n = 20_000
    matrix = normal(0, 6, 6)
    z = torch.zeros(n, 6, dtype=torch.float64)
    found = mean_square_jacobian(lambda z, u: z @ matrix.T + u, z, z, keys(n), probes=1) * 6
    error = (2 * (matrix @ matrix.T).square().sum() / n).sqrt()
    assert (found.mean() - matrix.square().sum()).abs() < 4 * error
    assert found.var().item() == pytest.approx(
        2 * (matrix @ matrix.T).square().sum().item(), rel=0.1
    )


def test_the_estimates_of_several_probes_are_averaged():
    """The variance decreases as 1 / probes.

    The relative error of a variance over n = 20 000 rows is about sqrt(2 / n) = 1 %.
    """
    n = 20_000
    matrix = normal(0, 6, 6)
    z = torch.zeros(n, 6, dtype=torch.float64)
    one, eight = (
        mean_square_jacobian(lambda z, u: z @ matrix.T, z, z, keys(n), k).var() for k in (1, 8)
    )
    assert (one / eight).item() == pytest.approx(8, rel=0.1)


def test_the_jacobian_is_taken_at_the_given_state():
    """f = z^3 has J = 3 diag(z^2), so ||v^T J||^2 = 9 sum v^2 z^4, exactly with the same keys."""
    z = uniform(1, 3, 4)
    v = keys(3).fold_in(0).normal((4,), torch.float64)
    found = mean_square_jacobian(lambda z, u: z**3, z, z, keys(3), probes=1)
    torch.testing.assert_close(found, (9 * v**2 * z**4).sum(1) / 4, rtol=1e-12, atol=0)


def test_the_penalty_is_differentiable_in_the_weights():
    """For f = w z the estimate is w^2 mean(v^2) per row; its derivative in w is 2 w mean(v^2)."""
    w = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    z = torch.ones(5, 7, dtype=torch.float64)
    penalty = JacobianPenalty()(lambda z, u: w * z, z, z, keys(5))
    penalty.mean().backward()
    v = torch.stack([keys(5).fold_in(k).normal((7,), torch.float64) for k in range(2)])
    torch.testing.assert_close(
        penalty, 0.4 * 9 * v.square().mean((0, 2)).detach(), rtol=1e-12, atol=0
    )
    torch.testing.assert_close(w.grad, 0.4 * 6 * v.square().mean(), rtol=1e-12, atol=0)


def test_the_penalty_has_a_gradient_in_the_weights_and_the_input_of_a_real_cell():
    net = mdeq_digits().double()
    x = uniform(2, 2, 1, 8, 8).requires_grad_()
    u = net.inject(x)
    z = net.cell(net.start(u), u)
    JacobianPenalty()(net.cell, z, u, keys(2)).mean().backward()
    assert x.grad.abs().sum() > 0
    assert all(
        p.grad is not None and p.grad.abs().sum() > 0 for p in net.step.blocks[0].inner.parameters()
    )
    assert all(p.grad is None for p in net.classifier.parameters())


def test_the_penalty_of_a_row_does_not_depend_on_other_rows():
    net = DenseDEQNet(image=(1, 2, 2), size=6).double()
    u = net.inject(uniform(3, 4, 1, 2, 2))
    row_keys = keys(4)
    together = mean_square_jacobian(net.cell, u, u, row_keys)
    alone = mean_square_jacobian(net.cell, u[2:3], u[2:3], row_keys[torch.tensor([2])])
    torch.testing.assert_close(alone, together[2:3], rtol=0, atol=1e-14)


def test_steps_are_penalized_with_the_given_probability_and_all_offsets_are_drawn():
    """Of 2000 steps the share is within 4 standard deviations of 0.02; the offsets are uniform."""
    n = 2_000
    draws = [JacobianPenalty().draw(Keys.of(seed, torch.arange(3))) for seed in range(n)]
    offsets = [draw.offset for draw in draws if draw.penalized]
    assert abs(len(offsets) / n - 0.02) < 4 * (0.02 * 0.98 / n) ** 0.5
    for offset in (-2, -1, 0, 1):
        share = offsets.count(offset) / len(offsets)
        assert abs(share - 0.25) < 4 * (0.25 * 0.75 / len(offsets)) ** 0.5
    assert all(draw.offset == 0 for draw in draws if not draw.penalized)
    assert all(JacobianPenalty(probability=1.0).draw(keys(2, seed)).penalized for seed in range(20))


def test_the_stack_is_the_cell_applied_eight_times():
    net = DenseDEQNet(image=(1, 8, 8), size=10).double()
    x = uniform(4, 3, 1, 8, 8)
    u = net.inject(x)
    z = torch.zeros(3, 10, dtype=torch.float64)
    for _ in range(8):
        z = net.cell(z, u)
    assert torch.equal(Stack(net)(x), net.head(z))
    assert torch.equal(Stack(net, layers=1)(x), net.head(net.cell(torch.zeros_like(z), u)))


def test_training_the_stack_trains_the_network():
    """Three epochs on 270 digits give five times chance on the 30 others.

    The equilibrium network has the trained weights.
    """
    data = load_data("digits", n=300)
    recipe = Recipe(
        "warm-up",
        "digits",
        mdeq_digits,
        Standard(),
        Ball(torch.inf, 0.1),
        epochs=3,
        batch_size=30,
        optimizer=Adam(0.01),
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = DenseDEQNet()
    trained = fit(Stack(net, layers=4), data.x, data.y, recipe)
    assert trained.best.clean > 0.5
    assert trained.net.net is not net
    assert not torch.equal(trained.net.net.outputs.weight, net.outputs.weight)
    stack = Stack(net)
    assert {id(p) for p in stack.parameters()} == {id(p) for p in net.parameters()}


def test_invalid_settings_raise():
    with pytest.raises(ValueError, match="at least one layer, got layers=0"):
        Stack(DenseDEQNet(), layers=0)
    with pytest.raises(ValueError, match=r"got JacobianPenalty\(weight=-1"):
        JacobianPenalty(weight=-1.0)
