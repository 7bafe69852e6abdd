"""What may be looked at, and attacked, at all: images with labels, and a target that answers them with logits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from saddlepoint.attacks.spaces import Ball
from saddlepoint.defenses import BlackBox, Defense, MultiExit, Plain
from saddlepoint.locate import describe_error

Target = nn.Module | Defense | Callable[[Tensor], Tensor]
Form = Callable[[Any], Defense]  # the target, or a copy of it, as a defense


class TargetError(ValueError):
    """The target, or the data given with it, breaks a rule that every attack relies on."""


def check_data(x: Tensor, y: Tensor, space: Ball) -> None:
    """Images finite and in the box, labels one whole number per image."""
    if torch.is_inference_mode_enabled():
        raise TargetError(
            "inside torch.inference_mode() no gradient can be taken. Audit outside of it; torch.no_grad() is fine."
        )
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        raise TargetError(
            f"x and y must be torch tensors, got {type(x).__name__} and {type(y).__name__}. Use torch.as_tensor."
        )
    if not x.is_floating_point() or x.ndim < 2:
        raise TargetError(
            f"x must be floating point of shape [N, ...], got {x.dtype} {list(x.shape)}. Scale images: x.float() / 255."
        )
    if y.ndim != 1 or len(y) != len(x) or not len(x):
        hint = " These look one-hot: use y.argmax(1)." if y.ndim == 2 else ""
        raise TargetError(
            f"y must have one label per image, shape [{len(x)}], got shape {list(y.shape)}.{hint}"
        )
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise TargetError(f"labels must be whole numbers, got {y.dtype}. Use y.long().")
    if int(y.amin()) < 0:
        raise TargetError(f"labels must not be negative, got {int(y.amin())}.")
    if not x.isfinite().all():
        bad = int((~x.isfinite()).flatten(1).any(1).sum())
        raise TargetError(f"x holds NaN or infinite values in {bad} of {len(x)} images.")
    low, high = space.box
    if bool((x < low).any() | (x > high).any()):
        raise TargetError(
            f"x must lie in [{low:g}, {high:g}], found [{x.amin():.4g}, {x.amax():.4g}]. Give raw pixels in [0, 1] and put the "
            "normalization inside the model: perturbations are measured in pixels."
        )


def form(target: Target, x: Tensor, labels: int) -> Form:
    """How the target becomes a defense, or why it cannot: it is asked about x once, and `labels` classes are known to exist.

    A module is taken for random, so that whatever it may draw from global generators follows the coins.
    """
    if isinstance(target, Defense):
        return lambda defense: defense
    if isinstance(target, nn.Module):
        _refuse_training(target)
        answered = _answered("model", target, x)
        if not isinstance(answered, list):
            refuse_answer(answered, x)
            return partial(Plain, random=True)
        for logits in answered or [None]:
            refuse_answer(logits, x)
        return MultiExit
    if not callable(target):
        raise TargetError(
            f"a target is an nn.Module, a saddlepoint.Defense or a callable on batches of images, got {type(target).__name__}."
        )
    out = _answered("callable", target, x)
    if (
        isinstance(out, Tensor)
        and out.ndim == 1
        and len(out) == len(x)
        and not out.is_floating_point()
    ):
        return partial(BlackBox, classes=max(labels, int(out.amax()) + 1))
    refuse_answer(out, x)
    return BlackBox


def placed(target: Target, device: str | torch.device) -> Target:
    """The target on that device, if it is a module; anything else stays where its owner put it."""
    if not isinstance(target, nn.Module):
        return target
    try:
        return target.to(device)
    except RuntimeError as error:
        raise TargetError(
            f"the model cannot be moved to {device} ({str(error).splitlines()[0]}). Hand it over with its weights in memory."
        ) from error


def refuse_answer(out: object, x: Tensor) -> None:
    """Anything but finite logits [N, C], beside the images x, is no answer."""
    n = len(x)
    if not isinstance(out, Tensor):
        raise TargetError(
            f"the target must answer with a tensor of logits [N, C], got {type(out).__name__}. Return logits alone, "
            "or a list of them, one per exit."
        )
    if out.ndim != 2 or len(out) != n or out.shape[1] < 2 or not out.is_floating_point():
        raise TargetError(
            f"the target must answer with floating-point logits [{n}, C >= 2], got {out.dtype} {list(out.shape)}."
        )
    if out.device != x.device:
        raise TargetError(
            f"the target answers on {out.device}, the images are on {x.device}. Move it there: net.to({str(x.device)!r})."
        )
    if not out.isfinite().all():
        bad = int((~out.isfinite()).any(1).sum())
        raise TargetError(
            f"the target must answer with finite logits, but answers with NaN or infinite logits on {bad} of {n} clean images. "
            "Mend it first: answers that cannot be compared have no robustness."
        )


@contextmanager
def asking(kind: str, x: Tensor) -> Iterator[None]:
    """A target that fails on clean images most often was made for images of another shape, type or place: say so."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise  # it fits the data, and not the machine
    except Exception as error:
        raise TargetError(
            f"the {kind} raised {describe_error(error)} when asked about images of shape {list(x.shape)}. {_advice(error, x)}"
        ) from error


def _advice(error: Exception, x: Tensor) -> str:
    if "device" in str(error):
        return f"They are on {x.device}: move the target there, net.to({str(x.device)!r})."
    if re.search(r"dtype|scalar type|[Ii]nput type", str(error)):
        return f"They are {x.dtype}: convert the target, as net.float() does, or give it images of its own type."
    return "Does it fit the data? Points near images, and images in negative, have to be answered too; NaN is a wrong answer."


def _answered(kind: str, fn: Callable[[Tensor], object], x: Tensor) -> object:
    with torch.no_grad(), asking(kind, x):
        return fn(x.clone())


def _refuse_training(net: nn.Module) -> None:
    if net.training:
        raise TargetError(
            "the model is in training mode, where batch statistics and dropout change its answers. Call net.eval() first."
        )
