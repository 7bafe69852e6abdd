"""The deep equilibrium model as a defense: every state of its solver is a view."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from saddlepoint.defenses import Broyden, Context, Defense, Solver, Trace, View
from saddlepoint.solvers import SolveInfo
from saddlepoint.zoo.nets.equilibrium import Equilibrium

SITE = "solve"
METHOD = Broyden(steps=8, tolerance=1e-3)


class State(Protocol):
    """The state that a deep equilibrium model answers with, by the name of its view."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True)
class FinalState:
    """What is made of the solver's best state: `DEQ.after`."""

    name: ClassVar[str] = "final"


@dataclass(frozen=True)
class EarlyState:
    """z_n, the solver's state after n steps (Yang et al. 2022, Sec. 5.2). `early_state` chooses n."""

    n: int

    @property
    def name(self) -> str:
        return f"solve/{self.n}"


@dataclass(frozen=True)
class MeanState:
    """(z_1 + ... + z_T + z_{T+1}) / (T + 1), with the final state as z_{T+1}: the ensemble of Yang et al. 2022, Sec. 5.2.

    States are averaged, not logits, as in the released code: one head pass, and no state need be kept.
    """

    name: ClassVar[str] = "mean"


@dataclass(frozen=True)
class Unrolled:
    """From the best state to the final one: z <- f(z), then z <- (1 - damping) z + damping f(z), `steps` evaluations of f in all.

    The released code of Yang et al. 2022 makes one step after the solver if it was trained with exact gradients; with unrolled ones
    6 with damping 0.5 in training and 10 in evaluation, where the paper (Eq. 6) counts damped steps only.
    """

    steps: int = 1
    damping: float = 0.5

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 < self.damping <= 1:
            raise ValueError(
                f"Unrolled needs steps >= 1 and 0 < damping <= 1, got steps={self.steps} and damping={self.damping}."
            )

    def __call__(self, cell: Callable[[Tensor, Tensor], Tensor], z: Tensor, u: Tensor) -> Tensor:
        z = cell(z, u)
        for _ in range(self.steps - 1):
            z = (1 - self.damping) * z + self.damping * cell(z, u)
        return z


AFTER = Unrolled()
FINAL = FinalState()


class DEQ(Defense):
    """Answers with head(z), z = f(z; x) found by a solver: any `Equilibrium` network (Bai et al. 2019; Yang et al. 2022).

    Views are the states "solve/1" ... "solve/T" that the solver went through, their average "mean" (see `MeanState`), and "final",
    made of the solver's best state by `after`; the one that is answered with comes last. Heads are run for views that somebody
    reads. A row that has finished repeats its last state. How gradients cross the solver is the attacker's choice at the site
    "solve"; through `after` they are exact, so that with the implicit gradient at a fixed point the whole is the gradient of the
    fixed point, however many steps follow.

    A method with `batch_coupled`, for parity with the released code, makes an image's answer depend on its batch mates: the defense
    is then `coupled`. Put the network in eval mode first.
    """

    def __init__(
        self,
        net: Equilibrium,
        *,
        method: Solver = METHOD,
        after: Unrolled = AFTER,
        state: State = FINAL,
    ) -> None:
        missing = [
            name
            for name in ("inject", "start", "cell", "head")
            if not callable(getattr(net, name, None))
        ]
        if missing:
            raise TypeError(
                f"DEQ needs a network with inject, start, cell and head (see `Equilibrium`); {type(net).__name__} has no "
                f"{' and no '.join(missing)}."
            )
        if isinstance(state, EarlyState) and not 1 <= state.n <= method.steps:
            raise ValueError(
                f"the solver has states 1 to {method.steps}, but the answer is state {state.n}. Give it more steps."
            )
        self.net = net
        self.method = method
        self.after = after
        self.state = state
        self.coupled = method.batch_coupled
        self.reads = frozenset({state.name})

    @property
    def names(self) -> tuple[str, ...]:
        """All views in the order in which they are shown."""
        names = (
            *(EarlyState(n).name for n in range(1, self.method.steps + 1)),
            MeanState.name,
            FinalState.name,
        )
        return (*(name for name in names if name != self.state.name), self.state.name)

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        read = {name for name in self.names if ctx.keeps(name)} | {self.state.name}
        count = self.method.steps
        averaged = MeanState.name in read
        numbers = [n for n in range(1, count + 1) if EarlyState(n).name in read]
        weights = (1 / (count + 1),) * count if averaged else ()
        u = self.net.inject(x)
        start = self.net.start(u)
        solution = ctx.solve(
            SITE, self.net.cell, start, u, method=self.method, keep=numbers, weights=weights
        )
        states = {EarlyState(n).name: solution.states[n] for n in numbers}
        if averaged or FinalState.name in read:
            states[FinalState.name] = final = self.after(self.net.cell, solution.best, u)
            ctx.stats.spend(evaluations=self.after.steps)
            if solution.blend is not None:
                states[MeanState.name] = solution.blend + final / (count + 1)
        return Trace(
            tuple(View(name, self.net.head(states[name])) for name in self.names if name in read)
        )

    def settled(self, x: Tensor) -> SolveInfo:
        """How the solve of each example ends: the relative residual of its best state, what it cost, and whether it converged."""
        with torch.no_grad():
            u = self.net.inject(x)
            solution = self.method(lambda z, rows: self.net.cell(z, u[rows]), self.net.start(u))
            f = self.net.cell(solution.best, u)
            gap, size = (v.flatten(1).norm(dim=1) for v in (f - solution.best, f))
            # Measured anew: the method may stop by absolute residuals, or by those of the batch.
            residual = (gap / size.clamp(min=torch.finfo(f.dtype).tiny)).nan_to_num(nan=torch.inf)
        return SolveInfo(residual, solution.evaluations, solution.status)
