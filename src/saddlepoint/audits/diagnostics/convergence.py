"""Residuals of the solvers inside a defense."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.oracle import grants
from saddlepoint.audits.cells import Job, Measurement, Values
from saddlepoint.audits.target.answer import attacked_defense
from saddlepoint.defenses import Context, Defense
from saddlepoint.gradients import Backprop
from saddlepoint.rng import Keys
from saddlepoint.solvers import EquilibriumModel, SolverStats

_BACKWARD_ROWS = 32


@dataclass(frozen=True)
class MeasureResiduals(Measurement):
    """Residuals of forward solves on clean images and worst points, and of backward solves.

    Empty for a defense without a solver.
    """

    rows: Tensor  # [N] all rows
    points: Tensor  # [N, ...] worst points

    @property
    def name(self) -> str:
        return "solver residuals"

    def compute(self, job: Job) -> Values:
        batches = _batches(job)
        # A defense that adapts may have no output for a single image.
        first = batches[0][:1] if job.defense.unit == "example" else batches[0]
        if _residual(job.defense, job.x[first], Keys.of(job.seed, first)) is None:
            return {}
        return {
            "clean": _residuals(job, job.x, batches),
            "attacked": _residuals(job, self.points.to(job.x), batches),
            "backward": _backward_residuals(job),
        }


def _residuals(job: Job, x: Tensor, batches: tuple[Tensor, ...]) -> Tensor:  # [N]
    parts = [_residual(job.defense, x[ids], Keys.of(job.seed, ids)) for ids in batches]
    return torch.cat([part for part in parts if part is not None]).double().cpu()


def _batches(job: Job) -> tuple[Tensor, ...]:
    """Rows that are evaluated together."""
    whole = job.threat.rounds == "one" and job.defense.unit != "example"
    rows = torch.arange(len(job.x), device=job.x.device)
    return torch.split(rows, len(rows) if whole else job.batch_size)


def _residual(defense: Defense, x: Tensor, keys: Keys) -> Tensor | None:
    """[N] relative residuals behind the outputs; None for a defense without a solver."""
    with torch.no_grad():
        if isinstance(defense, EquilibriumModel):
            return defense.convergence(x).residual
        ctx = Context(keys, keep=defense.reads)
        defense.respond(x, ctx)
    residuals = [info.residual for site in ctx.solve_info.values() for info in site]
    return torch.stack(residuals).amax(0) if residuals else None


def _backward_residuals(job: Job) -> Tensor:
    """[n] of the backward solves of one gradient of the first images; 0 where there are none."""
    count = min(_BACKWARD_ROWS, job.batch_size)
    x = job.x[:count]
    stats = SolverStats.of(len(x), x.device)
    if grants(job.defense.grants, "gradient"):
        defense = attacked_defense(job.defense)
        objective = AttackObjective([defense], job.y[:count], cross_entropy, stats=stats)
        keys = Keys.of(job.seed, torch.arange(len(x), device=x.device))
        # A missing gradient is reported by another diagnostic.
        with suppress(ValueError, RuntimeError):
            Backprop().value_and_grad(objective, x, keys)
    return stats.adjoint_residual.cpu()
