"""Search over finite choices per pixel, such as the levels of a quantizer."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar

import torch
from torch import Tensor

from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.best import AttackResult, BestSoFar, merge_results
from saddlepoint.attacks.oracle import Differentiates
from saddlepoint.attacks.pixel_levels import Choices, Ends, Options
from saddlepoint.attacks.spaces import Ball, per_example
from saddlepoint.defenses import Access
from saddlepoint.gradients import Evaluation, ValueAndGradient
from saddlepoint.rng import Keys

_KICKS = (0.5, 0.1, 0.03)  # shares of the pixels that restarts change at random, in turn


@dataclass(frozen=True)
class LevelSearch(Attack[Differentiates]):
    """Local search over the options of each pixel: x <- y if value(y) > value(x).

    y is x with k pixels set to other options. Pixels are ordered by the gain that the gradient g at
    x predicts, g_i (p_new - p_old) for the positions p of the options. From all pixels with a
    positive gain, k is halved after every failure and doubled after every success. At k = 1 all
    other pixels are tried in turn. If none of them increases the value, the search restarts from
    the best point, with half, a tenth or 3 % of its pixels set to random options.

    Where the gradient at x is zero, the mean of the gradients at all earlier points is used: in a
    region where a pixel has no influence, it still has the direction of other regions. Every point
    is evaluated exactly; gradients only order the options. With `gradients=False` the order is
    random.

    If an image has at most `queries` combinations of options, all of them are tried instead: the
    result is then exact.

    Every example has its own position in the search, and is not queried again once it is
    misclassified. It costs at most `queries` evaluations. Rows must be independent, and p must be
    infinity.

    Args:
        choices: what a pixel can be set to; default: the two ends of its interval, and its clean
            value.
        queries: most queries per example, at least 1; default 300.
        gradients: order pixels by gradients, which needs gradient access; default True.
    """

    choices: Choices = field(default_factory=Ends)
    queries: int = 300
    gradients: bool = True
    stops_at_budget: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.queries < 1:
            raise ValueError(f"LevelSearch needs at least one query, got queries={self.queries}.")

    @property
    def needs(self) -> Access:  # type: ignore[override]
        return "gradient" if self.gradients else "score"

    @property
    def calls(self) -> int:
        return self.queries

    def scaled(self, factor: int) -> LevelSearch:
        return replace(self, queries=factor * self.queries)

    def __call__(
        self, oracle: Differentiates, center: Tensor, space: Ball, keys: Keys
    ) -> AttackResult:
        if space.p != math.inf:
            raise ValueError(f"LevelSearch supports p=inf, got p={space.p:g}.")
        if oracle.coupled:
            raise ValueError(
                "LevelSearch needs independent rows, but rows of a coupled defense can only be "
                "evaluated together. Use Square."
            )
        options = self.choices.options(center, space)
        search = _Search.start(options)
        best = BestSoFar(center, coupled=False)
        allowed = oracle.allowance().to(center.device)
        count = options.combinations
        few = count <= self.queries
        allowed = torch.where(few, torch.minimum(allowed, count.long()), allowed)
        # A single combination is the clean image, which is not searched.
        allowed = torch.where(count == 1, 0, allowed)
        rows = torch.arange(len(center), device=center.device)
        row_keys = keys
        parts = []
        for k in range(self.queries):
            done = best.success | (allowed <= k)
            if done.any():
                parts.append((rows[done], best[done].result))
                rows = rows[~done]
                if not len(rows):
                    break
                allowed = allowed[~done]
                row_keys = row_keys[~done]
                oracle = oracle[~done]
                options = options[~done]
                search = search[~done]
                best = best[~done]
                few = few[~done]
            proposal = search.proposal()
            if few.any():
                proposal = torch.where(few[:, None], options.combination(k), proposal)
            x = options.values(proposal).view(len(rows), *center.shape[1:])
            result = self._query(oracle, x, search.size != 1)
            best.update(x, result.evaluation)
            search = search.updated(proposal, result, options, row_keys.fold_in(k))
        found = merge_results([*parts, (rows, best.result)])
        other = space.sample(center, keys)
        return AttackResult(
            _unless_copy(found.point, center, other),
            _unless_copy(found.max_loss_point, center, other),
        )

    def _query(self, oracle: Differentiates, x: Tensor, differentiated: Tensor) -> ValueAndGradient:
        """Values at the points x, [N, ...], with gradients of some rows, [N] bool; else zeros."""
        none = torch.zeros_like(x)
        if not (self.gradients and differentiated.any()):
            return ValueAndGradient(oracle.score(x), none)
        if differentiated.all():
            return oracle.gradient(x)
        rows = differentiated.nonzero()[:, 0]
        others = (~differentiated).nonzero()[:, 0]
        found = oracle[rows].gradient(x[rows])
        scored = oracle[others].score(x[others])
        order = torch.cat([rows, others]).argsort()
        value, success = (
            torch.cat(parts)[order] for parts in zip(found.evaluation, scored, strict=True)
        )
        grad = none.index_copy(0, rows, found.grad)
        return ValueAndGradient(Evaluation(value, success), grad)


@dataclass(frozen=True, eq=False)
class _Search:
    """The position of every example in its search."""

    option: Tensor  # [N, d] int64, the options of the current point
    value: Tensor  # [N] its value; -inf before it is evaluated
    best_option: Tensor  # [N, d] int64, the options of the best point
    best_value: Tensor  # [N] its value
    gradients: Tensor  # [N, d] sum of the gradients at all points
    other: Tensor  # [N, d] int64, the option that a change sets a pixel to
    rank: Tensor  # [N, d] int64, the order in which pixels are changed
    free: Tensor  # [N] int64, pixels with more than one option
    gains: Tensor  # [N] int64, pixels with a positive predicted gain
    size: Tensor  # [N] int64, pixels to change next; 0: evaluate the current point
    at: Tensor  # [N] int64, the rank of the first of them
    improved: Tensor  # [N] bool: a change of one pixel increased the value since the last gradient
    restarts: Tensor  # [N] int64

    @classmethod
    def start(cls, options: Options) -> _Search:
        """At the clean images, which are not evaluated yet."""
        clean = options.clean
        low = options.center.new_full((len(clean),), -torch.inf)
        none = torch.zeros(len(clean), dtype=torch.long, device=clean.device)
        zeros = torch.zeros_like(options.center)
        free = options.free.sum(1)
        return cls(
            clean, low, clean, low, zeros, clean, clean, free, none, none, none, none.bool(), none
        )

    def __getitem__(self, rows: Tensor) -> _Search:
        return _Search(*(getattr(self, field.name)[rows] for field in fields(self)))

    def proposal(self) -> Tensor:
        """[N, d] the options of the next point."""
        first = self.at[:, None]
        changed = (self.rank >= first) & (self.rank < first + self.size[:, None])
        return torch.where(changed, self.other, self.option)

    def updated(
        self, proposal: Tensor, result: ValueAndGradient, options: Options, keys: Keys
    ) -> _Search:
        """The search after a proposal was evaluated."""
        value = result.evaluation.value
        grad = result.grad.flatten(1)
        accepted = (value > self.value) | (self.size == 0)
        better = value > self.best_value
        after = replace(
            self,
            option=torch.where(accepted[:, None], proposal, self.option),
            value=torch.where(accepted, value, self.value),
            best_option=torch.where(better[:, None], proposal, self.best_option),
            best_value=torch.where(better, value, self.best_value),
            gradients=self.gradients + grad,
        )
        ordered = after._ordered(grad, options, keys)
        return after._advanced(accepted, ordered)._restarted(options, keys)

    def _ordered(self, grad: Tensor, options: Options, keys: Keys) -> _Search:
        """Order pixels by the gain that a gradient at the current point predicts."""
        grad = torch.where(grad == 0, self.gradients, grad)
        noise = keys.fold_in(1).uniform((2, grad.shape[1]), grad.dtype)
        up = torch.where(grad == 0, noise[:, 0] < 0.5, grad > 0)
        end = torch.where(up, options.highest, options.lowest)
        inward = torch.where(up, end - 1, end + 1)
        other = torch.where(self.option == end, inward, end)
        other = torch.where(options.free, other, self.option)
        gain = grad * (options.positions(other) - options.positions(self.option))
        # Equal gains are ordered at random.
        scale = 1e-6 * gain.abs().amax(1, keepdim=True) + torch.finfo(gain.dtype).tiny
        order = torch.where(options.free, gain + scale * noise[:, 1], -torch.inf)
        rank = order.argsort(dim=1, descending=True).argsort(dim=1)
        return replace(self, other=other, rank=rank, gains=((gain > 0) & options.free).sum(1))

    def _advanced(self, accepted: Tensor, ordered: _Search) -> _Search:
        """Choose the next change: a larger one after a success, a smaller one after a failure."""
        single = self.size == 1
        moved = accepted & ~single  # the gradient at the new point is known
        gains = torch.where(moved, ordered.gains, self.gains)
        # Single pixels are tried in turn; without a gradient larger blocks are as well.
        in_turn = single | (~accepted & (self.gains == 0))
        more = in_turn & (self.at + self.size < self.free)
        improved = torch.where(single, self.improved | accepted, self.improved & ~moved)
        first = torch.where(gains > 0, gains, (self.free + 1) // 2)
        larger = torch.where(self.size == 0, first, torch.minimum(2 * self.size, first))
        smaller = torch.where(more, self.size, self.size // 2)
        return replace(
            self,
            other=torch.where(moved[:, None], ordered.other, self.other),
            rank=torch.where(moved[:, None], ordered.rank, self.rank),
            gains=gains,
            size=torch.where(moved, larger, smaller),
            at=torch.where(more, self.at + self.size, 0),
            improved=improved,
        )

    def _restarted(self, options: Options, keys: Keys) -> _Search:
        """Rows at which no change increases the value continue from a random change of the best."""
        ended = (self.size == 0) & ~self.improved
        shares = torch.tensor(_KICKS, device=ended.device)[self.restarts % len(_KICKS)]
        draws = keys.fold_in(2).uniform((2, self.option.shape[1]), options.center.dtype)
        span = options.highest - options.lowest + 1
        drawn = options.lowest + (draws[:, 0] * span).long().clamp(max=span - 1)
        kicked = torch.where(draws[:, 1] < shares[:, None], drawn, self.best_option)
        return replace(
            self,
            option=torch.where(ended[:, None], kicked, self.option),
            value=torch.where(ended, -torch.inf, self.value),
            restarts=self.restarts + ended.long(),
        )


def _unless_copy(x: Tensor, center: Tensor, instead: Tensor) -> Tensor:
    """x, with rows equal to the center replaced by those of `instead`."""
    return torch.where(per_example((x == center).flatten(1).all(1), x), instead, x)
