"""Adversaries for targets that map each pixel to one of few levels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from saddlepoint.attacks.level_search import LevelSearch
from saddlepoint.attacks.losses import margin, targeted_margin
from saddlepoint.attacks.oracle import grants
from saddlepoint.audits.planning.choice import Choice
from saddlepoint.audits.planning.parts import Parts
from saddlepoint.defenses import Access
from saddlepoint.evaluation import Direct, MultiTarget
from saddlepoint.phrases import count

_LEAST_QUERIES = 50
_QUERIES_PER_STEP = 2  # for each step of a targeted gradient attack


def level_attacks(parts: Parts, access: Access) -> Iterator[Choice]:
    """A search over the levels of pixels, untargeted and towards each class.

    The levels are known from inside the target, so the threat model must grant gradients. The
    target itself may have none.
    """
    found = parts.facts.levels
    if found is None or not grants(parts.threat.access, "gradient"):
        return
    search = LevelSearch(
        found.levels, max(parts.budget.queries, _LEAST_QUERIES), gradients=access == "gradient"
    )
    rules = parts.bypass if search.gradients else {}
    direct = Direct("levels", search, loss=margin, rules=rules)
    reason = f"pixels have {found.reachable} levels within the radius ({found.source})"
    yield Choice(direct, f"{reason}: search over these{parts.why() if rules else ''}")
    queries = _QUERIES_PER_STEP * parts.budget.targeted_steps
    each = replace(direct, name="levels-t", attack=replace(search, queries=queries))
    limit = (parts.threat.queries or 2**62) - 1
    targets = min(parts.budget.targets, limit // (queries + 2))
    if targets:
        classes = count(targets, "target class")
        yield Choice(MultiTarget(each, targets, targeted_margin), f"{reason}: {classes}")
