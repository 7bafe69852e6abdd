"""Discrete branches of a target, and attacks on branches that an image does not take.

A target may choose for each image by the highest of several scores, or by a threshold: a router
chooses an expert, a gate an exit. A gradient describes only the branch that was taken, but another
branch may misclassify a nearby point. An attack on a forced branch increases the loss of that
branch together with the scores that select it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from saddlepoint.attacks.best import AttackResult
from saddlepoint.audits.target.instrument import second_argument
from saddlepoint.audits.target.transforms import outside_transforms
from saddlepoint.defenses import Context, Defense, DefenseWrapper, Trace, View
from saddlepoint.evaluation.adversary import AdversaryWrapper
from saddlepoint.evaluation.attack_context import AttackContext
from saddlepoint.evaluation.combinators import MaxLossPoint

# Comparisons a > b: the sign of a in the difference that is positive if the comparison is true.
_COMPARISONS = {"gt": 1, "ge": 1, "lt": -1, "le": -1}
_WITH_INDICES = ("max", "topk")  # functions that return values and indices
# Limits: more decisions are the steps of an iteration, and each branch costs an attack.
_MOST_DECISIONS = 3
_MOST_BRANCHES = 16
_MOST_CANDIDATES = 64  # branches of which it is checked whether they change an output


@dataclass(frozen=True)
class Branch:
    """One option of one decision that a call makes."""

    decision: int  # which decision of a call, from 0
    option: int  # which of its options, from 0
    per_row: int = 0  # decisions per row, where rows are processed one by one; 0: all rows at once

    def __str__(self) -> str:
        return f"{self.decision + 1}.{self.option + 1}"


class Taken(NamedTuple):
    """The outputs of a forced branch, and the scores of its decision."""

    logits: Tensor  # [N, C]
    scores: Tensor  # [N, options] the highest score selects the option


@dataclass
class _Decisions(TorchFunctionMode):
    """Records every decision of a call, for all rows at once or one by one, and may force one."""

    rows: int
    one_by_one: bool = False
    forced: Branch | None = None
    scores: list[Tensor] = field(default_factory=list)  # each [rows, options], or [1, options]

    def __post_init__(self) -> None:
        super().__init__()

    @outside_transforms
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        # The maximum over all entries returns no indices.
        chosen: Any = getattr(out, "indices", None) if name in _WITH_INDICES else out
        scores = self._scores_of(name, args, kwargs, chosen)
        if scores is None:
            return out
        self.scores.append(scores)
        if self.forced is None or not self._applies(self.forced):
            return out
        option = torch.full_like(chosen, self.forced.option)
        if chosen is out:
            return option
        # Values stay as they are: a confidence that is read beside a label would change with it.
        return type(out)((out.values, option))

    def _applies(self, branch: Branch) -> bool:
        """Whether the last recorded decision is the forced one."""
        last = len(self.scores) - 1
        if not branch.per_row:
            return branch.decision == last
        # A loop may repeat until a decision changes. Without this limit it would not end.
        in_time = last < branch.per_row * self.rows
        return in_time and branch.decision == last % branch.per_row

    def _scores_of(self, name: str, args: Any, kwargs: Any, chosen: Any) -> Tensor | None:
        """[rows, options] scores that a function call compared; None if it decided nothing."""
        first = args[0] if args else None
        if not (isinstance(chosen, Tensor) and isinstance(first, Tensor)):
            return None
        if not first.is_floating_point() or not self._per_row(chosen, first):
            return None
        # One row may be taken out of its batch, or be a batch itself.
        rows = 1 if self.one_by_one else self.rows
        if name in ("argmax", *_WITH_INDICES) and first.numel() > rows:
            scores = first.reshape(rows, -1)
            is_highest = torch.equal(scores.argmax(1), chosen.reshape(rows))
            return scores if is_highest else None
        if name in _COMPARISONS:
            difference = first - second_argument(args, kwargs)
            above = _COMPARISONS[name] * difference.reshape(rows)
            return torch.stack([-above, above], dim=1) / 2
        return None

    def _per_row(self, chosen: Tensor, first: Tensor) -> bool:
        """Whether a function returned one choice per row."""
        if self.one_by_one:
            return chosen.numel() == 1
        batched = chosen.ndim > 0 and first.ndim > 0 and len(chosen) == len(first) == self.rows
        return batched and chosen.numel() == self.rows


class ForcedBranch(DefenseWrapper):
    """A defense that takes a given branch.

    The view "branch" has its logits. The view "selection" is misclassified where the scores select
    the branch, with a margin that is the lead of its score.
    """

    replaces_views: ClassVar[bool] = True

    def __init__(self, inner: Defense, branch: Branch, y: Tensor) -> None:
        super().__init__(inner)
        self.branch = branch
        self.y = y

    def rewrap(self, inner: Defense, rows: Tensor | None = None) -> Defense:
        return ForcedBranch(inner, self.branch, self.y if rows is None else self.y[rows])

    def answer(self, trace: Trace, ctx: Context) -> Tensor:  # noqa: ARG002
        return trace.last

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        taken = self.take(x, ctx)
        if taken is None:
            logits = self.inner.trace(x, ctx).last
            return Trace((View("selection", logits), View("branch", logits)))
        logits, scores = taken
        option = self.branch.option
        others = torch.arange(scores.shape[1], device=scores.device) != option
        lead = scores[:, option] - scores[:, others].amax(1)
        label = torch.nn.functional.one_hot(self.y, logits.shape[1]).to(logits)
        return Trace((View("selection", -lead[:, None] * label), View("branch", logits)))

    def take(self, x: Tensor, ctx: Context) -> Taken | None:
        """Run the branch; None if these images do not make the decision."""
        branch = self.branch
        per_row = branch.per_row
        with _Decisions(len(x), bool(per_row), branch) as decisions:
            logits = self.inner.trace(x, ctx).last
        scores = decisions.scores
        if per_row:
            complete = len(scores) == per_row * len(x)
            selected = scores[branch.decision :: per_row] if complete else []
        else:
            selected = scores[branch.decision : branch.decision + 1]
        return Taken(logits, torch.cat(selected).to(logits)) if selected else None


@dataclass(frozen=True)
class AgainstBranch(AdversaryWrapper):
    """The adversary against a forced branch: its points of highest loss, over both views."""

    branch: Branch = Branch(0, 0)

    @property
    def name(self) -> str:
        return f"{self.adversary.name}-{self.branch}"

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        forced = ForcedBranch(defense, self.branch, y)
        return MaxLossPoint(self.adversary).move(context, forced, x, y)


def find_branches(defense: Defense, x: Tensor, y: Tensor, ctx: Context) -> tuple[Branch, ...]:
    """All branches that change the output of an image; none if there are too many.

    Rows that are not decided at once may be decided one by one, each with the same decisions as
    alone.

    Args:
        defense: a deterministic, stateless defense with independent rows.
        x: images, [N, ...].
        y: labels, [N].
        ctx: the context of a call with these images.
    """
    with torch.no_grad(), _Decisions(len(x)) as decisions:
        output = defense.trace(x, ctx).last
    scores: Sequence[Tensor] = decisions.scores
    per_row = 0
    if not scores:
        per_row, scores = _decided_one_by_one(defense, x, ctx)
    candidates = [
        Branch(k, option, per_row)
        for k, each in enumerate(scores)
        if each.shape[1] <= _MOST_BRANCHES and not _is_prediction(each, output)
        for option in range(each.shape[1])
    ]
    if len(candidates) > _MOST_CANDIDATES:
        return ()
    found = [b for b in candidates if _changes(ForcedBranch(defense, b, y), output, x, ctx)]
    decided = {branch.decision for branch in found}
    if len(decided) > _MOST_DECISIONS or len(found) > _MOST_BRANCHES:
        return ()
    return tuple(found)


def _decided_one_by_one(defense: Defense, x: Tensor, ctx: Context) -> tuple[int, list[Tensor]]:
    """The number of decisions per row, and the scores [N, options] of each.

    Empty if rows make different numbers of decisions or choose between different options.
    """
    with torch.no_grad(), _Decisions(1, one_by_one=True) as alone:
        defense.trace(x[:1], Context(ctx.keys[torch.arange(1)]))
    with torch.no_grad(), _Decisions(len(x), one_by_one=True) as all_rows:
        defense.trace(x, ctx)
    per_row = len(alone.scores)
    if not per_row or len(all_rows.scores) != per_row * len(x):
        return per_row, []
    by_decision = [all_rows.scores[k::per_row] for k in range(per_row)]
    if any(len({row.shape for row in rows}) > 1 for rows in by_decision):
        return per_row, []
    return per_row, [torch.cat(rows) for rows in by_decision]


def _is_prediction(scores: Tensor, output: Tensor) -> bool:
    """Whether the decision is the predicted class itself."""
    return scores.shape == output.shape and torch.equal(scores.argmax(1), output.argmax(1))


def _changes(forced: ForcedBranch, output: Tensor, x: Tensor, ctx: Context) -> bool:
    """Whether the forced branch gives another output for some image."""
    with torch.no_grad():
        taken = forced.take(x, ctx)
    return taken is not None and not torch.allclose(taken.logits, output, rtol=1e-4, atol=1e-6)
