"""The attack stage: attack cells, then a re-evaluation of the worst points."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from saddlepoint.audits.cells import AttackCell, Measurement, Recheck, Values, rechecked
from saddlepoint.audits.evidence import Evidence, Group, worst_points
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
    episodes = [episode.to("cpu") for episode in run_attacks(plan.cells)]
    count = len(plan.adversaries)
    outcomes = [
        Outcomes.of(episodes[g * count : (g + 1) * count], ("final",), plan.job.defense.unit)
        for g in range(len(groups))
    ]
    worst = [worst_points(one) for one in outcomes]
    checks = measure(
        [Recheck(rows, points) for rows, (points, _) in zip(groups, worst, strict=True)]
    )
    found = []
    for one, (points, winner), values in zip(outcomes, worst, checks, strict=True):
        found.append(Group(one, points, winner, rechecked(values)))
    return Evidence(plan, tuple(found))
