"""Select adversarial examples and draw them beside their clean images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.audits.result import Audit
from saddlepoint.phrases import percent, times
from saddlepoint.reports.document import muted
from saddlepoint.reports.markup import Markup, tag
from saddlepoint.reports.png import data_uri, drawable

_SHOWN = 12  # examples
_AT_ONCE = 64  # images; more take more memory than time


@dataclass(frozen=True)
class Example:
    """One misclassified image. Pixels are scaled to [0, 1]."""

    row: int  # index of the image
    clean: Tensor  # [C, H, W]
    adversarial: Tensor  # [C, H, W]
    label: str
    predicted: str
    attack: str  # that found the adversarial example
    correct: float  # share of draws still classified correctly


def class_name(audit: Audit, label: int) -> str:
    """Return the name of a class, or its number if the classes have no names."""
    return audit.classes[label] if 0 <= label < len(audit.classes) else str(label)


def perturbations(audit: Audit) -> Iterator[Tensor]:
    """Yield the perturbations of some images at a time, [M, D] in double precision."""
    parts = zip(
        torch.split(audit.worst_points, _AT_ONCE), torch.split(audit.x, _AT_ONCE), strict=True
    )
    return ((points - x).flatten(1).double() for points, x in parts)


def select_examples(audit: Audit, count: int = _SHOWN) -> tuple[Example, ...]:
    """Select perturbed images that are misclassified on more than half of the draws.

    Smaller perturbations (L2 norm) come first. Each pair of true and predicted class is selected
    once before any is selected twice.

    Args:
        audit: The audit.
        count: The largest number of examples.
    """
    norms = torch.cat([delta.norm(dim=1) for delta in perturbations(audit)])
    misclassified = ((audit.correct < 0.5) & (norms > 0)).nonzero()[:, 0].tolist()
    repetitions: dict[tuple[int, int], int] = {}
    ranked = []
    for i in sorted(misclassified, key=lambda i: (float(norms[i]), i)):
        pair = (int(audit.y[i]), int(audit.answered[i]))
        repetitions[pair] = repetitions.get(pair, 0) + 1
        ranked.append((repetitions[pair], float(norms[i]), i))
    # The box may differ from [0, 1]: scale by the range of all images, extended to [0, 1].
    low = min(float(audit.x.amin()), 0.0)
    high = max(float(audit.x.amax()), 1.0)
    return tuple(_example(audit, i, low, high) for _, _, i in sorted(ranked)[:count])


def gallery(audit: Audit) -> Iterator[Markup]:
    """Yield a figure per example: the clean image, the magnified perturbation, the result."""
    if not drawable(audit.x):
        shape = list(audit.x.shape[1:])
        yield muted(f"Inputs of shape {shape} are not images that can be drawn.")
        return
    examples = select_examples(audit)
    if not examples:
        yield muted("No perturbed image is misclassified.")
        return
    largest = max(float((e.adversarial - e.clean).abs().amax()) for e in examples)
    # The largest perturbation of all spans gray to black or white, so that figures are comparable.
    zoom = 0.5 / largest
    yield muted(
        "The smallest successful perturbations (L2 norm). Each pair of true and predicted class "
        "is shown once before any is repeated. The perturbation is drawn around gray, magnified "
        f"{times(zoom)}. Colors are rounded to 8 bits here; the saved points are exact."
    )
    yield tag("div", *(_figure(example, zoom) for example in examples), class_="gallery")


def _example(audit: Audit, i: int, low: float, high: float) -> Example:
    clean, adversarial = (
        (t[i].detach().cpu().float() - low) / (high - low) for t in (audit.x, audit.worst_points)
    )
    return Example(
        row=i,
        clean=clean,
        adversarial=adversarial,
        label=class_name(audit, int(audit.y[i])),
        predicted=class_name(audit, int(audit.answered[i])),
        attack=audit.examples.winner[i],
        correct=float(audit.correct[i]),
    )


def _figure(example: Example, zoom: float) -> Markup:
    perturbation = 0.5 + zoom * (example.adversarial - example.clean)
    draws = ""
    if example.correct > 0:
        draws = f", still correct on {percent(example.correct, 0)} of draws"
    return tag(
        "figure",
        _panel(example, "clean", example.clean, tag("b", example.label, class_="right")),
        _panel(example, "perturbation", perturbation, tag("span", f"× {zoom:.3g}", class_="right")),
        _panel(
            example, "adversarial", example.adversarial, tag("b", example.predicted, class_="wrong")
        ),
        tag("figcaption", f"image {example.row}: {example.attack}{draws}"),
    )


def _panel(example: Example, kind: str, image: Tensor, text: Markup) -> Markup:
    return tag(
        "div",
        tag("img", src=data_uri(image), alt=f"example {example.row}, {kind}", loading="lazy"),
        tag("span", kind, class_="kind"),
        text,
    )
