"""The charts of Figure 1: errors among accepted images by the fraction of rejected ones."""

from __future__ import annotations

from collections.abc import Mapping

from saddlepoint.papers.result import Plot
from saddlepoint.zoo.transductive import RejectionCurve

SHORT = {"a": "(a) PGD", "b": "(b) CW", "c": "(c) brightness"}
TITLES = {
    "a": "(a) clean images and PGD's points",
    "b": "(b) clean images and CW's points",
    "c": "(c) brighter images and PGD's points on them",
}


def charts(discriminator: str, curves: Mapping[str, RejectionCurve]) -> list[Plot]:
    """One chart per test batch, and one with the errors of all test batches.

    Args:
        discriminator: name of the discriminator.
        curves: rejections and errors by the letter of the test batch.

    Returns:
        Charts with connected points.
    """
    file = f"figure-1-{discriminator.partition(' ')[0].lower()}"
    each = []
    for name, one in curves.items():
        points = {
            "error, accepted": _points(one.rejected, one.error),
            "normal rejected": _points(one.rejected, one.rejected_normal),
        }
        across = "fraction of the batch rejected, %"
        title = f"{discriminator}: {TITLES[name]}"
        each.append(Plot(f"{file}-{name}", title, across, "%", points, joined=True))
    together = {
        SHORT[name]: _points(one.rejected_normal, one.error) for name, one in curves.items()
    }
    overview = Plot(
        file,
        f"{discriminator}: errors and rejections",
        "fraction of normal images rejected, %",
        "error among accepted, %",
        together,
        joined=True,
    )
    return [*each, overview]


def _points(across: tuple[float, ...], up: tuple[float, ...]) -> tuple[tuple[float, float], ...]:
    return tuple((100 * x, 100 * y) for x, y in zip(across, up, strict=True))
