"""Robust accuracy as a function of the radius, from one minimum-norm attack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from saddlepoint.attacks.fmn import FMN
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.radius import parse_radius
from saddlepoint.attacks.spaces import Ball, per_example
from saddlepoint.attacks.square import Square
from saddlepoint.audits.plots import plot_curve
from saddlepoint.audits.statistics import Interval, wilson
from saddlepoint.defenses import Defense
from saddlepoint.evaluation import (
    Adversary,
    Direct,
    Episode,
    FixedPoints,
    Threat,
    WarmStart,
    play,
)
from saddlepoint.phrases import at_most, count, percent

MakeBall = Callable[[float], Ball]


@dataclass(frozen=True, repr=False)
class Curve:
    """Upper bounds of robust accuracy at several radii, which decrease with the radius.

    Args:
        name: of the target.
        spaces: the perturbation sets, by increasing radius, [R].
        accuracy: robust accuracy at each of them, [R].
        intervals: 95 % intervals over images, [R].
        clean_accuracy: accuracy on clean images.
        sizes: [N] the smallest perturbation that was found for each image; 0 if it is misclassified
            without one, infinite if none was found.
        passes: mean number of forward and backward passes per image.
    """

    name: str
    spaces: tuple[Ball, ...]
    accuracy: tuple[float, ...]
    intervals: tuple[Interval, ...]
    clean_accuracy: float
    sizes: Tensor
    passes: float

    @property
    def radii(self) -> tuple[float, ...]:
        """The radii, in increasing order."""
        return tuple(space.radius for space in self.spaces)

    def __repr__(self) -> str:
        at = ", ".join(
            f"{str(space).partition('radius ')[2]}: {at_most(accuracy)}"
            for space, accuracy in zip(self.spaces, self.accuracy, strict=True)
        )
        norm = str(self.spaces[0]).partition(" ")[0]
        images = count(len(self.sizes), "image")
        clean = percent(self.clean_accuracy)
        return f"<Curve of {self.name}, {norm}, {images}: clean {clean}, {at}>"

    def record(self) -> dict[str, Any]:
        """The numbers as plain values."""
        return {
            "target": self.name,
            "threats": [str(space) for space in self.spaces],
            "radii": list(self.radii),
            "accuracy": list(self.accuracy),
            "intervals": [list(interval[:2]) for interval in self.intervals],
            "clean_accuracy": self.clean_accuracy,
            "n": len(self.sizes),
            "passes": self.passes,
        }

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{space}</td><td>{at_most(accuracy)}</td><td>{interval}</td></tr>"
            for space, accuracy, interval in zip(
                self.spaces, self.accuracy, self.intervals, strict=True
            )
        )
        head = "<tr><th>threat</th><th>robust accuracy</th><th>interval</th></tr>"
        return f"<table>{head}{rows}</table>"

    def plot(self, ax: Any = None) -> Any:
        """Draw the curve with its intervals. Needs matplotlib.

        Args:
            ax: the axes; default: new ones.

        Returns:
            The axes.
        """
        return plot_curve(self, ax)


def spaces_of(radii: Sequence[float | str], norm: MakeBall) -> tuple[Ball, ...]:
    """The perturbation sets of these radii, by increasing radius.

    Raises:
        ValueError: there is no radius, or one is not positive.
    """
    spaces = tuple(norm(radius) for radius in sorted({parse_radius(radius) for radius in radii}))
    if not spaces or spaces[0].radius <= 0:
        raise ValueError(f"a curve needs at least one radius, all of them above 0, got {radii}.")
    return spaces


def accuracy_curve(
    defense: Defense,
    x: Tensor,
    y: Tensor,
    spaces: Sequence[Ball],
    *,
    name: str,
    steps: int,
    seed: int,
    batch_size: int,
) -> Curve:
    """Bound the robust accuracy at every radius.

    FMN minimizes the perturbation of every image once, within the largest radius. At each radius,
    in increasing order, the referee evaluates the smallest perturbations found so far, and images
    that are still classified correctly are attacked by PGD from there (Square if the defense has
    no gradients). A perturbation is legal at all larger radii, so accuracy never increases.

    Args:
        defense: a defense whose rows are independent.
        x: clean images, [N, ...].
        y: labels, [N].
        spaces: the perturbation sets, by increasing radius.
        name: of the target.
        steps: steps of FMN; PGD takes a fifth of them at each radius.
        seed: of all random keys.
        batch_size: images per batch.

    Raises:
        ValueError: rows are coupled or the defense is randomized.
    """
    if defense.unit != "example" or defense.random:
        raise ValueError(
            "a curve compares points image by image, which needs a deterministic defense with "
            "independent rows. Audit each radius instead: sp.audit(..., threat=sp.Linf(radius))."
        )
    search = _Search(defense, x, y.long(), seed, batch_size)
    search.run(FixedPoints(), spaces[-1], torch.arange(len(x)))
    clean_accuracy = 1 - float((search.sizes == 0).double().mean())
    gradients = defense.grants == "gradient"
    if gradients:
        search.run(Direct("fmn", FMN(steps)), spaces[-1], search.larger_than(0))
    accuracy = []
    for space in spaces:
        known = search.points(space)
        adversary: Adversary = Direct("square", Square(steps))
        if gradients:
            then = Direct("pgd", PGD(max(steps // 5, 1)))
            adversary = WarmStart(FixedPoints("nearest", known), then)
        search.run(adversary, space, search.larger_than(space.radius))
        accuracy.append(search.confirmed_accuracy(space))
    return Curve(
        name,
        tuple(spaces),
        tuple(accuracy),
        tuple(wilson(value, len(x)) for value in accuracy),
        clean_accuracy,
        search.sizes,
        search.passes / len(x),
    )


class _Search:
    """The nearest adversarial point of each image so far."""

    def __init__(self, defense: Defense, x: Tensor, y: Tensor, seed: int, batch_size: int) -> None:
        self._defense = defense
        self._x = x
        self._y = y
        self._seed = seed
        self._batch_size = batch_size
        self._nearest = x.clone()
        self._start = x.clone()  # where the next attack starts
        self.sizes = torch.full((len(x),), torch.inf, dtype=torch.float64)
        self.passes = 0.0

    def run(self, adversary: Adversary, space: Ball, rows: Tensor) -> None:
        """Run an adversary on some rows and keep the points that the referee confirms."""
        if not len(rows):
            return
        episode = self._play(adversary, space, rows)
        self.passes += float(episode.forward.sum() + episode.backward.sum()) + len(rows)
        # The referee accepts sizes above the radius by rounding.
        size = episode.size.double().cpu().clamp(max=space.radius)
        success = (episode.correct[0] < 0.5).cpu()
        better = success & (size < self.sizes[rows])
        closer = per_example(better.to(self._x.device), episode.points)
        at = rows.to(self._x.device)
        nearest = torch.where(closer, episode.points, self._nearest[at])
        self._nearest = self._nearest.index_copy(0, at, nearest)
        self._start = self._start.index_copy(0, at, episode.points)
        self.sizes = self.sizes.index_copy(0, rows, torch.where(better, size, self.sizes[rows]))

    def confirmed_accuracy(self, space: Ball) -> float:
        """The accuracy that the referee measures at the kept points, in a last evaluation."""
        episode = self._play(
            FixedPoints("nearest", self.points(space)), space, torch.arange(len(self._x))
        )
        return float(episode.correct.mean())

    def larger_than(self, radius: float) -> Tensor:
        """The rows without an adversarial point of this size or a smaller one."""
        return (self.sizes > radius).nonzero()[:, 0]

    def points(self, space: Ball) -> Tensor:
        """The nearest adversarial points, or where the next attack starts, inside of a set."""
        legal = per_example((self.sizes <= space.radius).to(self._x.device), self._x)
        return torch.where(legal, self._nearest, space.project(self._start, self._x))

    def _play(self, adversary: Adversary, space: Ball, rows: Tensor) -> Episode:
        at = rows.to(self._x.device)
        return play(
            self._defense,
            adversary,
            self._x[at],
            self._y[at],
            Threat(space),
            ids=at,
            seed=self._seed,
            batch_size=self._batch_size,
        )
