"""Multi-exit networks and networks that solve for a fixed point."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from saddlepoint.defenses import Confident, Context, Defense, Mix, MultiExit, Picard, Trace, View
from saddlepoint.selftests.case import Case, Truth, linear_truth
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

_CONFIDENT_MARGIN = 1.0  # margin from which the first exit is used
_EXIT_PROBABILITIES = (0.5, 0.3, 0.2)
_STATES = 16
_STEPS = 3  # of the unconverged network
_SOLVER_STEPS = 200  # of the converged network


class LinearExits(nn.Module):
    """Linear exits on pixels minus 1/2, with two live classes each."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.weights = weights  # [L, d], of the margins

    def forward(self, x: Tensor) -> list[Tensor]:
        return [live((x.flatten(1) - 0.5) @ w.to(x.dtype)) for w in self.weights]


class MaskedLastExit(nn.Module):
    """Two equal exits; the last one, which makes the prediction, has no gradient."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> list[Tensor]:
        return [cast(Tensor, self.net(x)), cast(Tensor, self.net(x.detach() + 0 * x))]


class HardRouter(nn.Module):
    """Three linear experts; the expert with the highest gate makes the prediction."""

    def __init__(self, experts: Tensor, gates: Tensor) -> None:
        super().__init__()
        self.experts = experts  # [3, d], of the margins
        self.gates = gates  # [3, d]

    def forward(self, x: Tensor) -> Tensor:
        centered = x.flatten(1) - 0.5
        chosen = (centered @ self.gates.T).argmax(1)
        return live((centered @ self.experts.T).gather(1, chosen[:, None])[:, 0])


class LinearEquilibrium(nn.Module):
    """z = A z + U (x - 1/2) with logits V z; A has the specified eigenvalues."""

    def __init__(self, eigenvalues: Tensor, pixels: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(17)
        basis = torch.linalg.qr(torch.randn(_STATES, _STATES, generator=generator))[0]
        self.recur: Tensor = basis @ torch.diag(eigenvalues) @ basis.T
        self.inject = torch.randn(_STATES, pixels, generator=generator) / 8
        self.head = torch.randn(4, _STATES, generator=generator)

    def cell(self, z: Tensor, x: Tensor) -> Tensor:
        """A z + U (x - 1/2)."""
        recurrent = z @ self.recur.T
        injected = (x.flatten(1) - 0.5) @ self.inject.T
        return recurrent + injected

    def linear(self, steps: int | None) -> Tensor:
        """[4, d] the whole network as one matrix.

        V (I + A + ... + A^{steps - 1}) U after `steps` steps from zero, and V (I - A)^{-1} U at the
        fixed point (`steps=None`).
        """
        recur = self.recur.double()
        if steps is None:
            eye = torch.eye(_STATES, dtype=torch.float64)
            total: Tensor = torch.linalg.inv(eye - recur)
        else:
            total = cast(Tensor, sum(torch.linalg.matrix_power(recur, k) for k in range(steps)))
        return self.head.double() @ total @ self.inject.double()


class UnconvergedEquilibrium(Defense):
    """Predicts from the state after three steps of an iteration that does not converge.

    Half of the eigenvalues of A are above 1, where 1 / (1 - a) < 0 < 1 + a + a^2. The implicit
    gradient, which is the gradient of the fixed point, therefore has the wrong sign.
    """

    def __init__(self, pixels: int) -> None:
        self.net = LinearEquilibrium(torch.tensor([1.5, -0.5]).repeat(_STATES // 2), pixels)

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        start = x.new_zeros(len(x), _STATES)
        method = Picard(steps=_STEPS, tolerance=0.0)
        states = ctx.solve("solve", self.net.cell, start, x, method=method, keep=(_STEPS,)).states
        return Trace((View("final", states[_STEPS] @ self.net.head.T.to(x.dtype)),))


class OneStepGradient(nn.Module):
    """Solves for a fixed point without a graph and exposes only the gradient of one more step.

    Many released networks do this.
    """

    def __init__(self, pixels: int) -> None:
        super().__init__()
        eigenvalues = torch.tensor([0.95, -0.9, 0.9, -0.95]).repeat(_STATES // 4)
        self.net = LinearEquilibrium(eigenvalues, pixels)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            z = x.new_zeros(len(x), _STATES)
            for _ in range(_SOLVER_STEPS):
                z = self.net.cell(z, x)
        return self.net.cell(z, x) @ self.net.head.T


_EquilibriumNet = type[UnconvergedEquilibrium] | type[OneStepGradient]


def _confident_exits(problem: Problem) -> MultiExit:
    """Two exits; the threshold is the softmax confidence at a margin of `_CONFIDENT_MARGIN`.

    The softmax includes the dead classes.
    """
    up = math.exp(_CONFIDENT_MARGIN / 2)
    down = math.exp(-_CONFIDENT_MARGIN / 2)
    threshold = up / (up + down + 2 * math.exp(DEAD))
    return MultiExit(LinearExits(_exits(problem)[:2]).eval(), Confident((threshold,)))


def _exits(problem: Problem) -> Tensor:
    """[3, d] margin weights: those of the problem, and two that are partly random."""
    other = torch.randn(2, problem.weight.shape[1], generator=torch.Generator().manual_seed(19))
    own = problem.weight[0] - problem.weight[1]
    return torch.stack([own, 0.6 * own + 0.8 * other[0], 0.6 * own + 0.8 * other[1]])


def _gates(problem: Problem) -> Tensor:  # [3, d]
    return torch.randn(3, problem.weight.shape[1], generator=torch.Generator().manual_seed(23))


def _router_truth(problem: Problem) -> Truth:
    """Exact worst case of `HardRouter`, with t = x - 1/2.

    An image is broken if for some k the gate k can be the highest, (g_k - g_j) t >= 0 for both
    others j, at a point where expert k is wrong, s e_k t <= 0.
    """
    sign = toward(problem.y)
    low, high = problem.box()
    broken = torch.zeros(len(sign), dtype=torch.bool)
    gates = _gates(problem).double()
    for k, expert in enumerate(_exits(problem).double()):
        others = torch.cat([gates[:k], gates[k + 1 :]])
        wrong = -sign[:, None, None] * expert
        highest = (gates[k] - others).expand(len(sign), -1, -1)
        normals = torch.cat([wrong, highest], 1)  # [N, 3, d]
        broken |= meet(normals, -0.5 * normals.sum(2), low, high)
    return Truth.of(~broken)


def _router_problem() -> Problem:
    problem = two_classes()
    return relabeled(problem, HardRouter(_exits(problem), _gates(problem)))


def _confident_truth(problem: Problem) -> Truth:
    """Exact worst case of `_confident_exits`, with margins t_k = w_k x - sum(w_k) / 2.

    An image is broken if exit 1 can be confident and wrong, s t_1 <= -T, or if it can be not
    confident while exit 2 is wrong, |t_1| <= T and s t_2 <= 0.
    """
    sign = toward(problem.y)
    low, high = problem.box()
    first, second = _exits(problem)[:2].double()
    first_offset = 0.5 * sign * first.sum()
    second_offset = 0.5 * sign * second.sum()
    threshold = _CONFIDENT_MARGIN
    first_wrong = meet(-first[None, None], (first_offset - threshold)[:, None], low, high, sign)
    second_wrong = meet(
        torch.stack([-second, first, -first])[None],
        torch.stack([second_offset, threshold - first_offset, threshold + first_offset], 1),
        low,
        high,
        sign,
    )
    return Truth.of(~(first_wrong | second_wrong))


def _random_exit_truth(problem: Problem) -> Truth:
    heads = _exits(problem)
    biases = -0.5 * heads.sum(1)
    correct = mixture(heads, biases, _EXIT_PROBABILITIES, *problem.box(), toward(problem.y))
    return Truth.of(correct, random=True)


def _equilibrium_truth(net: _EquilibriumNet, steps: int | None, problem: Problem) -> Truth:
    weight = net(problem.weight.shape[1]).net.linear(steps)
    return Truth.of(worst_margins(weight, -0.5 * weight.sum(1), *problem.box(), problem.y) < 0)


def _equilibrium_problem(net: _EquilibriumNet, steps: int | None) -> Problem:
    problem = four_classes()
    weight = net(problem.weight.shape[1]).net.linear(steps).float()
    return relabeled(problem, lambda x: (x.flatten(1) - 0.5) @ weight.T)


CASES = (
    Case(
        "sure exit",
        "the first exit is used if it is confident, otherwise the second",
        two_classes,
        _confident_exits,
        _confident_truth,
    ),
    Case(
        "masked last exit",
        "the exit that makes the prediction has no gradient",
        four_classes,
        lambda p: MaskedLastExit(p.net()).eval(),
        linear_truth,
    ),
    Case(
        "hard router",
        "another expert is wrong, but no gradient leads across the border to its region",
        _router_problem,
        lambda p: HardRouter(_exits(p), _gates(p)).eval(),
        _router_truth,
    ),
    Case(
        "random exit",
        "one of three exits makes the prediction, drawn at every call",
        two_classes,
        lambda p: MultiExit(
            LinearExits(_exits(p)).eval(), Mix(((1,), (2,), (3,)), _EXIT_PROBABILITIES)
        ),
        _random_exit_truth,
    ),
    Case(
        "no equilibrium",
        "the implicit gradient at a fixed point that is never reached has the wrong sign",
        lambda: _equilibrium_problem(UnconvergedEquilibrium, _STEPS),
        lambda p: UnconvergedEquilibrium(p.weight.shape[1]),
        lambda p: _equilibrium_truth(UnconvergedEquilibrium, _STEPS, p),
    ),
    Case(
        "last step's gradient",
        "the gradient of the last solver step is not the gradient of the fixed point",
        lambda: _equilibrium_problem(OneStepGradient, None),
        lambda p: OneStepGradient(p.weight.shape[1]).eval(),
        lambda p: _equilibrium_truth(OneStepGradient, None, p),
    ),
)
