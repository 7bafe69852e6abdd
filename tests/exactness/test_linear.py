"""Linear classifiers: the worst case is a support function.

It is the radius times the dual norm where the box is inactive.
"""

from __future__ import annotations

import pytest
import torch
from tests.problems import Affine, Static, keys, normal, oracle, support, uniform
from tests.roster import INF, NORMS, ROSTER, Entry, each
from torch import Tensor

from saddlepoint.attacks.losses import margin, targeted_margin
from saddlepoint.attacks.pgd import FGSM
from saddlepoint.attacks.spaces import Ball
from saddlepoint.attacks.vmi import VMI
from saddlepoint.evaluation import Direct, MultiTarget, Threat
from saddlepoint.evaluation.referee import play

N = 10
D = 20
INSIDE = 0.5 + 0.05 * (uniform(1, N, D) - 0.5)
ANYWHERE = uniform(2, N, D)
RADIUS = {INF: 0.1, 2: 0.4, 1: 0.4}  # for INSIDE: the box is at least 0.47 away
WIDE = {INF: 0.3, 2: 1.2, 1: 2.0}  # for ANYWHERE: most coordinates reach the box
TOLERANCE = 1e-6  # each iteration reduces the error by at least a third; the rest is rounding

SOLVERS = tuple(entry for entry in ROSTER if entry.exact is not None)


def gap(entry: Entry, space: Ball, x: Tensor, seed: int) -> Tensor:
    """[N] exact worst margin minus the margin found; not negative up to rounding."""
    net = Affine.binary(normal(seed, D))
    y = net(x).argmax(1)
    assert entry.exact is not None
    found = entry.exact(oracle(Static(net), y, loss=entry.loss), x, space, keys(N))
    gaps = net.worst_margin(x, y, space) - margin(net(found.max_loss_point), y)
    assert (gaps > -1e-12).all()
    return gaps


@pytest.mark.parametrize("p", NORMS)
def test_the_support_function_is_radius_times_dual_norm_inside_the_box(p: float) -> None:
    w = normal(0, N, D)
    dual = {INF: 1, 2: 2, 1: INF}[p]
    want = RADIUS[p] * torch.linalg.vector_norm(w, dual, dim=1)
    torch.testing.assert_close(support(w, INSIDE, Ball(p, RADIUS[p])), want, rtol=1e-12, atol=0)


@each(SOLVERS)
def test_binary_worst_case_is_radius_times_dual_norm(entry: Entry, p: float) -> None:
    for seed in range(4):
        assert gap(entry, Ball(p, RADIUS[p]), INSIDE, seed).amax() < TOLERANCE


@each(SOLVERS)
def test_binary_worst_case_with_an_active_box(entry: Entry, p: float) -> None:
    """Corners for Linf, water-filling for L2, a fractional knapsack for L1."""
    if p == 1 and entry.knapsack is None:
        pytest.skip(
            "steps on one coordinate with a Euclidean projection do not solve the knapsack problem"
        )
    for seed in range(4):
        bound = (
            TOLERANCE if p != 1 else entry.knapsack * WIDE[1] * float(normal(seed, D).abs().amax())
        )
        assert gap(entry, Ball(p, WIDE[p]), ANYWHERE, seed).amax() < bound


@pytest.mark.parametrize("p", NORMS)
def test_fgsm_solves_a_linear_problem_inside_the_box(p: float) -> None:
    """From the center, the steepest direction leads to the worst case in each norm."""
    assert gap(Entry("fgsm", FGSM(), exact=FGSM()), Ball(p, RADIUS[p]), INSIDE, 0).amax() < 1e-14


@pytest.mark.parametrize("p", NORMS)
def test_vmi_solves_a_linear_problem_inside_the_box(p: float) -> None:
    """A linear net has a constant gradient, so the variance term is zero.

    Ten steps of a tenth of the radius end at the edge of the ball.
    """
    assert (
        gap(
            Entry("vmi", VMI(samples=2), exact=VMI(samples=2)), Ball(p, RADIUS[p]), INSIDE, 0
        ).amax()
        < 1e-12
    )


@each(tuple(entry for entry in SOLVERS if entry.loss is margin))
def test_targeted_attacks_find_the_worst_case_of_many_classes(entry: Entry, p: float) -> None:
    """The maximum over classes is not concave, so an untargeted attack may choose the wrong class.

    The problem of each target is linear. The radius is the median of the distances
    min_j (z_y - z_j) / ||w_j - w_y||_dual, so half of the rows can be misclassified.
    """
    net = Affine.random(4, 5, D)
    x = uniform(1, 40, D)
    dual = {INF: 1, 2: 2, 1: INF}[p]
    y = net(x).argmax(1)
    z = net(x)
    apart = torch.linalg.vector_norm(net.weight - net.weight[y][:, None], dual, dim=2)  # [N, C]
    distance = (
        ((z.gather(1, y[:, None]) - z) / apart).nan_to_num(nan=torch.inf).amin(1).sort().values
    )
    space = Ball(p, float(distance[19:21].mean()), box=(-9.0, 9.0))
    adversary = MultiTarget(Direct("targets", entry.exact), targets=4, loss=targeted_margin)
    episode = play(Static(net), adversary, x, y, Threat(space))
    worst = net.worst_margin(x, y, space)
    assert (worst > 0).sum() == 20
    assert (worst.abs() > TOLERANCE).all()
    assert torch.equal(episode.correct[0] == 0, worst > 0)


@each(SOLVERS)
def test_attacks_succeed_just_beyond_the_distance_and_not_just_before(
    entry: Entry, p: float
) -> None:
    """The distance to the plane is |w x| / ||w||_dual."""
    w = normal(3, D)
    dual = {INF: 1, 2: 2, 1: INF}[p]
    net = Affine(
        Affine.binary(w).weight,
        Affine.binary(w).weight @ torch.full((D,), -0.5, dtype=torch.float64),
    )
    offset = 0.05 * (uniform(1, N, D) - 0.5)
    side = torch.arange(N)[:, None] % 2 * 2 - 1
    x = (
        0.5
        + offset
        - (offset @ w)[:, None] * w / w.square().sum()
        + 0.3 * side * w / w.square().sum()
    )  # w (x - 0.5) = +-0.3
    y = net(x).argmax(1)
    distance = 0.3 / float(torch.linalg.vector_norm(w, dual))
    for factor, succeeds in ((1.001, True), (0.999, False)):
        found = entry.exact(
            oracle(Static(net), y, loss=entry.loss), x, Ball(p, factor * distance), keys(N)
        )
        assert ((net(found.point).argmax(1) != y) == succeeds).all()
