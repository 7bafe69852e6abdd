"""An attack watched at work: every value it read and every gradient it followed, row by row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.oracle import Differentiates
from saddlepoint.attacks.spaces import Ball
from saddlepoint.audits.cells import Job
from saddlepoint.audits.planning.properties import varied
from saddlepoint.defenses import Access
from saddlepoint.evaluation import Adversary, Episode
from saddlepoint.gradients import Evaluation, ValueAndGradient
from saddlepoint.rng import Keys


@dataclass(frozen=True)
class Seen:
    """What one attack read on its way, step by step, and what came of it."""

    value: Tensor  # [T, N] of its own objective
    success: Tensor  # [T, N] bool: a point of the set that fools
    slope: Tensor  # [T, N] the largest entry of the gradient, NaN where none was asked for
    episode: Episode

    @property
    def stands(self) -> Tensor:
        """[N] bool: answered rightly in the end."""
        return self.episode.correct[0].cpu() >= 0.5


def spy(job: Job, core: Adversary, rows: Tensor) -> Seen:
    """The attack played once more on rows of one batch, all right without it; none stops early, so that all show as many steps."""
    notes: list[_Note] = []
    watched = varied(
        core,
        lambda direct: replace(
            direct, attack=_Watched(direct.attack, notes), stop_at_success=False
        ),
    )
    episode = job.play(watched, rows)
    value, success, slope = (torch.stack(column).cpu() for column in zip(*notes, strict=True))
    return Seen(value.double(), success.bool(), slope.double(), episode.to("cpu"))


class _Note(NamedTuple):
    value: Tensor  # [N]
    success: Tensor
    slope: Tensor


@dataclass(frozen=True)
class _Watched:
    """An attack whose oracle is listened to."""

    inner: Attack[Any]
    notes: list[_Note]

    needs: ClassVar[Access] = "gradient"

    @property
    def calls(self) -> int:
        return self.inner.calls

    def __call__(
        self, oracle: Differentiates, center: Tensor, space: Ball, keys: Keys
    ) -> AttackResult:
        return self.inner(_Spied(oracle, center, space, self.notes), center, space, keys)


@dataclass(frozen=True)
class _Spied:
    """The oracle inside, overheard. Rows cannot be left out: an attack that climbs asks about all of them."""

    inner: Differentiates
    center: Tensor
    space: Ball
    notes: list[_Note]

    @property
    def coupled(self) -> bool:
        return self.inner.coupled

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, rows: Tensor) -> Differentiates:
        raise TypeError(
            "an attack that is watched step by step asks about all of its rows; watch one that climbs, such as PGD."
        )

    def left(self) -> int:
        return self.inner.left()

    def allowance(self) -> Tensor:
        return self.inner.allowance()

    def decide(self, x: Tensor) -> Tensor:
        return self.inner.decide(x)

    def score(self, x: Tensor) -> Evaluation:
        evaluation = self.inner.score(x)
        self._note(x, evaluation, torch.full_like(evaluation.value, torch.nan))
        return evaluation

    def gradient(self, x: Tensor) -> ValueAndGradient:
        slope = self.inner.gradient(x)
        self._note(x, slope.evaluation, slope.grad.flatten(1).abs().amax(1))
        return slope

    def class_margins(self, x: Tensor) -> ValueAndGradient:
        return self.inner.class_margins(x)

    def _note(self, x: Tensor, evaluation: Evaluation, slope: Tensor) -> None:
        success = evaluation.success & self.space.contains(x, self.center)
        self.notes.append(
            _Note(evaluation.value.detach(), success, slope.detach().to(evaluation.value))
        )
