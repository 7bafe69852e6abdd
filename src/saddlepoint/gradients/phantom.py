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
    """The phantom gradient: that of `steps` damped steps from a detached state.

        z_{t+1} = (1 - damping) z_t + damping f(z_t; x),   t = 0..steps-1.

    Geng et al. 2021; Yang et al. 2022, Eq. 4-6 at the final state and Eq. 13-16 at intermediate
    ones (P^(k) in Eq. 15 depends on t). Each step is one evaluation of f.

    Args:
        steps: number of steps, at least 1; default 5.
        damping: weight of f in a step, 0 < damping <= 1; default 1.
        at: "state" (default) takes the loss at the state where the solve ended and passes its
            cotangent through the steps. "unrolled" takes the loss at the unrolled state, as the
            paper does. This changes the forward value, as part of the attacker's objective; the
            referee evaluates the defense without it.
        undamped_first: make the first step undamped, as the code released with the paper does in
            addition to its damped steps: its "k" is steps = k + 1 here. Default False.
    """

    approximate: ClassVar[bool] = True
    steps: int = 5
    damping: float = 1.0
    at: Literal["state", "unrolled"] = "state"
    undamped_first: bool = False

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 < self.damping <= 1:
            raise ValueError(
                "Phantom needs steps >= 1 and 0 < damping <= 1, "
                f"got steps={self.steps} and damping={self.damping}."
            )
        if self.at not in ("state", "unrolled"):
            raise ValueError(f'Phantom needs at="state" or at="unrolled", got at={self.at!r}.')

    def attach(self, solve: Solve) -> Solution:
        needed = torch.is_grad_enabled() or self.at == "unrolled"
        with torch.no_grad():
            solution = solve.run(states=solve.read if needed else ())
        if not needed:
            return solution
        # By address: after all rows have stopped, the states are the same tensor.
        out: dict[int, Tensor] = {}
        for z in [*solution.states.values(), solution.best]:
            if z.data_ptr() not in out:
                unrolled = self._unrolled(solve, z)
                out[z.data_ptr()] = (
                    unrolled if self.at == "unrolled" else straight_through(unrolled, z)
                )
        return solve.with_states(
            solution,
            {n: out[z.data_ptr()] for n, z in solution.states.items()},
            out[solution.best.data_ptr()],
        )

    def _unrolled(self, solve: Solve, z: Tensor) -> Tensor:
        for t in range(self.steps):
            damping = 1.0 if self.undamped_first and t == 0 else self.damping
            f = solve.on_batch(z)
            z = (1 - damping) * z + damping * f if damping < 1 else f
        solve.stats.spend(evaluations=self.steps)
        return z
