"""The objective around an image and on the way to its worst point, looked at with plain forward passes."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from saddlepoint.attacks.losses import margin
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.oracle import grants
from saddlepoint.audits.cells import Job
from saddlepoint.audits.target.answer import AnswerView, answer_is_not_last_view
from saddlepoint.gradients import Backprop, EoT, Estimator, Evaluation
from saddlepoint.rng import Keys

_NEAR = 0.05  # of the radius: what changes all within so little is no landscape
_LOOKS = 8
_DRAWS = 8


def around(job: Job, rows: Tensor) -> tuple[Tensor, Tensor]:
    """[K, n] margins at random points very near to the images, and [n] at the images themselves, with the same coins."""
    space = replace(job.threat.space, radius=_NEAR * job.threat.space.radius)
    x = job.x[rows]
    keys = Keys.of(job.seed, rows)
    near = [_read(job, space.sample(x, keys.fold_in(k + 1)), rows).value for k in range(_LOOKS)]
    return torch.stack(near).double().cpu(), _read(job, x, rows).value.double().cpu()


def along(job: Job, rows: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """[K, n] margins at equal steps from the images to these points, the last one included, and where they fool, [K, n]."""
    x = job.x[rows]
    evaluated = [
        _read(job, x + t / _LOOKS * (points.to(x) - x), rows) for t in range(1, _LOOKS + 1)
    ]
    return torch.stack([r.value for r in evaluated]).double().cpu(), torch.stack(
        [r.success for r in evaluated]
    ).cpu()


def agreement(job: Job, rows: Tensor) -> Tensor | None:
    """Cosine of the margin's gradients at two random points very near to an image, of images that have them; None if none has."""
    if not (grants(job.defense.grants, "gradient") and grants(job.threat.access, "gradient")):
        return None
    space = replace(job.threat.space, radius=_NEAR * job.threat.space.radius)
    x = job.x[rows]
    keys = Keys.of(job.seed, rows)
    try:
        slopes = [
            _estimator(job).value_and_grad(
                _objective(job, rows), space.sample(x, keys.fold_in(k)), keys
            )
            for k in (1, 2)
        ]
    except (ValueError, RuntimeError):
        return None  # what cannot be differentiated is told elsewhere
    first, second = (slope.grad.flatten(1).double().nan_to_num(0.0, 0.0, 0.0) for slope in slopes)
    both = (first != 0).any(1) & (second != 0).any(1)
    return torch.cosine_similarity(first, second)[both].cpu() if both.any() else None


def _objective(job: Job, rows: Tensor) -> AttackObjective:
    aimed_at = AnswerView(job.defense) if answer_is_not_last_view(job.defense) else job.defense
    return AttackObjective([aimed_at], job.y[rows], margin, respond=job.defense.memory != "none")


def _read(job: Job, x: Tensor, rows: Tensor) -> Evaluation:
    return _estimator(job).evaluate(_objective(job, rows), x, Keys.of(job.seed, rows))


def _estimator(job: Job) -> Estimator:
    return EoT(_DRAWS) if job.defense.random else Backprop()
