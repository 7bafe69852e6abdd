"""Checks that data and target must pass before they are probed or attacked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from saddlepoint.attacks.spaces import Ball
from saddlepoint.audits.cells import is_out_of_memory
from saddlepoint.data.record import shift_up
from saddlepoint.defenses import BlackBox, Defense, MultiExit, Plain
from saddlepoint.locate import describe_error
from saddlepoint.phrases import count, count_of

_AT_ONCE = 1024  # images
_MOST_CLASSES = 1_000_000
Target = nn.Module | Defense | Callable[[Tensor], Any]
Conversion = Callable[[Any], Defense]  # from the target, or a copy of it, to a defense


class TargetError(ValueError):
    """The target or its data violates a rule that every attack relies on."""


def check_data(x: Tensor, y: Tensor, space: Ball) -> None:
    """Check images and labels.

    Args:
        x: images, [N, ...], floating point, finite, inside the box of `space`.
        y: labels, [N], non-negative integers.
        space: the perturbation set.

    Raises:
        TargetError: the data violates one of these rules, or inference mode is enabled.
    """
    if torch.is_inference_mode_enabled():
        raise TargetError(
            "gradients cannot be computed inside torch.inference_mode(). Run the audit outside of "
            "it; torch.no_grad() is fine."
        )
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        raise TargetError(
            f"x and y must be torch tensors, got {type(x).__name__} and {type(y).__name__}. "
            "Use torch.as_tensor."
        )
    if not x.is_floating_point() or x.ndim < 2:
        raise TargetError(
            f"x must be floating point with shape [N, ...], got {x.dtype} {list(x.shape)}. "
            "Scale images: x.float() / 255."
        )
    _check_labels(y, x)
    _check_pixels(x, space)


def _check_labels(y: Tensor, x: Tensor) -> None:
    if not len(x):
        raise TargetError(
            f"there are no images: x has shape {list(x.shape)}. Pass at least one image."
        )
    if y.ndim != 1 or len(y) != len(x):
        hint = " Labels seem to be one-hot: use y.argmax(1)." if y.ndim == 2 else ""
        raise TargetError(
            f"y must have one label per image, shape [{len(x)}], got shape {list(y.shape)}.{hint}"
        )
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise TargetError(f"labels must be integers, got {y.dtype}. Use y.long().")
    lowest = int(y.amin())
    if lowest < 0:
        raise TargetError(f"labels must start at 0, but they start at {lowest}. {shift_up(lowest)}")
    if int(y.amax()) >= _MOST_CLASSES:
        raise TargetError(
            f"labels must be class numbers below {_MOST_CLASSES}, got {int(y.amax())}."
        )


def _check_pixels(x: Tensor, space: Ball) -> None:
    if not all(bool(part.isfinite().all()) for part in torch.split(x, _AT_ONCE)):
        bad = int((~x.isfinite()).flatten(1).any(1).sum())
        raise TargetError(f"x contains NaN or infinity in {count_of(bad, len(x), 'image')}.")
    low, high = space.box
    if bool((x.amin() < low) | (x.amax() > high)):
        raise TargetError(
            f"x must lie in [{low:g}, {high:g}], got [{x.amin():.4g}, {x.amax():.4g}]. Pass raw "
            "pixels in [0, 1] and normalize inside the model, because perturbations are measured "
            "in pixels: net = torch.nn.Sequential(Normalize(mean, std), net)."
        )


def check_target_class(target_class: int | None, classes: int) -> None:
    """Check that the class that images have to become is one of the target.

    Args:
        target_class: the class; None: any wrong class.
        classes: the number of classes of the target.

    Raises:
        TargetError: the target has no such class.
    """
    if target_class is not None and target_class >= classes:
        raise TargetError(
            f"the target class is {target_class}, but the target has {count(classes, 'class')} "
            f"(0 to {classes - 1}). Choose one of these."
        )


def conversion(target: Target, x: Tensor, classes: int) -> Conversion:
    """How the target becomes a defense. The target is called once.

    A module is converted to a randomized defense, so that everything that it may draw from global
    generators follows the random keys.

    Args:
        target: a module, a defense or a callable.
        x: a few images, [N, ...].
        classes: the number of classes that the labels show.

    Raises:
        TargetError: the target is in training mode, is not callable, raises an error, or its
            outputs are no finite logits.
    """
    if isinstance(target, Defense):
        return lambda defense: defense
    if isinstance(target, nn.Module):
        _require_eval_mode(target)
        out = _call("model", target, x)
        if not isinstance(out, list):
            check_output(out, x)
            return partial(Plain, random=True)
        for logits in out or [None]:
            check_output(logits, x)
        return MultiExit
    if not callable(target):
        raise TargetError(
            "a target is an nn.Module, a saddlepoint.Defense or a callable on batches of images, "
            f"got {type(target).__name__}."
        )
    out = _call("callable", target, x)
    if _are_labels(out, x):
        return partial(BlackBox, classes=max(classes, int(out.amax()) + 1))
    check_output(out, x)
    return BlackBox


def _are_labels(out: object, x: Tensor) -> TypeGuard[Tensor]:
    """Whether an output is one integer per image."""
    if not isinstance(out, Tensor) or out.is_floating_point():
        return False
    return out.ndim == 1 and len(out) == len(x)


def placed(target: Target, device: str | torch.device) -> Target:
    """The target on a device, if it is a module; another target is returned unchanged.

    Raises:
        TargetError: the module cannot be moved, for instance because it has meta tensors.
    """
    if not isinstance(target, nn.Module):
        return target
    try:
        return target.to(device)
    except RuntimeError as error:
        raise TargetError(
            f"the model cannot be moved to {device} ({str(error).splitlines()[0]}). "
            "Load its weights into memory first."
        ) from error


def check_output(out: object, x: Tensor) -> None:
    """Check that an output is a tensor of logits, [N, C], on the device of the images.

    Logits are finite; negative infinity is allowed beside a finite logit of the same image.

    Args:
        out: the output of a target for the images `x`.
        x: images, [N, ...].

    Raises:
        TargetError: it is not.
    """
    n = len(x)
    if not isinstance(out, Tensor):
        raise TargetError(
            f"the target must return a tensor of logits [N, C], got {type(out).__name__}. Return "
            "logits alone, or a list of them, one per exit."
        )
    if out.ndim != 2 or len(out) != n or out.shape[1] < 2 or not out.is_floating_point():
        raise TargetError(
            f"the target must return floating-point logits [{n}, C >= 2], "
            f"got {out.dtype} {list(out.shape)}."
        )
    if out.device != x.device:
        raise TargetError(
            f"the target returns outputs on {out.device}, but the images are on {x.device}. "
            f"Move it there: net.to({str(x.device)!r})."
        )
    usable = (out.isfinite() | out.isneginf()).all(1) & out.isfinite().any(1)
    if not usable.all():
        bad = int((~usable).sum())
        raise TargetError(
            f"the target returns NaN or infinite logits on {count_of(bad, n, 'clean image')}. Fix "
            "the model before the audit: such outputs cannot be compared."
        )


@contextmanager
def explain_errors(kind: str, x: Tensor) -> Iterator[None]:
    """Convert an error of the target on clean images into a `TargetError` with advice.

    Most such errors have one cause: the target expects images of another shape, type or device.

    Args:
        kind: "model", "defense" or "callable", for the message.
        x: the images that the target is called with.
    """
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise  # the target fits the data, but not this machine
        raise TargetError(
            f"the {kind} raised {describe_error(error)} when called with images of shape "
            f"{list(x.shape)}. {_advice(error, x)}"
        ) from error


def _advice(error: Exception, x: Tensor) -> str:
    if "device" in str(error):
        return f"They are on {x.device}: move the target there, net.to({str(x.device)!r})."
    if re.search(r"dtype|scalar type|[Ii]nput type", str(error)):
        return (
            f"They are {x.dtype}: convert the target, for instance with net.float(), or pass "
            "images of its type."
        )
    if x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        return "They seem to have channels last: pass x.permute(0, 3, 1, 2)."
    if re.search(r"shape|size|channels|dimension", str(error)):
        return "It seems to expect images of another shape: pass such images, or another model."
    return (
        "Check that it fits the data. It is also called with points near images and with inverted "
        "images; where it has no output for one, return NaN, which counts as misclassified."
    )


def _call(kind: str, fn: Callable[[Tensor], object], x: Tensor) -> object:
    with torch.no_grad(), explain_errors(kind, x):
        return fn(x.clone())


def _require_eval_mode(net: nn.Module) -> None:
    if net.training:
        raise TargetError(
            "the model is in training mode, where batch statistics and dropout change its outputs. "
            "Call net.eval() first."
        )
