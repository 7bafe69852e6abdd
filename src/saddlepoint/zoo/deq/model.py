"""The deep equilibrium model as a defense: every state of its solver is a view."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from saddlepoint.defenses import Broyden, Context, Defense, Solver, Trace, View
from saddlepoint.solvers import Solution, SolveInfo
from saddlepoint.zoo.nets.equilibrium import Equilibrium

SITE = "solve"
START = "solve/0"  # the view of z_0
METHOD = Broyden(steps=8, tolerance=1e-3)


class State(Protocol):
    """The state from which a deep equilibrium model predicts."""

    @property
    def name(self) -> str:
        """The name of the view."""
        ...


@dataclass(frozen=True)
class FinalState:
    """The result of applying `DEQ.after` to the solver's best state."""

    name: ClassVar[str] = "final"


@dataclass(frozen=True)
class EarlyState:
    """z_n, the solver's state after n steps (Yang et al. 2022, Sec. 5.2).

    `early_state` chooses n.
    """

    n: int  # from 1 to the number of solver steps

    @property
    def name(self) -> str:
        """The name of the view."""
        return f"solve/{self.n}"


@dataclass(frozen=True)
class MeanState:
    """(z_1 + ... + z_T + z_{T+1}) / (T + 1), with the final state as z_{T+1}.

    This is the ensemble of Yang et al. 2022, Sec. 5.2. States are averaged, not logits, as in the
    released code. It needs one pass through the head and does not store the states.
    """

    name: ClassVar[str] = "mean"


@dataclass(frozen=True)
class Unrolled:
    """The steps from the solver's best state to the final state.

    z <- f(z), then z <- (1 - damping) z + damping f(z), with `steps` evaluations of f in total.

    The released code of Yang et al. 2022 makes one step after the solver if the network was trained
    with exact gradients. For unrolled gradients it makes 6 steps with damping 0.5 in training and
    10 in evaluation; the paper (Eq. 6) counts only the damped steps.

    Raises:
        ValueError: `steps` is below 1, or `damping` is not in (0, 1].
    """

    steps: int = 1
    damping: float = 0.5

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 < self.damping <= 1:
            raise ValueError(
                "Unrolled needs steps >= 1 and 0 < damping <= 1, "
                f"got steps={self.steps} and damping={self.damping}."
            )

    def __call__(self, cell: Callable[[Tensor, Tensor], Tensor], z: Tensor, u: Tensor) -> Tensor:
        """Return the final state [N, D] for states z [N, D] and injected features u [N, K]."""
        return self.after_first(cell, cell(z, u), u)

    def after_first(self, cell: Callable[[Tensor, Tensor], Tensor], z: Tensor, u: Tensor) -> Tensor:
        """Return the final state [N, D] after the first step, which led to z [N, D]."""
        for _ in range(self.steps - 1):
            z = (1 - self.damping) * z + self.damping * cell(z, u)
        return z


AFTER = Unrolled()
FINAL = FinalState()


