"""Estimators: how the value and gradient of an objective are estimated from forward passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, runtime_checkable

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


@runtime_checkable
class Repeatable(Protocol):
    """An objective whose rows may occur several times in a batch, each with its own keys."""

    @property
    def most_rows(self) -> int:
        """Most rows of such a batch; 0: rows must not be repeated."""
        ...

    def __call__(self, x: Tensor, keys: Keys) -> Evaluation: ...
    def __getitem__(self, rows: Tensor) -> ObjectiveFunction: ...


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
            total = value.sum(-1)
            parts = (total,) if value.ndim == 1 else total.reshape(-1).unbind()
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
        batches = self._batches(objective, x, keys)
        return _mean([_by_draw(self.inner.evaluate(*each[:3]), each.draws) for each in batches])

    def value_and_grad(
        self, objective: ObjectiveFunction, x: Tensor, keys: Keys
    ) -> ValueAndGradient:
        evaluations = []
        grads = []
        for each in self._batches(objective, x, keys):
            result = self.inner.value_and_grad(each.objective, each.x, each.keys)
            evaluations.append(_by_draw(result.evaluation, each.draws))
            shape = result.grad.shape
            rows = (*shape[: -x.ndim], each.draws, shape[-x.ndim] // each.draws)
            grads.append(result.grad.view(*rows, *x.shape[1:]).movedim(-x.ndim - 1, 0))
        return ValueAndGradient(_mean(evaluations), torch.cat(grads).mean(0))

    def _batches(self, objective: ObjectiveFunction, x: Tensor, keys: Keys) -> Iterator[_Draws]:
        """All draws, several in one batch where that changes no draw."""
        # A single draw uses the keys themselves, so that EoT(1) equals its inner estimator.
        if self.draws == 1:
            yield _Draws(objective, x, keys, 1)
            return
        most = objective.most_rows if isinstance(objective, Repeatable) else 0
        at_once = max(most // max(len(x), 1), 1)
        for first in range(0, self.draws, at_once):
            count = min(at_once, self.draws - first)
            if count == 1:
                yield _Draws(objective, x, keys.fold_in(first), 1)
                continue
            assert isinstance(objective, Repeatable), "only these are repeated"
            rows = torch.arange(len(x), device=x.device).repeat(count)
            draw = torch.arange(first, first + count, device=x.device).repeat_interleave(len(x))
            yield _Draws(objective[rows], x[rows], keys[rows].fold_in(draw), count)


class _Draws(NamedTuple):
    """Draws that are evaluated in one batch, the rows of one draw after those of another."""

    objective: ObjectiveFunction
    x: Tensor
    keys: Keys
    draws: int


def _by_draw(evaluation: Evaluation, draws: int) -> Evaluation:
    """[draws, ..., N] from [..., draws * N]."""
    value, success = evaluation
    value = value.view(*value.shape[:-1], draws, -1).movedim(-2, 0)
    return Evaluation(value, success.view(draws, -1))


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
    """The mean of evaluations by draw, [draws, ..., N] each."""
    success = torch.cat([r.success for r in evaluated]).float().mean(0) > 0.5
    return Evaluation(torch.cat([r.value for r in evaluated]).mean(0), success)
