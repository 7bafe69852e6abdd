"""Square attack: random search with square windows, from scores alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.best import AttackResult, BestSoFar, merge_results
from saddlepoint.attacks.oracle import Scores
from saddlepoint.attacks.spaces import Ball
from saddlepoint.attacks.square_windows import Numbers, Windows, unless_copy, windows_of
from saddlepoint.defenses import Access
from saddlepoint.describe import OMIT_DEFAULT
from saddlepoint.gradients import Evaluation
from saddlepoint.rng import Keys

# The iterations, of 10 000, after which the windows are halved.
_HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)


@dataclass(frozen=True)
class Square(Attack[Scores]):
    """Square attack, Andriushchenko et al. 2020, Algorithms 1-3: x <- y if value(y) > value(x).

    y is x with one square window drawn at random. Linf: the window is set to center +- radius, with
    one sign per channel; the start is vertical stripes. L2: the window takes the budget of another
    window and the unused budget. The share p of the image that a window covers is halved after 10,
    50, 200, 500, 1000, 2000, 4000, 6000 and 8000 iterations. With `rescale` these are counted in
    ten-thousandths of `queries`. Inputs other than images [N, C, H, W] are treated as images of
    height one.

    Every example has its own window (AutoAttack's code draws one for the batch). If rows are
    independent, an example is not queried again once it is misclassified. If rows are coupled, each
    row follows its own values, and the best whole batch is kept. If a window would change nothing,
    its signs are inverted. It costs at most `queries` evaluations.

    Args:
        queries: most queries per example, at least 1; default 5000, as in AutoAttack.
        share: share of the image that the first windows cover, p_init, in (0, 1]; default 0.8.
        rescale: scale the schedule of the windows to `queries`; default False, as in AutoAttack.
        lookahead: most proposals of an example that are evaluated in one batch; default 1. The
            search is the same with any number, in fewer and larger batches, but proposals after
            the first improvement are discarded and count as queries. For deterministic defenses.
    """

    queries: int = 5000
    share: float = 0.8
    rescale: bool = False
    lookahead: int = field(default=1, metadata=OMIT_DEFAULT)
    needs: ClassVar[Access] = "score"
    stops_at_budget: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.queries < 1:
            raise ValueError(f"Square needs at least one query, got queries={self.queries}.")
        if self.lookahead < 1:
            raise ValueError(f"Square looks ahead at least 1 query, got {self.lookahead}.")
        if not 0 < self.share <= 1:
            raise ValueError(
                f"the windows of Square cover a share of the image in (0, 1], got {self.share}."
            )

    @property
    def calls(self) -> int:
        return self.queries

    def scaled(self, factor: int) -> Square:
        return replace(self, queries=factor * self.queries)

    def stays_inside(self, space: Ball) -> bool:  # noqa: ARG002
        return True

    def __call__(self, oracle: Scores, center: Tensor, space: Ball, keys: Keys) -> AttackResult:
        windows = windows_of(center, space)
        start = windows.start(keys)
        search = _Search.begin(start, _allowed(oracle).clamp(max=self.queries), keys)
        best = BestSoFar(start, oracle.coupled)
        most = 1 if oracle.coupled else self.lookahead
        parts = []
        while True:
            done = search.success | (search.used >= search.allowed)
            if done.any():
                ended = search[done]
                rows = torch.from_numpy(ended.rows).to(center.device)
                parts.append((rows, AttackResult(ended.point, ended.x)))
                if done.all():
                    break
                search = search[~done]
                left = torch.from_numpy(~done).to(center.device)
                oracle, windows = oracle[left], windows[left]
            trials = search.trials(most)
            y = self._proposed(search, trials, windows)
            queried = oracle if most == 1 else oracle[torch.from_numpy(trials.row).to(y.device)]
            evaluation = queried.score(y.view(len(y), *center.shape[1:]))
            if oracle.coupled:
                best.update(y, evaluation)
            search = search.advanced(trials, y, evaluation, stop=not oracle.coupled)
        result = best.result if oracle.coupled else merge_results(parts)
        point, max_loss_point = (
            unless_copy(p, center.reshape(p.shape), start).view_as(center)
            for p in (result.point, result.max_loss_point)
        )
        return AttackResult(point, max_loss_point)

    def _proposed(self, search: _Search, trials: _Trials, windows: Windows) -> Tensor:
        """The point of each trial, [M, C, H, W]."""
        x = search.x
        if not trials.iteration.any():
            return x  # the first query is the start
        row = torch.from_numpy(trials.row)
        y = x.index_select(0, row.to(x.device))
        halvings = self._halvings(trials.iteration - 1)
        drawn = search.keys[row].fold_in(torch.from_numpy(trials.iteration))
        for number in np.unique(halvings):
            at = np.flatnonzero(halvings == number)
            keys = drawn if len(at) == len(halvings) else drawn[torch.from_numpy(at)]
            windows.redraw(y, at, trials.row[at], self.share / 2 ** int(number), keys)
        return y

    def share_at(self, iteration: int) -> float:
        """The share p in an iteration, counted from 0; the query of the start is not counted."""
        return float(self.share / 2 ** int(self._halvings(np.array(iteration))))

    def _halvings(self, iteration: Numbers) -> Numbers:
        """How often the windows were halved before each iteration."""
        at = iteration
        if self.rescale:
            at = (iteration / self.queries * 10_000).astype(np.int64)
        return np.searchsorted(_HALVINGS, at)


class _Trials(NamedTuple):
    """Proposals that are evaluated together: one or more per row."""

    row: Numbers  # [M] the row, increasing
    number: Numbers  # [M] from 0 in each row
    iteration: Numbers  # [M]
    counts: Numbers  # [N] proposals of each row, at least 1


@dataclass(frozen=True)
class _Search:
    """The state of the search of each row.

    Points are on the device. Numbers are on the host, which reads values once per batch.
    """

    rows: Numbers  # [N] positions in the batch
    keys: Keys  # [N] random keys, on the host
    x: Tensor  # [N, C, H, W] the point of highest value
    point: Tensor  # [N, C, H, W] the misclassified point where there is one, else x
    value: NDArray[np.float64]  # [N] at x
    success: NDArray[np.bool_]  # [N]
    iteration: Numbers  # [N] of the next proposal; 0 is the start
    used: Numbers  # [N] queries so far
    allowed: Numbers  # [N] queries in all
    width: Numbers  # [N] proposals to evaluate next: as many as the last improvement took

    @classmethod
    def begin(cls, start: Tensor, allowed: Tensor, keys: Keys) -> _Search:
        n = len(start)
        zero = np.zeros(n, dtype=np.int64)
        return cls(
            rows=np.arange(n),
            keys=keys.cpu(),
            x=start,
            point=start,
            value=np.full(n, -np.inf),
            success=np.zeros(n, dtype=np.bool_),
            iteration=zero,
            used=zero,
            allowed=allowed.cpu().numpy(),
            width=zero + 1,
        )

    def __getitem__(self, rows: NDArray[np.bool_]) -> _Search:
        chosen = torch.from_numpy(rows)
        on_device = chosen.to(self.x.device)
        return _Search(
            rows=self.rows[rows],
            keys=self.keys[chosen],
            x=self.x[on_device],
            point=self.point[on_device],
            value=self.value[rows],
            success=self.success[rows],
            iteration=self.iteration[rows],
            used=self.used[rows],
            allowed=self.allowed[rows],
            width=self.width[rows],
        )

    def trials(self, most: int) -> _Trials:
        """The next proposals, at most `most` per row."""
        n = np.arange(len(self.rows))
        if most == 1:
            return _Trials(n, np.zeros_like(n), self.iteration, np.ones_like(n))
        count = np.minimum(self.width.clip(max=most), self.allowed - self.used)
        row = n.repeat(count)
        number = np.arange(len(row)) - (count.cumsum() - count)[row]
        return _Trials(row, number, self.iteration[row] + number, count)

    def advanced(
        self, trials: _Trials, y: Tensor, evaluation: Evaluation, *, stop: bool
    ) -> _Search:
        """The state after the trials at the points y, [M, C, H, W].

        The first trial of a row that increases its value, or that is misclassified if `stop` is
        set, is made. Those after it were drawn around a point that is no longer the best one, so
        they are discarded.
        """
        values = evaluation.value.detach().double().cpu().numpy()  # [M]
        success = evaluation.success.cpu().numpy() & stop  # [M]
        useful = (values > self.value[trials.row]) | success
        begin = trials.counts.cumsum() - trials.counts
        never = len(values)
        # [N] the first useful trial of each row
        first = np.minimum.reduceat(np.where(useful, trials.number, never), begin)
        made = np.minimum(first, trials.counts - 1)  # the last one if none is useful
        at = begin + made
        value = values[at]
        success = success[at]
        increased = value > self.value
        x = _with_rows(self.x, increased, y, at)
        return replace(
            self,
            x=x,
            point=_with_rows(x, success, y, at),
            value=np.where(increased, value, self.value),
            success=success,
            iteration=self.iteration + made + 1,
            used=self.used + trials.counts,
            width=np.where(first < never, made + 1, 2 * trials.counts),
        )


def _with_rows(x: Tensor, chosen: NDArray[np.bool_], other: Tensor, at: Numbers) -> Tensor:
    """x, [N, ...], with the rows `at`, [N], of `other`, [M, ...], where `chosen`, [N]."""
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return x
    taken = other.index_select(0, torch.from_numpy(at[rows]).to(x.device))
    return x.index_copy(0, torch.from_numpy(rows).to(x.device), taken)


def _allowed(oracle: Scores) -> Tensor:
    """[N] evaluations that remain for each row; coupled rows have the minimum over the batch."""
    allowed = oracle.allowance()
    return torch.full_like(allowed, oracle.left()) if oracle.coupled else allowed
