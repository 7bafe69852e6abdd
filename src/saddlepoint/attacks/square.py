"""Square attack: random search with square windows, from scores alone."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.best import AttackResult, BestSoFar, merge_results, with_rows
from saddlepoint.attacks.oracle import Scores
from saddlepoint.attacks.spaces import Ball
from saddlepoint.attacks.square_windows import Windows, unless_copy, windows_of
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
        allowed = _allowed(oracle).to(center.device).clamp(max=self.queries)
        search = _Search.begin(start, allowed)
        best = BestSoFar(start, oracle.coupled)
        most = 1 if oracle.coupled else self.lookahead
        parts = []
        while True:
            done = search.success | (search.used >= search.allowed)
            if done.any():
                ended = search[done]
                parts.append((ended.rows, AttackResult(ended.point, ended.x)))
                if len(parts[-1][0]) == len(done):
                    break
                search, oracle, windows = search[~done], oracle[~done], windows[~done]
                keys = keys[~done]
            trials = search.trials(most)
            y = self._proposed(search.x, trials, windows, keys)
            queried = oracle if most == 1 else oracle[trials.row]
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

    def _proposed(self, x: Tensor, trials: _Trials, windows: Windows, keys: Keys) -> Tensor:
        """The point of each trial, [M, C, H, W]."""
        if not len(x) or not int(trials.iteration.amax()):
            return x  # the first query is the start
        y = x[trials.row].contiguous()
        halvings = self._halvings(trials.iteration - 1)
        for number in sorted(set(halvings.tolist())):
            at = (halvings == number).nonzero()[:, 0]
            row = trials.row[at]
            drawn = keys[row].fold_in(trials.iteration[at])
            windows.redraw(y, at, row, self.share / 2**number, drawn)
        return y

    def share_at(self, iteration: int) -> float:
        """The share p in an iteration, counted from 0; the query of the start is not counted."""
        return float(self.share / 2 ** int(self._halvings(torch.tensor(iteration))))

    def _halvings(self, iteration: Tensor) -> Tensor:
        """How often the windows were halved before each iteration."""
        at = iteration
        if self.rescale:
            at = (iteration.double() / self.queries * 10_000).long()
        return torch.bucketize(at, torch.tensor(_HALVINGS, device=at.device))


class _Trials(NamedTuple):
    """Proposals that are evaluated together: one or more per row."""

    row: Tensor  # [M] the row, increasing
    number: Tensor  # [M] from 0 in each row
    iteration: Tensor  # [M]
    counts: Tensor  # [N] proposals of each row, at least 1


@dataclass(frozen=True)
class _Search:
    """The state of the search of each row."""

    rows: Tensor  # [N] positions in the batch
    x: Tensor  # [N, C, H, W] the point of highest value
    point: Tensor  # [N, C, H, W] the misclassified point where there is one, else x
    value: Tensor  # [N] at x
    success: Tensor  # [N] bool
    iteration: Tensor  # [N] of the next proposal; 0 is the start
    used: Tensor  # [N] queries so far
    allowed: Tensor  # [N] queries in all
    width: Tensor  # [N] proposals to evaluate next: as many as the last improvement took

    @classmethod
    def begin(cls, start: Tensor, allowed: Tensor) -> _Search:
        n = len(start)
        zero = torch.zeros(n, dtype=torch.long, device=start.device)
        value = start.new_full((n,), -torch.inf)
        rows = torch.arange(n, device=start.device)
        return cls(rows, start, start, value, zero.bool(), zero, zero, allowed, zero + 1)

    def __getitem__(self, rows: Tensor) -> _Search:
        return _Search(*(getattr(self, one.name)[rows] for one in fields(self)))

    def trials(self, most: int) -> _Trials:
        """The next proposals, at most `most` per row."""
        n = torch.arange(len(self.rows), device=self.rows.device)
        if most == 1:
            return _Trials(n, torch.zeros_like(n), self.iteration, torch.ones_like(n))
        count = torch.minimum(self.width.clamp(max=most), self.allowed - self.used)
        row = n.repeat_interleave(count)
        number = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]
        return _Trials(row, number, self.iteration[row] + number, count)

    def advanced(
        self, trials: _Trials, y: Tensor, evaluation: Evaluation, *, stop: bool
    ) -> _Search:
        """The state after the trials at the points y, [M, C, H, W].

        The first trial of a row that increases its value, or that is misclassified if `stop` is
        set, is made. Those after it were drawn around a point that is no longer the best one, so
        they are discarded.
        """
        success = evaluation.success & stop
        useful = (evaluation.value > self.value[trials.row]) | success
        never = trials.counts.amax() if len(trials.counts) else 0
        number = torch.where(useful, trials.number, never)
        first = torch.full_like(self.used, int(never)).scatter_reduce(0, trials.row, number, "amin")
        made = torch.minimum(first, trials.counts - 1)  # the last one if none is useful
        at = trials.counts.cumsum(0) - trials.counts + made
        value = evaluation.value[at].to(self.value)
        increased = value > self.value
        x = with_rows(self.x, increased, y, at)
        success = success[at]
        found = first < trials.counts
        return replace(
            self,
            x=x,
            point=with_rows(x, success, y, at),
            value=torch.where(increased, value, self.value),
            success=success,
            iteration=self.iteration + made + 1,
            used=self.used + trials.counts,
            width=torch.where(found, made + 1, 2 * trials.counts),
        )


def _allowed(oracle: Scores) -> Tensor:
    """[N] evaluations that remain for each row; coupled rows have the minimum over the batch."""
    allowed = oracle.allowance()
    return torch.full_like(allowed, oracle.left()) if oracle.coupled else allowed
