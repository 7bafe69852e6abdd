"""How accuracy falls as the attacker may do more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from saddlepoint.attacks.min_norm import MINIMUM_NORM
from saddlepoint.audits.statistics import wilson
from saddlepoint.reports.context import Part, Subject
from saddlepoint.reports.curves import Point, curve
from saddlepoint.reports.document import key, quiet
from saddlepoint.reports.markup import tag
from saddlepoint.reports.recipe import ball
from saddlepoint.runs.spec import SpecError
from saddlepoint.runs.spec import radius as number

_GRID = 160
_INSIDE = 0.98  # of the radius; a point beyond used all that was allowed
_SHARE = 0.1  # of the images that fell; with fewer inside, the curve is a step at the radius and says nothing


def radius(subject: Subject) -> Part | None:
    """acc(r) <= 1 - mean(fallen with a perturbation of size <= r), where enough of them are smaller than the threat allows."""
    try:
        most = number(ball(subject.audit)[1].replace(" ", ""))
    except SpecError:
        return None
    sizes, lost = _fallen(subject)
    sizes = sizes.clamp(max=most)  # the referee lets rounding pass, and so does the curve
    attacked = lost.bool() & (sizes > 0)
    inside = attacked & (sizes < _INSIDE * most)
    if most <= 0 or not attacked.any() or int(inside.sum()) < _SHARE * int(attacked.sum()):
        return None
    near = sorted(
        {name for adversary in subject.record.get("adversaries", ()) for name in _near(adversary)}
    )
    if near and subject.nearest is not None:
        how = f"{', '.join(near)} looked for the nearest mistake of each image, so the bound is close to what these attacks can do."
    else:
        how = "No attack that looks for the nearest mistake is known to have run: below the full radius the truth may be far lower."
    points = [_point(subject.audit.n, most * k / _GRID, sizes, lost) for k in range(_GRID + 1)]
    norm, text = ball(subject.audit)
    figure = curve(
        points,
        title="Robust accuracy, at most, by radius",
        across=f"{norm} radius",
        unit=255 if "/ 255" in text else 1,
    )
    told = (
        "What falls to a small perturbation falls to every larger one. The curve counts the images known to have fallen at each "
        f"radius, so it is an upper bound everywhere. {how}"
    )
    legend = key(kept="robust accuracy, at most", band="95 % interval over images")
    return Part("Accuracy by radius", (tag("div", legend, figure, class_="card"), quiet(told)))


def _fallen(subject: Subject) -> tuple[Tensor, Tensor]:
    """[N] the size of the perturbation that each image is known to fall to, and [N] how much of it falls there."""
    audit = subject.audit
    if subject.nearest is not None:
        return subject.nearest, subject.nearest.isfinite().double()
    return audit.examples.size.cpu().double(), 1 - audit.correct.cpu().double()


def _point(n: int, at: float, sizes: Tensor, lost: Tensor) -> Point:
    share = float(1 - torch.where(sizes <= at, lost, 0.0).mean())
    low, high = wilson(min(max(share, 0.0), 1.0), n)[:2]
    return Point(at, share, low, high)


def _near(adversary: Mapping[str, Any]) -> Iterator[str]:
    """Names of adversaries that hold, at any depth, an attack which minimizes the norm."""
    if adversary.get("kind") in MINIMUM_NORM:
        yield str(adversary["kind"])
    for inner in adversary.values():
        if isinstance(inner, Mapping):
            yield from _near(inner)
