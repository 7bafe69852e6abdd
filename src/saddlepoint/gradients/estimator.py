"""How value and gradient of an objective are estimated around the forward pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from saddlepoint.rng import Keys


class Evaluation(NamedTuple):
    """One look at the objective, per example."""

    value: Tensor  # [N] the attacker maximizes this; [R, N] where it looks at R objectives at once
    success: Tensor  # [N] bool: does the defense answer wrongly?


class ValueAndGradient(NamedTuple):
    """A reading and where to go from it."""

    evaluation: Evaluation
    grad: Tensor  # [N, ...] like x; [R, N, ...] for R objectives


ObjectiveFunction = Callable[
    [Tensor, Keys], Evaluation
]  # differentiable in x; randomness only from the coins


class Estimator(ABC):
    """How value and gradient of an objective are estimated, and how many passes that takes."""

    @property
    @abstractmethod
    def cost(self) -> int:
        """Forward passes of one evaluation."""

    @property
    @abstractmethod
    def gradient_cost(self) -> tuple[int, int]:
        """Forward and backward passes of one value and gradient."""

    @property
    def approximate(self) -> bool:
        """Gradients are estimated from score differences, without a backward pass."""
        return False

    @property
    def handles_randomness(self) -> bool:
        """The defense's randomness is averaged over draws, or fixed."""
        return False

    @abstractmethod
    def evaluate(self, objective: ObjectiveFunction, x: Tensor, keys: Keys) -> Evaluation:
        """The objective at `x`, [N, ...], with one random key per row."""

    @abstractmethod
    def value_and_grad(
        self, objective: ObjectiveFunction, x: Tensor, keys: Keys
    ) -> ValueAndGradient:
        """The objective and its gradient with respect to `x`."""


@dataclass(frozen=True)
class Backprop(Estimator):
    """One forward and one backward pass."""

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
            parts = (
                value.sum(-1).reshape(-1).unbind()
            )  # rows are independent, or the defense is coupled and means it
        grads = [_gradient(part, x, retain=k + 1 < len(parts)) for k, part in enumerate(parts)]
        return ValueAndGradient(
            Evaluation(value.detach(), success),
            torch.stack(grads).view(*value.shape[:-1], *x.shape),
        )


@dataclass(frozen=True)
class EoT(Estimator):
    """Expectation over the defense's randomness: value, gradient and success are averaged over fresh draws.

    grad E[f(t(x))] = E[grad f(t(x))], Athalye et al. 2018 (Synthesizing robust adversarial examples). A point succeeds when the
    defense errs on more than half of the draws; judging by one draw counts lucky misses as successes.
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
        slopes = [self.inner.value_and_grad(objective, x, c) for c in self._draws(keys)]
        return ValueAndGradient(
            _mean([s.evaluation for s in slopes]), torch.stack([s.grad for s in slopes]).mean(0)
        )

    def _draws(self, keys: Keys) -> Iterator[Keys]:
        # One draw is the draw itself, so that EoT(1) is its inner estimator.
        return iter([keys]) if self.draws == 1 else (keys.fold_in(k) for k in range(self.draws))


@dataclass(frozen=True)
class FixedRandomness(Estimator):
    """The same draw at every step: the defense as one deterministic function.

    With public coins it is the very function that will answer; with private ones it is the cheap relative of EoT that Croce et al.
    2022 (Sec. 4) call fixing the seed.
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

    g = mean_k u_k (f(x + sigma u_k) - f(x - sigma u_k)) / (2 sigma),  u_k in {-1, +1}^d, drawn per example. Both sides of a
    difference see the same coins.
    """

    samples: int = 64
    sigma: float = 1e-3  # in units of the input

    def __post_init__(self) -> None:
        if self.samples < 1 or self.sigma <= 0:
            raise ValueError(
                f"SPSA needs samples >= 1 and sigma > 0, got samples={self.samples} and sigma={self.sigma}."
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
            rise = (up - down) / (2 * self.sigma)
            grad = grad + u * rise.view(*rise.shape, *[1] * (x.ndim - 1))
        return ValueAndGradient(self.evaluate(objective, x, keys), grad / self.samples)


@dataclass(frozen=True)
class Smoothed(Estimator):
    """The gradient of the neighborhood: value and success at x itself, the slope a mean over points around it.

    g = mean_k grad f(clip(x + width u_k)),  u_k uniform in [-1, 1]^d, drawn per example: the slope of f averaged over a cube, which
    has one where f is jagged or piecewise constant in its slope. Neighbors stay in the box: a defense need not answer outside.
    """

    samples: int = 8
    width: float = 0.01  # in units of the input
    box: tuple[float, float] = (0.0, 1.0)
    inner: Estimator = field(default_factory=Backprop)

    def __post_init__(self) -> None:
        if self.samples < 1 or self.width <= 0:
            raise ValueError(
                f"Smoothed needs samples >= 1 and width > 0, got samples={self.samples} and width={self.width}."
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
        assert total is not None, "there is at least one neighbor"
        return ValueAndGradient(self.evaluate(objective, x, keys), total / self.samples)


def once(estimator: Estimator) -> Estimator:
    """The estimator for an objective that tosses no coins: draws of one and the same gradient are not averaged.

    What tosses coins of its own, such as `SPSA`, still is.
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
    # A value may ask for gradients on behalf of the net's parameters while the input is cut off.
    grad = (
        torch.autograd.grad(value, x, retain_graph=retain, allow_unused=True)[0]
        if value.requires_grad
        else None
    )
    if grad is None:
        raise ValueError(
            "no gradient reaches the input. Give the site that cuts it a rule such as BPDA, or use an attack that asks for "
            "scores only (Square, RayS)."
        )
    return grad


def _mean(evaluated: list[Evaluation]) -> Evaluation:
    success = torch.stack([r.success for r in evaluated]).float().mean(0) > 0.5
    return Evaluation(torch.stack([r.value for r in evaluated]).mean(0), success)
