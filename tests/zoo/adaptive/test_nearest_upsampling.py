"""Nearest-neighbor upsampling: equal values, and the two gradients."""

from __future__ import annotations

import pytest
import torch
from tests.problems import normal
from torch.nn import functional
from torch.testing import assert_close

from saddlepoint.zoo.adaptive import LabelConsistency, nearest, nearest_with_old_cuda_gradient

EXACT = {"rtol": 0.0, "atol": 0.0}
SIZES = [((28, 28), (32, 32)), ((3, 5), (7, 5)), ((4, 4), (1, 1)), ((8, 6), (16, 18))]


def gradient(resize, x, size, cotangent):
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(resize(leaf, size), leaf, cotangent)[0]


def written_out(grad, small):
    """Sum the old kernel's windows, one output pixel at a time."""
    n, c, high, wide = grad.shape
    result = torch.zeros(n, c, *small, dtype=grad.dtype)
    for i in range(small[0]):
        for k in range(small[1]):
            rows = slice(i * high // small[0], (i + 1) * high // small[0])
            columns = slice(k * wide // small[1], (k + 1) * wide // small[1])
            result[:, :, i, k] = grad[:, :, rows, columns].sum((2, 3))
    return result


@pytest.mark.parametrize(("small", "large"), SIZES)
def test_both_have_the_values_of_torch_and_the_old_windows_are_those_of_its_kernel(small, large):
    x = normal(1, 2, 3, *small)
    cotangent = normal(2, 2, 3, *large)
    assert_close(nearest(x, large), functional.interpolate(x, large), **EXACT)
    assert_close(nearest_with_old_cuda_gradient(x, large), nearest(x, large), **EXACT)
    old = gradient(nearest_with_old_cuda_gradient, x, large, cotangent)
    assert_close(old, written_out(cotangent, small), rtol=0, atol=1e-13)


def test_the_issues_example_sends_the_gradient_to_the_last_pixel_instead_of_the_first():
    """PyTorch issue 38985: from 4 x 4 to 1 x 1, bottom right instead of top left."""
    x = normal(3, 1, 1, 4, 4)
    one = torch.ones(1, 1, 1, 1, dtype=x.dtype)
    assert gradient(nearest, x, (1, 1), one).nonzero().tolist() == [[0, 0, 0, 0]]
    old = gradient(nearest_with_old_cuda_gradient, x, (1, 1), one)
    assert old.nonzero().tolist() == [[0, 0, 3, 3]]


def test_at_integer_factors_both_gradients_agree_and_from_28_to_32_they_do_not():
    whole = normal(4, 1, 1, 4, 4), (8, 8), normal(5, 1, 1, 8, 8)
    assert_close(
        gradient(nearest_with_old_cuda_gradient, *whole),
        gradient(nearest, *whole),
        rtol=0,
        atol=1e-14,
    )
    soap = normal(6, 1, 1, 28, 28), (32, 32), normal(7, 1, 1, 32, 32)
    today = gradient(nearest, *soap)
    old = gradient(nearest_with_old_cuda_gradient, *soap)
    # In 28 pixels there are 4 blocks of 7; only the first pixel of a block has the same window.
    assert (today - old).abs().gt(1e-9).double().mean() > 0.5
    assert_close(today.sum(), old.sum(), rtol=0, atol=1e-12)


def test_label_consistency_has_both_gradients_as_a_named_option():
    x = normal(8, 2, 1, 32, 32)
    cotangent = normal(9, 2, 1, 32, 32)
    tasks = LabelConsistency(), LabelConsistency(resize=nearest_with_old_cuda_gradient)
    one, two = (gradient(lambda v, _, t=task: t.transform(v), x, None, cotangent) for task in tasks)
    assert_close(tasks[0].transform(x), tasks[1].transform(x), **EXACT)
    assert (one - two).abs().max() > 0.1
