"""Robust accuracy as a function of the perturbation radius."""

from __future__ import annotations

import torch
from torch import Tensor

from saddlepoint.attacks.spaces import Ball
from saddlepoint.audits.statistics import wilson
from saddlepoint.reports.context import ReportContext, Section
from saddlepoint.reports.curves import CurvePoint, accuracy_curve
from saddlepoint.reports.document import legend, muted
from saddlepoint.reports.markup import Markup, tag
from saddlepoint.reports.recipe import in_255ths, norm_name
from saddlepoint.reports.threats import read_space

_INTERVALS = 160  # of the x axis
_INSIDE = 0.98  # of the radius; larger perturbations count as using the whole radius
# Share of the successful perturbations that must be inside. With fewer, the curve is a step at the
# radius and shows nothing.
_SHARE_INSIDE = 0.1


def radius(context: ReportContext) -> Section | None:
    """Show an upper bound of robust accuracy by radius r.

    acc(r) <= 1 - mean(misclassified with a perturbation of size <= r).

    None for records without a structured threat model. Records without smallest perturbations, such
    as those of randomized defenses, have a curve only if enough perturbations of their worst points
    are smaller than the radius.
    """
    space = read_space(context.audit.threat_description)
    if space is None:
        return None
    largest = space.radius
    sizes, errors = _successes(context)
    sizes = sizes.clamp(max=largest)  # the referee accepts sizes above the radius by rounding
    measured = len(context.audit.examples.smallest) > 0
    if largest <= 0 or not (measured or _many_inside(sizes, errors, largest)):
        return None
    explanation = (
        "An upper bound at every radius: the images not known to be misclassified with a "
        f"perturbation of at most that size. {_quality(context)}"
    )
    key = legend(primary="robust accuracy (upper bound)", band="95 % interval over images")
    figure = tag("div", key, _figure(space, sizes, errors), class_="card")
    return Section("Robust accuracy by radius", (figure, muted(explanation)))


def _many_inside(sizes: Tensor, errors: Tensor, largest: float) -> bool:
    attacked = errors.bool() & (sizes > 0)
    inside = attacked & (sizes < _INSIDE * largest)
    enough = int(inside.sum()) >= _SHARE_INSIDE * int(attacked.sum())
    return bool(attacked.any()) and enough


def _successes(context: ReportContext) -> tuple[Tensor, Tensor]:
    """Return [N] the smallest known size of a successful perturbation, and [N] its error rate."""
    audit = context.audit
    if context.smallest_sizes is not None:
        return context.smallest_sizes, context.smallest_sizes.isfinite().double()
    return audit.examples.size.cpu().double(), 1 - audit.correct.cpu().double()


def _figure(space: Ball, sizes: Tensor, errors: Tensor) -> Markup:
    return accuracy_curve(
        [_point(space.radius * k / _INTERVALS, sizes, errors) for k in range(_INTERVALS + 1)],
        title="Upper bound of robust accuracy by radius",
        x_label=f"{norm_name(space)} radius",
        denominator=255 if in_255ths(space) else 1,
    )


def _point(at: float, sizes: Tensor, errors: Tensor) -> CurvePoint:
    accuracy = float(1 - torch.where(sizes <= at, errors, 0.0).mean())
    low, high = wilson(min(max(accuracy, 0.0), 1.0), len(sizes))[:2]
    return CurvePoint(at, accuracy, low, high)


def _quality(context: ReportContext) -> str:
    """Say how close the bound is to the best that the attacks could do."""
    names = [row.name for row in context.audit.rows if row.minimum_norm]
    if names and context.smallest_sizes is not None:
        return (
            f"{', '.join(names)} minimized the perturbation size of each image, so the bound is "
            "close to what these attacks can reach."
        )
    none = "No minimum-norm attack was run: below the full radius the robust accuracy"
    if len(context.audit.examples.smallest):
        return f"Worst points were shrunk toward their clean images. {none} may be lower."
    return f"{none} may be far lower."
