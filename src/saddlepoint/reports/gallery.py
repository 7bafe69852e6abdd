"""Which examples show most of what happened, and how they are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from saddlepoint.audits.result import Audit
from saddlepoint.reports.markup import Markup, tag
from saddlepoint.reports.png import data_uri, drawable

_SHOWN = 12


@dataclass(frozen=True)
class Example:
    """One image that fell."""

    row: int
    clean: Tensor  # [C, H, W]
    adversarial: Tensor  # [C, H, W]
    label: str
    answer: str
    winner: str
    correct: float  # share of draws still answered rightly


def named(audit: Audit, label: int) -> str:
    """A class by name, or by number where there are no names."""
    return audit.classes[label] if 0 <= label < len(audit.classes) else str(label)


def telling(audit: Audit, count: int = _SHOWN) -> tuple[Example, ...]:
    """Changed images answered wrongly more often than not, the slightest changes first, each mistake once before any twice."""
    lengths = (audit.worst_points - audit.x).flatten(1).double().norm(dim=1)
    fallen = ((audit.correct < 0.5) & (lengths > 0)).nonzero()[:, 0].tolist()
    seen: dict[tuple[int, int], int] = {}
    ranked = []
    for i in sorted(fallen, key=lambda i: (float(lengths[i]), i)):
        mistake = (int(audit.y[i]), int(audit.answered[i]))
        seen[mistake] = seen.get(mistake, 0) + 1
        ranked.append((seen[mistake], float(lengths[i]), i))
    # The box may be another than [0, 1]: draw with the range of the whole set, widened to [0, 1].
    low = min(float(audit.x.amin()), 0.0)
    high = max(float(audit.x.amax()), 1.0)
    return tuple(_example(audit, i, low, high) for _, _, i in sorted(ranked)[:count])


def gallery(audit: Audit) -> Iterator[Markup]:
    """A figure per example: clean, change magnified, adversarial."""
    if not drawable(audit.x):
        yield tag(
            "p",
            f"Inputs of shape {list(audit.x.shape[1:])} are not images that can be drawn.",
            class_="quiet",
        )
        return
    examples = telling(audit)
    if not examples:
        yield tag("p", "No image that was changed is answered wrongly.", class_="quiet")
        return
    largest = max(float((e.adversarial - e.clean).abs().amax()) for e in examples)
    zoom = (
        0.5 / largest
    )  # the largest change of all spans gray to black or white, so that figures can be compared
    yield tag(
        "p",
        "The slightest changes that were enough (Euclidean length), each mistake once before any is shown twice. The change is "
        f"drawn around gray, magnified {zoom:.3g} times. Colors are rounded to 8 bits here; the saved points are exact.",
        class_="quiet",
    )  # fmt: skip
    yield tag("div", *(_figure(example, zoom) for example in examples), class_="gallery")


def _example(audit: Audit, i: int, low: float, high: float) -> Example:
    clean, adversarial = (
        (t[i].detach().cpu().float() - low) / (high - low) for t in (audit.x, audit.worst_points)
    )
    label = named(audit, int(audit.y[i]))
    answer = named(audit, int(audit.answered[i]))
    return Example(
        i, clean, adversarial, label, answer, audit.examples.winner[i], float(audit.correct[i])
    )


def _figure(example: Example, zoom: float) -> Markup:
    change = 0.5 + zoom * (example.adversarial - example.clean)
    images = (
        ("clean", example.clean, example.label),
        ("change", change, f"× {zoom:.3g}"),
        ("adversarial", example.adversarial, example.answer),
    )
    drawn = (
        tag(
            "div",
            tag("img", src=data_uri(image), alt=f"example {example.row}, {kind}", loading="lazy"),
            tag("span", kind, class_="kind"),
            tag("b" if kind != "change" else "span", text, class_="wrong" if kind == "adversarial" else "right"),
        )
        for kind, image, text in images
    )  # fmt: skip
    draws = (
        f", still right on {100 * example.correct:.0f} % of draws" if example.correct > 0 else ""
    )
    return tag("figure", *drawn, tag("figcaption", f"image {example.row}: {example.winner}{draws}"))
