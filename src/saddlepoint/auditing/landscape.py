"""The objective around an image and on the way to its worst point, looked at with plain forward passes."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from saddlepoint.attack.goal import Goal
from saddlepoint.attack.loss import margin
from saddlepoint.attack.oracle import grants
from saddlepoint.auditing.answering import Answering, answers_otherwise
from saddlepoint.auditing.cell import Job
from saddlepoint.coins import Coins
from saddlepoint.gradients import Backprop, EoT, Estimator, Reading

_NEAR = 0.05  # of the radius: what changes all within so little is no landscape
_LOOKS = 8
_DRAWS = 8


def around(job: Job, rows: Tensor) -> tuple[Tensor, Tensor]:
    """[K, n] margins at random points very near to the images, and [n] at the images themselves, with the same coins."""
    space = replace(job.threat.space, radius=_NEAR * job.threat.space.radius)
    x, coins = job.x[rows], Coins.of(job.seed, rows)
    near = [_read(job, space.sample(x, coins.fold(k + 1)), rows).value for k in range(_LOOKS)]
    return torch.stack(near).double().cpu(), _read(job, x, rows).value.double().cpu()


def along(job: Job, rows: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """[K, n] margins at equal steps from the images to these points, the last one included, and where they fool, [K, n]."""
    x = job.x[rows]
    readings = [_read(job, x + t / _LOOKS * (points.to(x) - x), rows) for t in range(1, _LOOKS + 1)]
    return torch.stack([r.value for r in readings]).double().cpu(), torch.stack([r.success for r in readings]).cpu()


def agreement(job: Job, rows: Tensor) -> Tensor | None:
    """Cosine of the margin's gradients at two random points very near to an image, of images that have them; None if none has."""
    if not (grants(job.defense.grants, "gradient") and grants(job.threat.access, "gradient")):
        return None
    space = replace(job.threat.space, radius=_NEAR * job.threat.space.radius)
    x, coins = job.x[rows], Coins.of(job.seed, rows)
    try:
        slopes = [_estimator(job).slope(_goal(job, rows), space.sample(x, coins.fold(k)), coins) for k in (1, 2)]
    except (ValueError, RuntimeError):
        return None  # what cannot be differentiated is told elsewhere
    first, second = (slope.grad.flatten(1).double().nan_to_num(0.0, 0.0, 0.0) for slope in slopes)
    both = (first != 0).any(1) & (second != 0).any(1)
    return torch.cosine_similarity(first, second)[both].cpu() if both.any() else None


def _goal(job: Job, rows: Tensor) -> Goal:
    aimed_at = Answering(job.defense) if answers_otherwise(job.defense) else job.defense
    return Goal([aimed_at], job.y[rows], margin, respond=job.defense.memory != "none")


def _read(job: Job, x: Tensor, rows: Tensor) -> Reading:
    return _estimator(job).read(_goal(job, rows), x, Coins.of(job.seed, rows))


def _estimator(job: Job) -> Estimator:
    return EoT(_DRAWS) if job.defense.random else Backprop()
