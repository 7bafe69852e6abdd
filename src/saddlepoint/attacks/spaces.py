"""Perturbation sets: balls in a norm, intersected with a box.

All norm-specific operations are here, so that each attack is written once for all norms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from saddlepoint.attacks.projections import (
    largest,
    largest_entries,
    project_l1,
    project_l2,
    unit_length,
)
from saddlepoint.attacks.radius import parse_radius
from saddlepoint.rng import Keys


def per_example(values: Tensor, x: Tensor) -> Tensor:
    """Values per example, [N], reshaped to [N, 1, 1, ...] to broadcast against x, [N, ...]."""
    return values.view(-1, *[1] * (x.ndim - 1))


@dataclass(frozen=True)
class Radii:
    """A length relative to the radius of the set: `Radii(1 / 4)` is 2/255 at a radius of 8/255.

    Args:
        times: the length in radii.
    """

    times: float


@dataclass(frozen=True)
class Ball:
    """The set {x : ||x - center||_p <= radius}, intersected with a box that contains the center.

    Args:
        p: the norm: 1, 2 or infinity.
        radius: in units of the input, such as 8/255 for pixels in [0, 1].
        box: lowest and highest value of an input; default (0, 1).

    Raises:
        ValueError: p is not supported, the radius is negative or not finite, or the box is empty.
    """

    p: float
    radius: float
    box: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        # A Python float: records would describe a numpy or torch number by the name of its type.
        object.__setattr__(self, "radius", float(self.radius))
        if self.p not in (1, 2, math.inf):
            raise ValueError(f"Ball supports p=1, p=2 and p=inf, got p={self.p}.")
        if not (math.isfinite(self.radius) and self.radius >= 0):
            raise ValueError(
                f"the radius must be a finite number >= 0, got {self.radius}. "
                "Pixels are in [0, 1]: write 8/255, not 8."
            )
        if not self.box[0] < self.box[1]:
            raise ValueError(f"the box must be (low, high) with low < high, got {self.box}.")

    def __str__(self) -> str:
        norm = "Linf" if self.p == math.inf else f"L{self.p:g}"
        in_255 = self.radius * 255
        fraction = self.p == math.inf and abs(in_255 - round(in_255)) < 1e-9
        short = float(f"{self.radius:.3g}") == self.radius  # 0.2, not 51/255
        shown = f"{round(in_255)}/255" if fraction and not short else f"{self.radius:g}"
        return f"{norm} radius {shown}"

    def length(self, step: float | Radii) -> float:
        """The length of a step in units of the input."""
        return step.times * self.radius if isinstance(step, Radii) else step

    def size(self, delta: Tensor) -> Tensor:
        """The norm of each perturbation, [N, ...] -> [N]."""
        if self.p == math.inf:
            return largest(delta)
        if self.p == 1:
            # A sum of thousands of numbers in single precision has a large rounding error. The sum
            # of absolute values is three times faster than `vector_norm`.
            return delta.flatten(1).abs().sum(1, dtype=torch.float64).to(delta)
        length: Tensor = torch.linalg.vector_norm(delta.flatten(1), dim=1)
        return length

    def around(self, center: Tensor) -> Region:
        """The sets around given centers, [N, ...]."""
        return Region(self, center)

    def project(self, x: Tensor, center: Tensor, radius: Tensor | None = None) -> Tensor:
        """Project onto the set: argmin ||z - x||_2 over z in the ball and the box.

        In a loop, compute the bounds once: `region = ball.around(center)`, `region.project(x)`.

        Args:
            x: points, [N, ...].
            center: centers of the balls, [N, ...].
            radius: one radius per example, [N]; default the radius of the set.
        """
        return self.around(center).project(x, radius)

    def sample(self, center: Tensor, keys: Keys) -> Tensor:
        """Draw a point uniformly from the ball around each center, [N, ...], and project it."""
        shape = tuple(center.shape[1:])
        dtype = center.dtype
        if self.p == math.inf:
            delta = 2 * keys.uniform(shape, dtype) - 1
        else:
            noise = keys.normal(shape, dtype) if self.p == 2 else _laplace(keys, shape, dtype)
            direction = noise / per_example(self.size(noise).clamp(min=1e-30), center)
            delta = direction * per_example(
                keys.fold_in(1).uniform((), dtype) ** (1 / math.prod(shape)), center
            )
        return self.project(center + self.radius * delta, center)

    def ascent(self, grad: Tensor, x: Tensor, density: Tensor | None = None) -> Tensor:
        """The direction of steepest ascent, of unit length in this norm.

        For p = 1 it is the coordinate with the largest gradient entry that the box allows to move.

        Args:
            grad: gradient, [N, ...].
            x: current points, [N, ...]; used for p = 1.
            density: for p = 1, the share of the coordinates that move by equal amounts, those with
                the largest entries, [N] (Croce & Hein 2021, Sec. 3). Default: one coordinate.
        """
        if self.p == math.inf:
            return grad.sign()
        if self.p == 2:
            return unit_length(grad)
        low, high = self.box
        # The sign of the gradient, or zero where the box allows no move in its direction. Float
        # arithmetic with signs is several times faster than comparisons.
        sign = grad.sign()
        ahead = x.add(sign, alpha=high - low).clamp_(low, high).sub_(x).sign_().flatten(1)
        strength = ahead * grad.flatten(1)  # [N, d]
        d = strength.shape[1]
        count = (
            torch.ones_like(strength[:, 0])
            if density is None
            else (density * d).floor().clamp(1, d)
        )
        chosen = largest_entries(strength, count)
        moves = chosen / chosen.sum(1, keepdim=True).clamp(min=1)
        return ahead.mul(moves).view_as(grad)

    def euclidean_radius(self, dimension: int) -> float:
        """The largest Euclidean length of a perturbation of this dimension.

        radius d^(1/2 - 1/p) for p >= 2, and the radius for smaller p.
        """
        return float(self.radius * dimension ** max(0.5 - 1 / self.p, 0.0))

    def contains(self, x: Tensor, center: Tensor) -> Tensor:
        """[N] bool: which points x, [N, ...], lie in the set, up to rounding. NaN does not."""
        return self.around(center).contains(x)


@dataclass(frozen=True)
class Region:
    """The perturbation sets of a batch of images. Their bounds are computed once.

    Args:
        ball: the perturbation set.
        center: clean images, [N, ...].
    """

    ball: Ball
    center: Tensor

    def __getitem__(self, rows: Tensor) -> Region:
        """The sets of some of the images: indices [M] or a mask [N]."""
        return Region(self.ball, self.center[rows])

    def project(self, x: Tensor, radius: Tensor | None = None) -> Tensor:
        """Project onto the sets: argmin ||z - x||_2 over z in the ball and the box.

        For p = 2 the usual scaling followed by clipping gives a feasible point but not the nearest
        one; it does not use the whole radius where the box is active.

        Args:
            x: points, [N, ...].
            radius: one radius per example, [N]; default the radius of the set.
        """
        box = self.ball.box
        if self.ball.p == math.inf:
            if radius is None:
                return torch.clamp(x, *self._pixel_bounds)
            r = per_example(radius, x)
            return torch.clamp(x, self.center - r, self.center + r).clamp(*box)
        radius = self._radius.to(x.dtype) if radius is None else radius
        project = project_l2 if self.ball.p == 2 else project_l1
        delta = project((x - self.center).flatten(1), *self._delta_bounds, radius)
        # The sum may leave the box by rounding.
        return delta.view_as(x).add_(self.center).clamp_(*box)

    def contains(self, x: Tensor, size: Tensor | None = None) -> Tensor:
        """[N] bool: which points x, [N, ...], lie in their set, up to rounding. NaN does not.

        The norms of their perturbations, `size` [N], are computed unless they are known. Each of
        the d coordinates may be off by eps times its size, so the norm may be off by d^(1/p) times
        that.
        """
        scale = self._scale.to(x.dtype)
        slack: Tensor = (
            2
            * torch.finfo(x.dtype).eps
            * (scale * x.shape[1:].numel() ** (1 / self.ball.p) + self.ball.radius)
        )
        flat = x.flatten(1)
        above = flat.amin(1) >= self.ball.box[0] - slack
        below = flat.amax(1) <= self.ball.box[1] + slack
        size = self.ball.size(x - self.center) if size is None else size
        return above & below & (size <= self.ball.radius + slack)

    @cached_property
    def _pixel_bounds(self) -> tuple[Tensor, Tensor]:
        """The lowest and highest legal pixel values for p = infinity, each [N, ...]."""
        low = (self.center - self.ball.radius).clamp(*self.ball.box)
        return low, (self.center + self.ball.radius).clamp(*self.ball.box)

    @cached_property
    def _radius(self) -> Tensor:
        """[N] the radius of the set."""
        return torch.full_like(self.center.flatten(1)[:, 0], self.ball.radius)

    @cached_property
    def _delta_bounds(self) -> tuple[Tensor, Tensor]:
        """The lowest and highest changes of a pixel that the box allows, each [N, d]."""
        low = self.ball.box[0] - self.center
        return low.flatten(1), (self.ball.box[1] - self.center).flatten(1)

    @cached_property
    def _scale(self) -> Tensor:
        """[N] the largest absolute pixel value, at least 1: pixels may range up to 255."""
        return self.center.flatten(1).abs().amax(1).clamp(min=1)


def Linf(radius: float | str, *, box: tuple[float, float] = (0.0, 1.0)) -> Ball:  # noqa: N802
    """The set in which every pixel changes by at most `radius`: `Linf(8/255)`, `Linf("8/255")`."""
    return Ball(math.inf, parse_radius(radius), box)


def L2(radius: float | str, *, box: tuple[float, float] = (0.0, 1.0)) -> Ball:  # noqa: N802
    """The set of perturbations of Euclidean norm at most `radius`, such as `L2(0.5)`."""
    return Ball(2, parse_radius(radius), box)


def L1(radius: float | str, *, box: tuple[float, float] = (0.0, 1.0)) -> Ball:  # noqa: N802
    """The set of perturbations with absolute values summing to at most `radius`: `L1(12)`."""
    return Ball(1, parse_radius(radius), box)


def unbounded_ball(
    pixels: int, *, p: float = math.inf, box: tuple[float, float] = (0.0, 1.0)
) -> Ball:
    """The smallest ball that contains every image of the box, for unbounded perturbations.

    Goldwasser et al. 2020 define an error by the true label of the perturbed point. The referee
    does not know it and uses the label of the clean image. Errors under this threat are therefore
    meaningful only for adversaries that keep perturbations small, such as minimum-norm attacks.

    Args:
        pixels: numbers per image, `x[0].numel()`.
        p: the norm; default infinity.
        box: lowest and highest value of an input; default (0, 1).

    Raises:
        ValueError: `pixels` is less than 1.
    """
    if pixels < 1:
        raise ValueError(
            f"an image has at least one number, got pixels={pixels}. Pass x[0].numel()."
        )
    return Ball(p, (box[1] - box[0]) * pixels ** (1 / p), box)


def _laplace(keys: Keys, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Laplace noise; its direction is uniform on the L1 sphere."""
    return -(1 - keys.uniform(shape, dtype)).log() * keys.fold_in(2).signs(shape, dtype)
