"""The audit: check the target, send one adversary after the other, judge the worst points afresh."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from saddlepoint.attack.apgd import APGD
from saddlepoint.attack.loss import cross_entropy
from saddlepoint.attack.space import Ball, Linf
from saddlepoint.auditing.campaign import Campaign
from saddlepoint.auditing.check import check
from saddlepoint.auditing.result import Audit, Row
from saddlepoint.auditing.statistics import wilson
from saddlepoint.auditing.suite import SPENDING, Budget, compose
from saddlepoint.auditing.symptoms import Symptom
from saddlepoint.defense import Defense
from saddlepoint.game import Adversary, Direct, Episode, Stand, Threat, play
from saddlepoint.gradients import Backprop, EoT, Estimator

_SANITY_ROWS, _SANITY_STEPS = 64, 20


class Watch(Protocol):
    """Somebody who wants to know how far an audit is."""

    def plan(self, adversaries: tuple[str, ...]) -> None: ...
    def begin(self, adversary: str, examples: int) -> None: ...
    def advance(self, examples: int) -> None: ...
    def end(self, row: Row) -> None: ...


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
    defense, y = checked.defense, y.long()
    if defense.random and threat.draws == 1:
        threat = replace(threat, draws=SPENDING[budget].draws)
    campaign = Campaign(defense, x, y, threat, seed=seed, batch_size=batch_size)
    clean = campaign.send(Stand()).robust_accuracy
    for adversary in _announced(compose(defense, checked.classes, threat.space, budget), watch):
        _send(campaign, adversary, watch)
    # Fresh coins: a point that was worst by luck is not worst again.
    verdict = play(defense, Stand("verdict", campaign.points), x, y, threat, seed=seed + 1, batch_size=batch_size)
    robust = float(verdict.correct.mean())
    result = Audit(
        target=name or type(target).__name__,
        threat=str(threat),
        budget=budget,
        seed=seed,
        n=len(x),
        clean_accuracy=clean,
        robust_accuracy=robust,
        interval=wilson(robust, len(x)),
        rows=tuple(campaign.rows[1:]),
        symptoms=(*checked.findings, *_signs(campaign, verdict), *_unbounded(campaign)),
        versions={"saddlepoint": version("saddlepoint"), "torch": torch.__version__, "python": platform.python_version()},
        x=x,
        y=y,
        worst_points=campaign.points,
        correct=verdict.correct[0],
        answered=verdict.answered[0],
        winner=tuple(campaign.winner),
        seconds=time.perf_counter() - started,
    )
    if out is not None:
        result.to_html(result.save(out) / "report.html")
    return result


def _announced(adversaries: tuple[Adversary, ...], watch: Watch | None) -> tuple[Adversary, ...]:
    if watch:
        watch.plan(tuple(a.name for a in adversaries))
    return adversaries


def _send(campaign: Campaign, adversary: Adversary, watch: Watch | None) -> None:
    standing = len(campaign.standing())
    if not standing:
        return
    if watch is None:
        campaign.send(adversary)
        return
    watch.begin(adversary.name, standing)
    watch.end(campaign.send(adversary, watch.advance))


def _signs(campaign: Campaign, verdict: Episode) -> Iterator[Symptom]:
    """What the attacks themselves give away."""
    n, attacks = len(campaign.x), campaign.rows[1:]
    blind = [row for row in attacks if row.name in ("square", "rays")]
    seeing = [row for row in attacks if row not in blind]
    taken = sum(row.gain for row in blind)
    if seeing and taken * n >= 2 and taken >= 0.01:
        yield Symptom(
            "black box beats white box", "serious",
            f"attacks without gradients took {100 * taken:.1f} points from what gradient attacks had left: gradients are masked.",
        )  # fmt: skip
    if seeing and not blind and seeing[-1].gain * n >= 2 and seeing[-1].gain >= 0.01:
        yield Symptom(
            "not converged", "warning",
            f"the last attack, {seeing[-1].name}, still took {100 * seeing[-1].gain:.1f} points: a larger budget would take more.",
        )  # fmt: skip
    copies = sum(row.copies for row in attacks)
    if copies:
        yield Symptom(
            "clean copies", "warning", f"{copies} proposals were the clean image itself: the attack could not move there."
        )
    if not campaign.defense.random and not torch.equal(verdict.correct[0], campaign.correct):
        moved = int((verdict.correct[0] != campaign.correct).sum())
        yield Symptom(
            "re-scoring disagrees", "serious",
            f"{moved} of {n} answers changed when the same points were asked about again: the target keeps state or hides "
            "randomness.",
        )  # fmt: skip


def _unbounded(campaign: Campaign) -> Iterator[Symptom]:
    """With half the box as its radius an attack can turn any image grey: a defence that survives that hides its gradients."""
    if campaign.defense.grants != "gradient":
        return
    space, d = campaign.threat.space, campaign.x[0].numel()
    radius = (space.box[1] - space.box[0]) / 2 * d ** (1 / space.p)
    rows = (campaign.correct > 0).nonzero()[:_SANITY_ROWS, 0]
    if radius <= space.radius or not len(rows):
        return
    estimator: Estimator = EoT(8) if campaign.defense.random else Backprop()
    attack = Direct("unbounded", APGD(_SANITY_STEPS), loss=cross_entropy, estimator=estimator)
    wide = replace(campaign.threat, space=replace(space, radius=radius), queries=None)
    left = play(campaign.defense, attack, campaign.x[rows], campaign.y[rows], wide, ids=rows, seed=campaign.seed)
    accuracy = float(left.correct.mean())
    if accuracy > 0.1:
        yield Symptom(
            "unbounded attack fails", "serious",
            f"{100 * accuracy:.0f} % of {len(rows)} images survive {_SANITY_STEPS} steps with radius {radius:.3g}, which allows a "
            "grey image: the gradients do not lead anywhere.",
        )  # fmt: skip
