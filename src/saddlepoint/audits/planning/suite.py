"""The suite of adversaries for a defense, a threat model and a budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from saddlepoint.attacks.oracle import grants
from saddlepoint.audits.planning.black_box import (
    query_attacks,
    score_difference_attacks,
    transfer_attacks,
)
from saddlepoint.audits.planning.budget import BUDGETS, Budget
from saddlepoint.audits.planning.choice import Choice
from saddlepoint.audits.planning.discrete import level_attacks
from saddlepoint.audits.planning.exit_attacks import exit_attacks
from saddlepoint.audits.planning.facts import UNKNOWN, TargetFacts
from saddlepoint.audits.planning.parts import Parts
from saddlepoint.audits.planning.row_attacks import row_attacks
from saddlepoint.audits.planning.white_box import (
    adaptation_attacks,
    branch_attacks,
    gradient_attacks,
    grid_attacks,
    softened_attacks,
    view_attacks,
)
from saddlepoint.audits.probes.traits import TraitName
from saddlepoint.defenses import Defense, MultiExit, Plain, innermost
from saddlepoint.evaluation import Adversary, Cascade, Direct, Threat, Transfer

_LEAST_QUERIES = 200  # of a target without gradients, whatever the budget


def compose(
    defense: Defense, threat: Threat, budget: Budget, facts: TargetFacts = UNKNOWN
) -> tuple[Choice, ...]:
    """The adversaries, cheap ones first. Those that exceed the query limit are left out.

    Args:
        defense: the defense under attack.
        threat: the threat model.
        budget: "quick", "standard" or "thorough".
        facts: what probing found; default: nothing.
    """
    parts = Parts(defense, threat, BUDGETS[budget], facts)
    draws = threat.draws if defense.random else 1
    choices = []
    for choice in _choices(parts):
        if affordable(choice.adversary, draws, threat.queries):
            cost = choice.adversary.cost(draws)
            choices.append(replace(choice, passes=None if cost is None else cost.total))
    return tuple(choices)


def affordable(adversary: Adversary, draws: int, queries: int | None) -> bool:
    """Whether a query limit per example allows an adversary.

    A query search stops at the limit by itself, unless other passes follow it.
    """
    properties = adversary.properties
    search = properties.query_search and not (properties.continues_search or properties.restarts)
    if queries is None or search:
        return True
    cost = adversary.cost(draws)
    return cost is not None and cost.forward <= queries


def _choices(parts: Parts) -> Iterator[Choice]:
    defense = parts.defense
    access = parts.threat.access
    if not grants(defense.grants, access):
        access = defense.grants
    if access != "gradient":
        queries = max(parts.budget.queries, _LEAST_QUERIES)
        searching = replace(parts, budget=replace(parts.budget, queries=queries))
        yield from map(parts.on_answer, level_attacks(searching, access))
        yield from map(parts.on_answer, query_attacks(searching, access))
        if access == "score":
            yield from map(parts.on_answer, score_difference_attacks(parts, "no gradients"))
        if parts.threat.access == "gradient":
            yield from exit_attacks(parts)
            if not _static_without_gradient(parts):
                yield from transfer_attacks(parts)
                yield from static_worst_case(parts)
        return
    yield from map(parts.on_answer, row_attacks(parts))
    if parts.few_answers:
        # Thousands of queries of all rows are not affordable; those of the static net are.
        yield from transfer_attacks(parts)
        yield from static_worst_case(parts)
        return
    yield from map(parts.on_answer, gradient_attacks(parts))
    yield from map(parts.on_answer, level_attacks(parts, access))
    yield from map(parts.on_answer, grid_attacks(parts))
    yield from map(parts.on_answer, softened_attacks(parts))
    yield from branch_attacks(parts)
    yield from exit_attacks(parts)
    if parts.facts.masked:
        unreliable = score_difference_attacks(parts, "gradients are unreliable")
        yield from map(parts.on_answer, unreliable)
    yield from view_attacks(parts)
    if defense.memory != "none":
        yield from map(parts.on_answer, adaptation_attacks(parts))
    if not _static_without_gradient(parts):
        yield from transfer_attacks(parts)
        yield from static_worst_case(parts)
    if parts.budget.queries and parts.threat.space.p != 1:
        yield from map(parts.on_answer, query_attacks(parts, "score"))


def _static_without_gradient(parts: Parts) -> bool:
    """The static net is the last exit of a net without gradients, so it has none either."""
    exits = isinstance(innermost(parts.defense), MultiExit)
    return exits and parts.facts.has(TraitName.NO_GRADIENT)


def static_worst_case(parts: Parts) -> Iterator[Choice]:
    """The worst point of each image over all attacks of an audit of the static net, in one batch.

    A defense is then compared with its static net under attacks of equal strength, also where it
    couples the images of a batch. An attack does not stop at its first success, because a point
    beside the decision boundary of the static net need not be misclassified by the defense.
    """
    static = parts.defense.static
    if static is None or isinstance(innermost(parts.defense), Plain):
        return
    source = Plain(static)
    suite = tuple(
        _without_stopping(choice.adversary)
        for choice in _choices(replace(parts, defense=source, facts=UNKNOWN))
    )
    yield Choice(
        Transfer(Cascade("worst case", suite), source),
        "the worst point of each image over all attacks of an audit of the static net",
    )


def _without_stopping(adversary: Adversary) -> Adversary:
    return replace(adversary, stop_at_success=False) if isinstance(adversary, Direct) else adversary
