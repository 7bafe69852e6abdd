"""Small ReLU nets: attacks against the exact worst margin from a mixed-integer program."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import Bounds, LinearConstraint, milp
from tests.problems import Relu, uniform
from torch import Tensor

from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.losses import cross_entropy, dlr, margin, targeted_margin
from saddlepoint.attacks.spaces import Linf
from saddlepoint.audits.planning.suite import compose
from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.evaluation import Cascade, Direct, MultiTarget, Threat
from saddlepoint.evaluation.referee import play

NETS = 10
POINTS = 20
INPUTS = 5
HIDDEN = 10
CLASSES = 3
SPACE = Linf(0.12)
UNDECIDED = 1e-6  # the program's own feasibility tolerance is 1e-7

APGDS = (
    Direct("apgd-ce", APGD(40), loss=cross_entropy),
    Direct("apgd-dlr", APGD(40), loss=dlr),
    MultiTarget(Direct("apgd-t", APGD(40)), CLASSES - 1, targeted_margin),
)


def exact_margin(net: Relu, x: Tensor, y: int) -> float:
    """The maximum over the set of max_{j != y} z_j - z_y.

    Variables (x, h, a): h = max(U x + u, 0), and a indicates the active units. Big-M: with l <= U x
    + u <= m from intervals, h >= U x + u, h >= 0, h <= m a, h <= U x + u - l (1 - a).
    """
    U, u, V, v = (t.numpy() for t in (net.inner, net.inner_bias, net.outer, net.outer_bias))
    low = (x - SPACE.radius).clamp(min=0).numpy()
    high = (x + SPACE.radius).clamp(max=1).numpy()
    center = (low + high) / 2
    half = (high - low) / 2
    m = U @ center + u + np.abs(U) @ half
    lo = U @ center + u - np.abs(U) @ half
    eye = np.eye(HIDDEN)
    zero = np.zeros((HIDDEN, INPUTS))
    above = LinearConstraint(np.hstack([-U, eye, 0 * eye]), u, np.inf)
    m = np.maximum(m, 0)
    lo = np.minimum(lo, 0)
    rows = [
        above,
        LinearConstraint(np.hstack([zero, eye, -np.diag(m)]), -np.inf, 0),
        LinearConstraint(np.hstack([-U, eye, -np.diag(lo)]), -np.inf, u - lo),
    ]
    bounds = Bounds(
        np.concatenate([low, np.zeros(2 * HIDDEN)]),
        np.concatenate([high, np.full(HIDDEN, np.inf), np.ones(HIDDEN)]),
    )
    whole = np.concatenate([np.zeros(INPUTS + HIDDEN), np.ones(HIDDEN)])
    best = -np.inf
    for j in set(range(CLASSES)) - {y}:
        gain = np.concatenate([np.zeros(INPUTS), V[j] - V[y], np.zeros(HIDDEN)])
        solved = milp(
            -gain, constraints=rows, bounds=bounds, integrality=whole, options={"mip_rel_gap": 0}
        )
        assert solved.success, solved.message
        best = max(best, float(-solved.fun + v[j] - v[y]))
    return best


class Bank(Defense):
    """Row i is evaluated by nets[i]: all problems in one batch."""

    def __init__(self, nets: list[Relu]) -> None:
        self.nets = nets
        self.inner = torch.stack([net.inner for net in nets])
        self.outer = torch.stack([net.outer for net in nets])
        self.biases = (
            torch.stack([net.inner_bias for net in nets]),
            torch.stack([net.outer_bias for net in nets]),
        )

    def restrict(self, rows: Tensor) -> Bank:
        chosen = rows.nonzero().flatten() if rows.dtype == torch.bool else rows
        return Bank([self.nets[i] for i in chosen.tolist()])

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        hidden = (torch.einsum("nhd,nd->nh", self.inner, x) + self.biases[0]).relu()
        return Trace(
            (View("final", torch.einsum("nch,nh->nc", self.outer, hidden) + self.biases[1]),)
        )


def bank() -> tuple[Bank, Tensor, Tensor]:
    """All problems."""
    nets, x, y = zip(*(points(k) for k in range(NETS)), strict=True)
    return Bank([net for net in nets for _ in range(POINTS)]), torch.cat(x), torch.cat(y)


def points(k: int) -> tuple[Relu, Tensor, Tensor]:
    net = Relu.random(10 * k, INPUTS, HIDDEN, CLASSES)
    x = uniform(1000 + k, POINTS, INPUTS)
    return net, x, net(x).argmax(1)


def test_no_random_sample_exceeds_the_maximum_of_the_program() -> None:
    """In five dimensions 200000 samples come within 0.02 of the maximum."""
    net, x, y = points(0)
    for i in range(3):
        exact = exact_margin(net, x[i], int(y[i]))
        cloud = (
            x[i]
            + SPACE.radius
            * (2 * uniform(i, 200_000, INPUTS) - 1).sign()
            * uniform(i + 9, 200_000, 1) ** 0.1
        ).clamp(0, 1)
        sampled = margin(net(cloud), y[i].expand(200_000)).amax().item()
        assert sampled <= exact + UNDECIDED
        assert sampled > exact - 0.02


@pytest.fixture(scope="module")
def exact() -> Tensor:
    """[NETS, POINTS] worst margins; none is zero within the tolerance of the program."""
    problems = [points(k) for k in range(NETS)]
    margins = [
        [exact_margin(net, x[i], int(y[i])) for i in range(POINTS)] for net, x, y in problems
    ]
    worst = torch.tensor(margins, dtype=torch.float64)
    assert (worst.abs() > UNDECIDED).all()
    assert 60 < (worst > 0).sum() < 140  # of 200: both cases occur
    return worst


@pytest.mark.slow
def test_the_thorough_suite_breaks_every_vulnerable_point_and_no_other(exact: Tensor) -> None:
    """AutoAttack's composition misses two of the 78 points.

    A corner that is reached from one start in eight is found by 40 short PGD runs with probability
    1 - (7/8)^40 = 0.995.
    """
    defense, x, y = bank()
    suite = Cascade(
        "thorough",
        tuple(choice.adversary for choice in compose(defense, Threat(SPACE), "thorough")),
    )
    episode = play(defense, suite, x, y, Threat(SPACE), batch_size=len(x))
    assert torch.equal(episode.correct[0] == 0, exact.flatten() > 0)
    assert (episode.margin[0] <= exact.flatten() + UNDECIDED).all()


def test_auto_pgd_alone_misses_at_most_two_points(exact: Tensor) -> None:
    """It missed two of 78 points when this test was written, and must not miss more."""
    defense, x, y = bank()
    robust = (
        play(defense, Cascade("apgd", APGDS), x, y, Threat(SPACE), batch_size=len(x)).correct[0]
        == 1
    )
    assert int((robust & (exact.flatten() > 0)).sum()) <= 2
