"""How value and gradient of an objective are estimated around the forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from saddlepoint.coins import Coins


class Reading(NamedTuple):
    """One look at the objective, per example."""

    value: Tensor  # [N] the attacker maximises this; [R, N] where it looks at R objectives at once
    success: Tensor  # [N] bool: does the defence answer wrongly?


class Slope(NamedTuple):
    """A reading and where to go from it."""

    reading: Reading
    grad: Tensor  # [N, ...] like x; [R, N, ...] for R objectives


Objective = Callable[[Tensor, Coins], Reading]  # differentiable in x; randomness only from the coins


class Estimator(Protocol):
    """One reading, or one slope, of an objective, and what each costs."""

    @property
    def cost(self) -> int: ...  # forward passes of a reading
    @property
    def slope_cost(self) -> tuple[int, int]: ...  # forward and backward passes of a slope of one objective
    def read(self, objective: Objective, x: Tensor, coins: Coins) -> Reading: ...
    def slope(self, objective: Objective, x: Tensor, coins: Coins) -> Slope: ...


@dataclass(frozen=True)
class Backprop:
    """One forward and one backward pass."""

    @property
    def cost(self) -> int:
        return 1

    @property
    def slope_cost(self) -> tuple[int, int]:
        return 1, 1

    def read(self, objective: Objective, x: Tensor, coins: Coins) -> Reading:
        with torch.no_grad():
            return objective(x, coins)

    def slope(self, objective: Objective, x: Tensor, coins: Coins) -> Slope:
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            value, success = objective(x, coins)
            parts = value.sum(-1).reshape(-1).unbind()  # rows are independent, or the defence is coupled and means it
        grads = [_gradient(part, x, retain=k + 1 < len(parts)) for k, part in enumerate(parts)]
        return Slope(Reading(value.detach(), success), torch.stack(grads).view(*value.shape[:-1], *x.shape))


@dataclass(frozen=True)
class EoT:
    """Expectation over the defence's randomness: value, gradient and success are averaged over fresh draws.

    grad E[f(t(x))] = E[grad f(t(x))], Athalye et al. 2018 (Synthesizing robust adversarial examples). A point succeeds when the
    defence errs on more than half of the draws; judging by one draw counts lucky misses as successes.
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
    def slope_cost(self) -> tuple[int, int]:
        forward, backward = self.inner.slope_cost
        return self.draws * forward, self.draws * backward

    def read(self, objective: Objective, x: Tensor, coins: Coins) -> Reading:
        return _mean([self.inner.read(objective, x, c) for c in self._draws(coins)])

    def slope(self, objective: Objective, x: Tensor, coins: Coins) -> Slope:
        slopes = [self.inner.slope(objective, x, c) for c in self._draws(coins)]
        return Slope(_mean([s.reading for s in slopes]), torch.stack([s.grad for s in slopes]).mean(0))

    def _draws(self, coins: Coins) -> Iterator[Coins]:
        # One draw is the draw itself, so that EoT(1) is its inner estimator.
        return iter([coins]) if self.draws == 1 else (coins.fold(k) for k in range(self.draws))


@dataclass(frozen=True)
class FixedCoins:
    """The same draw at every step: the defence as one deterministic function.

    With public coins it is the very function that will answer; with private ones it is the cheap relative of EoT that Croce et al.
    2022 (Sec. 4) call fixing the seed.
    """

    inner: Estimator = field(default_factory=Backprop)

    @property
    def cost(self) -> int:
        return self.inner.cost

    @property
    def slope_cost(self) -> tuple[int, int]:
        return self.inner.slope_cost

    def read(self, objective: Objective, x: Tensor, coins: Coins) -> Reading:
        return self.inner.read(objective, x, coins.unfold())

    def slope(self, objective: Objective, x: Tensor, coins: Coins) -> Slope:
        return self.inner.slope(objective, x, coins.unfold())


