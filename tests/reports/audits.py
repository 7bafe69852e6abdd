"""Audits made by hand: real digits, invented outcomes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from saddlepoint.audits.diagnostics.loss_curve import LossCurve
from saddlepoint.audits.result import Audit, Examples, Item, Row, Symptom
from saddlepoint.audits.statistics import wilson
from saddlepoint.data import load_data
from saddlepoint.reports.context import Subject
from saddlepoint.reports.html import page as render

_ATTACKS = (
    ("apgd-ce", 0.31, 10.2, 10.0),
    ("apgd-dlr", 0.04, 13.5, 13.1),
    ("apgd-t", 0.02, 60.3, 59.4),
    ("square", 0.0, 170.0, 0.0),
)


CHECKLIST = (
    Item("white-box attacks on the full defense", "pass", "apgd-ce leaves 59.0 %."),
    Item("randomness averaged or fixed", "does not apply", "the defense tosses no coins."),
    Item("black-box attacks", "pass", "square leaves 53.0 %."),
)


def an_ascent(images: int, end: int, points: int = 64) -> LossCurve:
    """1 - exp(-5 t) on the way from 0 to `end` passes, a fifth of the images fooled at its end; no value at the first place."""
    stride = max(end // points, 1)
    passes = tuple(range(stride, end + 1, stride))[:points]
    value = [1 - math.exp(-5 * p / end) for p in passes]
    return LossCurve(
        passes, (images,) * len(passes), tuple(0.2 * v for v in value), (None, *value[1:])
    )


def an_audit(n: int = 200, **changes: Any) -> Audit:
    """Every tenth image wrong from the start; others fall to the attacks in turn, the change being +-0.1 per pixel."""
    data = load_data("digits", n=n)
    rows = []
    left = 0.9
    owners = ["clean"] * (n // 10)
    for name, gain, forward, backward in _ATTACKS:
        attacked = round(left * n)
        left = left - gain
        owners += [name] * round(gain * n)
        rows.append(
            Row(
                name,
                left + 0.02,
                left,
                gain,
                attacked,
                forward,
                backward,
                1.5,
                0,
                an_ascent(attacked, int(forward)),
            )
        )
    fallen = len(owners)
    owners += ["square"] * (n - fallen)
    correct = (torch.arange(n) >= fallen).double()
    signs = torch.where(torch.arange(data.x.numel()).view_as(data.x) % 3 == 0, 0.1, -0.1)
    changed = torch.tensor([owner != "clean" for owner in owners]).view(-1, 1, 1, 1)
    points = torch.where(changed, (data.x + signs).clamp(0, 1), data.x)
    robust = float(correct.mean())
    audit = Audit(
        target="net.py:make",
        threat="Linf radius 0.1, gradient access, unlimited queries, private coins, judged over one draw",
        budget="standard",
        seed=0,
        n=n,
        clean_accuracy=0.9,
        robust_accuracy=robust,
        interval=wilson(robust, n),
        rows=tuple(rows),
        symptoms=(),
        versions={"saddlepoint": "0.1.0", "torch": "2.4", "python": "3.11"},
        x=data.x,
        y=data.y,
        worst_points=points,
        correct=correct,
        answered=torch.where(correct > 0, data.y, (data.y * 3 + 1) % 10),
        examples=Examples(
            winner=tuple(owners),
            margin=(fallen - torch.arange(n) - 0.5) / 50,  # positive where the answer is wrong
            size=(points - data.x).flatten(1).abs().amax(1),
            forward=torch.full((n,), 254),
            backward=torch.full((n,), 82),
            draws=1,
            verified=torch.ones(n, dtype=torch.bool),
        ),
        seconds=12.5,
        data="digits",
        classes=data.classes,
        checklist=CHECKLIST,
        command="saddlepoint audit net.py:make --data digits --n 200 --norm linf --eps 0.1 --budget standard --seed 0",
    )
    return replace(audit, **changes)


SYMPTOMS = (
    Symptom(
        "labels only",
        "note",
        "the callable answers with labels: only decision-based attacks are possible.",
    ),
    Symptom(
        "random answers",
        "warning",
        "two calls on the same images differ by up to 0.2: the model is treated as random.",
    ),
    Symptom(
        "vanishing gradients",
        "serious",
        "the gradient is exactly zero on 16 of 16 images. Name the step with ctx.through.",
    ),
)


def page(audit: Audit) -> str:
    """The report of an audit that was not kept as a run."""
    return render(Subject(audit))


def a_large_audit(n: int = 10_000, attacks: int = 30) -> Audit:
    """Color images of noise under many attacks, each of which takes its share."""
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(n, 3, 32, 32, generator=draw)
    y = torch.arange(n) % 100
    names = [f"attack-{k:02d}" for k in range(attacks)]
    taken = n // (2 * attacks)
    owner = (
        torch.arange(n) // taken
    )  # the first images fall to the first attack; half of them stand
    correct = (owner >= attacks).double()
    left = [1 - (k + 1) * taken / n for k in range(attacks)]
    rows = tuple(
        Row(
            name,
            0.5 + 0.5 * kept,
            kept,
            taken / n,
            n - k * taken,
            100.0 + k,
            99.0,
            12.5,
            0,
            an_ascent(n, 64 * (k + 1)),
        )
        for k, (name, kept) in enumerate(zip(names, left, strict=True))
    )
    points = (x + 8 / 255 * torch.randn(x.shape, generator=draw).sign()).clamp(0, 1)
    robust = float(correct.mean())
    small = an_audit(10)
    return replace(
        small, n=n, x=x, y=y, worst_points=points, correct=correct, answered=torch.where(correct > 0, y, (y + 1 + owner) % 100),
        clean_accuracy=1.0, robust_accuracy=robust, interval=wilson(robust, n), rows=rows, seconds=375.0,
        threat="Linf radius 8/255, gradient access, unlimited queries, private coins, judged over one draw",
        classes=tuple(f"class {k}" for k in range(100)),
        examples=Examples(
            winner=tuple(names[min(k, attacks - 1)] for k in owner.tolist()), margin=torch.randn(n, generator=draw),
            size=torch.rand(n, generator=draw) * 8 / 255, forward=torch.full((n,), 3435), backward=torch.full((n,), 2970), draws=1,
            verified=torch.ones(n, dtype=torch.bool),
        ),
    )  # fmt: skip
