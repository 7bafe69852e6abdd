"""LAFEAT's aim and optimizer: which way it climbs, what it reports, how its steps shrink."""

from __future__ import annotations

import math

import pytest
import torch
from tests.problems import Affine, Static, keys, normal, oracle, uniform
from torch import Tensor

from saddlepoint.attacks.best import BestSoFar
from saddlepoint.attacks.lafeat import CosineAscent, Latent, _CosineSteps, outwards
from saddlepoint.attacks.losses import cross_entropy, targeted_cross_entropy
from saddlepoint.attacks.spaces import Linf

N = 12
C = 5
LOGITS = normal(3, 3, N, C)
Y = torch.where(
    torch.arange(N) % 2 == 0, LOGITS[0].argmax(1), (LOGITS[0].argmax(1) + 1) % C
)  # the latent view knows every other


def slope(beta: float, logits: Tensor = LOGITS, y: Tensor = Y) -> tuple[Tensor, Tensor]:
    z = logits.clone().requires_grad_()
    value = Latent(beta)(cross_entropy, z, y)
    return value.detach(), torch.autograd.grad(value.sum(), z)[0]


def test_its_value_is_the_loss_of_the_last_view() -> None:
    for beta in (0.0, 0.4, 1.0):
        assert torch.equal(slope(beta)[0], cross_entropy(LOGITS[-1], Y))


def test_its_slope_is_that_of_the_mixed_logits_with_gaps_held_fixed() -> None:
    """By hand: d CE(m) / d z_first = b (softmax(m) - onehot) / gap_first, and (1 - b) / gap_last of it for the last view."""
    beta = 0.3
    first = LOGITS[0]
    final = LOGITS[-1]
    gaps = [(z.topk(2).values[:, 0] - z.topk(2).values[:, 1])[:, None] for z in (first, final)]
    b = beta * (first.argmax(1) == Y).double()[:, None]
    residual = (b * first / gaps[0] + (1 - b) * final / gaps[1]).softmax(1) - torch.eye(
        C, dtype=torch.float64
    )[Y]
    _, grad = slope(beta)
    torch.testing.assert_close(grad[0], b * residual / gaps[0], rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(grad[-1], (1 - b) * residual / gaps[1], rtol=1e-12, atol=1e-15)
    assert (grad[1] == 0).all()


def test_a_latent_view_that_errs_is_not_followed() -> None:
    _, with_it = slope(0.9)
    _, without = slope(0.0)
    wrong = LOGITS[0].argmax(1) != Y
    assert wrong.sum() == N // 2
    assert torch.equal(with_it[:, wrong], without[:, wrong])
    assert (with_it[0, ~wrong] != 0).any(1).all()


def test_the_scale_of_an_exit_does_not_matter() -> None:
    """Dividing by the gap takes out any factor: directions are equal, lengths go with 1 / factor. A power of two rounds nothing."""
    scaled = LOGITS.clone()
    scaled[0] = 64 * scaled[0]
    torch.testing.assert_close(64 * slope(0.5, scaled)[1][0], slope(0.5)[1][0], rtol=1e-14, atol=0)
    torch.testing.assert_close(slope(0.5, scaled)[1][-1], slope(0.5)[1][-1], rtol=1e-14, atol=0)


def test_one_view_is_both_and_every_beta_the_same() -> None:
    """b z / gap + (1 - b) z / gap = z / gap, up to rounding."""
    alone = LOGITS[-1:]
    for beta in (0.3, 0.8):
        torch.testing.assert_close(
            slope(beta, alone)[1],
            slope(0.0, alone)[1],
            rtol=1e-13,
            atol=1e-15,
        )


def test_ties_leave_value_and_slope_finite() -> None:
    tied = torch.zeros(2, 3, C, dtype=torch.float64)
    value, grad = slope(0.5, tied, torch.tensor([0, 1, 2]))
    torch.testing.assert_close(value, torch.full((3,), math.log(C), dtype=torch.float64))
    assert grad.isfinite().all()


def test_it_draws_towards_a_class_as_any_aim_does() -> None:
    target = (Y + 2) % C
    assert torch.equal(
        Latent(0.5)(targeted_cross_entropy(target), LOGITS, Y), -cross_entropy(LOGITS[-1], target)
    )


def test_betas_go_from_the_middle_outwards() -> None:
    assert outwards((0, 1, 2, 3, 4)) == (1, 2, 0, 3, 4)
    assert outwards((0.5,)) == (0.5,)
    assert sorted(outwards(range(10))) == list(range(10))
    assert outwards(range(10)) == (4, 5, 3, 6, 2, 7, 1, 8, 0, 9)


def test_steps_shrink_by_a_cosine_from_two_radii_to_almost_nothing() -> None:
    steps = 8
    radius = 0.5
    x = torch.zeros(1, 3, dtype=torch.float64)
    pace = _CosineSteps(radius, steps)
    taken = []
    for k in range(1, steps + 1):
        taken.append(float(pace.step(x)))
        assert not pace.look(k, torch.tensor([False]), BestSoFar(x, coupled=False)).any()
    assert taken == pytest.approx(
        [2 * radius * (1 + math.cos(math.pi * i / steps)) / 2 for i in range(steps)], rel=1e-12
    )
    assert (taken[0], taken[4]) == pytest.approx((2 * radius, radius), rel=1e-12)


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"between 0 and 1, got 1\.5"):
        Latent(1.5)
    with pytest.raises(ValueError, match="at least one step"):
        CosineAscent(0)


def test_inputs_are_left_alone_and_no_coins_are_tossed() -> None:
    net = Affine.random(0, 3, 6)
    x = uniform(0, 4, 6)
    y = net(x).argmax(1)
    found = [
        CosineAscent(5)(oracle(Static(net), y), x, Linf(0.1), keys(4, seed)).max_loss_point
        for seed in (0, 1)
    ]
    assert torch.equal(*found)
