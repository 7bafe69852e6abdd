"""An attack watched at work: every value it read and every gradient it followed, row by row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from saddlepoint.attack.base import Attack
from saddlepoint.attack.best import Found
from saddlepoint.attack.oracle import Differentiates
from saddlepoint.attack.space import Ball
from saddlepoint.auditing.cell import Job
from saddlepoint.auditing.sent import varied
from saddlepoint.coins import Coins
from saddlepoint.defense import Access
from saddlepoint.game import Adversary, Episode
from saddlepoint.gradients import Reading, Slope


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
    watched = varied(core, lambda direct: replace(direct, attack=_Watched(direct.attack, notes), stop_at_success=False))
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

    def __call__(self, oracle: Differentiates, center: Tensor, space: Ball, coins: Coins) -> Found:
        return self.inner(_Spied(oracle, center, space, self.notes), center, space, coins)


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
        raise TypeError("an attack that is watched step by step asks about all of its rows; watch one that climbs, such as PGD.")

    def left(self) -> int:
        return self.inner.left()

    def allowance(self) -> Tensor:
        return self.inner.allowance()

    def decide(self, x: Tensor) -> Tensor:
        return self.inner.decide(x)

    def score(self, x: Tensor) -> Reading:
        reading = self.inner.score(x)
        self._note(x, reading, torch.full_like(reading.value, torch.nan))
        return reading

    def gradient(self, x: Tensor) -> Slope:
        slope = self.inner.gradient(x)
        self._note(x, slope.reading, slope.grad.flatten(1).abs().amax(1))
        return slope

    def facets(self, x: Tensor) -> Slope:
        return self.inner.facets(x)

    def _note(self, x: Tensor, reading: Reading, slope: Tensor) -> None:
        success = reading.success & self.space.contains(x, self.center)
        self.notes.append(_Note(reading.value.detach(), success, slope.detach().to(reading.value)))
