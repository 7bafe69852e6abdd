"""The audit: check the target, send every adversary, judge the worst points afresh."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from saddlepoint.attack.space import Ball, Linf
from saddlepoint.auditing.cell import Group, Job
from saddlepoint.auditing.check import check
from saddlepoint.auditing.result import Audit, Row
from saddlepoint.auditing.statistics import wilson
from saddlepoint.auditing.suite import SPENDING, Budget, compose
from saddlepoint.auditing.symptoms import signs, unbounded
from saddlepoint.defense import Defense
from saddlepoint.game import Adversary, Stand, Threat


class Watch(Protocol):
    """Somebody who wants to know how far an audit is."""

    def plan(self, adversaries: tuple[str, ...], examples: int) -> None: ...
    def advance(self, adversary: str, examples: int, standing: int) -> None: ...


def audit(
    target: nn.Module | Defense | Callable[[Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat | Ball = Linf(8 / 255),  # noqa: B008
    budget: Budget = "standard",
    seed: int = 0,
    out: str | Path | None = None,
    device: str | torch.device | None = None,
    batch_size: int = 128,
    name: str | None = None,
    watch: Watch | None = None,
) -> Audit:
    """How robust is the target on these images? An upper bound, with an interval, symptoms, and the points that show it.

    `target` is an nn.Module that maps pixels in [0, 1] to logits, a `Defense`, or any callable on batches (then only gradient-free
    attacks are possible). `budget` is "quick", "standard" or "thorough". With `out`, record and HTML report are written there.
    """
    if budget not in SPENDING:
        raise ValueError(f"the budget is one of {', '.join(SPENDING)}, got {budget!r}.")
    started = time.perf_counter()
    threat = threat if isinstance(threat, Threat) else Threat(threat)
    if device is not None:
        x, y = x.to(device), y.to(device)
        target = target.to(device) if isinstance(target, nn.Module) else target
    checked = check(target, x, y, threat.space)
    if checked.defense.random and threat.draws == 1:
        threat = replace(threat, draws=SPENDING[budget].draws)
    job = Job(checked.defense, x, y.long(), threat, seed, batch_size)
    groups = _play(job, compose(checked.defense, checked.classes, threat.space, budget), watch)
    rows, correct = _rows(groups), torch.cat([g.verdict.correct[0] for g in groups])
    robust = float(correct.mean())
    result = Audit(
        target=name or type(target).__name__,
        threat=str(threat),
        budget=budget,
        seed=seed,
        n=len(x),
        clean_accuracy=float(torch.cat([g.outcomes.correct[0, 0] for g in groups]).mean()),
        robust_accuracy=robust,
        interval=wilson(robust, len(x)),
        rows=rows,
        symptoms=(*checked.findings, *signs(job, groups, rows), *unbounded(job)),
        versions={"saddlepoint": version("saddlepoint"), "torch": torch.__version__, "python": platform.python_version()},
        x=x,
        y=job.y,
        worst_points=torch.cat([g.points for g in groups]),
        correct=correct,
        answered=torch.cat([g.verdict.answered[0] for g in groups]),
        winner=tuple(name for g in groups for name in g.winner),
        seconds=time.perf_counter() - started,
    )
    if out is not None:
        result.to_html(result.save(out) / "report.html")
    return result


def _play(job: Job, adversaries: tuple[Adversary, ...], watch: Watch | None) -> list[Group]:
    if watch:
        watch.plan(tuple(a.name for a in adversaries), len(job.x))
    groups = []
    for rows in job.groups:
        episodes = [job.play(Stand(), rows)]
        for adversary in adversaries:
            episodes.append(job.play(adversary, rows))
            if watch:
                standing = torch.stack([e.correct[0] for e in episodes]).amin(0)
                watch.advance(adversary.name, len(rows), round(float(standing.sum())))
        groups.append(Group.of(job, rows, episodes))
    return groups


def _rows(groups: list[Group]) -> tuple[Row, ...]:
    """One row per adversary, in the order in which they were sent; the clean images are not a row."""
    n = sum(len(g.points) for g in groups)

    def running(upto: int) -> float:
        parts = [replace(g.outcomes, correct=g.outcomes.correct[:upto], chosen=g.outcomes.chosen[:upto]) for g in groups]
        return float(torch.cat([part.worst_case_per_example()[0] for part in parts]).mean())

    rows, before = [], running(1)
    for a, name in enumerate(groups[0].outcomes.adversaries[1:], start=1):
        episodes, after = [g.outcomes.episodes[a] for g in groups], running(a + 1)
        sent = [e.forward > 1 for e in episodes]  # one pass is the look that decided not to attack
        rows.append(
            Row(
                name=name,
                robust_accuracy=float(torch.cat([e.correct[0] for e in episodes]).mean()),
                running=after,
                gain=before - after,
                attacked=sum(int(s.sum()) for s in sent),
                forward=sum(float(e.forward.sum()) for e in episodes) / n,
                backward=sum(float(e.backward.sum()) for e in episodes) / n,
                seconds=sum(e.seconds for e in episodes),
                copies=sum(int((e.copies.cpu() & s).sum()) for e, s in zip(episodes, sent, strict=True)),
            )
        )
        before = after
    return tuple(rows)
