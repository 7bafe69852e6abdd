"""Lower bounds hold below the truth, and upper bounds never contradict them."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import norm
from torch import nn

import saddlepoint as sp
from saddlepoint.audits.diagnostics.bounds import (
    interval_margins,
    lipschitz_margins,
    monotone_margins,
    prove,
    supported,
)
from saddlepoint.audits.diagnostics.smoothing import ABSTAINS, smoothing_certificate
from saddlepoint.audits.statistics import clopper_pearson, mcnemar, over_units, wilson
from saddlepoint.zoo.deq import MonotoneDEQ
from saddlepoint.zoo.nets.monotone import MonotoneNet
from saddlepoint.zoo.nets.normalize import Normalize

X = torch.rand(12, 1, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def built(*layers):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(*(layer() for layer in layers)).double().eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_var = module.running_var * 0.3 + 0.1
    return net


NETS = {
    "linear": built(nn.Flatten, lambda: nn.Linear(16, 3)),
    "relu": built(nn.Flatten, lambda: nn.Linear(16, 8), nn.ReLU, lambda: nn.Linear(8, 3)),
    "conv": built(
        lambda: Normalize([0.5], [0.25]), lambda: nn.Conv2d(1, 4, 3, padding=1, stride=2), lambda: nn.BatchNorm2d(4), nn.ReLU,
        lambda: nn.MaxPool2d(2), nn.Flatten, lambda: nn.Sequential(nn.Dropout(), nn.Linear(4, 3)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("space", [sp.Linf(0.05), sp.L2(0.1), sp.L1(0.2)], ids=str)
@pytest.mark.parametrize("name", NETS)
def test_no_point_of_the_set_has_a_smaller_margin_than_the_bounds(name, space):
    net = NETS[name]
    y = net(X).argmax(1)
    bounds = [bound(net, X, y, space) for bound in (interval_margins, lipschitz_margins)]
    draws = torch.Generator().manual_seed(2)
    for _ in range(200):
        noise = torch.randn(X.shape, generator=draws, dtype=torch.float64)
        z = net(space.project(X + noise, X)).detach()
        least = (z.gather(1, y[:, None]) - z).scatter(1, y[:, None], torch.inf).amin(1)
        for bound in bounds:
            assert (bound <= least + 1e-12).all()


def test_interval_bounds_of_a_linear_net_are_exact_away_from_the_box():
    net = NETS["linear"]
    space = sp.Linf(0.05)
    x = 0.3 + 0.4 * X
    y = net(x).argmax(1)
    z = net(x)
    w = net[1].weight
    exact = z.gather(1, y[:, None]) - z - 0.05 * (w[y][:, None] - w).abs().sum(2)
    exact = exact.scatter(1, y[:, None], torch.inf).amin(1)
    torch.testing.assert_close(interval_margins(net, x, y, space), exact, rtol=0, atol=1e-12)


def test_the_lipschitz_bound_of_a_linear_net_is_exact_in_the_euclidean_norm():
    net = NETS["linear"]
    x = 0.3 + 0.4 * X
    y = net(x).argmax(1)
    z = net(x)
    w = net[1].weight
    exact = (
        (z.gather(1, y[:, None]) - z - 0.1 * (w[y][:, None] - w).norm(dim=2))
        .scatter(1, y[:, None], torch.inf)
        .amin(1)
    )
    torch.testing.assert_close(lipschitz_margins(net, x, y, sp.L2(0.1)), exact, rtol=0, atol=1e-12)


@pytest.mark.parametrize("m", [0.1, 1.0])
def test_a_monotone_equilibrium_moves_no_faster_than_its_bound(m):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = (
            MonotoneNet(image=(1, 4, 4), size=6, classes=3, m=m, mean=[0.2], std=[0.5])
            .double()
            .eval()
        )
    defense = MonotoneDEQ(net)
    space = sp.L2(0.3)
    with torch.no_grad():
        logits = defense.respond(X, sp.Context.seeded(0, len(X)))
        y = logits.argmax(1)
        bound = monotone_margins(net, logits, X, y, space)
        for seed in range(20):
            noise = torch.randn(
                X.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
            )
            z = defense.respond(space.project(X + noise, X), sp.Context.seeded(0, len(X)))
            least = (z.gather(1, y[:, None]) - z).scatter(1, y[:, None], torch.inf).amin(1)
            assert (bound <= least + 1e-4).all()  # the solver stops at a tolerance of about that
    found = prove(defense, X, y, sp.L2(1e-6))
    assert "monotone" in found.method
    assert found.accuracy == 1


def test_an_audit_of_a_small_net_has_a_proven_bound_below_the_number():
    net = NETS["relu"]
    y = net(X).argmax(1)
    result = sp.audit(net, X, y, threat=sp.Linf(0.02), budget="quick")
    proven = result.compared.proven
    assert 0 < proven.accuracy <= result.robust_accuracy
    assert f"at least {100 * proven.accuracy:.1f} %, proven" in result.summary()


@pytest.mark.parametrize("layer", [nn.Sigmoid(), nn.LayerNorm(3), type("Mine", (nn.ReLU,), {})()])
def test_what_is_not_known_is_not_proven(layer):
    assert supported(NETS["relu"])
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3), layer, nn.Linear(3, 3)).double().eval()
    assert not supported(net)
    assert prove(sp.Plain(net), X, torch.zeros(len(X), dtype=torch.long), sp.Linf(0.1)) is None


STRETCHING = {
    "windows that overlap": nn.MaxPool2d(3, stride=1, padding=1),
    "windows with holes": nn.MaxPool2d(3, stride=2, dilation=2),
    "averages over less at the edge": nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False),
    "sums": nn.AvgPool2d(2, divisor_override=1),
    "averages that enlarge": nn.AdaptiveAvgPool2d(13),
    "convolution": nn.Conv2d(1, 2, 3, stride=2, padding=1, bias=False),
}


@pytest.mark.parametrize("layer", STRETCHING.values(), ids=STRETCHING)
def test_no_layer_stretches_an_image_by_more_than_its_bound(layer):
    # A head that reads the direction in which the layer stretches most: a step of length R along it moves the margin by sigma R.
    layer = layer.double()
    step = 1e-3
    x = torch.full((1, 1, 9, 9), 0.4, dtype=torch.float64)
    x[..., 4, 4] = 0.6  # the largest of every window that holds it
    slopes = torch.autograd.functional.jacobian(lambda v: layer(v).flatten(), x).flatten(1)
    left, _, right = torch.linalg.svd(slopes)
    head = nn.Linear(len(slopes), 2, bias=False)
    head.weight = nn.Parameter(torch.stack([left[:, 0], 0 * left[:, 0]]))
    net = nn.Sequential(layer, nn.Flatten(), head).double().eval()
    with torch.no_grad():
        y = net(x).argmax(1)
        least = min(
            float(-sp.margin(net(x + sign * step * right[0].view_as(x)), y)) for sign in (1, -1)
        )
        assert float(lipschitz_margins(net, x, y, sp.L2(step))) <= least + 1e-12


def test_what_has_no_bound_here_is_left_alone():
    whole = X.float()
    around = nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular")
    batch = nn.BatchNorm2d(1, track_running_stats=False)
    for layer in (around, batch):
        net = nn.Sequential(layer, nn.Flatten(), nn.Linear(16, 3)).eval()
        assert prove(sp.Plain(net), whole, torch.zeros(12, dtype=torch.long), sp.Linf(0.1)) is None
    plain = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).eval()
    y = plain(whole).argmax(1)
    assert prove(sp.Plain(plain), whole, y, sp.Linf(1e-9)).accuracy > 0.9
    assert prove(sp.Plain(plain, coupled=True), whole, y, sp.Linf(1e-9)) is None
    # a thousand roundings of half precision are no slack
    assert prove(sp.Plain(plain.half()), whole.half(), y, sp.Linf(1e-9)) is None


def test_a_smoothed_linear_net_is_certified_below_its_distance_to_the_boundary():
    """g of a linear net is the net itself, and its robust radius the distance d to the boundary: P(f = c) = Phi(d / sigma). With
    2000 draws at alpha = 0.001 the bound on p costs about 4.5 sqrt(p (1 - p) / 2000) at most: within 0.2 sigma where p < 0.95."""
    w = torch.tensor([3.0, 4.0], dtype=torch.float64)
    sigma = 0.5
    x = torch.tensor([[0.06, 0.08], [0.3, 0.4], [-0.3, -0.4], [0.0, 0.0]], dtype=torch.float64)
    y = torch.tensor([0, 0, 0, 0])

    def net(v):
        return torch.stack([v @ w, -(v @ w)], 1)

    found = smoothing_certificate(net, x, y, sigma=sigma, samples=2000)
    distance = (x @ w).abs() / 5
    assert (found.radius <= distance).all()
    assert found.radius[1] > distance[1] - 0.2 * sigma
    assert found.answered.tolist()[1:] == [0, 1, ABSTAINS]
    assert found.right.tolist()[1:] == [True, False, False]
    assert found.accuracy(0.0) == 0.5 if found.right[0] else 0.25
    assert found.accuracy(2.0) == 0


def test_a_certificate_never_exceeds_what_so_many_draws_can_show():
    found = smoothing_certificate(
        lambda v: torch.stack([v[:, 0] * 0 + 1, v[:, 0] * 0], 1),
        X.flatten(1),
        torch.zeros(12).long(),
        sigma=1,
        samples=500,
    )
    most = norm.ppf(0.001 ** (1 / 500))  # p_A with p_A^500 = alpha
    torch.testing.assert_close(
        found.radius, torch.full((12,), most, dtype=torch.float64), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize(("k", "n"), [(0, 10), (3, 10), (10, 10), (57, 100)])
def test_clopper_pearson_has_its_tails(k, n):
    low, high, level, _ = clopper_pearson(k, n, 0.9)
    tail = lambda p, wanted: sum(math.comb(n, j) * p**j * (1 - p) ** (n - j) for j in wanted)  # noqa: E731
    assert tail(low, range(k, n + 1)) == pytest.approx(0.05 if k else 1, abs=1e-9)
    assert tail(high, range(k + 1)) == pytest.approx(0.05 if k < n else 1, abs=1e-9)
    assert level == 0.9


def test_mcnemar_counts_what_only_one_gets_and_gives_the_binomial_tails():
    first = torch.tensor([1.0] * 10 + [0.0] * 4 + [1.0] + [0.0] * 7)
    second = torch.tensor([1.0] * 10 + [0.0] * 4 + [0.0] + [1.0] * 7)
    found = mcnemar(first, second)
    assert (found.only_first, found.only_second) == (1, 7)
    assert found.p == pytest.approx(2 * (1 + 8) / 2**8, abs=1e-12)
    assert not found.second_better
    assert mcnemar(first[:10], second[:10]).p == 1
    with pytest.raises(ValueError, match="the same images twice"):
        mcnemar(first, second[:3])


def test_batches_that_stand_or_fall_as_one_make_the_interval_wider_and_it_says_so():
    together = torch.tensor([1.0, 0.0]).repeat_interleave(50).repeat(5)  # ten batches of fifty
    group = torch.arange(10).repeat_interleave(50)
    alone = wilson(0.5, 500)
    wide = over_units(together, group, "batch")
    assert wide.high - wide.low > 4 * (
        alone.high - alone.low
    )  # ten tosses instead of five hundred: sqrt(50) is 7
    assert "10 batches" in wide.covers
    assert over_units(together, group, "example") == alone
    one = over_units(together, torch.zeros(500, dtype=torch.long), "stream")
    assert one[:2] == alone[:2]
    assert "too narrow" in one.covers


def test_units_that_happen_to_agree_prove_nothing():
    even = torch.tensor([1.0, 0.0]).repeat(250)
    assert (
        over_units(even, torch.arange(10).repeat_interleave(50), "batch")[:2]
        == wilson(0.5, 500)[:2]
    )
