"""The attack stage: attack cells, then a re-evaluation of the worst points."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from saddlepoint.audits.cells import AttackCell, Measurement, Recheck, Values, rechecked
from saddlepoint.audits.evidence import Evidence, Group, needs_all_points, worst_points
from saddlepoint.audits.planning.plan import Plan
from saddlepoint.evaluation import Episode, Outcomes

RunAttacks = Callable[[Sequence[AttackCell]], Sequence[Episode]]
Measure = Callable[[Sequence[Measurement]], Sequence[Values]]


def attack(plan: Plan, run_attacks: RunAttacks, measure: Measure) -> Evidence:
    """Run all attack cells of a plan and evaluate the worst points again with new randomness.

    Args:
        plan: the adversaries and the job.
        run_attacks: computes attack cells, in order.
        measure: computes measurements, in order.
    """
    groups = plan.job.groups
    episodes = run_attacks(plan.cells)
    count = len(plan.adversaries)
    outcomes = []
    worst = []
    for g in range(len(groups)):
        # One group at a time: together the points of all attacks may not fit into memory.
        of_group = [episode.to("cpu") for episode in episodes[g * count : (g + 1) * count]]
        one = Outcomes.of(of_group, ("final",), plan.job.defense.unit)
        worst.append(worst_points(one))
        outcomes.append(one if needs_all_points(plan) else one.without_points())
    checks = measure(
        [Recheck(rows, points) for rows, (points, _) in zip(groups, worst, strict=True)]
    )
    found = []
    for one, (points, winner), values in zip(outcomes, worst, checks, strict=True):
        found.append(Group(one, points, winner, rechecked(values)))
    return Evidence(plan, tuple(found))
