"""Aims over exits: the expected loss of random subsets, and the loss of gated exits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.problems import normal

from saddlepoint.attacks.aims import Gate, expected, loss_of_mean, mean_of_losses, mixture
from saddlepoint.attacks.losses import Loss, cross_entropy, dlr, margin
from saddlepoint.defenses import (
    Confident,
    Context,
    LowEntropy,
    Mix,
    Static,
    all_subsets,
    mean_logits,
    membership,
)
from saddlepoint.describe import digest

L = 3
N = 20
C = 4
LOGITS = 2 * normal(0, L, N, C)
Y = torch.arange(N) % C
SUBSETS = all_subsets(L)
MEMBERS = membership(SUBSETS, L)


def shares(*weights: float) -> torch.Tensor:
    return torch.tensor(weights, dtype=torch.float64)


@pytest.mark.parametrize("loss", [cross_entropy, margin, dlr])
@pytest.mark.parametrize("row", range(len(SUBSETS)), ids=[str(s) for s in SUBSETS])
def test_a_subset_of_probability_one_gives_the_loss_of_its_mean(loss: Loss, row: int) -> None:
    """Sums of two or three products against a mean: a few rounding errors."""
    aim = mixture(MEMBERS, torch.eye(len(SUBSETS))[row])
    kept = LOGITS[[k - 1 for k in SUBSETS[row]]]
    torch.testing.assert_close(
        aim(loss, LOGITS, Y), loss_of_mean(loss, kept, Y), rtol=1e-13, atol=1e-14
    )


def test_a_mixture_is_the_weighted_sum_of_the_losses_of_its_subsets() -> None:
    s = shares(0.1, 0.0, 0.2, 0.3, 0.0, 0.15, 0.25)
    kept = [LOGITS[[k - 1 for k in subset]] for subset in SUBSETS]
    want = sum(p * loss_of_mean(cross_entropy, z, Y) for p, z in zip(s, kept, strict=True))
    torch.testing.assert_close(
        mixture(MEMBERS, s)(cross_entropy, LOGITS, Y), want, rtol=1e-13, atol=1e-14
    )


def test_a_mixture_of_single_views_is_their_expected_loss() -> None:
    s = shares(0.5, 0.3, 0.2)
    singles = torch.eye(L)
    torch.testing.assert_close(
        mixture(singles, s)(cross_entropy, LOGITS, Y),
        expected(s)(cross_entropy, LOGITS, Y),
        rtol=1e-13,
        atol=1e-14,
    )
    uniform = mixture(singles, shares(1 / 3, 1 / 3, 1 / 3))
    torch.testing.assert_close(
        uniform(dlr, LOGITS, Y), mean_of_losses(dlr, LOGITS, Y), rtol=1e-13, atol=1e-14
    )


def test_a_mixture_is_the_mean_over_the_defenders_draws() -> None:
    """The mean of 100000 draws is within four standard errors of the exact expectation."""
    n = 100_000
    mix = Mix(((1,), (2, 3), (1, 2, 3)), (0.5, 0.2, 0.3))
    logits = LOGITS[:, :1].expand(-1, n, -1)
    y = Y[:1].expand(n)
    losses = cross_entropy(mean_logits(logits, mix.pick(logits, Context.seeded(0, n))), y)
    exact = mixture(membership(mix.subsets, L), shares(*mix.probabilities))(
        cross_entropy, LOGITS[:, :1], Y[:1]
    )
    assert abs(float(losses.mean() - exact)) < 4 * float(losses.std()) / n**0.5


def test_different_mixtures_have_different_digests() -> None:
    first = mixture(MEMBERS, shares(1, 0, 0, 0, 0, 0, 0))
    second = mixture(MEMBERS, shares(0, 1, 0, 0, 0, 0, 0))
    assert digest(first) != digest(second)
    assert first == mixture(MEMBERS[:1], shares(1.0))  # subsets of probability 0 are dropped


@pytest.mark.parametrize("gate", [Confident((0.8, 0.7)), LowEntropy((0.5, 0.7))])
def test_a_gate_has_the_loss_and_gradient_of_the_selected_exit_only(
    gate: Confident | LowEntropy,
) -> None:
    picked = gate.pick(LOGITS, Context.seeded(0, N))
    assert (picked.sum(0) > 0).all()
    z = LOGITS.clone().requires_grad_()
    value = Gate(gate)(cross_entropy, z, Y)
    chosen = cross_entropy(LOGITS, Y).T[picked]  # [N], one exit per row
    torch.testing.assert_close(value.detach(), chosen, rtol=0, atol=0)
    grad = torch.autograd.grad(value.sum(), z)[0]
    assert torch.equal((grad != 0).any(2).T, picked)


def test_a_static_gate_gives_the_loss_of_the_mean_of_its_exits() -> None:
    found = Gate(Static((1, 3)))(dlr, LOGITS, Y)
    torch.testing.assert_close(found, loss_of_mean(dlr, LOGITS[[0, 2]], Y), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: mixture(MEMBERS, shares(0.5, 0.5)), r"\[7, 3\] and \[2\]"),
        (lambda: mixture(2 * MEMBERS, torch.full((7,), 1 / 7)), "of 0 and 1"),
        (lambda: mixture(torch.zeros(1, 3), shares(1.0)), "without views"),
        (lambda: mixture(MEMBERS[:2], shares(0.5, 0.6)), "a sum of 1.1"),
        (lambda: mixture(MEMBERS[:2], shares(1.5, -0.5)), "1 below zero"),
        (lambda: mixture(MEMBERS[:, :2], torch.full((7,), 1 / 7)), "without views"),
        (
            lambda: mixture(MEMBERS, torch.full((7,), 1 / 7))(margin, LOGITS[:2], Y),
            "subsets of 3 views, but 2",
        ),
        (lambda: Gate(Mix(((1,),), (1.0,))), "Mix is random"),
    ],
)
def test_invalid_arguments_raise_errors(attempt: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attempt()
