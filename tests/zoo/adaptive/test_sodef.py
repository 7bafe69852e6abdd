"""SODEF: flows of known fields, stability losses of known Jacobians, and training."""

import math

import pytest
import torch
from tests.problems import normal, uniform
from tests.zoo.adaptive.small_defenses import (
    CLASSES,
    body,
    build_module,
    images,
    network,
    respond,
    sodef,
)
from torch import nn
from torch.testing import assert_close

import saddlepoint as sp
from saddlepoint.zoo.adaptive import SODEF
from saddlepoint.zoo.adaptive.fitting import Phase
from saddlepoint.zoo.adaptive.sodef import (
    Dopri5,
    RungeKutta,
    SineField,
    Stability,
    StableODE,
    StableTraining,
    simplex,
)
from saddlepoint.zoo.adaptive.sodef.stability import jacobians

A = 0.7 * normal(11, 6, 6) - torch.eye(6, dtype=torch.float64)


@pytest.mark.parametrize(
    "solver", [Dopri5(1e-10), Dopri5(1e-10, per_example=True), RungeKutta(400)], ids=str
)
def test_the_flow_of_a_linear_field_is_its_matrix_exponential(solver):
    z = normal(12, 5, 6)
    # RungeKutta has order 4: (2.0 / 400)^4 |A|^5 is below 1e-7.
    assert_close(
        solver(lambda z: z @ A.T, z, 2.0), z @ torch.linalg.matrix_exp(2.0 * A).T, rtol=0, atol=1e-7
    )


def test_the_output_equals_the_explicit_equations():
    """tanh(W features + b), 6 steps of Kutta's 3/8 rule on the sine field, then a linear layer."""
    defense = sodef(integrator=RungeKutta(6))
    x = images()
    h = 2.0 / 6
    net = defense.net
    parts = defense.body

    def field(z):
        for layer in parts.field.layers:
            z = torch.sin(-(z @ layer.weight.T + layer.bias))
        return z

    z = torch.tanh(net[:7](x) @ parts.embed[0].weight.T + parts.embed[0].bias)
    for _ in range(6):
        k1 = field(z)
        k2 = field(z + h * k1 / 3)
        k3 = field(z + h * (k2 - k1 / 3))
        k4 = field(z + h * (k1 - k2 + k3))
        z = z + h * (k1 + 3 * k2 + 3 * k3 + k4) / 8
    assert_close(respond(defense, x), z @ parts.head.weight.T + parts.head.bias, rtol=0, atol=1e-12)


def test_with_time_zero_the_head_sees_the_embedding():
    defense = sodef(time=0.0)
    x = images()
    assert_close(
        respond(defense, x),
        defense.body.head(defense.body.embed(defense.features(x))),
        rtol=0,
        atol=0,
    )
    assert not defense.coupled


def test_with_time_zero_and_the_last_layer_as_head_it_equals_the_static_network():
    net = network()
    x = images()
    defense = SODEF(net, StableODE(nn.Identity(), SineField(12, ()).double(), net[-1]), time=0.0)
    assert_close(respond(defense, x), net(x), rtol=0, atol=0)
    assert (defense.coupled, defense.random, defense.static) == (False, False, net)


