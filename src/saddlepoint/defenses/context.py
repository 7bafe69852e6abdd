"""The context of a call to a defense: random keys, named sites, and the views that are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from saddlepoint.gradients.implicit import Implicit
from saddlepoint.gradients.rule import Exact, Rule
from saddlepoint.gradients.solve import Solve
from saddlepoint.passes import add_forward
from saddlepoint.phrases import count
from saddlepoint.rng import Keys
from saddlepoint.solvers import Solution, SolveInfo, Solver, SolverStats


@dataclass
class _CallState:
    """The position in the trace, counted in draws per nested site, and the sites seen so far."""

    keys: list[Keys]  # one entry per level of nesting
    draws: list[int]  # draws so far, per level of nesting
    stats: SolverStats
    sites: set[str] = field(default_factory=set)
    expected: set[str] = field(default_factory=set)
    solve_info: dict[str, list[SolveInfo]] = field(default_factory=dict)

    def next_keys(self) -> Keys:
        """The keys of the next draw or site."""
        self.draws[-1] += 1
        return self.keys[-1].fold_in(self.draws[-1])

    @contextmanager
    def inside(self, keys: Keys) -> Iterator[None]:
        """Enter a site: its draws are numbered from the start and use its keys."""
        self.keys.append(keys)
        self.draws.append(0)
        try:
            yield
        finally:
            self.keys.pop()
            self.draws.pop()


@dataclass(frozen=True)
class Context:
    """Everything that a defense receives in a call besides its input.

    Args:
        keys: one random key per example.
        rules: the attacker's backward rules, by name of the site; default none.
        keep: names of the views that the caller needs; default None, all.
        solver_stats: statistics of solves, for costs and warm starts; default None, new ones.
    """

    keys: Keys
    rules: Mapping[str, Rule] = field(default_factory=dict)
    keep: frozenset[str] | None = None
    solver_stats: SolverStats | None = None
    _state: _CallState = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        add_forward(len(self.keys))
        stats = self.solver_stats or SolverStats.of(len(self.keys), self.keys.base.device)
        object.__setattr__(self, "_state", _CallState([self.keys], [0], stats))

    @classmethod
    def seeded(cls, seed: int, n: int) -> Context:
        """A context for `n` examples with ids from 0, for calling a defense by hand."""
        return cls(Keys.of(seed, torch.arange(n)))

    @property
    def sites(self) -> frozenset[str]:
        """Names of the sites that were run so far."""
        return frozenset(self._state.sites)

    def expect(self, sites: Iterable[str]) -> None:
        """Declare sites that exist even if this call does not run them.

        Which sites a defense runs may depend on its input. Rules for declared sites are accepted by
        `check_rules`.
        """
        self._state.expected.update(sites)

    @property
    def known_sites(self) -> frozenset[str]:
        """Names of the sites that were run so far or declared by `expect`."""
        return frozenset(self._state.sites | self._state.expected)

    @property
    def stats(self) -> SolverStats:
        """The statistics of all solves so far."""
        return self._state.stats

    @property
    def solve_info(self) -> Mapping[str, Sequence[SolveInfo]]:
        """Residuals, evaluations and status of the solves so far, by name of the site.

        A solve that did not converge is a warning sign for an audit.
        """
        return self._state.solve_info

    def keeps(self, name: str) -> bool:
        """Whether the caller needs this view. An expensive head can be skipped otherwise."""
        return self.keep is None or name in self.keep

    def through(self, site: str, fn: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """fn(x) as a named site, where an attacker may replace the backward pass.

        Every run of `fn`, also in a backward pass, draws the same random numbers.

        Args:
            site: the name; several calls may share it.
            fn: the function, [N, ...] -> [N, ...].
            x: its input, [N, ...].
        """
        self._state.sites.add(site)
        keys = self._state.next_keys()

        def replayed(v: Tensor) -> Tensor:
            with self._state.inside(keys):
                return fn(v)

        return self.rules.get(site, Exact()).apply(replayed, x)

    def solve(
        self,
        site: str,
        cell: Callable[[Tensor, Tensor], Tensor],
        z0: Tensor,
        x: Tensor,
        *,
        method: Solver,
        keep: Iterable[int] = (),
        weights: Sequence[float] = (),
        following: bool = False,
    ) -> Solution:
        """Solve z = cell(z, x) as a named site, where an attacker may choose the backward rule.

        Without a rule for the site, gradients are those of `Implicit`. Every evaluation of the cell
        draws the same random numbers. Without gradients, the weighted sum is accumulated during the
        solve and no state is stored for it.

        Args:
            site: the name; several calls may share it.
            cell: (z, x) -> f(z; x); it may receive a subset of the rows.
            z0: start, [N, ...].
            x: input of the cell, [N, ...].
            method: the solver.
            keep: the steps n, from 0 to `method.steps`, at which states z_n are returned.
            weights: one weight for each of z_1..z_T; their weighted sum is returned as `blend`.
            following: also return f of the best state; default False.

        Raises:
            ValueError: z0 or x has the wrong number of rows, or states are requested in a solve
                that the attacker starts warm.
        """
        if not len(z0) == len(x) == len(self.keys):
            raise ValueError(
                f"a solve needs a state and an input for each of {count(len(self.keys), 'row')}, "
                f"got {count(len(z0), 'state')} and {count(len(x), 'input')}."
            )
        self._state.sites.add(site)
        keys = self._state.next_keys()
        solve_info = self._state.solve_info.setdefault(site, [])

        def replayed(z: Tensor, x: Tensor, rows: Tensor) -> Tensor:
            with self._state.inside(keys if len(rows) == len(keys) else keys[rows]):
                return cell(z, x)

        stats = self.stats.under(f"{site}/{len(solve_info)}")
        start = stats.start("z", z0, method.steps)
        read = frozenset(keep)
        solve = Solve(replayed, start, x, method, read, tuple(weights), stats, following)
        if stats.warm and solve.read:
            raise ValueError(
                f"the attacker starts the solve {site!r} where its last one ended, which changes "
                "its intermediate states, but the defense returns some of them as views. Name the "
                "views to attack with `Direct(keep=...)`, or start cold with `warm=0`."
            )
        solution = self.rules.get(site, Implicit()).attach(solve)
        if following and solution.following is None:
            solution = replace(solution, following=solve.on_batch(solution.best))
            stats.spend(evaluations=1)
        solve_info.append(SolveInfo(solution.residual, solution.evaluations, solution.status))
        return solution

    def rand(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Uniform numbers in [0, 1), [N, *shape], drawn per example."""
        return self._state.next_keys().uniform(shape, dtype)

    def randn(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Standard normal numbers, [N, *shape], drawn per example."""
        return self._state.next_keys().normal(shape, dtype)

    def rand_like(self, x: Tensor) -> Tensor:
        """Uniform numbers in [0, 1) of the shape and type of x, [N, ...]."""
        return self.rand(*x.shape[1:], dtype=x.dtype)

    def randn_like(self, x: Tensor) -> Tensor:
        """Standard normal numbers of the shape and type of x, [N, ...]."""
        return self.randn(*x.shape[1:], dtype=x.dtype)

    def randint(self, high: int, *shape: int) -> Tensor:
        """Uniform integers in [0, high), [N, *shape], drawn per example."""
        return self._state.next_keys().integers(high, shape)

    def shared_seed(self) -> int:
        """One seed for the whole batch, for randomness that its rows share.

        The seed depends on the composition of the batch. A defense with outputs that depend on it
        directly must declare `coupled`.
        """
        return self._state.next_keys().batch_seed()

    def check_rules(self) -> None:
        """Raise an error if a rule names a site that does not exist: it would have no effect.

        Raises:
            ValueError: a rule names a site that was neither run nor declared by `expect`.
        """
        unknown = set(self.rules) - self.known_sites
        if unknown:
            known = sorted(self._state.sites)
            raise ValueError(
                f"rules were given for {sorted(unknown)}, but this defense has "
                + (
                    f"the sites {known}."
                    if known
                    else "no named sites. Wrap the step in `ctx.through(name, fn, x)`."
                )
            )
