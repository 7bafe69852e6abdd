"""What a defense is handed on every call: its coins, its sites, and which views somebody will read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from saddlepoint.gradients.implicit import Implicit
from saddlepoint.gradients.rule import Exact, Rule
from saddlepoint.gradients.solve import Solve
from saddlepoint.rng import Keys
from saddlepoint.solvers import Solution, SolveInfo, Solver, SolverStats


@dataclass
class _Clock:
    """Where in the trace we are: how many coins were drawn in each nested site so far."""

    keys: list[Keys]
    ticks: list[int]
    stats: SolverStats
    sites: set[str] = field(default_factory=set)
    expected: set[str] = field(default_factory=set)
    solve_info: dict[str, list[SolveInfo]] = field(default_factory=dict)

    def tick(self) -> Keys:
        self.ticks[-1] += 1
        return self.keys[-1].fold_in(self.ticks[-1])

    @contextmanager
    def inside(self, keys: Keys) -> Iterator[None]:
        self.keys.append(keys)
        self.ticks.append(0)
        try:
            yield
        finally:
            self.keys.pop()
            self.ticks.pop()


@dataclass(frozen=True)
class Context:
    """Coins per example, the attacker's rules per site, the views that will be read (`None`: all), and its notes on solves."""

    keys: Keys
    rules: Mapping[str, Rule] = field(default_factory=dict)
    keep: frozenset[str] | None = None
    solver_stats: SolverStats | None = None  # None: a new one
    _clock: _Clock = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        stats = self.solver_stats or SolverStats.of(len(self.keys), self.keys.state.device)
        object.__setattr__(self, "_clock", _Clock([self.keys], [0], stats))

    @classmethod
    def seeded(cls, seed: int, n: int) -> Context:
        """A context for `n` rows numbered from 0: for trying a defense by hand."""
        return cls(Keys.of(seed, torch.arange(n)))

    @property
    def sites(self) -> frozenset[str]:
        """Names of the sites met so far."""
        return frozenset(self._clock.sites)

    def expect(self, sites: Iterable[str]) -> None:
        """These are sites even if this call does not come by them: what a defense runs may depend on what it is asked."""
        self._clock.expected.update(sites)

    @property
    def stats(self) -> SolverStats:
        """What solves have cost so far."""
        return self._clock.stats

    @property
    def solve_info(self) -> Mapping[str, Sequence[SolveInfo]]:
        """How the solves at each site ended: a fixed point that was not reached is a symptom."""
        return self._clock.solve_info

    def keeps(self, name: str) -> bool:
        """Will anybody read this view? A costly head need not be run for a view that is not kept."""
        return self.keep is None or name in self.keep

    def through(self, site: str, fn: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """fn(x); an attacker may replace its backward pass by naming `site`. Every run of `fn` sees the same coins."""
        self._clock.sites.add(site)
        keys = self._clock.tick()

        def replayed(v: Tensor) -> Tensor:
            with self._clock.inside(keys):
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
    ) -> Solution:
        """The solution of z = cell(z, x) from z0, all of them [N, ...]. Every evaluation of the cell sees the same coins.

        An attacker may choose by `site` how gradients cross; else `Implicit` does. `keep` names the steps n, from 0 to
        `method.steps`, whose states z_n will be read; `weights` of z_1..z_T ask for their weighted sum, the `blend`. Where no
        gradient is asked for, the sum is taken on the way and keeps no state.
        """
        if not len(z0) == len(x) == len(self.keys):
            raise ValueError(
                f"a solve needs a state and an input for each of {len(self.keys)} rows, got {len(z0)} states and {len(x)} inputs."
            )
        self._clock.sites.add(site)
        keys = self._clock.tick()
        solve_info = self._clock.solve_info.setdefault(site, [])

        def replayed(z: Tensor, x: Tensor, rows: Tensor) -> Tensor:
            with self._clock.inside(keys if len(rows) == len(keys) else keys[rows]):
                return cell(z, x)

        stats = self.stats.under(f"{site}/{len(solve_info)}")
        solve = Solve(
            replayed,
            stats.start("z", z0, method.steps),
            x,
            method,
            frozenset(keep),
            tuple(weights),
            stats,
        )
        if stats.warm and solve.read:
            raise ValueError(
                f"the attacker starts the solve {site!r} where its last one ended, which changes all states on the way, but the "
                "defense shows some. Name the views to aim at with `Direct(keep=...)`, or start cold with `warm=0`."
            )
        solution = self.rules.get(site, Implicit()).attach(solve)
        solve_info.append(SolveInfo(solution.residual, solution.evaluations, solution.status))
        return solution

    def rand(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """[N, *shape] uniform in [0, 1), drawn per example."""
        return self._clock.tick().uniform(shape, dtype)

    def randn(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """[N, *shape] standard normal, drawn per example."""
        return self._clock.tick().normal(shape, dtype)

    def rand_like(self, x: Tensor) -> Tensor:
        return self.rand(*x.shape[1:], dtype=x.dtype)

    def randn_like(self, x: Tensor) -> Tensor:
        return self.randn(*x.shape[1:], dtype=x.dtype)

    def randint(self, high: int, *shape: int) -> Tensor:
        """[N, *shape] whole numbers in [0, high), drawn per example."""
        return self._clock.tick().integers(high, shape)

    def shared_seed(self) -> int:
        """One seed for the whole batch, for randomness that rows share. A defense that uses it in the clear is `coupled`."""
        return self._clock.tick().batch_seed()

    def refuse_unknown_rules(self) -> None:
        """A rule for a site that does not exist would silently do nothing."""
        unknown = set(self.rules) - self._clock.sites - self._clock.expected
        if unknown:
            known = sorted(self._clock.sites)
            raise ValueError(
                f"rules were given for {sorted(unknown)}, but this defense has "
                + (
                    f"the sites {known}."
                    if known
                    else "no named sites. Wrap the step in `ctx.through(name, fn, x)`."
                )
            )
