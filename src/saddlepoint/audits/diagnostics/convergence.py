"""Did the defense reach the fixed point that it is said to answer with, and did its gradient?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import torch
from torch import Tensor

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.oracle import grants
from saddlepoint.audits.cells import Job
from saddlepoint.audits.result import Level, Symptom
from saddlepoint.audits.target.answer import AnswerView, answer_is_not_last_view
from saddlepoint.defenses import Context, Defense
from saddlepoint.gradients import Backprop
from saddlepoint.rng import Keys
from saddlepoint.solvers import EquilibriumModel, SolverStats

_FAR = 0.1  # a relative residual that no tolerance explains
_FEW = 0.1  # of the images: more are not a few odd ones
_PROBE_ROWS = 32


def unsettled(job: Job, points: Tensor) -> Iterator[Symptom]:
    """Where solves, forward or backward, end far from a fixed point: on the images, or on the points that they were moved to."""
    first = _asked(job)[0][
        : 1 if job.defense.unit == "example" else None
    ]  # one that learns may have no answer for one image
    if _residual(job.defense, job.x[first], Keys.of(job.seed, first)) is None:
        return
    found = {
        name: _residuals(job, x)
        for name, x in (("clean", job.x), ("attacked", points.to(job.x.device)))
    }
    far = {name: residual for name, residual in found.items() if _share(residual)}
    if far:
        told = [
            f"{100 * _share(r):.0f} % of the {name} images (median residual {r.median():.2g})"
            for name, r in far.items()
        ]
        yield Symptom(
            "no fixed point", _level(max(map(_share, far.values()))),
            f"the solver stops with a relative residual above {_FAR:g} on {' and '.join(told)}: what is answered there is no "
            "equilibrium, and the implicit gradient is not its slope. Give the solver more steps, and judge by attacks through "
            "them (rules Checkpointed and Phantom).",
        )  # fmt: skip
    residual = _adjoint_residuals(job)
    if _share(residual):
        yield Symptom(
            "gradient not solved for", _level(_share(residual)),
            f"the backward solve stops with a relative residual above {_FAR:g} on {100 * _share(residual):.0f} % of "
            f"{len(residual)} images: the implicit gradient is not what it says. Give its method more steps, or use another rule.",
        )  # fmt: skip


def _residuals(job: Job, x: Tensor) -> Tensor:  # [N]
    parts = [_residual(job.defense, x[ids], Keys.of(job.seed, ids)) for ids in _asked(job)]
    return torch.cat([part for part in parts if part is not None]).double().cpu()


def _asked(job: Job) -> tuple[Tensor, ...]:
    """Row numbers that are asked about together."""
    whole = job.threat.rounds == "one" and job.defense.unit != "example"
    return torch.split(
        torch.arange(len(job.x), device=job.x.device), len(job.x) if whole else job.batch_size
    )


def _residual(defense: Defense, x: Tensor, keys: Keys) -> Tensor | None:
    """[N] how near to a fixed point the answers are made; None of a defense that looks for none."""
    with torch.no_grad():
        if isinstance(defense, EquilibriumModel):
            return defense.settled(x).residual
        ctx = Context(keys, keep=defense.reads)
        defense.respond(x, ctx)
    solve_info = [ending.residual for site in ctx.solve_info.values() for ending in site]
    return torch.stack(solve_info).amax(0) if solve_info else None


def _adjoint_residuals(job: Job) -> Tensor:
    """[n] of the backward solves behind one gradient of the first images; 0 where there are none."""
    count = min(_PROBE_ROWS, job.batch_size)
    x = job.x[:count]
    y = job.y[:count]
    stats = SolverStats.of(len(x), x.device)
    if grants(job.defense.grants, "gradient"):
        aimed_at = AnswerView(job.defense) if answer_is_not_last_view(job.defense) else job.defense
        objective = AttackObjective([aimed_at], y, cross_entropy, stats=stats)
        with suppress(
            ValueError, RuntimeError
        ):  # a gradient that is cut on its way is told elsewhere
            Backprop().value_and_grad(
                objective, x, Keys.of(job.seed, torch.arange(len(x), device=x.device))
            )
    return stats.adjoint_residual.cpu()


def _share(residual: Tensor) -> float:
    return float((residual > _FAR).double().mean())


def _level(share: float) -> Level:
    return "serious" if share > _FEW else "warning"