class DEQ(Defense):
    """A deep equilibrium model: predicts head(z), where z = f(z; x) is found by a solver.

    Any `Equilibrium` network can be used (Bai et al. 2019; Yang et al. 2022).

    The views are the solver's states "solve/1" ... "solve/T", their average "mean" (see
    `MeanState`), and "final", which `after` computes from the solver's best state. The view that is
    the answer comes last. The head is run only for views that are read. A row that has converged
    repeats its last state. The start "solve/0" predicts the same for every image, so it is a view
    only if `Context.keep` names it: the adjoint of Yang et al. 2022 needs its loss (Eq. 9).

    The attacker chooses by a rule at the site "solve" how gradients cross the solver. Gradients
    through `after` are exact. With the implicit gradient at a fixed point, the result is therefore
    the gradient of the fixed point for any number of steps in `after`.

    Args:
        net: An equilibrium network in eval mode, with the methods `inject`, `start`, `cell` and
            `head` (see `Equilibrium`).
        method: The solver; by default `Broyden(steps=8, tolerance=1e-3)`. A solver with
            `batch_coupled=True` exists for parity with the released code of Yang et al. 2022. With
            it the output for an image depends on the other images of the batch, and the defense
            declares itself `coupled`.
        after: The steps from the solver's best state to the final state; by default one undamped
            step.
        state: The state from which the model predicts: `FinalState()` (the default),
            `EarlyState(n)` or `MeanState()`.

    Raises:
        TypeError: `net` has no `inject`, `start`, `cell` or `head`.
        ValueError: `state` is an early state beyond the solver's last step.
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
                "DEQ needs a network with inject, start, cell and head (see `Equilibrium`); "
                f"{type(net).__name__} has no {' and no '.join(missing)}."
            )
        if isinstance(state, EarlyState) and not 1 <= state.n <= method.steps:
            raise ValueError(
                f"the solver has states 1 to {method.steps}, but the answer is state {state.n}. "
                "Give the solver more steps."
            )
        self.net = net
        self.method = method
        self.after = after
        self.state = state
        self.coupled = method.batch_coupled
        self.reads = frozenset({state.name})

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all views, in the order of the trace."""
        names = (
            *(EarlyState(n).name for n in range(1, self.method.steps + 1)),
            MeanState.name,
            FinalState.name,
        )
        return (*(name for name in names if name != self.state.name), self.state.name)

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        """Solve for the equilibrium and return the views that are read.

        Args:
            x: Images [N, ...].
            ctx: Holds the attacker's gradient rules and the names of the views to keep.

        Returns:
            Logits [N, C] per view, the answer last.
        """
        read = {name for name in self.names if ctx.keeps(name)} | {self.state.name}
        count = self.method.steps
        names = self.names
        if ctx.keep is not None and START in ctx.keep:
            read.add(START)
            names = (START, *names)
        numbers = [n for n in range(count + 1) if EarlyState(n).name in read]
        # The solver sums up the mean of its states on the way; the final state is added below.
        weights = (1 / (count + 1),) * count if MeanState.name in read else ()
        u = self.net.inject(x)
        start = self.net.start(u)
        reads_final = bool(read & {MeanState.name, FinalState.name})
        solution = ctx.solve(
            SITE,
            self.net.cell,
            start,
            u,
            method=self.method,
            keep=numbers,
            weights=weights,
            following=reads_final,
        )
        states = {EarlyState(n).name: solution.states[n] for n in numbers}
        if reads_final:
            states |= self._final_states(solution, u)
            ctx.stats.spend(evaluations=self.after.steps - 1)
        return Trace(
            tuple(View(name, self.net.head(states[name])) for name in names if name in read)
        )

    def convergence(self, x: Tensor) -> SolveInfo:
        """Solve for x [N, ...] and report how each solve ended.

        Returns:
            Per example: the relative residual ||f(z) - z|| / ||f(z)|| of the best state, the number
            of evaluations of the cell, and the status.
        """
        with torch.no_grad():
            u = self.net.inject(x)
            solution = self.method(lambda z, rows: self.net.cell(z, u[rows]), self.net.start(u))
            f = self.net.cell(solution.best, u)
            gap, size = (v.flatten(1).norm(dim=1) for v in (f - solution.best, f))
            # Measured again here, because the solver may stop by absolute residuals or by those of
            # the whole batch.
            residual = (gap / size.clamp(min=torch.finfo(f.dtype).tiny)).nan_to_num(nan=torch.inf)
        return SolveInfo(residual, solution.evaluations, solution.status)

    def _final_states(self, solution: Solution, u: Tensor) -> dict[str, Tensor]:
        """Return the final state and, if the solver summed it up, the mean state."""
        assert solution.following is not None, "it was requested"
        final = self.after.after_first(self.net.cell, solution.following, u)
        if solution.blend is None:
            return {FinalState.name: final}
        mean = solution.blend + final / (self.method.steps + 1)
        return {FinalState.name: final, MeanState.name: mean}
