"""Usual mistakes in labels and images, and how each is undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

Change = Callable[[Tensor], Tensor]
Normalization = tuple[tuple[float, ...], tuple[float, ...]]  # mean and deviation per channel
_HIGHEST = 1 / 255  # pixels up to here were divided by 255 twice
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CIFAR = ((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616))
_MNIST = ((0.1307,), (0.3081,))
_CAFFE = (103.939, 116.779, 123.68)  # mean of ImageNet in BGR, pixels up to 255


class Mistake(NamedTuple):
    """A usual mistake."""

    undone: str  # what is done to undo it: "With ... it is 84 %"
    advice: str  # what to do


@dataclass(frozen=True)
class Corrected:
    """Predictions compared with corrected labels."""

    mistake: Mistake
    correct: Tensor  # [m] bool
    rows: Tensor  # [m] the images of these, among all
    trials: int  # corrections that were compared to find this one
    labels: int  # different labels among the correct images; 1 if predictions are constant


def shifts(predicted: Tensor, y: Tensor, classes: int) -> Iterator[Corrected]:
    """Labels shifted by one in either direction, and by the most frequent difference.

    Args:
        predicted: predicted classes, [n].
        y: labels, [n].
        classes: number of classes.
    """
    rows = torch.arange(len(y), device=y.device)
    difference = (predicted - y) % classes
    likely = int(difference.bincount(minlength=classes)[1:].argmax()) + 1
    for shift in dict.fromkeys((1, classes - 1, likely)):
        signed = shift if shift <= classes // 2 else shift - classes
        text = f"y {'+' if signed > 0 else '-'} {abs(signed)}"
        mistake = Mistake(f"labels {text}", f"labels are shifted. Pass {text}.")
        correct = difference == shift
        trials = 2 if abs(signed) == 1 else classes
        yield Corrected(mistake, correct, rows, trials, len(set(y[correct].tolist())))


def other_order(predicted: Tensor, y: Tensor, classes: int) -> Corrected:
    """Labels that number the classes in another order.

    The order is found on every other image and tested on the remaining ones; arguments as above.
    """
    pairs = y[::2] * classes + predicted[::2]
    confusion = pairs.bincount(minlength=classes**2).view(classes, classes).cpu()
    order = torch.as_tensor(linear_sum_assignment(confusion.numpy(), maximize=True)[1])
    mistake = Mistake(
        "classes in another order",
        "the labels number the classes in another order than the model. Compare both lists of "
        "classes; folders are often sorted as text, 10 before 2.",
    )
    rows = torch.arange(1, len(y), 2, device=y.device)
    correct = predicted[rows] == order.to(y.device)[y[rows]]
    return Corrected(mistake, correct, rows, 1, len(set(y[rows][correct].tolist())))


def image_mistakes(x: Tensor, box: tuple[float, float]) -> list[tuple[Mistake, Change]]:
    """Mistakes in the images that are possible for this shape, and how each is undone.

    Simple changes come first: a net without biases does not distinguish normalized pixels from
    pixels up to 255.

    Args:
        x: images, [n, ...].
        box: lowest and highest value of a pixel.
    """
    layouts = _layouts(x) if x.ndim == 4 else []
    scale = _scale(x, box)
    normalized = _normalizations(x, box)
    scaled = [scale, *normalized] if box[1] > 1 else [*normalized, scale]
    return [*layouts, _inverted(box), *scaled]


def _scale(x: Tensor, box: tuple[float, float]) -> tuple[Mistake, Change]:
    if box[1] > 1:
        advice = "the model expects pixels in [0, 1]. Pass x / 255 and a radius for [0, 1]."
        return Mistake("pixels divided by 255", advice), lambda v: v / 255
    advice = (
        "the model expects pixels from 0 to 255. Multiply inside the model, lambda x: net(255 * x),"
        " and keep x in [0, 1]."
    )
    if float(x.amax()) <= _HIGHEST * 1.01:
        advice = "the images were divided by 255 twice. Divide them once."
    return Mistake("pixels multiplied by 255", advice), lambda v: 255 * v


def _inverted(box: tuple[float, float]) -> tuple[Mistake, Change]:
    advice = "the model expects inverted images, such as white on black. Pass 1 - x."
    return Mistake("inverted pixels", advice), lambda v: box[0] + box[1] - v


def _normalizations(x: Tensor, box: tuple[float, float]) -> list[tuple[Mistake, Change]]:
    scale = 255 if box[1] > 1 else 1
    channels = x.shape[1] if x.ndim == 4 else 1
    inside = (
        "Normalize inside the model with the values of its training, lambda x: net((x - mean) / "
        "std), and keep x in pixels."
    )
    known: dict[str, Normalization] = {"2 x - 1": ((0.5,), (0.5,))}
    if channels == 3:
        known["the mean and standard deviation of ImageNet"] = _IMAGENET
        known["the mean and standard deviation of CIFAR-10"] = _CIFAR
    if channels == 1:
        known["the mean and standard deviation of MNIST"] = _MNIST
    found = []
    for name, (mean, std) in known.items():
        mistake = Mistake(
            f"images normalized by {name}", f"the model expects normalized images. {inside}"
        )
        found.append((mistake, _normalize(mean, std, scale)))
    if channels == 3:
        advice = f"the model expects BGR from 0 to 255 minus the mean, as Caffe does. {inside}"
        change = _normalize(_CAFFE, (1.0,), scale / 255)
        flipped = Mistake("BGR pixels up to 255 minus the mean of ImageNet", advice)
        found.append((flipped, lambda v: change(v.flip(1))))
    return found


def _normalize(mean: tuple[float, ...], std: tuple[float, ...], scale: float) -> Change:
    def change(v: Tensor) -> Tensor:
        shape = (1, -1) + (1,) * (v.ndim - 2) if v.ndim == 4 else (1,) * v.ndim
        center = torch.tensor(mean).to(v).view(shape)
        width = torch.tensor(std).to(v).view(shape)
        return (v / scale - center) / width

    return change


def _layouts(x: Tensor) -> list[tuple[Mistake, Change]]:
    """Orders of channels, rows and columns of images [n, ?, ?, ?]."""
    found: list[tuple[Mistake, Change]] = []
    for axis in (1, 3):
        if x.shape[axis] == 3:
            advice = f"the model expects BGR. Pass x.flip({axis}), or flip inside the model."
            reverse = Mistake("channels in reverse order (BGR)", advice)
            found.append((reverse, partial(torch.flip, dims=(axis,))))
    if x.shape[1] in (1, 3):
        advice = "rows and columns are exchanged. Pass x.transpose(2, 3)."
        exchanged = Mistake("rows and columns exchanged", advice)
        found.append((exchanged, lambda v: v.transpose(2, 3)))
    if x.shape[1] == 3:
        advice = "the model expects images as [N, H, W, C]. Pass x.permute(0, 2, 3, 1)."
        found.append((Mistake("channels last", advice), lambda v: v.permute(0, 2, 3, 1)))
    if x.shape[3] in (1, 3):
        advice = "the model expects images as [N, C, H, W]. Pass x.permute(0, 3, 1, 2)."
        found.append((Mistake("channels first", advice), lambda v: v.permute(0, 3, 1, 2)))
    return found
