"""Audits made by hand: real digits with invented outcomes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from saddlepoint.attacks.spaces import Linf
from saddlepoint.audits.diagnostics.loss_curve import LossCurve
from saddlepoint.audits.result import Audit, Examples, Item, Row, Symptom
from saddlepoint.audits.statistics import wilson
from saddlepoint.audits.verdict import ItemName, Level, State, SymptomName
from saddlepoint.data import load_data
from saddlepoint.describe import describe
from saddlepoint.evaluation import Threat
from saddlepoint.reports.context import ReportContext
from saddlepoint.reports.html import page as render

# name, share of the images it breaks, forward and backward passes per image
_ATTACKS = (
    ("apgd-ce", 0.31, 10.2, 10.0),
    ("apgd-dlr", 0.04, 13.5, 13.1),
    ("apgd-t", 0.02, 60.3, 59.4),
    ("square", 0.0, 170.0, 0.0),
)
_COMMAND = (
    "saddlepoint audit net.py:make --data digits --n 200 --norm linf --eps 0.1 --budget standard "
    "--seed 0"
)

CHECKLIST = (
    Item(ItemName.WHITE_BOX, State.PASS, "59.0 % under apgd-ce."),
    Item(ItemName.RANDOMNESS, State.NOT_APPLICABLE, "the defense is not randomized."),
    Item(ItemName.BLACK_BOX, State.PASS, "53.0 % under square."),
)

SYMPTOMS = (
    Symptom(
        SymptomName.LABELS_ONLY,
        Level.NOTE,
        "the callable returns labels: only decision-based attacks are possible.",
    ),
    Symptom(
        SymptomName.RANDOM_OUTPUTS,
        Level.WARNING,
        "two calls on the same images differ by up to 0.2: the model is treated as random.",
    ),
    Symptom(
        SymptomName.ZERO_GRADIENTS,
        Level.SERIOUS,
        "the gradient is exactly zero on 16 of 16 images. Name the step with ctx.through.",
    ),
)


def a_loss_curve(images: int, end: int, points: int = 64) -> LossCurve:
    """1 - exp(-5 t) from 0 to `end` passes; without a value at the first point.

    A fifth of the images is misclassified at its end.
    """
    stride = max(end // points, 1)
    passes = tuple(range(stride, end + 1, stride))[:points]
    value = [1 - math.exp(-5 * p / end) for p in passes]
    return LossCurve(
        passes, (images,) * len(passes), tuple(0.2 * v for v in value), (None, *value[1:])
    )


def a_threat(radius: float) -> dict[str, Any]:
    """The fields of an audit that describe an L-infinity threat."""
    threat = Threat(Linf(radius))
    return {"threat": str(threat), "threat_description": describe(threat)}


def an_audit(n: int = 200, **changes: Any) -> Audit:
    """Every tenth image is misclassified without attack; the attacks break others in turn.

    Perturbations are +-0.1 per pixel.
    """
    data = load_data("digits", n=n)
    rows, winner = _rows(n)
    broken = len(winner)
    winner += ["square"] * (n - broken)
    correct = (torch.arange(n) >= broken).double()
    points = _perturbed(data.x, winner)
    robust = float(correct.mean())
    audit = Audit(
        target="net.py:make",
        **a_threat(0.1),
        budget="standard",
        seed=0,
        n=n,
        clean_accuracy=0.9,
        robust_accuracy=robust,
        interval=wilson(robust, n),
        rows=rows,
        symptoms=(),
        versions={"saddlepoint": "0.1.0", "torch": "2.4", "python": "3.11"},
        x=data.x,
        y=data.y,
        worst_points=points,
        correct=correct,
        answered=torch.where(correct > 0, data.y, (data.y * 3 + 1) % 10),
        examples=Examples(
            winner=tuple(winner),
            margin=(broken - torch.arange(n) - 0.5) / 50,  # positive where misclassified
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
        command=_COMMAND,
    )
    return replace(audit, **changes)


def _rows(n: int) -> tuple[tuple[Row, ...], list[str]]:
    """The attacks, and the winning attack of each misclassified image."""
    rows = []
    remaining = 0.9
    winner = ["clean"] * (n // 10)
    for name, gain, forward, backward in _ATTACKS:
        attacked = round(remaining * n)
        remaining = remaining - gain
        winner += [name] * round(gain * n)
        curve = a_loss_curve(attacked, int(forward))
        rows.append(
            Row(
                name=name,
                robust_accuracy=remaining + 0.02,
                running=remaining,
                gain=gain,
                attacked=attacked,
                forward=forward,
                backward=backward,
                seconds=1.5,
                copies=0,
                loss_curve=curve,
            )
        )
    return tuple(rows), winner


def _perturbed(x: Tensor, winner: list[str]) -> Tensor:
    signs = torch.where(torch.arange(x.numel()).view_as(x) % 3 == 0, 0.1, -0.1)
    attacked = torch.tensor([name != "clean" for name in winner]).view(-1, 1, 1, 1)
    return torch.where(attacked, (x + signs).clamp(0, 1), x)


def page(audit: Audit) -> str:
    """The report of an audit that was not saved as a run."""
    return render(ReportContext(audit))


def a_large_audit(n: int = 10_000, attacks: int = 30) -> Audit:
    """Color images of noise under many attacks; each attack breaks the same number of images."""
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(n, 3, 32, 32, generator=draw)
    y = torch.arange(n) % 100
    names = [f"attack-{k:02d}" for k in range(attacks)]
    broken_by_each = n // (2 * attacks)
    # The first attack breaks the first images, and so on; half of the images are not broken.
    owner = torch.arange(n) // broken_by_each
    correct = (owner >= attacks).double()
    points = (x + 8 / 255 * torch.randn(x.shape, generator=draw).sign()).clamp(0, 1)
    robust = float(correct.mean())
    return replace(
        an_audit(10),
        **a_threat(8 / 255),
        n=n,
        x=x,
        y=y,
        worst_points=points,
        correct=correct,
        answered=torch.where(correct > 0, y, (y + 1 + owner) % 100),
        clean_accuracy=1.0,
        robust_accuracy=robust,
        interval=wilson(robust, n),
        rows=tuple(_large_row(name, k, n, broken_by_each) for k, name in enumerate(names)),
        seconds=375.0,
        classes=tuple(f"class {k}" for k in range(100)),
        examples=Examples(
            winner=tuple(names[min(k, attacks - 1)] for k in owner.tolist()),
            margin=torch.randn(n, generator=draw),
            size=torch.rand(n, generator=draw) * 8 / 255,
            forward=torch.full((n,), 3435),
            backward=torch.full((n,), 2970),
            draws=1,
            verified=torch.ones(n, dtype=torch.bool),
        ),
    )


def _large_row(name: str, k: int, n: int, broken_by_each: int) -> Row:
    remaining = 1 - (k + 1) * broken_by_each / n
    return Row(
        name=name,
        robust_accuracy=0.5 + 0.5 * remaining,
        running=remaining,
        gain=broken_by_each / n,
        attacked=n - k * broken_by_each,
        forward=100.0 + k,
        backward=99.0,
        seconds=12.5,
        copies=0,
        loss_curve=a_loss_curve(n, 64 * (k + 1)),
    )
