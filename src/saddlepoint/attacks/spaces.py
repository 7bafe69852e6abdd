"""The perturbation set: one object that every attack shares, so that no attack knows a norm."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.rng import Keys


def per_example(values: Tensor, x: Tensor) -> Tensor:
    """[N] seen as [N, 1, 1, ...], to stand beside x."""
    return values.view(-1, *[1] * (x.ndim - 1))


@dataclass(frozen=True)
class Radii:
    """A length in radii of the set: `Radii(1 / 4)` is 2/255 where the radius is 8/255."""

    times: float


@dataclass(frozen=True)
class Ball:
    """{x : ||x - center||_p <= radius} intersected with the box, p in {1, 2, inf}. The center lies in the box."""

    p: float
    radius: float  # in units of the input: 8/255 for pixels in [0, 1]
    box: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "radius", float(self.radius)
        )  # a number of numpy or torch would be kept under its type's name
        if self.p not in (1, 2, math.inf):
            raise ValueError(f"Ball supports p=1, p=2 and p=inf, got p={self.p}.")
        if not (math.isfinite(self.radius) and self.radius >= 0):
            raise ValueError(
                f"the radius must be a finite number >= 0, got {self.radius}. Pixels are in [0, 1]: write 8/255, not 8."
            )
        if not self.box[0] < self.box[1]:
            raise ValueError(f"the box must be (low, high) with low < high, got {self.box}.")

    def __str__(self) -> str:
        norm = "Linf" if self.p == math.inf else f"L{self.p:g}"
        in_255 = self.radius * 255
        pretty = (
            f"{round(in_255)}/255"
            if self.p == math.inf and abs(in_255 - round(in_255)) < 1e-9
            else f"{self.radius:g}"
        )
        return f"{norm} radius {pretty}"

    def length(self, step: float | Radii) -> float:
        """A step in units of the input."""
        return step.times * self.radius if isinstance(step, Radii) else step

    def size(self, delta: Tensor) -> Tensor:  # [N, ...] -> [N]
        if self.p == math.inf:
            return delta.flatten(1).abs().amax(1)  # several times faster than `vector_norm`
        length: Tensor = torch.linalg.vector_norm(delta.flatten(1), self.p, dim=1)
        return length

    def project(self, x: Tensor, center: Tensor, radius: Tensor | None = None) -> Tensor:
        """The nearest point of the set in the Euclidean norm: argmin ||z - x||_2 over z in ball and box.

        `radius` gives one radius per example instead of the set's own. For p = 2 the usual scale-then-clip is only feasible, not
        nearest; it wastes budget wherever the box binds.
        """
        if self.p == math.inf:
            r = self.radius if radius is None else per_example(radius, x)
            return torch.clamp(x, center - r, center + r).clamp(*self.box)
        radius = torch.full_like(x.flatten(1)[:, 0], self.radius) if radius is None else radius
        low = self.box[0] - center
        high = self.box[1] - center  # bounds on z - center
        project = _project_l2 if self.p == 2 else _project_l1
        delta = project((x - center).flatten(1), low.flatten(1), high.flatten(1), radius)
        return (center + delta.view_as(x)).clamp(
            *self.box
        )  # the clamp mends the rounding of the sum

    def sample(self, center: Tensor, keys: Keys) -> Tensor:
        """A point drawn uniformly from the ball, then clipped into the box."""
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
        """Steepest ascent of unit length in this norm.

        For p = 1 that is one coordinate, the strongest that the box lets move; with `density` [N] it is that share of the strongest
        coordinates, in equal parts (Croce & Hein 2021, Sec. 3).
        """
        if self.p == math.inf:
            return grad.sign()
        if self.p == 2:
            # The largest entry first: in float32 squares below 1e-38 vanish, and saturated losses have such gradients.
            grad = grad / per_example(
                grad.flatten(1).abs().amax(1).clamp(min=torch.finfo(grad.dtype).tiny), grad
            )
            return grad / per_example(self.size(grad).clamp(min=1e-30), grad)
        low, high = self.box
        blocked = ((grad > 0) & (x >= high)) | ((grad < 0) & (x <= low))
        strength = torch.where(blocked, 0.0, grad.abs()).flatten(1)  # [N, d]
        d = strength.shape[1]
        count = (
            torch.ones_like(strength[:, 0])
            if density is None
            else (density * d).floor().clamp(1, d)
        )
        rank = strength.argsort(dim=1, descending=True, stable=True).argsort(
            dim=1
        )  # ties fall to one coordinate each
        chosen = (rank < count[:, None]) & (strength > 0)
        share = chosen.to(grad) / chosen.sum(1, keepdim=True).clamp(min=1)
        return grad.sign() * share.view_as(grad)

    def euclidean_radius(self, dimension: int) -> float:
        """The largest Euclidean length of a perturbation of this dimension.

        radius d^(1/2 - 1/p) for p >= 2, and the radius for smaller p.
        """
        return float(self.radius * dimension ** max(0.5 - 1 / self.p, 0.0))

    def contains(self, x: Tensor, center: Tensor) -> Tensor:  # [N] bool
        """Inside, up to rounding: each of the d coordinates is off by eps times its size, their norm by d^(1/p) times that."""
        scale = (
            center.flatten(1).abs().amax(1).clamp(min=1)
        )  # [N] pixels may also be counted to 255
        slack: Tensor = (
            2
            * torch.finfo(x.dtype).eps
            * (scale * x.shape[1:].numel() ** (1 / self.p) + self.radius)
        )
        flat = x.flatten(1)
        inside = (flat.amin(1) >= self.box[0] - slack) & (
            flat.amax(1) <= self.box[1] + slack
        )  # false for what is not a number
        return inside & (self.size(x - center) <= self.radius + slack)


def Linf(radius: float, *, box: tuple[float, float] = (0.0, 1.0)) -> Ball:  # noqa: N802
    """Every pixel may move by `radius`: `Linf(8/255)`."""
    return Ball(math.inf, radius, box)


def L2(radius: float, *, box: tuple[float, float] = (0.0, 1.0)) -> Ball:  # noqa: N802
    """The perturbation's Euclidean length is at most `radius`: `L2(0.5)`."""
    return Ball(2, radius, box)


