"""Networks with several exits, and networks that solve for a fixed point."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from saddlepoint.defenses import Confident, Context, Defense, Mix, MultiExit, Picard, Trace, View
from saddlepoint.selftests.case import Case, Truth, unchanged
from saddlepoint.selftests.exact import meet, mixture
from saddlepoint.selftests.problem import (
    DEAD,
    Problem,
    four_classes,
    live,
    relabeled,
    toward,
    two_classes,
    worst_margins,
)

_SURE = 1.0  # the margin at which the first exit answers
_SHARES = (0.5, 0.3, 0.2)  # of three exits
_STATES = 16
_STEPS = 3
_MANY = 200


class Heads(nn.Module):
    """Linear exits on gray-centerd pixels, two live classes each."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.weights = weights  # [L, d]: of the margins

    def forward(self, x: Tensor) -> list[Tensor]:
        return [live((x.flatten(1) - 0.5) @ w.to(x.dtype)) for w in self.weights]


class MaskedLast(nn.Module):
    """Two exits that agree; the last one, which answers, has no gradient."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> list[Tensor]:
        return [cast(Tensor, self.net(x)), cast(Tensor, self.net(x.detach() + 0 * x))]


class Router(nn.Module):
    """The margin of one of three linear experts: that of the highest gate."""

    def __init__(self, experts: Tensor, gates: Tensor) -> None:
        super().__init__()
        self.experts = experts
        self.gates = gates

    def forward(self, x: Tensor) -> Tensor:
        centerd = x.flatten(1) - 0.5
        chosen = (centerd @ self.gates.T).argmax(1)
        return live((centerd @ self.experts.T).gather(1, chosen[:, None])[:, 0])


class Equilibrium(nn.Module):
    """z = A z + U (x - 1/2), and logits V z; A has the eigenvalues it is given."""

    def __init__(self, eigenvalues: Tensor, pixels: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(17)
        basis = torch.linalg.qr(torch.randn(_STATES, _STATES, generator=generator))[0]
        self.recur: Tensor = basis @ torch.diag(eigenvalues) @ basis.T
        self.inject = torch.randn(_STATES, pixels, generator=generator) / 8
        self.head = torch.randn(4, _STATES, generator=generator)

    def cell(self, z: Tensor, x: Tensor) -> Tensor:
        own = z @ self.recur.T
        given = (x.flatten(1) - 0.5) @ self.inject.T
        return own + given

    def linear(self, steps: int | None) -> Tensor:
        """[4, d] V (I + A + ... + A^{steps - 1}) U, and V (I - A)^{-1} U for the fixed point itself: the whole net."""
        recur = self.recur.double()
        eye = torch.eye(_STATES, dtype=torch.float64)
        total = (
            torch.linalg.inv(eye - recur)
            if steps is None
            else sum(torch.linalg.matrix_power(recur, k) for k in range(steps))
        )
        return self.head.double() @ cast(Tensor, total) @ self.inject.double()


class Unconverged(Defense):
    """Answers with the state after three steps from zero of an iteration that does not converge.

    Half of A's eigenvalues are above 1, where 1 / (1 - a) < 0 < 1 + a + a^2: the slope of the fixed point, which is the implicit
    gradient, leads the wrong way.
    """

    def __init__(self, pixels: int) -> None:
        self.net = Equilibrium(torch.tensor([1.5, -0.5]).repeat(_STATES // 2), pixels)

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        start = x.new_zeros(len(x), _STATES)
        method = Picard(steps=_STEPS, tolerance=0.0)
        states = ctx.solve("solve", self.net.cell, start, x, method=method, keep=(_STEPS,)).states
        return Trace((View("final", states[_STEPS] @ self.net.head.T.to(x.dtype)),))


class LastStep(nn.Module):
    """Solves for a fixed point without a graph and shows the gradient of one step from there, as many released nets do."""

    def __init__(self, pixels: int) -> None:
        super().__init__()
        self.net = Equilibrium(torch.tensor([0.95, -0.9, 0.9, -0.95]).repeat(_STATES // 4), pixels)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            z = x.new_zeros(len(x), _STATES)
            for _ in range(_MANY):
                z = self.net.cell(z, x)
        return self.net.cell(z, x) @ self.net.head.T


def _confident(problem: Problem) -> MultiExit:
    """The confidence of a margin of `_SURE`, dead classes counted."""
    up = math.exp(_SURE / 2)
    down = math.exp(-_SURE / 2)
    return MultiExit(
        Heads(_exits(problem)[:2]).eval(), Confident((up / (up + down + 2 * math.exp(DEAD)),))
    )


def _exits(problem: Problem) -> Tensor:
    """[3, d] margins' weights: the problem's own, and two that lean away from it."""
    other = torch.randn(2, problem.weight.shape[1], generator=torch.Generator().manual_seed(19))
    own = problem.weight[0] - problem.weight[1]
    return torch.stack([own, 0.6 * own + 0.8 * other[0], 0.6 * own + 0.8 * other[1]])


def _gates(problem: Problem) -> Tensor:  # [3, d]
    return torch.randn(3, problem.weight.shape[1], generator=torch.Generator().manual_seed(23))


def _routed(problem: Problem) -> Truth:
    """Wrong if some gate k can be made the highest, (g_k - g_j) t >= 0 for both others j, where expert k errs, s e_k t <= 0."""
    sign = toward(problem.y)
    (low, high) = problem.box()
    wrong = torch.zeros(len(sign), dtype=torch.bool)
    gates = _gates(problem).double()
    for k, expert in enumerate(_exits(problem).double()):
        others = torch.cat([gates[:k], gates[k + 1 :]])
        normals = torch.cat(
            [-sign[:, None, None] * expert, (gates[k] - others).expand(len(sign), -1, -1)], 1
        )  # [N, 3, d]
        wrong |= meet(normals, -0.5 * normals.sum(2), low, high)  # t = x - 1/2
    return Truth.of(~wrong)


def _for_router() -> Problem:
    problem = two_classes()
    return relabeled(problem, Router(_exits(problem), _gates(problem)))


def _first_sure(problem: Problem) -> Truth:
    """Wrong if exit 1 can be made sure and wrong, s t_1 <= -T, or unsure while exit 2 is wrong, |t_1| <= T and s t_2 <= 0."""
    sign = toward(problem.y)
    (low, high) = problem.box()
    first, second = _exits(problem)[:2].double()
    gray = 0.5 * sign * first.sum()
    other = 0.5 * sign * second.sum()  # t = w x - w / 2
    sure = meet(-first[None, None], (gray - _SURE)[:, None], low, high, sign)
    unsure = meet(
        torch.stack([-second, first, -first])[None],
        torch.stack([other, _SURE - gray, _SURE + gray], 1),
        low,
        high,
        sign,
    )
    return Truth.of(~(sure | unsure))


def _random_exit(problem: Problem) -> Truth:
    heads = _exits(problem)
    return Truth.of(
        mixture(heads, -0.5 * heads.sum(1), _SHARES, *problem.box(), toward(problem.y)), random=True
    )


def _solved(kind: type[Unconverged] | type[LastStep], steps: int | None, problem: Problem) -> Truth:
    weight = kind(problem.weight.shape[1]).net.linear(steps)
    return Truth.of(worst_margins(weight, -0.5 * weight.sum(1), *problem.box(), problem.y) < 0)


def _for(kind: type[Unconverged] | type[LastStep], steps: int | None) -> Problem:
    problem = four_classes()
    weight = kind(problem.weight.shape[1]).net.linear(steps).float()
    return relabeled(problem, lambda x: (x.flatten(1) - 0.5) @ weight.T)


CASES = (
    Case(
        "sure exit",
        "the first exit answers if it is sure, else the second",
        two_classes,
        _confident,
        _first_sure,
    ),
    Case(
        "masked last exit",
        "the exit that answers has no gradient",
        four_classes,
        lambda p: MaskedLast(p.net()).eval(),
        unchanged,
    ),
    Case(
        "hard router",
        "behind the border of another expert, which no gradient sees, that one errs",
        _for_router,
        lambda p: Router(_exits(p), _gates(p)).eval(),
        _routed,
    ),
    Case(
        "random exit",
        "one of three exits answers, drawn anew each time",
        two_classes,
        lambda p: MultiExit(Heads(_exits(p)).eval(), Mix(((1,), (2,), (3,)), _SHARES)),
        _random_exit,
    ),
    Case(
        "no equilibrium",
        "the slope of a fixed point that is never reached leads the wrong way",
        lambda: _for(Unconverged, _STEPS),
        lambda p: Unconverged(p.weight.shape[1]),
        lambda p: _solved(Unconverged, _STEPS, p),
    ),
    Case(
        "last step's gradient",
        "the gradient of one step is not that of the fixed point",
        lambda: _for(LastStep, None),
        lambda p: LastStep(p.weight.shape[1]).eval(),
        lambda p: _solved(LastStep, None, p),
    ),
)
