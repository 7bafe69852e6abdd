"""The results of all diagnostics."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from saddlepoint.audits.verdict import Cost


@dataclass(frozen=True)
class WatchedSteps:
    """Every step of the strongest attack on images that are correct without an attack."""

    value: Tensor  # [T, n] its objective
    success: Tensor  # [T, n] bool: a point of the set that is misclassified
    gradient: Tensor  # [T, n] largest absolute gradient entry; NaN if none was computed
    robust: Tensor  # [n] bool: the proposed point is classified correctly


@dataclass(frozen=True)
class Compared:
    """Correctness of the same images in two settings."""

    first: Tensor  # [n]
    second: Tensor  # [n]


@dataclass(frozen=True)
class UnboundedResult:
    """The attack with a radius that allows a gray image."""

    radius: float
    accuracy: float


@dataclass(frozen=True)
class StaticResult:
    """The static net on clean images, and on the worst of all proposed points."""

    clean: Tensor  # [N]
    robust: Tensor  # [N]


@dataclass(frozen=True)
class Landscape:
    """Margins near correctly classified images, and on the line to their worst points."""

    rows: Tensor  # [n] the images
    near: Tensor  # [K, n] margins at random points very near to them
    center: Tensor  # [n] margins at the images
    cosine: Tensor  # [m] of gradients at two nearby points, for images that have gradients
    line: Tensor  # [K, n] margins at equal steps to the worst point, which is the last
    line_success: Tensor  # [K, n] bool: misclassified there


@dataclass(frozen=True)
class SolverResiduals:
    """Relative residuals of the solvers inside a defense."""

    clean: Tensor  # [N] on clean images
    attacked: Tensor  # [N] on worst points
    backward: Tensor  # [n] of the backward solves of one gradient


@dataclass(frozen=True)
class Diagnoses:
    """All diagnostics of an audit; None where one does not apply."""

    gradient_failure: float = 1.0  # fraction of images without a usable plain gradient
    watched: WatchedSteps | None = None
    one_step: Compared | None = None  # one step of the strongest attack, many steps
    longer: Compared | None = None  # before and after twice the steps from other starts
    unbounded: UnboundedResult | None = None
    static: StaticResult | None = None
    static_queries: Compared | None = None  # black-box attacks: the defense, its static net
    gradient_cosine: float | None = None  # of two averaged gradients at the same images
    cost: Cost | None = None
    landscape: Landscape | None = None
    residuals: SolverResiduals | None = None
    shrunk: Tensor | None = None  # [N] sizes of shrunk worst points, inf if correct there
    certified: Tensor | None = None  # [N] bool: no point of the set changes the prediction
