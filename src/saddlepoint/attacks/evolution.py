"""Evolutionary search from given points, by scores alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.best import AttackResult, BestSoFar, merge_results
from saddlepoint.attacks.oracle import Scores
from saddlepoint.attacks.spaces import Ball, per_example
from saddlepoint.defenses import Access
from saddlepoint.rng import Keys

_MOST_EXCHANGED = 0.5  # share of the pixels that a child takes from its second parent
_MOST_CHANGED = 0.08  # share of the pixels that are drawn at random


@dataclass(frozen=True)
class Evolution(Attack[Scores]):
    """A genetic algorithm with a steady population (Alzantot et al. 2019 use one on images).

    In each generation two parents are chosen, each as the better of two random members. Their child
    takes each pixel from one of them, some of its pixels are drawn at random, and it replaces the
    worst member unless that has a higher value. A child of equal value replaces it too: outputs of
    discrete computations are flat, and only such moves cross their plateaus.

    A pixel drawn at random is at an end of its interval for Linf; for other norms it moves by a
    normal step, and the child is projected. Every example has a population of its own.

    Args:
        population: the first members, [N, P, ...], with P at least 2.
        queries: most queries per example, at least P + 1; the members are evaluated first.
    """

    population: Tensor
    queries: int = 1000
    needs: ClassVar[Access] = "score"

    def __post_init__(self) -> None:
        members = self.population.shape[1] if self.population.ndim > 1 else 0
        if members < 2:
            raise ValueError(
                "Evolution needs at least two members for each example, [N, P, ...], got a "
                f"population of shape {tuple(self.population.shape)}."
            )
        if self.queries <= members:
            raise ValueError(
                f"the members take {members} of the queries and a child at least one more, got "
                f"queries={self.queries}."
            )

    @property
    def calls(self) -> int:
        return self.queries

    def scaled(self, factor: int) -> Evolution:
        return replace(self, queries=factor * self.queries)

    def __call__(self, oracle: Scores, center: Tensor, space: Ball, keys: Keys) -> AttackResult:
        members = self.population.transpose(0, 1).clone()  # [P, N, ...]
        values = []
        best = BestSoFar(center, oracle.coupled)
        for member in members:
            evaluation = oracle.score(member)
            best.update(member, evaluation)
            values.append(evaluation.value)
        value = torch.stack(values)  # [P, N]
        rows = torch.arange(len(center), device=center.device)
        parts = []
        for k in range(self.queries - len(members)):
            if not oracle.coupled and best.success.any():
                going = ~best.success
                parts.append((rows[best.success], best[best.success].result))
                rows, center, keys = rows[going], center[going], keys[going]
                oracle, best = oracle[going], best[going]
                members, value = members[:, going], value[:, going]
                if not len(rows):
                    break
            child = _child(members, value, center, space, keys.fold_in(k))
            evaluation = oracle.score(child)
            best.update(child, evaluation)
            worst = value.argmin(0)
            each = torch.arange(len(rows), device=center.device)
            replaces = evaluation.value >= value[worst, each]
            members[worst, each] = torch.where(
                per_example(replaces, child), child, members[worst, each]
            )
            value[worst, each] = torch.where(replaces, evaluation.value, value[worst, each])
        return merge_results([*parts, (rows, best.result)])


def _child(members: Tensor, value: Tensor, center: Tensor, space: Ball, keys: Keys) -> Tensor:
    """One child per example, [N, ...], of members [P, N, ...] with values [P, N]."""
    each = torch.arange(len(center), device=center.device)
    drawn = keys.integers(len(members), (4,))
    first, second, third, fourth = drawn.unbind(1)
    one = torch.where(value[first, each] >= value[second, each], first, second)
    other = torch.where(value[third, each] >= value[fourth, each], third, fourth)
    shape = tuple(center.shape[1:])
    shares = keys.fold_in(1).uniform((2,), center.dtype)
    exchanged, changed = keys.fold_in(2).uniform((2, *shape), center.dtype).unbind(1)
    from_other = exchanged < per_example(_MOST_EXCHANGED * shares[:, 0], center)
    child = torch.where(from_other, members[other, each], members[one, each])
    if space.p == math.inf:
        drawn_pixels = center + space.radius * keys.fold_in(3).signs(shape, center.dtype)
    else:
        count = math.prod(shape)
        length = space.euclidean_radius(count) / math.sqrt(_MOST_CHANGED * count)
        drawn_pixels = child + length * keys.fold_in(3).normal(shape, center.dtype)
    is_drawn = changed < per_example(_MOST_CHANGED * shares[:, 1], center)
    return space.project(torch.where(is_drawn, drawn_pixels, child), center)
