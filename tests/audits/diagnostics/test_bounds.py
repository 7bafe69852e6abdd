"""Certified bounds are never above the truth, and equal it where the truth is known."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import saddlepoint as sp
from saddlepoint.audits.diagnostics.bounds import (
    certificate_method,
    certified,
    interval_margins,
    lipschitz_margins,
)
from saddlepoint.audits.diagnostics.layer_bounds import supported
from saddlepoint.phrases import at_least
from saddlepoint.zoo.deq import MonotoneDEQ
from saddlepoint.zoo.nets.monotone import MonotoneNet
from saddlepoint.zoo.nets.normalize import Normalize

X = torch.rand(12, 1, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Scale(nn.Module):
    """(x - shift) * scale per channel, which declares its scales."""

    def __init__(self, shift, scale):
        super().__init__()
        self.shift = shift
        self.scale = torch.tensor(scale, dtype=torch.float64)

    def channel_scales(self):
        return self.scale

    def forward(self, x):
        return (x - self.shift) * self.scale.view(-1, 1, 1)


def build(*layers):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(*(layer() for layer in layers)).double().eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_var = module.running_var * 0.3 + 0.1
    return net


def convolutional(first):
    return build(
        first,
        lambda: nn.Conv2d(1, 4, 3, padding=1, stride=2),
        lambda: nn.BatchNorm2d(4),
        nn.ReLU,
        lambda: nn.MaxPool2d(2),
        nn.Flatten,
        lambda: nn.Sequential(nn.Dropout(), nn.Linear(4, 3)),
    )


NETS = {
    "linear": build(nn.Flatten, lambda: nn.Linear(16, 3)),
    "relu": build(nn.Flatten, lambda: nn.Linear(16, 8), nn.ReLU, lambda: nn.Linear(8, 3)),
    "conv": convolutional(lambda: Scale(0.5, [4.0])),
    "normalized conv": convolutional(lambda: Normalize([0.5], [0.25])),
}


def true_margins(logits, y):
    """[N] z_y - max_{j != y} z_j."""
    differences = logits.gather(1, y[:, None]) - logits
    return differences.scatter(1, y[:, None], torch.inf).amin(1)


@pytest.mark.parametrize("space", [sp.Linf(0.05), sp.L2(0.1), sp.L1(0.2)], ids=str)
@pytest.mark.parametrize("name", NETS)
def test_no_point_of_the_set_has_a_smaller_margin_than_the_bounds(name, space):
    net = NETS[name]
    y = net(X).argmax(1)
    assert supported(net)
    bounds = [bound(net, X, y, space) for bound in (interval_margins, lipschitz_margins)]
    generator = torch.Generator().manual_seed(2)
    for _ in range(200):
        noise = torch.randn(X.shape, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            least = true_margins(net(space.project(X + noise, X)), y)
        for bound in bounds:
            assert (bound <= least + 1e-12).all()


def test_the_interval_bound_of_a_linear_net_is_exact_inside_the_box():
    net = NETS["linear"]
    x = 0.3 + 0.4 * X
    logits = net(x)
    y = logits.argmax(1)
    w = net[1].weight
    exact = logits.gather(1, y[:, None]) - logits - 0.05 * (w[y][:, None] - w).abs().sum(2)
    exact = exact.scatter(1, y[:, None], torch.inf).amin(1)
    found = interval_margins(net, x, y, sp.Linf(0.05))
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-12)


def test_the_lipschitz_bound_of_a_linear_net_is_exact_in_the_euclidean_norm():
    net = NETS["linear"]
    x = 0.3 + 0.4 * X
    logits = net(x)
    y = logits.argmax(1)
    w = net[1].weight
    exact = logits.gather(1, y[:, None]) - logits - 0.1 * (w[y][:, None] - w).norm(dim=2)
    exact = exact.scatter(1, y[:, None], torch.inf).amin(1)
    found = lipschitz_margins(net, x, y, sp.L2(0.1))
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-12)


@pytest.mark.parametrize("m", [0.1, 1.0])
def test_the_margin_of_a_monotone_equilibrium_is_never_below_its_bound(m):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = MonotoneNet(image=(1, 4, 4), size=6, classes=3, m=m, mean=[0.2], std=[0.5])
    defense = MonotoneDEQ(net.double().eval())
    space = sp.L2(0.3)
    with torch.no_grad():
        logits = defense.respond(X, sp.Context.seeded(0, len(X)))
        y = logits.argmax(1)
        bound = defense.certified_margins(logits, X, y, space)
        for seed in range(20):
            generator = torch.Generator().manual_seed(seed)
            noise = torch.randn(X.shape, generator=generator, dtype=torch.float64)
            points = space.project(X + noise, X)
            least = true_margins(defense.respond(points, sp.Context.seeded(0, len(X))), y)
            assert (bound <= least + 1e-4).all()  # about the tolerance of the solver
    assert "monotone" in certificate_method(defense, X.dtype)
    assert certified(defense, X, y, sp.L2(1e-6)).all()


class OwnBound(sp.Defense):
    """A linear defense that bounds its own margins by a given number."""

    certificate = "its own bound"

    def __init__(self, bound):
        self.bound = bound

    def trace(self, x, ctx):
        return sp.Trace((sp.View("final", NETS["linear"](x)),))

    def certified_margins(self, logits, x, y, space):
        return torch.full((len(x),), self.bound, dtype=logits.dtype)


def test_a_defense_may_bound_its_own_margins():
    y = NETS["linear"](X).argmax(1)
    assert certificate_method(OwnBound(1.0), X.dtype) == "its own bound"
    assert certified(OwnBound(1.0), X, y, sp.Linf(0.1)).all()
    assert not certified(OwnBound(1e-9), X, y, sp.Linf(0.1)).any()  # below the slack for rounding


def test_an_audit_of_a_small_net_has_a_certified_bound_below_the_robust_accuracy():
    net = NETS["relu"]
    y = net(X).argmax(1)
    result = sp.audit(net, X, y, threat=sp.Linf(0.02), budget="quick")
    proven = result.compared.proven
    assert 0 < proven.accuracy <= result.robust_accuracy
    assert f"{at_least(proven.accuracy)}, certified" in result.summary()


@pytest.mark.parametrize("layer", [nn.Sigmoid(), nn.LayerNorm(3), type("Mine", (nn.ReLU,), {})()])
def test_a_net_with_an_unknown_layer_is_not_certified(layer):
    assert supported(NETS["relu"])
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3), layer, nn.Linear(3, 3)).double().eval()
    assert not supported(net)
    assert certificate_method(sp.Plain(net), X.dtype) is None


CIRCULAR = nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular")
BATCH_STATISTICS = nn.BatchNorm2d(1, track_running_stats=False)


@pytest.mark.parametrize("layer", [CIRCULAR, BATCH_STATISTICS], ids=["circular", "batch"])
def test_a_layer_with_unusual_settings_is_not_certified(layer):
    net = nn.Sequential(layer, nn.Flatten(), nn.Linear(16, 3)).eval()
    assert certificate_method(sp.Plain(net), torch.float32) is None


def test_only_deterministic_independent_nets_in_single_precision_are_certified():
    x = X.float()
    plain = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).eval()
    y = plain(x).argmax(1)
    assert certificate_method(sp.Plain(plain), x.dtype) is not None
    assert certified(sp.Plain(plain), x, y, sp.Linf(1e-9)).double().mean() > 0.9
    assert certificate_method(sp.Plain(plain, coupled=True), x.dtype) is None
    assert certificate_method(sp.Plain(plain, random=True), x.dtype) is None
    # The slack does not cover the rounding errors of half precision.
    assert certificate_method(sp.Plain(plain.half()), torch.float16) is None


EXPANDING = {
    "overlapping windows": nn.MaxPool2d(3, stride=1, padding=1),
    "dilated windows": nn.MaxPool2d(3, stride=2, dilation=2),
    "smaller averages at the edge": nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False),
    "sums": nn.AvgPool2d(2, divisor_override=1),
    "averages that enlarge": nn.AdaptiveAvgPool2d(13),
    "convolution": nn.Conv2d(1, 2, 3, stride=2, padding=1, bias=False),
}


@pytest.mark.parametrize("layer", EXPANDING.values(), ids=EXPANDING)
def test_no_layer_expands_a_perturbation_by_more_than_its_bound(layer):
    # The head reads the direction that the layer expands most: a step of length R along it changes
    # the margin by sigma R.
    layer = layer.double()
    step = 1e-3
    x = torch.full((1, 1, 9, 9), 0.4, dtype=torch.float64)
    x[..., 4, 4] = 0.6  # the maximum of every window that contains it
    jacobian = torch.autograd.functional.jacobian(lambda v: layer(v).flatten(), x).flatten(1)
    left, _, right = torch.linalg.svd(jacobian)
    head = nn.Linear(len(jacobian), 2, bias=False)
    head.weight = nn.Parameter(torch.stack([left[:, 0], 0 * left[:, 0]]))
    net = nn.Sequential(layer, nn.Flatten(), head).double().eval()
    direction = step * right[0].view_as(x)
    with torch.no_grad():
        y = net(x).argmax(1)
        least = min(float(-sp.margin(net(point), y)) for point in (x + direction, x - direction))
        assert float(lipschitz_margins(net, x, y, sp.L2(step))) <= least + 1e-12