def test_segments_divide_the_flow_without_changing_it():
    x = images()
    whole, segmented = (sodef(integrator=RungeKutta(12 // k), segments=k) for k in (1, 3))
    assert_close(respond(segmented, x), respond(whole, x), rtol=0, atol=1e-13)
    with torch.no_grad():
        names = segmented.trace(x, sp.Context.seeded(0, 5)).names
    assert names == ("ode/0", "ode/1", "ode/2", "ode/3")


def test_the_batch_changes_an_output_within_the_tolerance_of_the_solver():
    defense = sodef(integrator=Dopri5(1e-3))
    x = images()
    gap = (respond(defense, x)[:1] - respond(defense, x[:1])).abs().amax()
    assert 1e-9 < gap < 1e-2


def test_the_default_sizes_are_those_of_the_released_code():
    parts = StableODE.over(640, 10)
    sizes = [tuple(m.weight.shape) for m in parts.modules() if isinstance(m, nn.Linear)]
    assert sizes == [(2048, 640), (64, 2048), (256, 64), (256, 256), (64, 256), (10, 64)]
    defense = SODEF(network())
    assert (defense.time, defense.integrator, defense.segments) == (5.0, Dopri5(1e-3), 1)


def test_the_jacobian_of_a_linear_field_is_its_matrix():
    assert_close(
        jacobians(lambda z: z @ A.T, normal(13, 3, 6)), A.expand(3, 6, 6), rtol=0, atol=1e-14
    )


def test_the_stability_loss_equals_its_explicit_sums():
    z = normal(14, 3, 6)
    weights = Stability(0.3, 5.0, 7.0)
    d = 6
    loss = weights.loss(lambda z: z @ A.T, z)
    for z_row, found in zip(z, loss, strict=True):
        f = A @ z_row
        rest = sum((50 * abs(float(f[i]))) ** 2 for i in range(d)) / d
        slope = sum(math.exp(float(A[i, i]) + 1) for i in range(d)) / d
        columns = [
            sum(abs(float(A[i, j])) for i in range(d) if i != j) - abs(float(A[j, j]))
            for j in range(d)
        ]
        dominance = sum(math.exp(0.1 * (c + 1)) for c in columns) / d
        assert float(found) == pytest.approx(0.3 * rest + 5 * slope + 7 * dominance, rel=1e-12)


def test_the_stability_loss_of_a_contraction_at_its_equilibrium_has_a_closed_form():
    """f(z) = -2 z at z = 0: the rest term is zero and J = -2 I."""
    loss = Stability(1.0, 1.0, 1.0).loss(lambda z: -2 * z, torch.zeros(2, 5, dtype=torch.float64))
    assert_close(
        loss,
        torch.full((2,), math.exp(-1) + math.exp(-0.1), dtype=torch.float64),
        rtol=1e-14,
        atol=0,
    )


@pytest.mark.parametrize(("classes", "width"), [(2, 2), (10, 64), (4, 4)])
def test_the_simplex_has_unit_vectors_at_equal_distances(classes, width):
    corners = simplex(classes, width, seed=5)
    gram = torch.full((classes, classes), -1 / (classes - 1), dtype=torch.float64).fill_diagonal_(
        1.0
    )
    assert_close(corners @ corners.T, gram, rtol=0, atol=1e-12)


def test_more_classes_than_dimensions_raise():
    with pytest.raises(ValueError, match="larger width"):
        simplex(5, 4)


def blobs(n):
    """Draw images of one constant color per class with noise; they are linearly separable."""
    y = torch.arange(n) % CLASSES
    level = torch.tensor([0.2, 0.4, 0.6, 0.8], dtype=torch.float64)[y]
    return (level[:, None, None, None] + 0.05 * (uniform(21, n, 3, 8, 8) - 0.5)).clamp(0, 1), y


def untrained():
    """Build the ODE from which training starts."""

    def build():
        embed = nn.Sequential(nn.Linear(12, 8), nn.Tanh())
        return StableODE(embed, SineField(8, (64, 64)), nn.Linear(8, CLASSES))

    return build_module(build, 7)


@pytest.fixture(scope="module")
def trained():
    x, y = blobs(32)
    start = untrained()
    training = StableTraining(Phase(80, 16, 0.1), Phase(80, 16, 1e-2), Phase(60, 32, 3e-2))
    defense = SODEF(network(), start, integrator=RungeKutta(20))
    return start, defense.fit(x, y, training=training, seed=3), x, y


def test_training_lowers_the_stability_loss_and_makes_the_flow_contract(trained):
    start, defense, x, _ = trained
    fresh = StableODE(defense.body.embed, start.field, start.head)
    with torch.no_grad():
        z = defense.body.embed(defense.features(x))
        before, after = (Stability().loss(b.field, z).mean() for b in (fresh, defense.body))
        near = z + 1e-3 * normal(22, *z.shape)
        end, near_end = (defense.integrator(defense.body.field, v, 5.0) for v in (z, near))
        ratio = (near_end - end).norm(dim=1) / (near - z).norm(dim=1)
    assert after < 0.5 * before
    assert ratio.median() < 0.5  # the flow reduces a perturbation of z(0)


def test_the_trained_head_predicts_the_classes_and_the_network_is_unchanged(trained):
    start, defense, x, y = trained
    assert (respond(defense, x).argmax(1) == y).double().mean() > 0.9
    assert_close(dict(defense.net.state_dict()), dict(network().state_dict()), rtol=0, atol=0)
    # A copy of the ODE was trained.
    assert_close(dict(start.state_dict()), dict(untrained().state_dict()), rtol=0, atol=0)


def test_training_is_a_function_of_its_seed():
    x, y = blobs(16)
    training = StableTraining(Phase(1, 8, 1e-2), Phase(1, 8, 1e-2), Phase(1, 8, 1e-2))
    one, two, other = (
        SODEF(network(), body()).fit(x, y, training=training, seed=s).body.state_dict()
        for s in (1, 1, 2)
    )
    assert_close(dict(one), dict(two), rtol=0, atol=0)
    assert not torch.equal(one["head.weight"], other["head.weight"])


def test_labels_of_a_floating_point_type_raise():
    x, y = blobs(8)
    with pytest.raises(ValueError, match="int64 labels"):
        SODEF(network()).fit(x, y.double())
