"""Linear classifiers: the worst case is a support function, radius times dual norm where the box does not bind."""

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
RADIUS = {INF: 0.1, 2: 0.4, 1: 0.4}  # inside: no wall is nearer than 0.47
WIDE = {INF: 0.3, 2: 1.2, 1: 2.0}  # anywhere: most coordinates meet a wall
TOLERANCE = 1e-6  # iterations contract at least by a third each; what is left is rounding

SOLVERS = tuple(entry for entry in ROSTER if entry.exact is not None)


def gap(entry: Entry, space: Ball, x: Tensor, seed: int) -> Tensor:
    """[N] exact worst margin minus the margin found; never negative beyond rounding."""
    net = Affine.binary(normal(seed, D))
    y = net(x).argmax(1)
    assert entry.exact is not None
    found = entry.exact(oracle(Static(net), y, loss=entry.loss), x, space, keys(N))
    short = net.worst_margin(x, y, space) - margin(net(found.max_loss_point), y)
    assert (short > -1e-12).all()
    return short


@pytest.mark.parametrize("p", NORMS)
def test_the_support_function_is_radius_times_dual_norm_where_no_wall_binds(p: float) -> None:
    w = normal(0, N, D)
    dual = {INF: 1, 2: 2, 1: INF}[p]
    want = RADIUS[p] * torch.linalg.vector_norm(w, dual, dim=1)
    torch.testing.assert_close(support(w, INSIDE, Ball(p, RADIUS[p])), want, rtol=1e-12, atol=0)


@each(SOLVERS)
def test_binary_worst_case_is_radius_times_dual_norm(entry: Entry, p: float) -> None:
    for seed in range(4):
        assert gap(entry, Ball(p, RADIUS[p]), INSIDE, seed).amax() < TOLERANCE


@each(SOLVERS)
def test_binary_worst_case_where_the_box_binds(entry: Entry, p: float) -> None:
    """Corners for Linf, water-filling for L2, a fractional knapsack for L1."""
    if p == 1 and entry.knapsack is None:
        pytest.skip(
            "a step on one coordinate and a Euclidean projection do not end at the optimum of a knapsack"
        )
    for seed in range(4):
        bound = (
            TOLERANCE if p != 1 else entry.knapsack * WIDE[1] * float(normal(seed, D).abs().amax())
        )
        assert gap(entry, Ball(p, WIDE[p]), ANYWHERE, seed).amax() < bound


@pytest.mark.parametrize("p", NORMS)
def test_one_step_solves_a_linear_problem_where_no_wall_binds(p: float) -> None:
    """From the center the steepest direction is the answer: FGSM in each norm."""
    assert gap(Entry("fgsm", FGSM(), exact=FGSM()), Ball(p, RADIUS[p]), INSIDE, 0).amax() < 1e-14


@pytest.mark.parametrize("p", NORMS)
def test_vmi_walks_straight_to_the_answer_where_no_wall_binds(p: float) -> None:
    """A linear net has one gradient: no variance to tune, and ten steps of a tenth of the radius end at its edge."""
    assert (
        gap(
            Entry("vmi", VMI(samples=2), exact=VMI(samples=2)), Ball(p, RADIUS[p]), INSIDE, 0
        ).amax()
        < 1e-12
    )


@each(tuple(entry for entry in SOLVERS if entry.loss is margin))
def test_many_classes_fall_target_by_target(entry: Entry, p: float) -> None:
    """max_j is not concave, so an untargeted attack may climb to the wrong class; target by target each problem is linear.

    The radius is the median distance min_j (z_y - z_j) / ||w_j - w_y||_dual: half of the rows fall.
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
def test_fools_just_beyond_the_distance_and_not_just_before(entry: Entry, p: float) -> None:
    """The distance to the plane is |w x| / ||w||_dual, whether an attack maximizes or looks for the nearest point."""
    w = normal(3, D)
    dual = {INF: 1, 2: 2, 1: INF}[p]
    net = Affine(
        Affine.binary(w).weight,
        Affine.binary(w).weight @ torch.full((D,), -0.5, dtype=torch.float64),
    )
    along = 0.05 * (uniform(1, N, D) - 0.5)
    side = torch.arange(N)[:, None] % 2 * 2 - 1
    x = (
        0.5
        + along
        - (along @ w)[:, None] * w / w.square().sum()
        + 0.3 * side * w / w.square().sum()
    )  # w (x - 0.5) = +-0.3
    y = net(x).argmax(1)
    distance = 0.3 / float(torch.linalg.vector_norm(w, dual))
    for factor, falls in ((1.001, True), (0.999, False)):
        found = entry.exact(
            oracle(Static(net), y, loss=entry.loss), x, Ball(p, factor * distance), keys(N)
        )
        assert ((net(found.point).argmax(1) != y) == falls).all()
