"""Estimators: how the value and gradient of an objective are estimated from forward passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from saddlepoint.passes import add_backward
from saddlepoint.rng import Keys


class Evaluation(NamedTuple):
    """One evaluation of the objective, per example."""

    value: Tensor  # [N] the attacker maximizes this; [R, N] for R objectives at once
    success: Tensor  # [N] bool: the defense misclassifies the example


class ValueAndGradient(NamedTuple):
    """An evaluation of the objective and its gradient."""

    evaluation: Evaluation
    grad: Tensor  # [N, ...] like x; [R, N, ...] for R objectives


# (x [N, ...], keys) -> Evaluation. It is differentiable in x, and random only through the keys.
ObjectiveFunction = Callable[[Tensor, Keys], Evaluation]


class Estimator(ABC):
    """Estimates the value and gradient of an objective, and reports how many passes that takes."""

    @property
    @abstractmethod
    def cost(self) -> int:
        """Forward passes per evaluation."""

    @property
    @abstractmethod
    def gradient_cost(self) -> tuple[int, int]:
        """Forward and backward passes per value and gradient."""

    @property
    def approximate(self) -> bool:
        """Gradients are estimated from score differences, without a backward pass."""
        return False

    @property
    def handles_randomness(self) -> bool:
        """The randomness of the defense is averaged over draws, or fixed."""
        return False

    @abstractmethod
    def evaluate(self, objective: ObjectiveFunction, x: Tensor, keys: Keys) -> Evaluation:
        """Evaluate the objective.

        Args:
            objective: the function to evaluate.
            x: points, [N, ...].
            keys: one random key per row.
        """

    @abstractmethod
    def value_and_grad(
        self, objective: ObjectiveFunction, x: Tensor, keys: Keys
    ) -> ValueAndGradient:
        """Evaluate the objective and its gradient with respect to `x`; arguments as `evaluate`."""


@dataclass(frozen=True)
class Backprop(Estimator):
    """One forward and one backward pass by autograd."""

    @property
    def cost(self) -> int:
        return 1

    @property
    def gradient_cost(self) -> tuple[int, int]:
        return 1, 1

    def evaluate(self, objective: ObjectiveFunction, x: Tensor, keys: Keys) -> Evaluation:
        with torch.no_grad():
            return objective(x, keys)

    def value_and_grad(
        self, objective: ObjectiveFunction, x: Tensor, keys: Keys
    ) -> ValueAndGradient:
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            value, success = objective(x, keys)
            # The sum over rows gives the gradient per row where rows are independent. Where the
            # defense is coupled, it is the gradient of the batch's total.
            parts = value.sum(-1).reshape(-1).unbind()
        grads = [_gradient(part, x, retain=k + 1 < len(parts)) for k, part in enumerate(parts)]
        # One objective per row is the usual case, and needs no copy.
        grad = grads[0] if value.ndim == 1 else torch.stack(grads).view(*value.shape[:-1], *x.shape)
        return ValueAndGradient(Evaluation(value.detach(), success), grad)


@dataclass(frozen=True)
class EoT(Estimator):
    """Expectation over transformation: averages over independent draws of the randomness.

    grad E[f(t(x))] = E[grad f(t(x))], Athalye et al. 2018 (Synthesizing robust adversarial
    examples). Value and gradient are means over the draws. A point succeeds when the defense
    misclassifies it in more than half of the draws; with a single draw, chance errors would count
    as successes.

    Args:
        draws: number of draws, at least 1; default 20.
        inner: the estimator used for each draw; default `Backprop`.
    """

    draws: int = 20
    inner: Estimator = field(default_factory=Backprop)

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise ValueError(f"EoT needs at least one draw, got draws={self.draws}.")

    @property
    def cost(self) -> int:
        return self.draws * self.inner.cost

    @property
    def gradient_cost(self) -> tuple[int, int]:
        forward, backward = self.inner.gradient_cost
        return self.draws * forward, self.draws * backward

    @property
    def approximate(self) -> bool:
        return self.inner.approximate

    @property
    def handles_randomness(self) -> bool:
        return True

    def evaluate(self, objective: ObjectiveFunction, x: Tensor, keys: Keys) -> Evaluation:
        return _mean([self.inner.evaluate(objective, x, c) for c in self._draws(keys)])

    def value_and_grad(
        self, objective: ObjectiveFunction, x: Tensor, keys: Keys
    ) -> ValueAndGradient:
        results = [self.inner.value_and_grad(objective, x, c) for c in self._draws(keys)]
        return ValueAndGradient(
            _mean([r.evaluation for r in results]), torch.stack([r.grad for r in results]).mean(0)
        )

    def _draws(self, keys: Keys) -> Iterator[Keys]:
        # A single draw uses the keys themselves, so that EoT(1) equals its inner estimator.
        return iter([keys]) if self.draws == 1 else (keys.fold_in(k) for k in range(self.draws))


@dataclass(frozen=True)
class FixedRandomness(Estimator):
    """The same random draw in every evaluation: the defense becomes a deterministic function.

    If the attacker knows the defense's random keys, this is the function that is evaluated in the
    end. If not, it is the cheaper alternative to EoT that Croce et al. 2022 (Sec. 4) call fixing
    the seed.

    Args:
        inner: the estimator that is used with the fixed keys; default `Backprop`.
    """

    inner: Estimator = field(default_factory=Backprop)

    @property
    def cost(self) -> int:
        return self.inner.cost

    @property
    def gradient_cost(self) -> tuple[int, int]:
        return self.inner.gradient_cost

    @property
    def approximate(self) -> bool:
        return self.inner.approximate

    @property
    def handles_randomness(self) -> bool:
        return True

    def evaluate(self, objective: ObjectiveFunction, x: Tensor, keys: Keys) -> Evaluation:
        return self.inner.evaluate(objective, x, keys.root())

    def value_and_grad(
        self, objective: ObjectiveFunction, x: Tensor, keys: Keys
    ) -> ValueAndGradient:
        return self.inner.value_and_grad(objective, x, keys.root())


@dataclass(frozen=True)
class SPSA(Estimator):
    """Antithetic finite differences from scores alone (Spall 1992; Uesato et al. 2018).

        g = mean_k u_k (f(x + sigma u_k) - f(x - sigma u_k)) / (2 sigma),   u_k in {-1, +1}^d.

    The u_k are drawn per example. Both sides of a difference use the same random keys.

    Args:
        samples: number of directions, at least 1; default 64. Each costs two forward passes.
        sigma: half the distance of the two points, in units of the input; default 1e-3.
    """

    samples: int = 64
    sigma: float = 1e-3

    def __post_init__(self) -> None:
        if self.samples < 1 or self.sigma <= 0:
            raise ValueError(
                "SPSA needs samples >= 1 and sigma > 0, "
                f"got samples={self.samples} and sigma={self.sigma}."
            )

    @property
    def cost(self) -> int:
        return 1

    @property
    def gradient_cost(self) -> tuple[int, int]:
        return 2 * self.samples + 1, 0

    @property
    def approximate(self) -> bool:
        return True

    def evaluate(self, objective: ObjectiveFunction, x: Tensor, keys: Keys) -> Evaluation:
        with torch.no_grad():
            return objective(x, keys)

    def value_and_grad(
        self, objective: ObjectiveFunction, x: Tensor, keys: Keys
    ) -> ValueAndGradient:
        grad = torch.zeros_like(x)
        for k in range(self.samples):
            u = keys.fold_in(-1 - k).signs(tuple(x.shape[1:]), x.dtype)
            up = self.evaluate(objective, x + self.sigma * u, keys).value
            down = self.evaluate(objective, x - self.sigma * u, keys).value
            slope = (up - down) / (2 * self.sigma)
            grad = grad + u * slope.view(*slope.shape, *[1] * (x.ndim - 1))
        return ValueAndGradient(self.evaluate(objective, x, keys), grad / self.samples)


@dataclass(frozen=True)
class Smoothed(Estimator):
    """The gradient averaged over a neighborhood; value and success are those at x itself.

        g = mean_k grad f(clip(x + width u_k)),   u_k uniform in [-1, 1]^d, drawn per example.

    The average over a cube is informative where the gradient of f is rough or piecewise constant.
    Neighbors are clipped into the box, because a defense need not accept inputs outside of it.

    Args:
        samples: number of neighbors, at least 1; default 8.
        width: half the edge of the cube, in units of the input; default 0.01.
        box: lowest and highest value of an input; default (0, 1).
        inner: the estimator used at each neighbor; default `Backprop`.
    """

    samples: int = 8
    width: float = 0.01
    box: tuple[float, float] = (0.0, 1.0)
    inner: Estimator = field(default_factory=Backprop)

    def __post_init__(self) -> None:
        if self.samples < 1 or self.width <= 0:
            raise ValueError(
                "Smoothed needs samples >= 1 and width > 0, "
                f"got samples={self.samples} and width={self.width}."
            )

    @property
    def cost(self) -> int:
        return self.inner.cost

    @property
    def gradient_cost(self) -> tuple[int, int]:
        forward, backward = self.inner.gradient_cost
        return self.samples * forward + self.inner.cost, self.samples * backward

    @property
    def approximate(self) -> bool:
        return self.inner.approximate

    @property
    def handles_randomness(self) -> bool:
        return self.inner.handles_randomness

    def evaluate(self, objective: ObjectiveFunction, x: Tensor, keys: Keys) -> Evaluation:
        return self.inner.evaluate(objective, x, keys)

    def value_and_grad(
        self, objective: ObjectiveFunction, x: Tensor, keys: Keys
    ) -> ValueAndGradient:
        total: Tensor | None = None
        for k in range(self.samples):
            shift = 2 * keys.fold_in(-1 - k).uniform(tuple(x.shape[1:]), x.dtype) - 1
            grad = self.inner.value_and_grad(
                objective, (x + self.width * shift).clamp(*self.box), keys
            ).grad
            total = grad if total is None else total + grad
        assert total is not None  # samples >= 1
        return ValueAndGradient(self.evaluate(objective, x, keys), total / self.samples)


def once(estimator: Estimator) -> Estimator:
    """The estimator without EoT over `Backprop`, for a deterministic objective.

    All draws of `Backprop` on a deterministic objective are equal, so one is enough. Estimators
    that draw random numbers themselves, such as `SPSA`, are still averaged.
    """
    match estimator:
        case EoT(draws=draws, inner=inner) if draws > 1 and isinstance(
            single := once(inner), Backprop
        ):
            return single
        case FixedRandomness(inner=inner) | Smoothed(inner=inner):
            return replace(estimator, inner=once(inner))
        case _:
            return estimator


def _gradient(value: Tensor, x: Tensor, *, retain: bool) -> Tensor:
    add_backward(len(x))
    # A value may require gradients because of the net's parameters while x is detached.
    grad = (
        torch.autograd.grad(value, x, retain_graph=retain, allow_unused=True)[0]
        if value.requires_grad
        else None
    )
    if grad is None:
        raise ValueError(
            "no gradient reaches the input. Set a rule such as BPDA for the site that detaches it, "
            "or use an attack without gradients (Square, RayS)."
        )
    return grad


def _mean(evaluated: list[Evaluation]) -> Evaluation:
    success = torch.stack([r.success for r in evaluated]).float().mean(0) > 0.5
    return Evaluation(torch.stack([r.value for r in evaluated]).mean(0), success)
