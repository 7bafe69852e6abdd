"""The attack stage: attack cells, then a re-evaluation of the worst points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from saddlepoint.attacks.spaces import per_example
from saddlepoint.audits.cells import AttackCell, Measurement, Recheck, Values, rechecked
from saddlepoint.audits.evidence import Evidence, Group, needs_all_points
from saddlepoint.audits.planning.plan import Plan
from saddlepoint.evaluation import Episode, Outcomes

RunAttacks = Callable[[Sequence[AttackCell]], Sequence[Episode]]
Measure = Callable[[Sequence[Measurement]], Sequence[Values]]


def attack(plan: Plan, run_attacks: RunAttacks, measure: Measure) -> Evidence:
    """Run all attack cells of a plan and evaluate the worst points again with new randomness.

    The points of one cell at a time and the worst points are in memory, whatever the number of
    attacks.

    Args:
        plan: the adversaries and the job.
        run_attacks: computes attack cells, in order.
        measure: computes measurements, in order.
    """
    groups = plan.job.groups
    episodes = run_attacks(plan.cells)
    count = len(plan.adversaries)
    outcomes = []
    winners = []
    points = torch.empty_like(plan.job.x, device="cpu")  # [N, ...]
    for g, rows in enumerate(groups):
        cells = range(g * count, (g + 1) * count)
        light = [_without_points(episodes[k].to("cpu")) for k in cells]
        one = Outcomes.of(light, ("final",), plan.job.defense.unit)
        strongest = one.strongest()[0]  # [M]
        points[rows.cpu()] = _points_of(episodes, cells, strongest)
        outcomes.append(one)
        winners.append(tuple(one.adversaries[a] for a in strongest.tolist()))
    # Groups follow each other, so the points of each are a view.
    parts = torch.split(points, [len(rows) for rows in groups])
    checks = measure([Recheck(*pair) for pair in zip(groups, parts, strict=True)])
    found = []
    for one, winner, values in zip(outcomes, winners, checks, strict=True):
        found.append(Group(one, winner, rechecked(values)))
    return Evidence(plan, tuple(found), points, episodes if needs_all_points(plan) else ())


def _without_points(episode: Episode) -> Episode:
    """The episode without points and predictions, which are those of the re-evaluation.

    There is one for every attack and group, so that single bytes count.
    """
    light = episode.without_points()
    return replace(
        light,
        answered=light.answered[:, :0].clone(),
        forward=light.forward.int(),
        backward=light.backward.int(),
    )


def _points_of(episodes: Sequence[Episode], cells: Sequence[int], strongest: Tensor) -> Tensor:
    """The point of the strongest adversary for each example of a group, [M, ...].

    Args:
        episodes: the results of all cells.
        cells: the cells of the group, one per adversary.
        strongest: the number of the adversary of each example, [M].
    """
    first, *others = sorted({*strongest.tolist()})
    points: Tensor = episodes[cells[first]].points.cpu()
    for a in others:
        found = episodes[cells[a]].points.cpu()
        points = torch.where(per_example(strongest == a, points), found, points)
    return points