def L1(radius: float, *, box: tuple[float, float] = (0.0, 1.0)) -> Ball:  # noqa: N802
    """The perturbation's absolute values sum to at most `radius`: `L1(12)`."""
    return Ball(1, radius, box)


def unbounded_ball(
    pixels: int, *, p: float = math.inf, box: tuple[float, float] = (0.0, 1.0)
) -> Ball:
    """Any image at all: the smallest ball that holds the whole box of so many numbers an image (Goldwasser et al. 2020).

    Their error asks a ground truth f about the point itself; a referee has none and keeps the label of the image that was changed.
    Errors under this threat mean something where the adversary stays near on its own, as one that minimizes a norm does.
    """
    if pixels < 1:
        raise ValueError(
            f"an image has at least one number, got pixels={pixels}. Give x[0].numel()."
        )
    return Ball(p, (box[1] - box[0]) * pixels ** (1 / p), box)


def _laplace(keys: Keys, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Laplace noise: its direction is uniform on the L1 sphere."""
    return -(1 - keys.uniform(shape, dtype)).log() * keys.fold_in(2).signs(shape, dtype)


def _project_l2(u: Tensor, low: Tensor, high: Tensor, radius: Tensor) -> Tensor:
    """argmin ||d - u||_2 with ||d||_2 <= radius and low <= d <= high.

    d(t) = clip(t u, low, high), the largest t in (0, 1] with ||d(t)|| <= radius. With the clipped coordinates fixed, t solves
    t^2 ||u_free||^2 + ||d_clipped||^2 = radius^2, and t ||u_free|| is the length of the free part of d(t); t only grows and
    coordinates only become clipped, so the iteration ends. A row at its end stays there to the last bit, however long others take.
    """
    t = (radius / u.norm(dim=1).clamp(min=1e-30)).clamp(max=1)
    d = torch.clamp(t[:, None] * u, low, high)
    rows = (d != t[:, None] * u).any(1).nonzero()[:, 0]
    while len(rows):
        u_ = u[rows]
        t_ = t[rows]
        d_ = d[rows]
        free = (d_ == t_[:, None] * u_).to(u)
        length = (d_ * free).norm(dim=1)
        stuck = (d_ * (1 - free)).norm(dim=1)  # several times faster than `where`
        wanted = (
            t_ * (radius[rows] ** 2 - stuck**2).clamp(min=0).sqrt() / length.clamp(min=1e-30)
        ).clamp(max=1)
        grows = wanted > t_ * (1 + 4 * torch.finfo(u.dtype).eps)
        rows = rows[grows]
        t = t.index_copy(0, rows, wanted[grows])
        d = d.index_copy(0, rows, torch.clamp(t[rows, None] * u[rows], low[rows], high[rows]))
    return d


def _project_l1(u: Tensor, low: Tensor, high: Tensor, radius: Tensor) -> Tensor:
    """argmin ||d - u||_2 with ||d||_1 <= radius and low <= d <= high.

    |d_i| = min(max(|u_i| - s, 0), b_i) with b_i the room on u_i's side, and the smallest s >= 0 for which the sum is at most
    radius. The sum is piecewise linear in s with breaks at |u_i| and |u_i| - b_i: sort them and walk down (Croce & Hein 2021,
    Sec. 3.1). Sums over thousands of breaks are taken in double precision.
    """
    dtype, u, room, radius = (
        u.dtype,
        u.double(),
        torch.where(u > 0, high, -low).double(),
        radius.double(),
    )
    size = u.abs()
    breaks, order = torch.cat([size, size - room], dim=1).clamp(min=0).sort(dim=1, descending=True)
    slope = (
        torch.where(order < u.shape[1], 1.0, -1.0).to(u).cumsum(1)
    )  # how fast the sum grows below each break
    gain = slope[:, :-1] * (breaks[:, :-1] - breaks[:, 1:])
    total = torch.cat(
        [torch.zeros_like(gain[:, :1]), gain.cumsum(1)], dim=1
    )  # the sum at each break
    at = (total <= radius[:, None]).sum(1, keepdim=True) - 1  # the last break not beyond the radius
    left = radius[:, None] - total.gather(1, at)
    s = breaks.gather(1, at) - left / slope.gather(1, at).clamp(min=1)
    s = torch.where((torch.minimum(size, room).sum(1) <= radius)[:, None], 0.0, s.clamp(min=0))
    return (u.sign() * torch.minimum((size - s).clamp(min=0), room)).to(dtype)
