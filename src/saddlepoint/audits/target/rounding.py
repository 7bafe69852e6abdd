"""Comparison of outputs up to rounding errors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from saddlepoint.phrases import agree, count_of, number

_VISIBLE = 0.05  # of the lead of the first class over the second
_RELEVANT = 0.01  # of the same lead


def lacks_arithmetic(dtype: torch.dtype) -> bool:
    """Whether torch stores numbers of this type but does not compute with them: 8-bit floats."""
    return dtype.is_floating_point and dtype.itemsize == 1


def alike(a: Tensor, b: Tensor) -> bool:
    """Whether two outputs [n, C] are equal except for rounding errors.

    Kernels sum in another order for another batch size, which makes a few hundred rounding errors
    at the scale of the logits. Nets in half precision sum in single precision, so that only the
    results of layers are rounded. Where all classes have almost the same output, as after a softmax
    with a high temperature, a change that is large beside their differences is no rounding error.
    """
    a, b = _same_width(a, b)
    if not a.is_floating_point() or a.shape != b.shape:
        return torch.equal(a, b)
    eps = torch.finfo(a.dtype).eps
    few, many = (100, 2e3) if eps < 1e-6 else (32, 32)
    size = eps * float(a.abs().amax().clamp(min=1.0))
    limit = min(many * size, max(_VISIBLE * _lead(a), few * size))
    return bool((a.double() - b.double()).abs().amax() <= limit)


def relevant(a: Tensor, b: Tensor) -> bool:
    """Whether two outputs [n, C] differ by more than a hundredth of the lead of the first class.

    Use it where equal outputs would be equal bit for bit.
    """
    if a.shape != b.shape:
        return True
    change = float((a.double() - b.double()).abs().amax())
    return change > _RELEVANT * _lead(a)


def difference(a: Tensor, b: Tensor) -> str:
    """How two outputs [n, C] differ, as a clause."""
    a, b = _same_width(a, b)
    if a.shape != b.shape:
        return f"the shape changes from {list(a.shape)} to {list(b.shape)}"
    largest = (a.double() - b.double()).abs().amax().item()
    labels = int((a.argmax(1) != b.argmax(1)).sum())
    return (
        f"logits change by up to {number(largest)}, {count_of(labels, len(a), 'prediction')} "
        f"{agree(labels, 'changes', 'change')}"
    )


def _lead(a: Tensor) -> float:
    """The median over rows of the lead of the highest output over the second one."""
    highest = a.double().topk(min(2, a.shape[1]), dim=1).values
    return float((highest[:, 0] - highest[:, -1]).median())


def _same_width(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both outputs with the same number of columns.

    One-hot labels have as many columns as the highest label requires; missing columns are zero.
    """
    width = max(a.shape[-1], b.shape[-1])
    padded = [functional.pad(t, (0, width - t.shape[-1])) for t in (a, b)]
    return padded[0], padded[1]
