"""Sanity checks before attacks: usual mistakes in labels, images and radius.

An audit of wrong labels or of images that the target does not expect measures nothing. The clean
accuracy on a few images shows most of these mistakes. Only if it is low, the usual mistakes are
undone one by one, to find the one that explains it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from saddlepoint.attacks.spaces import Ball
from saddlepoint.audits.probes.mistakes import Mistake, image_mistakes, other_order, shifts
from saddlepoint.audits.probes.probe_target import ProbeTarget
from saddlepoint.audits.probes.traits import COUPLING, Traits
from saddlepoint.audits.request import AuditRequest
from saddlepoint.audits.statistics import clopper_pearson, mcnemar
from saddlepoint.audits.target.admission import TargetError, explain_errors
from saddlepoint.defenses import Context
from saddlepoint.phrases import count, percent

_IMAGES = 128  # enough to distinguish an accuracy of 10 % from one of 25 %
_LOW = 0.75  # accuracy up to which undoing a mistake could raise it sharply
_WEAK = 0.15  # of the way from chance to 100 %: a weak classifier, but better than chance
_LEVEL = 0.98  # of a two-sided interval: each bound is wrong once in a hundred
_RISE = 0.25  # a smaller rise of the accuracy may have another reason
_SMALL_RISE = 0.1  # a smaller one is not reported
_SIMILAR = 0.05  # causes whose accuracies differ by less explain a low one equally well
_CHECK = "check the labels and their order, the normalization and the order of channels."
_P = 1e-3  # probability of such a rise by chance, over all mistakes that were tried


class Unusual(NamedTuple):
    """Something that looks like a mistake of the request."""

    message: str  # with the likely cause and what to do
    stop: bool = True  # False: it is only reported


def unusual_radius(space: Ball, x: Tensor) -> Unusual | None:
    """What is unusual about a radius: it allows every image of the box.

    Args:
        space: the perturbation set.
        x: images, [N, ...].
    """
    width = space.box[1] - space.box[0]
    diameter = width * x[0].numel() ** (1 / space.p)
    if space.radius < diameter:
        return None
    low, high = space.box
    text = (
        f"{space} allows every image: pixels are in [{low:g}, {high:g}], and no two images are "
        f"farther apart than {diameter:.4g}"
    )
    if space.p == math.inf:
        text = (
            f"a radius of {space.radius:g} in Linf allows every image, because pixels are in "
            f"[{low:g}, {high:g}]"
        )
    if width == 1 and space.radius / 255 < diameter:
        return Unusual(f"{text}. Did you mean {space.radius:g}/255?")
    return Unusual(f"{text}.")


def unusual_accuracy(request: AuditRequest, target: ProbeTarget, traits: Traits) -> Unusual | None:
    """What is unusual about the clean accuracy, with the mistake that explains it if one does.

    Three things are unusual: an accuracy near or below chance, one that is certainly below a
    claimed robust accuracy, and a low one that rises sharply when a usual mistake is undone. Each
    is decided by a test, so that few images or a weak model are no reason to stop. Two things are
    only reported: a rise that is significant, but not sharp, and an accuracy that may be chance
    because there are few images.

    Args:
        request: the request with all images, of which up to 128 are evaluated.
        target: the target.
        traits: its measured traits.

    Returns:
        What is unusual; None if nothing is.
    """
    sample = _Sample.of(request, target, traits)
    found = sample.accuracy
    if found > _LOW and not _below_claim(sample, request.claim):
        return None
    reasons = [f"clean accuracy is {percent(found)} on {count(len(sample), 'image')}"]
    unusual = False
    chance = f"{percent(1 / sample.classes)} for {count(sample.classes, 'class')}"
    may_be_chance = _may_be_chance(sample)
    if _near_chance(sample):
        unusual = True
        reasons.append(f"near or below chance ({chance})")
    elif may_be_chance:
        reasons.append(f"which may be chance ({chance})")
    if request.claim is not None and _below_claim(sample, request.claim):
        unusual = True
        reasons.append(
            f"but the claimed robust accuracy is {percent(request.claim)}, and no model is more "
            "accurate under attack than without"
        )
    cause = _cause(sample)
    if cause is not None:
        return Unusual(f"{', '.join(reasons)}. {cause.text}", unusual or cause.sharp)
    if not unusual and may_be_chance:
        return Unusual(
            f"{', '.join(reasons)}. Use more images. If the accuracy stays near chance, {_CHECK}",
            stop=False,
        )
    if not unusual:
        return None
    return Unusual(f"{', '.join(reasons)}. No usual mistake explains it: {_CHECK}")


@dataclass(frozen=True)
class _Sample:
    """A few images that are evaluated as the audit would, without gradients."""

    target: ProbeTarget
    x: Tensor  # [n, ...]
    y: Tensor  # [n]
    ids: Tensor  # [n] numbers of the images, for random keys
    at_once: int  # images per call
    fresh: bool  # every call uses a fresh copy

    @classmethod
    def of(cls, request: AuditRequest, target: ProbeTarget, traits: Traits) -> _Sample:
        n = len(request.x)
        coupled = target.defense.unit != "example" or any(name in traits for name in COUPLING)
        if coupled:  # a whole batch, as the audit evaluates it
            ids = torch.arange(min(n, request.batch_size))
        else:  # images from all parts of the data, which may be sorted by class
            ids = torch.linspace(0, n - 1, min(n, _IMAGES)).round().long()
        ids = ids.to(request.x.device)
        return cls(
            target,
            request.x[ids].detach(),
            request.y[ids].long(),
            ids,
            len(ids) if coupled else len(target),
            target.stateful(traits),
        )

    def __len__(self) -> int:
        return len(self.x)

    @property
    def classes(self) -> int:
        return self.target.classes

    @cached_property
    def predicted(self) -> Tensor:
        """[n] predicted classes; a rejection is the class that it would be without."""
        known = self.target.known_answers(len(self.x))
        if known is not None and self.at_once < len(self.x):  # rows are independent
            return known.argmax(1)
        classes = self.predict(lambda x: x)
        assert classes is not None, "without a limit of errors there are classes"
        return classes

    @cached_property
    def correct(self) -> Tensor:
        """[n] bool."""
        return self.predicted == self.y

    @property
    def accuracy(self) -> float:
        return float(self.correct.double().mean())

    def predict(
        self, change: Callable[[Tensor], Tensor], most_errors: int | None = None
    ) -> Tensor | None:
        """[n] predicted classes of changed images.

        Args:
            change: the change of images [m, ...].
            most_errors: stop after more errors than this; default None, no limit.

        Returns:
            The classes; None if there are more errors than `most_errors`.
        """
        parts = []
        errors = 0
        for start in range(0, len(self.x), self.at_once):
            rows = slice(start, start + self.at_once)
            target = self.target.fresh_copy() if self.fresh else self.target
            images = change(self.x[rows])
            ctx = Context(target.keys(ids=self.ids[rows]))
            with torch.no_grad(), explain_errors(target.kind, images):
                logits = target.defense.respond(images.clone(), ctx)
                parts.append(logits[:, : self.classes].nan_to_num(nan=-math.inf).argmax(1))
            if most_errors is not None and len(parts[-1]) == len(images):
                errors += int((parts[-1] != self.y[rows]).sum())
                if errors > most_errors:
                    return None
        return torch.cat(parts)


def _near_chance(sample: _Sample) -> bool:
    """The accuracy is certainly below that of a weak classifier."""
    chance = 1 / sample.classes
    highest = clopper_pearson(int(sample.correct.sum()), len(sample), _LEVEL).high
    return highest < chance + _WEAK * (1 - chance)


def _may_be_chance(sample: _Sample) -> bool:
    """The accuracy is not certainly above chance."""
    lowest = clopper_pearson(int(sample.correct.sum()), len(sample), _LEVEL).low
    return lowest <= 1 / sample.classes


def _below_claim(sample: _Sample, claim: float | None) -> bool:
    highest = clopper_pearson(int(sample.correct.sum()), len(sample), _LEVEL).high
    return claim is not None and highest < claim


def _cause(sample: _Sample) -> _Trial | None:
    """The mistake that explains a low accuracy: the first of those that explain it best."""
    found = [trial for trial in _trials(sample) if trial.significant]
    if not found:  # any fixed confusion of classes, which a shift would also be
        order = other_order(sample.predicted, sample.y, sample.classes)
        trial = _Trial(order.mistake, sample.correct[order.rows], order.correct, 1)
        return trial if trial.sharp and order.labels > 1 else None
    highest = max(trial.accuracy for trial in found)
    return next(trial for trial in found if trial.accuracy >= highest - _SIMILAR)


@dataclass(frozen=True)
class _Trial:
    """A mistake that was undone."""

    mistake: Mistake
    before: Tensor  # [m] bool: correctness with the mistake
    after: Tensor  # [m] bool: correctness without it
    trials: int  # mistakes of this kind that were tried

    @property
    def accuracy(self) -> float:
        return float(self.after.double().mean())

    @property
    def text(self) -> str:
        return f"With {self.mistake.undone} it is {percent(self.accuracy)}: {self.mistake.advice}"

    @property
    def significant(self) -> bool:
        """The accuracy rises by a tenth of the images, and not by chance."""
        low = float(self.before.double().mean())
        p = mcnemar(self.before.double(), self.after.double()).p
        return self.accuracy - low >= _SMALL_RISE and p * self.trials < _P

    @property
    def sharp(self) -> bool:
        """It also rises by a quarter of the images, to twice the accuracy or half the errors."""
        low = float(self.before.double().mean())
        high = self.accuracy
        large = high - low >= _RISE and (high >= 2 * low or 1 - high <= (1 - low) / 2)
        return large and self.significant


def _trials(sample: _Sample) -> Iterator[_Trial]:
    for shift in shifts(sample.predicted, sample.y, sample.classes):
        if shift.labels > 1:  # else predictions are constant, and any shift may explain them
            yield _Trial(shift.mistake, sample.correct, shift.correct, shift.trials)
    images = image_mistakes(sample.x, sample.target.space.box)
    # With more errors the accuracy does not rise enough to be significant.
    most_errors = math.floor((1 - sample.accuracy - _SMALL_RISE) * len(sample) + 1e-9)
    for mistake, change in images:
        try:
            predicted = sample.predict(change, most_errors)
        except TargetError:  # the target rejects such images with an error
            continue
        if predicted is not None and predicted.shape == sample.y.shape:
            yield _Trial(mistake, sample.correct, predicted == sample.y, len(images))
