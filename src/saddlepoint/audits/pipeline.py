"""The audit, from a request to a result, in six stages.

    probe      check the target and measure its traits
    plan       choose adversaries for these traits
    attack     run them on all images; evaluate the worst points again
    diagnose   run diagnostics: more steps, one step, unbounded radius, loss landscape, ...
    remedy     choose further attacks for symptoms, then attack and diagnose again, once
    conclude   compute accuracy, interval, checklist, symptoms and verdict

Each stage is a function of the results of the stages before it. Stages that run the target do so
through an `Execution`, which decides where cells are computed and whether they are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from saddlepoint.audits.attack_stage import attack
from saddlepoint.audits.cells import AttackCell, Measurement, Values
from saddlepoint.audits.conclude import conclude
from saddlepoint.audits.diagnostics.stage import diagnose
from saddlepoint.audits.evidence import Evidence
from saddlepoint.audits.planning.engine import with_engine
from saddlepoint.audits.planning.plan import Plan, make_plan
from saddlepoint.audits.probes.stage import probe_stage
from saddlepoint.audits.profile import Stage, Stopwatch
from saddlepoint.audits.remedies.stage import remedy
from saddlepoint.audits.request import AuditRequest
from saddlepoint.audits.result import Audit
from saddlepoint.evaluation import Episode


class Execution(Protocol):
    """Computes cells: in this process, in others, or on a cluster, with or without a store."""

    def attacks(self, plan: Plan, cells: Sequence[AttackCell]) -> Sequence[Episode]:
        """The results of attack cells, in order."""

    def measurements(self, plan: Plan, cells: Sequence[Measurement]) -> Sequence[Values]:
        """The results of measurements, in order."""


class InProcess:
    """Computes every cell in this process and stores nothing."""

    def attacks(self, plan: Plan, cells: Sequence[AttackCell]) -> Sequence[Episode]:
        """The results of attack cells, in order."""
        job = plan.job
        return [job.play(plan.adversaries[a], job.groups[g]) for g, a in cells]

    def measurements(self, plan: Plan, cells: Sequence[Measurement]) -> Sequence[Values]:
        """The results of measurements, in order."""
        return [cell.compute(plan.job) for cell in cells]


def prepare(request: AuditRequest) -> Plan:
    """Stages probe and plan."""
    stopwatch = Stopwatch()
    with stopwatch.measure(Stage.PROBE):
        probed = probe_stage(request)
    with stopwatch.measure(Stage.PLAN):
        plan = with_engine(make_plan(request, probed), request.engine, probed.facts)
    return replace(plan, preparation=stopwatch.totals)


def collect(plan: Plan, execution: Execution) -> Evidence:
    """Stages attack, diagnose and remedy; a remedy leads back to attack once."""
    evidence = _attack_and_diagnose(plan, execution)
    remedies = remedy(evidence)
    if not remedies:
        return evidence
    del evidence  # before there are other worst points of all images
    return _attack_and_diagnose(plan.with_remedies(remedies), execution)


def run(request: AuditRequest, execution: Execution) -> Audit:
    """All six stages."""
    return conclude(collect(prepare(request), execution))


def _attack_and_diagnose(plan: Plan, execution: Execution) -> Evidence:
    def run_attacks(cells: Sequence[AttackCell]) -> Sequence[Episode]:
        return execution.attacks(plan, cells)

    def measure(cells: Sequence[Measurement]) -> Sequence[Values]:
        return execution.measurements(plan, cells)

    return diagnose(attack(plan, run_attacks, measure), measure)
