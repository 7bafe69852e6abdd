"""Checks of points: those of the record and those of all cells, evaluated again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from saddlepoint.audits import Audit
from saddlepoint.audits.cells import AttackCell, Job, Recheck
from saddlepoint.audits.verdict import Check
from saddlepoint.describe import describe
from saddlepoint.evaluation import Episode
from saddlepoint.phrases import agree, count, count_of, noun_for, percent
from saddlepoint.reading import shown
from saddlepoint.runs.compare import differences, plain
from saddlepoint.runs.store import Store
from saddlepoint.runs.work import Work, torch_threads

_MARGIN = 1e-4  # tolerance for logits; predictions and accuracies must agree exactly
_SHOWN = 3  # problems in a message


def record_points(work: Work, audit: Audit) -> Iterator[Check]:
    """The images, labels and worst points of the record, against the data and the target."""
    job = work.plan.job
    if audit.x.shape != job.x.shape or audit.worst_points.shape != job.x.shape:
        shapes = f"images of shape {list(audit.x.shape)}, the data {list(job.x.shape)}"
        yield Check("images", False, f"the record holds {shapes}.")
        return
    points = audit.worst_points.to(job.x)
    different = ~(audit.x.to(job.x) == job.x).flatten(1).all(1)
    yield row_check("images", different, "equal the data", "differ from the data", "image")
    yield row_check(
        "labels", audit.y.to(job.y) != job.y, "equal the data", "differ from the data", "label"
    )
    inside = _inside(job, points, job.x)
    space = job.threat.space
    yield row_check("inside", ~inside, f"lie within {space}", f"lie outside {space}")
    if inside.all():
        yield from _scores(work, audit, points)


def _inside(job: Job, points: Tensor, x: Tensor) -> Tensor:
    return points.isfinite().flatten(1).all(1) & job.threat.space.contains(points, x)


def _scores(work: Work, audit: Audit, points: Tensor) -> Iterator[Check]:
    """Every worst point, evaluated again."""
    job = work.plan.job
    with torch_threads(work.threads):
        checked = Episode.joined([job.recheck(points[rows], rows) for rows in job.groups])
    correct = checked.correct[0].cpu()
    predicted = checked.answered[0].cpu()
    yield row_check(
        "answers",
        (correct != audit.correct) | (predicted != audit.answered),
        "have the recorded prediction",
        "have another prediction than recorded",
    )
    margin = checked.margin[0].cpu()
    recorded = audit.examples
    same = torch.isclose(margin, recorded.margin, rtol=_MARGIN, atol=_MARGIN, equal_nan=True)
    same &= torch.isclose(checked.size.cpu(), recorded.size, rtol=_MARGIN, atol=1e-7)
    yield row_check(
        "margins",
        ~same,
        "have the recorded margin and size",
        "have another margin or size",
    )
    accuracy = float(correct.mean())
    message = (
        f"{percent(accuracy, 2)} of {count(len(correct), 'worst point')} are classified correctly, "
    )
    equal = accuracy == audit.robust_accuracy
    message += "as recorded." if equal else f"but {percent(audit.robust_accuracy, 2)} are recorded."
    yield Check("accuracy", equal, message)


def cell_points(work: Work, store: Store, episodes: Mapping[str, Episode]) -> Check:
    """Every point of every attack cell, not only the worst ones, and the records of the cells.

    The points of a deterministic defense with independent rows are evaluated again.
    """
    problems: list[str] = []
    points = 0
    for cell, key in work.keys.items():
        episode = episodes[key]
        points += len(episode.points)
        problems += _cell_problems(work, cell, store.record(key), episode)
    total = f"{count(points, 'point')} of {count(len(work.keys), 'cell')}"
    if problems:
        more = f" … and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        return Check("attacks", False, f"{'; '.join(problems[:_SHOWN])}{more}.")
    what = "lie within the set and have the recorded predictions"
    if not _reproducible(work.plan.job):
        what = "lie within the set; they are not evaluated again, because predictions depend on "
        what += "random numbers or on the batch"
    return Check("attacks", True, f"{total} {what}.")


def _cell_problems(
    work: Work, cell: AttackCell, record: Mapping[str, Any], episode: Episode
) -> Iterator[str]:
    group, number = cell
    job = work.plan.job
    rows = job.groups[group]
    adversary = work.plan.adversaries[number]
    name = f"cells/{str(record['key'])[:12]}… ({adversary.name}, group {group})"
    expected = {
        "adversary": adversary.name,
        "group": group,
        "rows": [int(rows[0]), int(rows[-1])],
        "description": plain(describe(adversary)),
    }
    for field, found, wanted in differences({k: record.get(k) for k in expected}, expected):
        yield f"{name}, {field}: recorded {shown(found)}, recomputed {shown(wanted)}"
    x = job.x[rows]
    points = episode.points.to(x)
    if points.shape != x.shape:
        yield f"{name}: recorded points {list(points.shape)}, the data has {list(x.shape)}"
        return
    outside = ~_inside(job, points, x)
    if outside.any():
        first = int(rows[outside][0])
        number_outside = count(int(outside.sum()), "point")
        yield f"{name}: {number_outside} outside the set, first of image {first}"
    elif _reproducible(job):
        yield from _other_outcomes(work, rows, episode, name)


def _other_outcomes(work: Work, rows: Tensor, episode: Episode, name: str) -> Iterator[str]:
    with torch_threads(work.threads):
        again = Recheck(rows, episode.points).compute(work.plan.job)
    wrong = (again["correct"] != episode.correct).any(0)
    wrong |= (again["answered"] != episode.answered).any(0)
    close = torch.isclose(
        again["margin"], episode.margin, rtol=_MARGIN, atol=_MARGIN, equal_nan=True
    )
    wrong |= ~close.all(0)
    wrong |= ~torch.isclose(again["size"], episode.size, rtol=_MARGIN, atol=1e-7)
    if wrong.any():
        first = int(rows.cpu()[wrong][0])
        others = count(int(wrong.sum()), "other outcome")
        yield f"{name}: {others} than recorded, first of image {first}"


def _reproducible(job: Job) -> bool:
    return not job.defense.random and job.defense.unit == "example"


def outcomes(
    audit: Audit, run: Mapping[str, Any], store: Store, episodes: Mapping[str, Episode]
) -> Check:
    """Whether the accuracies follow from the cells, for a run of another version.

    The worst case over all adversaries is the minimum per image if predictions depend on one image
    only. Otherwise it cannot be recomputed without the plan of that version.
    """
    if run.get("random") is not False or run.get("unit") != "example":
        message = "predictions depend on random numbers or on the batch: the accuracy is that of "
        return Check("outcomes", True, f"{message}the worst points, evaluated again.")
    worst = torch.ones(audit.n, dtype=torch.float64)
    clean = torch.ones(audit.n, dtype=torch.float64)
    for key in run["cells"]:
        record = store.record(key)
        rows = slice(record["rows"][0], record["rows"][-1] + 1)
        correct = episodes[key].correct[0].double()
        if len(worst[rows]) != len(correct):
            return Check("outcomes", False, f"cell {key[:12]}…: rows are out of range.")
        worst[rows] = worst[rows].minimum(correct)
        if record.get("adversary") == "clean":
            clean[rows] = correct
    wrong = [
        f"audit.json, {name}: recorded {recorded}, recomputed {found}"
        for name, recorded, found in (
            ("robust_accuracy", audit.robust_accuracy, float(worst.mean())),
            ("clean_accuracy", audit.clean_accuracy, float(clean.mean())),
        )
        if abs(recorded - found) > 1e-9
    ]
    good = "clean and robust accuracy follow from the cells."
    return Check("outcomes", not wrong, "; ".join(wrong) or good)


def row_check(name: str, wrong: Tensor, good: str, bad: str, what: str = "worst point") -> Check:
    """A check with one answer per row, [N]."""
    if not wrong.any():
        return Check(name, True, f"{count(len(wrong), what)} {_agreed(len(wrong), good)}.")
    first = ", ".join(str(row) for row in wrong.nonzero().flatten()[:5].tolist())
    more = ", …" if wrong.sum() > 5 else ""
    found = int(wrong.sum())
    message = f"{count_of(found, len(wrong), what)} {_agreed(found, bad)}"
    return Check(name, False, f"{message}: {noun_for(found, 'example')} {first}{more}.")


def _agreed(n: int, text: str) -> str:
    """A text that begins with a verb in the plural, in agreement with a count."""
    verb, _, rest = text.partition(" ")
    return f"{agree(n, 'has' if verb == 'have' else f'{verb}s', verb)} {rest}"
