"""Whether attacks run on a faster copy of the target.

The decision is a function of the request and of what was probed. Nothing is timed, so that all
workers, a resumed run and a replay attack the same copy and compute the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from saddlepoint.audits.planning.facts import TargetFacts
from saddlepoint.audits.planning.plan import Plan
from saddlepoint.audits.profile import Engine, EngineOption
from saddlepoint.defenses import Plain
from saddlepoint.engine import equal_form
from saddlepoint.engine.forms import PLAIN
from saddlepoint.evaluation.faster_copy import FasterCopy
from saddlepoint.phrases import count, whole

_ROWS = 16  # images on which the copy is compared
# Forward and backward passes per image of the comparison: two of the target, of which one is in
# double precision and costs about two, and one of the copy.
_TRIAL_PASSES = 8
_WORTHWHILE = 20  # planned passes per pass of the comparison


def with_engine(plan: Plan, option: EngineOption, facts: TargetFacts) -> Plan:
    """The plan with a faster copy of the target for attacks, where that is sound and saves time.

    Args:
        plan: the plan.
        option: "auto" (fold batch normalization if outputs stay equal, with the memory layout that
            suits the layers), "off", or "channels-last" (in this layout in any case, whatever the
            cost of the plan).
        facts: what was measured about the target.
    """
    reason = next(_reasons_against(plan, option, facts), None)
    if reason is not None:
        return replace(plan, job=replace(plan.job, engine=Engine(PLAIN, reason)))
    given = plan.job.defense
    assert isinstance(given, Plain), "only ordinary nets are prepared"
    last = option == "channels-last"
    prepared = equal_form(given.net, plan.job.x[:_ROWS], channels_last=last)
    engine = Engine(prepared.choice, prepared.reason)
    pair = None if prepared.choice == PLAIN else FasterCopy(given, Plain(prepared.net))
    return replace(plan, job=replace(plan.job, engine=engine, faster=pair))


def _reasons_against(plan: Plan, option: EngineOption, facts: TargetFacts) -> Iterator[str]:
    """Why the given target is attacked itself, each as a part of a sentence."""
    job = plan.job
    if option == "off":
        yield "the engine is off"
    if type(job.defense) is not Plain:
        yield "the target is not an ordinary net"
        return
    if job.defense.random or job.defense.unit != "example":
        yield "the net is randomized, or rows of a batch influence each other"
    if facts.masked or facts.branches or facts.exits or facts.jump or facts.levels:
        yield "probing found gradients, branches or levels that attacks treat specially"
    if job.threat.queries is not None or job.threat.online_queries:
        yield "queries are limited, or change the target"
    if option == "auto":
        yield from _too_expensive(plan)


def _too_expensive(plan: Plan) -> Iterator[str]:
    cost = plan.cost
    if cost is None:
        yield "the cost of an attack is not known"
        return
    planned = cost.attacks * len(plan.job.x)
    least = _WORTHWHILE * _TRIAL_PASSES * min(_ROWS, len(plan.job.x))
    if planned < least:
        yield (
            f"a copy saves time from {count(least, 'pass')} on, and the attacks have "
            f"{whole(planned)}"
        )
