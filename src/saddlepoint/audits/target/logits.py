"""Logits inside of other outputs, as finite floating-point numbers.

Other outputs are named tuples, dictionaries, tuples with auxiliary values, integers, and scores
with negative infinity.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from saddlepoint.audits.target.admission import TargetError
from saddlepoint.audits.target.rounding import lacks_arithmetic
from saddlepoint.defenses import output_entries

_NAME = "logits"
_BELOW = 100.0  # how far below the lowest finite score of its row negative infinity is put


class FloatScores(nn.Module):
    """A net with scores of the type of its images, in place of integers or 8-bit numbers."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.training = net.training

    def forward(self, x: Tensor) -> Any:
        return float_scores(self.net(x), x.dtype)


class FlatScores(nn.Module):
    """A net that returns scores [N, C, 1, ..., 1], such as those of a last convolution."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.training = net.training

    def forward(self, x: Tensor) -> Any:
        return self.net(x).flatten(1)


class FiniteScores(nn.Module):
    """A net with scores of negative infinity, such as the logarithm of 0, made finite."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.training = net.training

    def forward(self, x: Tensor) -> Any:
        return finite_scores(self.net(x))


def finite_scores(out: Any) -> Any:
    """Put negative infinity below the lowest finite score of its row; the class stays the same.

    Rows without a finite score are not changed, and neither are NaN and positive infinity.

    Args:
        out: scores, [N, C], or a list of them; other outputs are returned unchanged.
    """
    if isinstance(out, list):
        return [finite_scores(one) for one in out]
    if not has_negative_infinity(out):
        return out
    infinite = out.detach().isneginf()
    lowest = out.detach().masked_fill(~out.detach().isfinite(), torch.inf).amin(1, keepdim=True)
    # Half precision has no number that much lower than its lowest one.
    floor = (lowest - _BELOW).clamp(min=torch.finfo(out.dtype).min)
    return torch.where(infinite & lowest.isfinite(), floor, out)


def has_negative_infinity(out: object) -> bool:
    """Whether an output, or one in a list of outputs, is a matrix with negative infinity."""
    if isinstance(out, list):
        return any(has_negative_infinity(one) for one in out)
    if not isinstance(out, Tensor) or not out.is_floating_point() or out.ndim != 2:
        return False
    # No values, which admission rejects, or a type that is converted first.
    if out.is_meta or lacks_arithmetic(out.dtype):
        return False
    return bool(out.detach().isneginf().any())


def has_more_dimensions(out: object, rows: int) -> bool:
    """Whether an output is a tensor [N, C, 1, ..., 1] for a number of images N."""
    if not isinstance(out, Tensor) or out.ndim < 3 or len(out) != rows or out.shape[1] < 2:
        return False
    return all(size == 1 for size in out.shape[2:])


def needs_conversion(out: object, rows: int) -> bool:
    """Whether an output, or one in a list of outputs, has scores without arithmetic.

    They are tensors [N, C] of integers, booleans, or floating-point numbers of 8 bits.

    Args:
        out: the output of a target.
        rows: the number of images, N.
    """
    if isinstance(out, list):
        return any(needs_conversion(one, rows) for one in out)
    if not isinstance(out, Tensor) or out.is_complex():
        return False
    scores = out.ndim == 2 and len(out) == rows and out.shape[1] > 1
    return scores and (not out.is_floating_point() or lacks_arithmetic(out.dtype))


def float_scores(out: Any, dtype: torch.dtype) -> Any:
    """Scores, or a list of them, in another type; other outputs are returned unchanged."""
    if isinstance(out, list):
        return [float_scores(one, dtype) for one in out]
    return out.to(dtype) if isinstance(out, Tensor) else out


def logits_key(out: object, rows: int) -> str | int | None:
    """Where the logits are inside an output; None if the output is a tensor or a list.

    They are the value named "logits", or the only tensor [N, C] of floating-point numbers.

    Args:
        out: the output of a net.
        rows: the number of images, N.

    Raises:
        TargetError: several values, or none, may be the logits.
    """
    if isinstance(out, Tensor | list):
        return None
    entries = output_entries(out)
    if is_binary(entries.get(_NAME), rows):
        return _NAME
    possible = [key for key, value in entries.items() if _may_be_logits(value, rows)]
    if _NAME in possible:
        return _NAME
    if len(possible) == 1:
        return possible[0]
    if not entries:
        return None
    raise TargetError(_several(out, entries, possible))


def is_binary(out: object, rows: int) -> TypeGuard[Tensor]:
    """Whether an output is one floating-point number per image, [N] or [N, 1]."""
    if not isinstance(out, Tensor) or not out.is_floating_point():
        return False
    return out.shape in ((rows,), (rows, 1))


def check_binary(out: Tensor, classes: int, wrappers: tuple[str, str]) -> None:
    """Check that one number per image can only be the logit of class 1.

    Args:
        out: outputs for clean images, [N] or [N, 1].
        classes: the number of classes that the labels show.
        wrappers: code that reads the outputs as logits, and code that reads them as probabilities.

    Raises:
        TargetError: there are more than two classes, or the outputs may be probabilities.
    """
    if classes > 2:
        raise TargetError(
            f"the target returns one number per image, {list(out.shape)}, which decides between "
            f"two classes, but labels go up to {classes - 1}. Return logits [N, C]."
        )
    if bool(((out >= 0) & (out <= 1)).all()):
        logit, probability = wrappers
        raise TargetError(
            f"the target returns one number per image, {list(out.shape)}, and all of them lie in "
            "[0, 1]: they may be logits (class 1 above 0) or probabilities (class 1 above 0.5). "
            f"Decide: {logit} for logits, {probability} for probabilities."
        )


def _several(out: object, entries: dict[str | int, object], possible: list[str | int]) -> str:
    """The error for an output in which no value, or several, may be the logits."""
    names = ", ".join(str(key) for key in (possible or entries))
    count = f"{len(possible)} of its values may be logits" if possible else "no value is"
    text = (
        f"the model returns {type(out).__name__}, and {count} ({names}). A value named `logits` "
        "is used, or the only tensor [N, C] of floating-point numbers. "
    )
    if not possible:
        return text + "Wrap the model in a module that returns its logits."
    text += f"Decide: saddlepoint.defenses.SelectLogits(net, {possible[0]!r}) takes one value"
    if isinstance(out, tuple):
        text += "; sp.MultiExit(net) takes all of them as exits and answers with the last one"
    elif len(possible) > 1:
        text += "; if they are exits, return a list of them and use sp.MultiExit(net)"
    return text + "."


def _may_be_logits(value: object, rows: int) -> bool:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return False
    matrix = value.ndim == 2 and len(value) == rows and value.shape[1] > 1
    return matrix or has_more_dimensions(value, rows)
