"""The search for hidden exits: forced decisions, and class scores that appear with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from saddlepoint.audits.target.decisions import NUMBERS, DecisionRecord, Scores, Site
from saddlepoint.audits.target.exits import HiddenExits, Key, Selection, scores_of
from saddlepoint.defenses import Context, Defense

_MOST_EXITS = 6  # more are left out evenly: each costs attacks
_MOST_SITES = 8  # decisions that are forced one after the other
_MOST_PATHS = 3  # images with different paths on which forced decisions are tried
_SAME = 1e-3  # relative difference below which two scores are the same
_CONVERGED = 0.05  # part of the median lead of the predicted class
_ABOVE_CHANCE = 1.5  # standard deviations


class Recorder(NamedTuple):
    """Runs a model on some images and records what it decides."""

    defense: Defense
    x: Tensor  # [N, ...]
    ctx: Context

    def first(self) -> DecisionRecord:
        """All images, without scores, which need the number of classes."""
        record = DecisionRecord(len(self.x), 0)
        with torch.no_grad(), record:
            record.output = self.defense.trace(self.x, self.ctx).last
        return record

    def run(
        self,
        classes: int,
        rows: Tensor | None = None,
        forced: Mapping[Site, bool] = MappingProxyType({}),
        *,
        limit: int | None = None,
        gradients: bool = False,
    ) -> DecisionRecord | None:
        """A recorded call; None if it fails, which forced decisions may cause.

        Args:
            classes: number of classes.
            rows: some of the images, [M]; default all.
            forced: the result of each forced site; default none.
            limit: operations after which a call is ended; default no limit.
            gradients: keep gradients of scores; default False.
        """
        images = self.x if rows is None else self.x[rows]
        keys = self.ctx.keys if rows is None else self.ctx.keys[rows]
        record = DecisionRecord(len(images), classes, forced, limit)
        try:
            with torch.set_grad_enabled(gradients), record:
                images = images.detach().requires_grad_(gradients)
                record.images = images
                record.output = self.defense.trace(images, Context(keys)).last
        # Forced decisions may contradict what the code of the model relies on.
        except Exception:
            return None
        return record


def find_exits(recorder: Recorder, first: DecisionRecord, y: Tensor) -> HiddenExits | None:
    """The hidden exits of a model; None if there are fewer than two or no decision matters.

    The decisions are forced one after the other, each to the result with which the model computes
    more class scores. A decision matters if the output changes with it.

    Args:
        recorder: runs a model that gives the same outputs at every call.
        first: the record of `Recorder.first`.
        y: labels, [N].
    """
    output = first.output
    assert output is not None, "the call has ended"
    if not (first.decisions or first.chooses):
        return None
    limit = 20 * len(y) * (len(first.operations) + 50)
    trials = _Trials(recorder, output, limit)
    paths = trials.different_paths()
    forced, matters = trials.longest_path(paths)
    record = recorder.run(output.shape[1], None, forced, gradients=True)
    alone = recorder.run(output.shape[1], torch.tensor([0]), forced)
    if record is None or alone is None:
        return None
    if trials.converged(paths, forced):
        return None
    found = _exits_of(record, alone, forced, output, y)
    if found is None or not (matters or (first.chooses and not found.selected)):
        return None
    return found


class _Trial(NamedTuple):
    score: int  # rows of class scores; -1 if a call failed
    sites: tuple[Site, ...]
    results: dict[Site, set[bool]]
    changed: bool  # the outputs of the batch are not those without forced decisions


class _Path(NamedTuple):
    forced: dict[Site, bool]
    matters: bool  # a forced decision changes an output


@dataclass(frozen=True)
class _Trials:
    """Calls with forced decisions."""

    recorder: Recorder
    output: Tensor  # [N, C] without forced decisions
    limit: int

    def different_paths(self) -> list[Tensor | None]:
        """The batch, and single images with different paths."""
        found: dict[object, Tensor] = {}
        for k in range(0 if self.recorder.defense.coupled else len(self.output)):
            row = torch.tensor([k])
            record = self.recorder.run(self.output.shape[1], row)
            if record is not None and len(found) < _MOST_PATHS:
                found.setdefault(record.path, row)
        return [None, *found.values()]

    def longest_path(self, batches: Sequence[Tensor | None]) -> _Path:
        """The results of decisions with which most class scores are computed."""
        forced: dict[Site, bool] = {}
        best, sites, results, _ = self._try(batches, forced)
        tried: set[Site] = set()
        matters = False
        while len(tried) < _MOST_SITES:
            remaining = [site for site in sites if site not in tried]
            if not remaining:
                break
            # The value of a number is forced only if its comparisons do not help.
            site = min(remaining, key=lambda each: each.function in NUMBERS)
            tried.add(site)
            for option in (False, True):
                trial = self._try(batches, {**forced, site: option})
                matters |= trial.changed
                # A decision with one result on all images is forced to it, in case others differ.
                constant = results.get(site) == {option}
                if trial.score > best or (trial.score == best and constant):
                    forced = {**forced, site: option}
                    sites = (*sites, *trial.sites)
                    best = trial.score
        return _Path(forced, matters)

    def converged(self, batches: Iterable[Tensor | None], forced: Mapping[Site, bool]) -> bool:
        """Whether longer paths give almost the same outputs: those of a solver that converged."""
        best = self.output.topk(2, dim=1).values
        lead = (best[:, 0] - best[:, 1]).median()
        longer = False
        for rows in batches:
            usual = self.recorder.run(self.output.shape[1], rows)
            longest = self.recorder.run(self.output.shape[1], rows, forced)
            if usual is None or longest is None or usual.output is None or longest.output is None:
                return False
            longer |= len(longest.operations) > len(usual.operations)
            if bool((longest.output - usual.output).abs().amax() >= _CONVERGED * lead):
                return False
        return longer

    def _try(self, batches: Iterable[Tensor | None], forced: dict[Site, bool]) -> _Trial:
        total = 0
        changed = False
        sites: dict[Site, None] = {}
        results: dict[Site, set[bool]] = {}
        for rows in batches:
            record = self.recorder.run(self.output.shape[1], rows, forced, limit=self.limit)
            if record is None:
                return _Trial(-1, (), {}, changed)
            if rows is None and record.output is not None:
                same = record.output.shape == self.output.shape
                changed = not same or not torch.allclose(record.output, self.output, rtol=1e-4)
            total += sum(len(scores.logits) for scores in record.scores)
            sites.update(dict.fromkeys(record.sites))
            for decision in record.decisions:
                results.setdefault(decision.site, set()).update(decision.result)
        return _Trial(total, tuple(sites), results, changed)


def _exits_of(
    record: DecisionRecord,
    alone: DecisionRecord,
    forced: dict[Site, bool],
    output: Tensor,
    y: Tensor,
) -> HiddenExits | None:
    exits: list[tuple[int, Key, Tensor]] = []
    for key, time in _keys(record.scores, alone.scores, record.rows):
        logits = scores_of(record, key)
        assert logits is not None, "only complete results have keys"
        # Scores that are a selection of earlier ones add nothing.
        known = [_same(logits.detach(), other) for _, _, other in exits]
        new = not known or not torch.stack(known).any(0).all()
        if new and _depends(logits, record) and _classifies(logits.detach(), output, y):
            # Scores to which a bias was added are replaced by the sum.
            exits = [each for each in exits if not _differ_by_bias(each[2], logits.detach())]
            exits.append((time, key, logits.detach()))
    if len(exits) < 2:
        return None
    covered = torch.stack([_same(logits, output) for _, _, logits in exits]).any(0)
    left_out = max(len(exits) - _MOST_EXITS, 0)
    if left_out:
        kept = torch.linspace(0, len(exits) - 1, _MOST_EXITS).round().long().tolist()
        exits = [exits[k] for k in kept]
    times = [time for time, _, _ in exits]
    return HiddenExits(
        tuple(forced.items()),
        tuple(key for _, key, _ in exits),
        _selections(record, alone, forced, times),
        bool(covered.all()),
        left_out,
    )


def _keys(found: Sequence[Scores], alone: Sequence[Scores], rows: int) -> list[tuple[Key, int]]:
    """The key and the time of all results that exist for all rows.

    Rows that are run one by one give the results of row 0 first, in the order of row 0 alone.
    """
    keys: list[tuple[Key, int]] = []
    for site in dict.fromkeys(scores.site for scores in found):
        here = [scores for scores in found if scores.site == site]
        if all(len(scores.logits) == 1 for scores in here) and rows > 1:
            single = [scores for scores in alone if scores.site == site]
            count = len(single)
            same = count and len(here) == count * rows
            pairs = zip(here, single, strict=False)
            if same and all(torch.allclose(a.logits, b.logits, rtol=1e-3) for a, b in pairs):
                keys += [(Key(site, j, count), here[j].time) for j in range(count)]
        else:
            whole = [k for k, scores in enumerate(here) if len(scores.logits) == rows]
            keys += [(Key(site, k), here[k].time) for k in whole]
    return sorted(keys, key=lambda each: each[1])


def _selections(
    record: DecisionRecord, alone: DecisionRecord, forced: dict[Site, bool], times: Sequence[int]
) -> tuple[tuple[Selection, ...], ...]:
    """For each exit: earlier comparisons have the forced result, the first later one has not."""
    scored = [
        Scores(d.site, d.time, d.lead[:, None])
        for d in record.decisions
        if d.lead is not None and d.site in forced
    ]
    single = [
        Scores(d.site, d.time, d.lead[:, None])
        for d in alone.decisions
        if d.lead is not None and d.site in forced
    ]
    keys = _keys(scored, single, record.rows)
    found = []
    for k, time in enumerate(times):
        next_exit = times[k + 1] if k + 1 < len(times) else None
        passed = [Selection(key, forced[key.site]) for key, at in keys if at < time]
        after = [key for key, at in keys if at > time and (next_exit is None or at < next_exit)]
        stops = [Selection(key, not forced[key.site]) for key in after[:1]]
        found.append((*passed, *stops))
    return tuple(found)


def _depends(logits: Tensor, record: DecisionRecord) -> bool:
    """Whether gradients of scores reach the images; weights may have the shape of scores."""
    if not logits.requires_grad or record.images is None:
        return False
    (grad,) = torch.autograd.grad(logits.sum(), record.images, retain_graph=True, allow_unused=True)
    return grad is not None


def _classifies(logits: Tensor, output: Tensor, y: Tensor) -> bool:
    """Whether scores predict labels or outputs better than chance, or equal some outputs."""
    n, classes = logits.shape
    predicted = logits.argmax(1)
    if not logits.isfinite().all() or bool((logits == logits[:1]).all()):
        return False
    mean = n / classes
    bound = mean + _ABOVE_CHANCE * (mean * (1 - 1 / classes)) ** 0.5
    hits = max(int((predicted == y).sum()), int((predicted == output.argmax(1)).sum()))
    return hits > bound or bool(_same(logits, output).any())


def _same(logits: Tensor, other: Tensor) -> Tensor:
    """[N] whether scores of a row are equal up to a shift, a softmax and a common scale."""
    equal = [
        (scale * a - b).norm(dim=1) < _SAME * b.norm(dim=1)
        for a in _centered(logits)
        for b in _centered(other)
        for scale in (1.0, float((a * b).sum() / (a * a).sum().clamp(min=1e-30)))
    ]
    return torch.stack(equal).any(0)


def _differ_by_bias(scores: Tensor, other: Tensor) -> bool:
    """Whether the difference of two scores is the same in all rows."""
    difference = other - scores
    varying = difference - difference.mean(0)
    return len(scores) > 1 and bool(varying.norm() < _SAME * (scores - scores.mean(0)).norm())


def _centered(scores: Tensor) -> list[Tensor]:
    """The scores, and their logarithms if they may be probabilities, each with mean zero."""
    forms = [scores.double()]
    if bool((scores >= 0).all()):
        forms.append(scores.double().clamp(min=1e-30).log())
    return [form - form.mean(1, keepdim=True) for form in forms]
