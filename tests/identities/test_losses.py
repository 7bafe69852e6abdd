"""Losses and aims: values per example; a larger value is worse for the defender."""

from __future__ import annotations

import pytest
import torch
from tests.problems import normal
from torch import Tensor

from saddlepoint.attacks import aims as aim
from saddlepoint.attacks.losses import (
    Loss,
    clipped_margin,
    cross_entropy,
    dlr,
    margin,
    misclassified,
    probability_margin,
    saturated,
    targeted_cross_entropy,
    targeted_dlr,
    targeted_margin,
)

N = 50
C = 6
Z = 3 * normal(0, N, C)
Y = torch.arange(N) % C
TARGET = (Y + 2) % C
LOSSES: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "margin": margin,
    "dlr": dlr,
    "probability_margin": probability_margin,
    "targeted_margin": targeted_margin(TARGET),
    "targeted_cross_entropy": targeted_cross_entropy(TARGET),
    "targeted_dlr": targeted_dlr(TARGET),
    "saturated": saturated(cross_entropy),
}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())


@every_loss
def test_a_loss_is_per_example_and_per_view(loss: Loss) -> None:
    """A value depends on its own row only, and a stack of views gives a stack of values."""
    value = loss(Z, Y)
    assert value.shape == (N,)
    z = Z.clone().requires_grad_()
    (grad,) = torch.autograd.grad(loss(z, Y)[3], z)
    assert (grad[torch.arange(N) != 3] == 0).all()
    torch.testing.assert_close(loss(torch.stack([Z, 2 * Z, -Z]), Y)[1], loss(2 * Z, Y))


@every_loss
def test_a_loss_is_invariant_to_a_shift_of_all_logits(loss: Loss) -> None:
    torch.testing.assert_close(loss(Z + 7, Y), loss(Z, Y), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["dlr", "targeted_dlr"])
def test_dlr_is_invariant_to_the_scale_of_the_logits(name: str) -> None:
    """Up to the 1e-12 that is added to the denominator."""
    torch.testing.assert_close(LOSSES[name](100 * Z, Y), LOSSES[name](Z, Y), rtol=1e-10, atol=0)


@pytest.mark.parametrize("name", ["margin", "dlr", "probability_margin"])
def test_a_margin_is_positive_where_the_example_is_misclassified(name: str) -> None:
    assert torch.equal(LOSSES[name](Z, Y) > 0, misclassified(Z, Y))
    assert 0.5 < misclassified(Z, Y).double().mean() < 1  # both cases occur


def test_losses_equal_their_formulas() -> None:
    z = torch.tensor([[1.0, 4.0, 2.0, 0.5]], dtype=torch.float64)
    y = torch.tensor([2])
    t = torch.tensor([0])
    want: dict[str, tuple[Loss, float]] = {
        "margin": (margin, 4 - 2),
        "dlr": (dlr, (4 - 2) / (4 - 1)),
        "targeted margin": (targeted_margin(t), 1 - 2),
        "targeted dlr": (targeted_dlr(t), (1 - 2) / (4 - (1 + 0.5) / 2)),
    }
    for name, (loss, value) in want.items():
        assert loss(z, y).item() == pytest.approx(value, abs=1e-11), name
    log_p = z.log_softmax(1)
    torch.testing.assert_close(cross_entropy(z, y), -log_p[:, 2])
    torch.testing.assert_close(targeted_cross_entropy(t)(z, y), log_p[:, 0])
    torch.testing.assert_close(probability_margin(z, y), log_p.exp()[:, 1] - log_p.exp()[:, 2])


def test_cross_entropy_is_exact_for_logits_that_overflow_a_softmax() -> None:
    z = torch.tensor([[1e4, 0.0, -1e4]], dtype=torch.float64)
    assert cross_entropy(z, torch.tensor([1])).item() == 1e4
    assert cross_entropy(z, torch.tensor([0])).item() == 0


def test_a_saturated_loss_has_no_gradient_on_misclassified_rows() -> None:
    z = Z.clone().requires_grad_()
    for beyond in (0.0, 2.0):
        value = saturated(cross_entropy, beyond=beyond)(z, Y)
        assert torch.equal(value, cross_entropy(z, Y))
        (grad,) = torch.autograd.grad(value.sum(), z)
        (plain,) = torch.autograd.grad(cross_entropy(z, Y).sum(), z)
        done = margin(Z, Y) > beyond
        assert (grad[done] == 0).all()
        assert torch.equal(grad[~done], plain[~done])
        assert done.any()
        assert not done.all()


def test_a_clipped_margin_is_the_margin_until_a_row_is_misclassified_and_constant_beyond() -> None:
    width = float(Z.std(-1).median()) / 20
    logits = Z.clone().requires_grad_()
    value = clipped_margin(logits, Y)
    torch.testing.assert_close(value, margin(Z, Y).clamp(max=width), rtol=0, atol=1e-12)
    (grad,) = torch.autograd.grad(value.sum(), logits)
    beyond = margin(Z, Y) > width
    assert 0 < int(beyond.sum()) < N
    assert torch.equal(grad.abs().sum(-1) == 0, beyond)


def test_logits_with_nan_count_as_misclassified() -> None:
    z = torch.tensor([[2.0, 1.0], [2.0, torch.nan], [torch.nan, 1.0]])
    assert misclassified(z, torch.tensor([0, 0, 0])).tolist() == [False, True, True]
    assert misclassified(z, torch.tensor([1, 1, 1])).tolist() == [True, True, True]


def test_dlr_with_too_few_classes_raises_an_error() -> None:
    two = torch.zeros(1, 2)
    three = torch.zeros(1, 3)
    y = torch.zeros(1, dtype=torch.long)
    with pytest.raises(
        ValueError, match=r"dlr needs at least 3 classes, the defense has 2. Use `margin` instead"
    ):
        dlr(two, y)
    with pytest.raises(
        ValueError,
        match=r"targeted_dlr needs at least 4 classes, the defense has 3. Use `targeted_margin`",
    ):
        targeted_dlr(y)(three, y)


def views() -> Tensor:  # [V, N, C]
    return 3 * normal(1, 3, N, C)


def test_aims_equal_their_formulas() -> None:
    z = views()
    weights = torch.tensor([0.2, 0.3, 0.5])
    losses = torch.stack([cross_entropy(v, Y) for v in z])
    torch.testing.assert_close(aim.last_view(cross_entropy, z, Y), losses[2])
    torch.testing.assert_close(aim.mean_of_losses(cross_entropy, z, Y), losses.mean(0))
    torch.testing.assert_close(aim.min_over_views(cross_entropy, z, Y), losses.amin(0))
    torch.testing.assert_close(aim.loss_of_mean(cross_entropy, z, Y), cross_entropy(z.mean(0), Y))
    torch.testing.assert_close(
        aim.expected(weights.double())(cross_entropy, z, Y), weights.double() @ losses
    )


def test_aims_agree_where_all_views_are_the_same() -> None:
    z = views()[:1].expand(3, N, C)
    for aimed in (
        aim.mean_of_losses,
        aim.min_over_views,
        aim.loss_of_mean,
        aim.expected(torch.tensor([0.25, 0.25, 0.5])),
    ):
        torch.testing.assert_close(aimed(margin, z, Y), aim.last_view(margin, z, Y))


def test_expected_rejects_another_number_of_views() -> None:
    with pytest.raises(ValueError, match=r"expected\(\) was given 2 weights, but 3 views are kept"):
        aim.expected(torch.ones(2))(margin, views(), Y)
