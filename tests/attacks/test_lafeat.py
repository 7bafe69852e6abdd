"""The aim and the optimizer of LAFEAT: value, gradient and step sizes."""

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
# The latent view classifies every second row correctly.
Y = torch.where(torch.arange(N) % 2 == 0, LOGITS[0].argmax(1), (LOGITS[0].argmax(1) + 1) % C)


def value_and_grad(beta: float, logits: Tensor = LOGITS, y: Tensor = Y) -> tuple[Tensor, Tensor]:
    z = logits.clone().requires_grad_()
    value = Latent(beta)(cross_entropy, z, y)
    return value.detach(), torch.autograd.grad(value.sum(), z)[0]


def test_the_value_is_the_loss_of_the_last_view() -> None:
    for beta in (0.0, 0.4, 1.0):
        assert torch.equal(value_and_grad(beta)[0], cross_entropy(LOGITS[-1], Y))


def test_the_gradient_is_that_of_the_mixed_logits_with_constant_gaps() -> None:
    """d CE(m) / d z_first = b (softmax(m) - onehot) / gap_first.

    The gradient of the last view has the factor (1 - b) / gap_last instead.
    """
    beta = 0.3
    first = LOGITS[0]
    final = LOGITS[-1]
    gaps = [(z.topk(2).values[:, 0] - z.topk(2).values[:, 1])[:, None] for z in (first, final)]
    b = beta * (first.argmax(1) == Y).double()[:, None]
    residual = (b * first / gaps[0] + (1 - b) * final / gaps[1]).softmax(1) - torch.eye(
        C, dtype=torch.float64
    )[Y]
    _, grad = value_and_grad(beta)
    torch.testing.assert_close(grad[0], b * residual / gaps[0], rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(grad[-1], (1 - b) * residual / gaps[1], rtol=1e-12, atol=1e-15)
    assert (grad[1] == 0).all()


def test_a_misclassifying_latent_view_is_not_used() -> None:
    _, with_latent = value_and_grad(0.9)
    _, without = value_and_grad(0.0)
    wrong = LOGITS[0].argmax(1) != Y
    assert wrong.sum() == N // 2
    assert torch.equal(with_latent[:, wrong], without[:, wrong])
    assert (with_latent[0, ~wrong] != 0).any(1).all()


def test_the_scale_of_an_exit_does_not_change_the_direction() -> None:
    """Dividing by the gap removes any factor from the mixed logits.

    The gradient of the scaled view has the factor 1 / 64. A power of two causes no rounding.
    """
    scaled = LOGITS.clone()
    scaled[0] = 64 * scaled[0]
    torch.testing.assert_close(
        64 * value_and_grad(0.5, scaled)[1][0], value_and_grad(0.5)[1][0], rtol=1e-14, atol=0
    )
    torch.testing.assert_close(
        value_and_grad(0.5, scaled)[1][-1], value_and_grad(0.5)[1][-1], rtol=1e-14, atol=0
    )


def test_with_a_single_view_beta_has_no_effect() -> None:
    """b z / gap + (1 - b) z / gap = z / gap, up to rounding."""
    alone = LOGITS[-1:]
    for beta in (0.3, 0.8):
        torch.testing.assert_close(
            value_and_grad(beta, alone)[1],
            value_and_grad(0.0, alone)[1],
            rtol=1e-13,
            atol=1e-15,
        )


def test_value_and_gradient_are_finite_at_ties() -> None:
    tied = torch.zeros(2, 3, C, dtype=torch.float64)
    value, grad = value_and_grad(0.5, tied, torch.tensor([0, 1, 2]))
    torch.testing.assert_close(value, torch.full((3,), math.log(C), dtype=torch.float64))
    assert grad.isfinite().all()


def test_the_aim_works_with_targeted_losses() -> None:
    target = (Y + 2) % C
    assert torch.equal(
        Latent(0.5)(targeted_cross_entropy(target), LOGITS, Y), -cross_entropy(LOGITS[-1], target)
    )


def test_outwards_orders_values_from_the_middle_to_both_ends() -> None:
    assert outwards((0, 1, 2, 3, 4)) == (1, 2, 0, 3, 4)
    assert outwards((0.5,)) == (0.5,)
    assert sorted(outwards(range(10))) == list(range(10))
    assert outwards(range(10)) == (4, 5, 3, 6, 2, 7, 1, 8, 0, 9)


def test_step_sizes_follow_a_cosine_from_two_radii() -> None:
    steps = 8
    radius = 0.5
    x = torch.zeros(1, 3, dtype=torch.float64)
    schedule = _CosineSteps(radius, steps)
    taken = []
    for k in range(1, steps + 1):
        taken.append(float(schedule.step(x)))
        schedule.update(k, torch.tensor([False]), BestSoFar(x, coupled=False))
    assert taken == pytest.approx(
        [2 * radius * (1 + math.cos(math.pi * i / steps)) / 2 for i in range(steps)], rel=1e-12
    )
    assert (taken[0], taken[4]) == pytest.approx((2 * radius, radius), rel=1e-12)


def test_invalid_settings_raise_errors() -> None:
    with pytest.raises(ValueError, match=r"between 0 and 1, got 1\.5"):
        Latent(1.5)
    with pytest.raises(ValueError, match="at least one step"):
        CosineAscent(0)


def test_the_attack_is_deterministic() -> None:
    net = Affine.random(0, 3, 6)
    x = uniform(0, 4, 6)
    y = net(x).argmax(1)
    found = [
        CosineAscent(5)(oracle(Static(net), y), x, Linf(0.1), keys(4, seed)).max_loss_point
        for seed in (0, 1)
    ]
    assert torch.equal(*found)
