"""Equilibrium networks at one resolution have one equilibrium, reached at the guaranteed rate."""

import math

import pytest
import torch
from tests.problems import normal, uniform
from torch import nn

from saddlepoint.zoo.nets import ConvDEQNet, DenseDEQNet, MonotoneNet
from saddlepoint.zoo.nets.deq import Bounded


def dense(**changes):
    return with_large_weights(DenseDEQNet(image=(1, 4, 4), size=20, classes=3, **changes))


def conv(**changes):
    return with_large_weights(
        ConvDEQNet(image=(1, 5, 6), channels=4, stride=2, classes=3, **changes)
    )


def with_large_weights(net):
    """Set weights as large as training might make them, so that the bound is active."""
    with torch.no_grad():
        for k, parameter in enumerate(net.parameters()):
            parameter.copy_(normal(k, *parameter.shape))
    return net.double().eval()


CASES = {"dense": (dense, (1, 4, 4), 0.9), "conv": (conv, (1, 5, 6), 0.81)}


@pytest.fixture(params=CASES)
def case(request):
    build, shape, rate = CASES[request.param]
    return build(), uniform(1, 3, *shape), rate


def test_the_cell_is_a_contraction(case):
    net, x, rate = case
    u = net.inject(x)
    a = normal(2, *net.start(u).shape)
    b = normal(3, *net.start(u).shape)
    before = (a - b).norm(dim=1)
    after = (net.cell(a, u) - net.cell(b, u)).norm(dim=1)
    assert (after <= rate * before).all()


def test_plain_iterations_converge_at_the_guaranteed_rate(case):
    net, x, rate = case
    u = net.inject(x)
    states = [net.start(u)]
    for _ in range(400):
        states.append(net.cell(states[-1], u))
    end = states[-1]
    torch.testing.assert_close(net.cell(end, u), end, rtol=0, atol=1e-12)
    for n in (1, 5, 20):
        assert ((states[n] - end).norm(dim=1) <= rate**n * end.norm(dim=1) + 1e-12).all()
    assert net.head(end).shape == (3, 3)


def test_the_norm_of_a_bounded_matrix_is_at_most_the_gain_and_not_much_smaller():
    """The norm is found by singular values; random weights of this size have 0.8 of the gain."""
    for seed in range(5):
        weight = Bounded(0.9)(100 * normal(seed, 60, 60))
        assert 0.75 < torch.linalg.matrix_norm(weight, 2).item() <= 0.9
    rank_one = normal(1, 60, 1) @ normal(2, 1, 60)
    assert torch.linalg.matrix_norm(Bounded(0.9)(rank_one), 2).item() <= 0.9


def test_the_norm_of_a_bounded_convolution_is_at_most_the_gain():
    """The convolution is written as a matrix, column by column.

    With equal positive kernels a large image reaches nearly all of the gain.
    """
    pixels = torch.eye(3 * 64, dtype=torch.float64).view(-1, 3, 8, 8)
    for kernel in (normal(1, 4, 3, 3, 3), torch.ones(4, 3, 3, 3, dtype=torch.float64)):
        columns = nn.functional.conv2d(pixels, Bounded(0.9)(kernel), padding=1).flatten(1)
        assert 0.3 < torch.linalg.matrix_norm(columns, 2).item() <= 0.9
    assert torch.linalg.matrix_norm(columns, 2).item() > 0.75


def test_weights_below_the_bound_are_not_changed():
    v = (0.01 * normal(1, 4, 4)).requires_grad_()
    assert torch.equal(Bounded(0.9)(v), v)
    assert torch.equal(Bounded(math.inf)(1e3 * v), 1e3 * v)
    zero = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    Bounded(0.9)(zero).sum().backward()
    assert zero.grad.isfinite().all()


def test_rows_are_independent(case):
    net, x, _ = case
    u = net.inject(x)
    alone = net.inject(x[1:2])
    z = normal(4, *net.start(u).shape)
    torch.testing.assert_close(net.cell(z[1:2], alone), net.cell(z, u)[1:2], rtol=0, atol=1e-12)


def test_a_gain_that_is_not_positive_raises():
    with pytest.raises(ValueError, match=r"must be positive, got 0\."):
        DenseDEQNet(gain=0.0)


def test_the_monotone_weight_has_the_given_monotonicity_constant():
    """The symmetric part of I - W is m I + A^T A.

    Its smallest eigenvalue is m, because A does not have full rank.
    """
    a = normal(1, 2, 5)
    b = normal(2, 5, 5)
    net = MonotoneNet.from_tensors(
        a, b, normal(3, 5, 4), normal(4, 5), normal(5, 3, 5), normal(6, 3), m=0.3
    )
    gap = torch.eye(5, dtype=torch.float64) - net.weight
    eigenvalues = torch.linalg.eigvalsh((gap + gap.T) / 2)
    assert eigenvalues[0].item() == pytest.approx(0.3, abs=1e-12)
    torch.testing.assert_close(gap - gap.T, 2 * (b.T - b), rtol=0, atol=1e-12)


def test_the_monotone_network_normalizes_pixels():
    net = MonotoneNet.from_tensors(
        normal(1, 2, 5),
        normal(2, 5, 5),
        normal(3, 5, 4),
        normal(4, 5),
        normal(5, 3, 5),
        normal(6, 3),
        m=1,
        mean=(0.2,),
        std=(0.5,),
    )
    x = uniform(7, 3, 1, 2, 2)
    expected = (x.flatten(1) - 0.2) / 0.5 @ normal(3, 5, 4).T + normal(4, 5)
    # Mean and std are stored in single precision.
    torch.testing.assert_close(net.inject(x), expected, rtol=0, atol=1e-7)
    z = normal(8, 3, 5)
    torch.testing.assert_close(
        net.cell(z, expected), nn.functional.relu(z @ net.weight.T + expected), rtol=0, atol=1e-12
    )
    assert not net.training


def test_tensors_with_wrong_shapes_raise():
    with pytest.raises(ValueError, match=r"found \[\(2, 5\), \(4, 4\), "):
        MonotoneNet.from_tensors(
            normal(1, 2, 5),
            normal(2, 4, 4),
            normal(3, 5, 4),
            normal(4, 5),
            normal(5, 3, 5),
            normal(6, 3),
            m=1,
        )
    with pytest.raises(ValueError, match="needs m > 0, got m=0"):
        MonotoneNet(m=0.0)
