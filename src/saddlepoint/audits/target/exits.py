"""Hidden exits: class scores inside a plain model that it selects from, mixes or counts.

A model may stop at the first confident classifier, when two classifiers in a row agree, or by a
vote, and return only its answer. A gradient of the answer describes only the classifiers that made
it. Here the decisions of a call are forced so that all rows take the longest path. The scores of
all classifiers are then known for all rows, with gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from saddlepoint.audits.target.decisions import DecisionRecord, Site
from saddlepoint.defenses import Context, Defense, DefenseWrapper, Trace, View

_MOST_OPERATIONS = 200_000  # of a call: a forced decision may make a loop endless


class Key(NamedTuple):
    """Which result of a site: the k-th of each call, or of each row if rows are run one by one."""

    site: Site
    position: int
    per_row: int = 0  # results per row; 0: all rows at once


class Selection(NamedTuple):
    """A comparison that an image must pass, or must not pass, to reach an exit."""

    key: Key
    passed: bool


@dataclass(frozen=True)
class HiddenExits:
    """Hidden exits in the order in which they are computed, and what exposes them."""

    forced: tuple[tuple[Site, bool], ...]  # the result of each forced decision
    exits: tuple[Key, ...]
    selections: tuple[tuple[Selection, ...], ...]  # of each exit
    selected: bool  # the answer to each image is one of the exits
    left_out: int = 0  # further exits

    def __len__(self) -> int:
        return len(self.exits)

    @property
    def places(self) -> str:
        """The source lines of the exits."""
        return ", ".join(dict.fromkeys(str(key.site) for key in self.exits))


class ExposedExits(DefenseWrapper):
    """A defense with its hidden exits as views; the answer is that of the defense.

    The view "exit/k" has the scores of an exit. The view "selection/k.j" is misclassified where the
    j-th comparison before or after the exit has the result that makes it the answer. The last view
    is the answer, without a gradient, and all that the answer `reads`. It `grants` gradients, which
    exits have even where the answer has none.
    """

    replaces_views: ClassVar[bool] = True

    def __init__(self, inner: Defense, hidden: HiddenExits, y: Tensor) -> None:
        super().__init__(inner)
        self.hidden = hidden
        self.y = y
        self.reads = frozenset({"answer"})
        self.grants = "gradient"

    def rewrap(self, inner: Defense, rows: Tensor | None = None) -> Defense:
        return ExposedExits(inner, self.hidden, self.y if rows is None else self.y[rows])

    def answer(self, trace: Trace, ctx: Context) -> Tensor:  # noqa: ARG002
        return trace.last

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        with torch.no_grad():
            true = Context(ctx.keys, ctx.rules, self.inner.reads)
            answer = self.inner.answer(self.inner.trace(x.detach(), true), true)
        answer_view = View("answer", answer)
        if ctx.keep is not None and ctx.keep <= {"answer"}:
            return Trace((answer_view,))
        record = self._record(x, ctx, answer.shape[1])
        # An exit that these images do not reach is replaced by the answer, with a gradient of zero.
        not_reached = answer + 0 * x.flatten(1)[:, :1].to(answer)
        views = []
        for k, key in enumerate(self.hidden.exits):
            found = scores_of(record, key)
            views.append(View(exit_name(k), not_reached if found is None else found.to(answer)))
            for j, (where, passed) in enumerate(self.hidden.selections[k]):
                lead = leads_of(record, where)
                signed = answer.new_ones(len(x)) if lead is None else lead.to(answer)
                label = torch.nn.functional.one_hot(self.y, answer.shape[1]).to(answer)
                toward = -signed if passed else signed
                views.append(View(selection_name(k, j), toward[:, None] * label))
        return Trace((*views, answer_view))

    def _record(self, x: Tensor, ctx: Context, classes: int) -> DecisionRecord:
        """A recorded call with forced decisions; empty if these lead to an error."""
        record = DecisionRecord(len(x), classes, dict(self.hidden.forced), _MOST_OPERATIONS)
        try:
            with record:
                self.inner.trace(x, ctx)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        # Forced decisions may contradict what the code of the model relies on.
        except Exception:
            return DecisionRecord(len(x), classes)
        return record


def exit_name(k: int) -> str:
    """The name of the view of exit k, from 0."""
    return f"exit/{k + 1}"


def selection_name(k: int, j: int) -> str:
    """The name of the view of comparison j of exit k, both from 0."""
    return f"selection/{k + 1}.{j + 1}"


def scores_of(record: DecisionRecord, key: Key) -> Tensor | None:
    """[N, C] the scores of an exit in a recorded call; None if it was not reached by all rows."""
    found = [scores.logits for scores in record.scores if scores.site == key.site]
    return _rows_of(found, key, record.rows)


def leads_of(record: DecisionRecord, key: Key) -> Tensor | None:
    """[N] the lead of a comparison in a recorded call; None if some rows did not make it."""
    found = [d.lead for d in record.decisions if d.site == key.site and d.lead is not None]
    return _rows_of(found, key, record.rows)


def _rows_of(found: Sequence[Tensor], key: Key, rows: int) -> Tensor | None:
    if key.per_row:
        complete = len(found) == key.per_row * rows and all(len(each) == 1 for each in found)
        return torch.cat(list(found[key.position :: key.per_row])) if complete else None
    whole = key.position < len(found) and len(found[key.position]) == rows
    return found[key.position] if whole else None
