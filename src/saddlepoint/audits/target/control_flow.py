"""Jumps of the output where the control flow of a model changes."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from saddlepoint.audits.target.decisions import DecisionRecord
from saddlepoint.audits.target.exit_search import Recorder
from saddlepoint.defenses import Context

# A jump counts if it is larger than this part of the median lead of the predicted class. A solver
# that stops at a tolerance jumps by about its tolerance.
_LARGE_JUMP = 0.2
_MOST_PAIRS = 3
_BISECTIONS = 18  # after which two points differ by less than 1e-5 of their distance


class Jump(NamedTuple):
    """The output on both sides of a border between two paths."""

    size: float  # largest change of a logit, in units of the median lead of the predicted class
    place: str  # source line of the first decision with another result; empty: not known


def find_jump(recorder: Recorder, first: DecisionRecord) -> Jump | None:
    """The largest jump between two points with different paths; None if there is no large one.

    Two images with different operations or results of decisions are connected by a line. Bisection
    finds two points on it that are close to each other and still have different paths. The output
    of a continuous model is almost the same at both, whatever its control flow: a solver may stop
    after another number of steps. An output that jumps has hidden branches.

    Args:
        recorder: runs a deterministic model with independent rows.
        first: the record of `Recorder.first`.
    """
    output = first.output
    assert output is not None, "the call has ended"
    if not first.decisions:
        return None
    records = [_run(recorder, image) for image in recorder.x]
    images: dict[object, Tensor] = {}
    for record, image in zip(records, recorder.x, strict=True):
        images.setdefault(record.path, image)
    best = output.topk(2, dim=1).values
    lead = float((best[:, 0] - best[:, 1]).median())
    pairs = list(pairwise(images.values()))[:_MOST_PAIRS]
    jumps = [_jump(recorder, a, b, lead) for a, b in pairs]
    return max((jump for jump in jumps if jump.size > _LARGE_JUMP), default=None)


def _jump(recorder: Recorder, start: Tensor, end: Tensor, lead: float) -> Jump:
    path = _run(recorder, start).path
    for _ in range(_BISECTIONS):
        middle = (start + end) / 2
        if _run(recorder, middle).path == path:
            start = middle
        else:
            end = middle
    before = _run(recorder, start)
    after = _run(recorder, end)
    assert before.output is not None
    assert after.output is not None
    size = float((before.output - after.output).abs().amax()) / max(lead, 1e-12)
    places = [
        str(a.site)
        for a, b in zip(before.decisions, after.decisions, strict=False)
        if a.result != b.result
    ]
    return Jump(size, places[0] if places else "")


def _run(recorder: Recorder, image: Tensor) -> DecisionRecord:
    record = DecisionRecord(1, 0)
    keys = recorder.ctx.keys[torch.tensor([0])]
    with torch.no_grad(), record:
        record.output = recorder.defense.trace(image[None], Context(keys)).last
    return record