@dataclass(frozen=True)
class SPSA:
    """Antithetic finite differences from scores alone (Spall 1992; Uesato et al. 2018).

    g = mean_k u_k (f(x + sigma u_k) - f(x - sigma u_k)) / (2 sigma),  u_k in {-1, +1}^d, drawn per example. Both sides of a
    difference see the same coins.
    """

    samples: int = 64
    sigma: float = 1e-3  # in units of the input

    def __post_init__(self) -> None:
        if self.samples < 1 or self.sigma <= 0:
            raise ValueError(f"SPSA needs samples >= 1 and sigma > 0, got samples={self.samples} and sigma={self.sigma}.")

    @property
    def cost(self) -> int:
        return 1

    @property
    def slope_cost(self) -> tuple[int, int]:
        return 2 * self.samples + 1, 0

    def read(self, objective: Objective, x: Tensor, coins: Coins) -> Reading:
        with torch.no_grad():
            return objective(x, coins)

    def slope(self, objective: Objective, x: Tensor, coins: Coins) -> Slope:
        grad = torch.zeros_like(x)
        for k in range(self.samples):
            u = coins.fold(-1 - k).signs(tuple(x.shape[1:]), x.dtype)
            up = self.read(objective, x + self.sigma * u, coins).value
            down = self.read(objective, x - self.sigma * u, coins).value
            rise = (up - down) / (2 * self.sigma)
            grad = grad + u * rise.view(*rise.shape, *[1] * (x.ndim - 1))
        return Slope(self.read(objective, x, coins), grad / self.samples)


@dataclass(frozen=True)
class Smoothed:
    """The gradient of the neighbourhood: value and success at x itself, the slope a mean over points around it.

    g = mean_k grad f(clip(x + width u_k)),  u_k uniform in [-1, 1]^d, drawn per example: the slope of f averaged over a cube, which
    has one where f is jagged or piecewise constant in its slope. Neighbours stay in the box: a defence need not answer outside.
    """

    samples: int = 8
    width: float = 0.01  # in units of the input
    box: tuple[float, float] = (0.0, 1.0)
    inner: Estimator = field(default_factory=Backprop)

    def __post_init__(self) -> None:
        if self.samples < 1 or self.width <= 0:
            raise ValueError(f"Smoothed needs samples >= 1 and width > 0, got samples={self.samples} and width={self.width}.")

    @property
    def cost(self) -> int:
        return self.inner.cost

    @property
    def slope_cost(self) -> tuple[int, int]:
        forward, backward = self.inner.slope_cost
        return self.samples * forward + self.inner.cost, self.samples * backward

    def read(self, objective: Objective, x: Tensor, coins: Coins) -> Reading:
        return self.inner.read(objective, x, coins)

    def slope(self, objective: Objective, x: Tensor, coins: Coins) -> Slope:
        total: Tensor | None = None
        for k in range(self.samples):
            shift = 2 * coins.fold(-1 - k).uniform(tuple(x.shape[1:]), x.dtype) - 1
            grad = self.inner.slope(objective, (x + self.width * shift).clamp(*self.box), coins).grad
            total = grad if total is None else total + grad
        assert total is not None, "there is at least one neighbour"
        return Slope(self.read(objective, x, coins), total / self.samples)


def once(estimator: Estimator) -> Estimator:
    """The estimator for an objective that tosses no coins: draws of one and the same gradient are not averaged.

    What tosses coins of its own, such as `SPSA`, still is.
    """
    match estimator:
        case EoT(draws=draws, inner=inner) if draws > 1 and isinstance(single := once(inner), Backprop):
            return single
        case FixedCoins(inner=inner) | Smoothed(inner=inner):
            return replace(estimator, inner=once(inner))
        case _:
            return estimator


def _gradient(value: Tensor, x: Tensor, *, retain: bool) -> Tensor:
    # A value may ask for gradients on behalf of the net's parameters while the input is cut off.
    grad = torch.autograd.grad(value, x, retain_graph=retain, allow_unused=True)[0] if value.requires_grad else None
    if grad is None:
        raise ValueError(
            "no gradient reaches the input. Give the site that cuts it a rule such as BPDA, or use an attack that asks for "
            "scores only (Square, RayS)."
        )
    return grad


def _mean(readings: list[Reading]) -> Reading:
    success = torch.stack([r.success for r in readings]).float().mean(0) > 0.5
    return Reading(torch.stack([r.value for r in readings]).mean(0), success)
