"""Gradients of a few steps that start at a state of a solve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from saddlepoint.gradients.implicit import SolveRule
from saddlepoint.gradients.rule import straight_through
from saddlepoint.gradients.solve import Solve
from saddlepoint.solvers import Solution


@dataclass(frozen=True)
class Phantom(SolveRule):
    """The gradient of `steps` damped steps from a detached state, each of them one evaluation of f.

    z_{t+1} = (1 - damping) z_t + damping f(z_t; x),  t = 0..steps-1.  Geng et al. 2021; Yang et al. 2022, Eq. 4-6 at the final
    state and Eq. 13-16 at intermediate ones (P^(k) in Eq. 15 depends on t). The paper takes the loss at the unrolled state,
    `at="unrolled"`: the one rule that changes what is shown, as the attacker's own objective; the referee never sees it. With
    `at="state"` the loss is taken where the solve ended, and its cotangent crosses the same steps. The code released with the paper
    makes its first step undamped, beside the damped ones: "k" there is steps = k + 1 here, with `undamped_first`.
    """

    approximate: ClassVar[bool] = True
    steps: int = 5
    damping: float = 1.0
    at: Literal["state", "unrolled"] = "state"
    undamped_first: bool = False

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 < self.damping <= 1:
            raise ValueError(
                f"Phantom needs steps >= 1 and 0 < damping <= 1, got steps={self.steps} and damping={self.damping}."
            )
        if self.at not in ("state", "unrolled"):
            raise ValueError(
                f'Phantom takes the loss at="state" or at="unrolled", got at={self.at!r}.'
            )

    def attach(self, solve: Solve) -> Solution:
        needed = torch.is_grad_enabled() or self.at == "unrolled"
        with torch.no_grad():
            solution = solve.run(states=solve.read if needed else ())
        if not needed:
            return solution
        out: dict[
            int, Tensor
        ] = {}  # by address: once all rows have finished, the states are one tensor
        for z in [*solution.states.values(), solution.best]:
            if z.data_ptr() not in out:
                unrolled = self._unrolled(solve, z)
                out[z.data_ptr()] = (
                    unrolled if self.at == "unrolled" else straight_through(unrolled, z)
                )
        return solve.shown(
            solution,
            {n: out[z.data_ptr()] for n, z in solution.states.items()},
            out[solution.best.data_ptr()],
        )

    def _unrolled(self, solve: Solve, z: Tensor) -> Tensor:
        for t in range(self.steps):
            damping = 1.0 if self.undamped_first and t == 0 else self.damping
            z = (
                (1 - damping) * z + damping * solve.everywhere(z)
                if damping < 1
                else solve.everywhere(z)
            )
        solve.stats.spend(evaluations=self.steps)
        return z
