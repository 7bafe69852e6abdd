"""Diagnostics that run a variation of an attack on a few images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.history import History, Step
from saddlepoint.attacks.pgd import FGSM
from saddlepoint.audits.cells import Job, Measurement, Values
from saddlepoint.defenses import Defense, OutputError, Plain
from saddlepoint.evaluation import (
    Adversary,
    AdversaryWrapper,
    AttackContext,
    NaturalOrder,
    OtherKeys,
    RowSearch,
    from_starts,
)

_OTHER_SEED = 7919  # added to the seed: other random numbers for every image
_OTHER_STARTS = 7919  # added to the salt of random keys


def longer_attack(adversary: Adversary, salt: int) -> Adversary:
    """Twice the steps of an attack from two other starts; another salt gives other starts."""
    twice = adversary.map_direct(lambda direct: direct.scaled(2))
    # With the same random keys as before, the attack would only be repeated.
    return OtherKeys(from_starts(twice, 2), _OTHER_STARTS + salt)


@dataclass(frozen=True)
class RecordSteps(AdversaryWrapper):
    """The adversary with a detailed history of its oracle calls on some rows."""

    steps: list[Step]
    ids: Tensor  # of the rows

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        if not torch.isin(context.ids, self.ids).all():
            return self.adversary.move(context, defense, x, y)
        history = History(len(context.meter.forward), self.steps)
        return self.adversary.move(replace(context, history=history), defense, x, y)


@dataclass(frozen=True)
class WatchAttack(Measurement):
    """Every step of an attack on one batch.

    No row stops early, so that all rows have the same number of steps. The rows keep their order,
    also if the threat model rearranges the images of several batches.
    """

    adversary: Adversary
    rows: Tensor
    before: int = 0  # rows of earlier batches of a stream, whose steps are not recorded

    @property
    def name(self) -> str:
        return "steps of the strongest attack"

    def compute(self, job: Job) -> Values:
        steps: list[Step] = []
        complete = self.adversary.map_direct(lambda d: replace(d, stop_at_success=False))
        threat = replace(job.threat, order=NaturalOrder())
        # On the target itself: an attack on a copy may be repeated for some rows.
        on_target = replace(job, threat=threat, faster=None)
        recorded = RecordSteps(complete, steps, self.rows[self.before :])
        episode = on_target.play(recorded, self.rows)
        if not steps:
            raise OutputError(
                "the target classified these images correctly before and classifies none of them "
                "correctly now: its outputs change during the run"
            )
        return {
            "value": torch.stack([step.value for step in steps]).cpu().double(),
            "success": torch.stack([step.success for step in steps]).cpu().bool(),
            "gradient": torch.stack([step.gradient for step in steps]).cpu().double(),
            "robust": episode.correct[0, self.before :].cpu() >= 0.5,
        }


@dataclass(frozen=True)
class OneStep(Measurement):
    """One step of an attack in place of many."""

    adversary: Adversary
    rows: Tensor

    @property
    def name(self) -> str:
        return "single-step attack"

    def compute(self, job: Job) -> Values:
        single = self.adversary.map_direct(
            lambda direct: replace(direct, attack=FGSM(), stop_at_success=False)
        )
        return {"correct": job.unlimited.play(single, self.rows).correct[0].cpu()}


@dataclass(frozen=True)
class LongerAttack(Measurement):
    """`longer_attack` on images that no attack broke.

    For a randomized defense the worst points are evaluated once more before: images that were
    selected because they were classified correctly by chance are less often correct the next time.
    """

    adversary: Adversary
    rows: Tensor
    points: Tensor  # [n, ...] worst points of the rows
    salt: int

    @property
    def name(self) -> str:
        return "twice the steps from other starts"

    def compute(self, job: Job) -> Values:
        adversary = self.adversary
        if job.defense.unit != "example":
            # Rows that are broken would have to be broken again together with the others.
            worst = job.x.index_copy(0, self.rows, self.points.to(job.x))
            adversary = adversary.continued(worst)
        longer = longer_attack(adversary, self.salt)
        if not job.defense.random:
            return {"after": job.unlimited.play(longer, self.rows).correct[0].cpu()}
        other = replace(job.unlimited, seed=job.seed + _OTHER_SEED, shared_noise=False)
        after = other.play(longer, self.rows).correct[0].cpu()
        before = other.recheck(self.points.to(job.x), self.rows).correct[0].cpu()
        return {"before": before, "after": after}


@dataclass(frozen=True)
class RepeatedSearch(Measurement):
    """A search over single rows of a batch again, with other random keys."""

    search: RowSearch
    rows: Tensor

    @property
    def name(self) -> str:
        return "another search over rows"

    def compute(self, job: Job) -> Values:
        other = replace(job.unlimited, seed=job.seed + _OTHER_SEED)
        return {"after": other.play(self.search, self.rows).correct[0].cpu()}


@dataclass(frozen=True)
class Unbounded(Measurement):
    """An attack with another radius."""

    adversary: Adversary
    radius: float
    rows: Tensor

    @property
    def name(self) -> str:
        return "unbounded attack"

    def compute(self, job: Job) -> Values:
        threat = job.unlimited.threat
        wide = replace(threat, space=replace(threat.space, radius=self.radius))
        episode = replace(job, threat=wide).play(self.adversary, self.rows)
        return {"accuracy": episode.correct.mean().double().cpu()}


@dataclass(frozen=True)
class StaticQueries(Measurement):
    """Black-box attacks on the static net of a defense."""

    adversaries: Sequence[Adversary]
    rows: Tensor

    @property
    def name(self) -> str:
        return "black-box attacks on the static net"

    def compute(self, job: Job) -> Values:
        assert job.defense.static is not None, "measured only where there is a static net"
        bare = replace(job.unlimited, defense=Plain(job.defense.static))
        correct = [bare.play(one, self.rows).correct[0].cpu() for one in self.adversaries]
        return {"correct": torch.stack(correct).amin(0)}
