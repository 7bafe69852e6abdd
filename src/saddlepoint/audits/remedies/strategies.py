"""What is tried for the symptoms of a first round, before the verdict is written: every remedy with its reason and its price.

A remedy acts on the images that still stand, and is bounded by the passes that the budget has for all images together: the fewer
stand, the more is spent on each. Where that pays for none on all of them, and a verdict hangs on it, it acts on those that came
nearest to a mistake. Nothing here is random and nothing looks at a clock, so that a run that goes on asks for the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.base import longer
from saddlepoint.attacks.fmn import FMN
from saddlepoint.attacks.losses import cross_entropy, margin
from saddlepoint.attacks.oracle import grants
from saddlepoint.attacks.pgd import PGD
from saddlepoint.audits.diagnostics.checklist import (
    ADAPTIVE,
    BACKWARD,
    CONVERGED,
    MASKED,
    RANDOMNESS,
    SINGLE,
    UNBOUNDED,
    WHITE_BOX,
    checklist,
)
from saddlepoint.audits.diagnostics.trials import Trials
from saddlepoint.audits.plan import Evidence, Plan
from saddlepoint.audits.planning.cost import affordable, price
from saddlepoint.audits.planning.properties import Sent, climbing, core, direct_of, varied
from saddlepoint.audits.planning.suite import BUDGETS, Choice
from saddlepoint.audits.target.answer import AgainstAnswer, answer_is_not_last_view
from saddlepoint.evaluation import Adversary, Direct, OnExamples, Restarts, WarmStart
from saddlepoint.gradients import BPDA, SPSA, EoT, Estimator, Rule, Smoothed

_STEPS = 20  # of a short walk
_FEWEST = 8  # images on which a remedy can show what it is worth
_PART = 4  # of the radius, the fourth: how far neighbors and the two sides of a difference may lie


def remedies(plan: Plan, evidence: Evidence) -> tuple[Choice, ...]:
    """What to send after all that was planned, to what it left standing; nothing where nothing calls for it or pays for it."""
    if not plan.allowance:
        return ()
    signs = _signs(evidence)
    patient = _Patient(plan, evidence.trials)
    whole = plan.allowance * len(plan.job.x)
    query_budget = float(whole)
    chosen = list[Choice]()
    # What keeps a verdict from holding comes first.
    for way in sorted(
        WAYS, key=lambda way: not any(signs[name].weighs for name in way.signs if name in signs)
    ):
        met = [signs[name] for name in way.signs if name in signs]
        found = patient.largest(way, met, min(query_budget, way.most * whole)) if met else None
        if found is not None and found.choice.name not in (choice.name for choice in chosen):
            chosen.append(found.choice)
            query_budget -= found.passes
    return tuple(chosen)


@dataclass(frozen=True)
class Sign:
    """A symptom, or an item of the checklist that failed."""

    name: str
    told: str
    weighs: bool  # it alone keeps a verdict from holding


@dataclass(frozen=True)
class Size:
    """A remedy: the name under which it is sent, what it is made of, and that in words."""

    name: str
    adversary: Adversary
    told: str


@dataclass(frozen=True)
class Way:
    """How some signs are acted on; the sizes of it from the dearest to the cheapest."""

    signs: tuple[str, ...]
    sizes: Callable[[_Patient], Iterator[Size]]
    most: float = 0.5  # of the allowance, so that something is left for another


@dataclass(frozen=True)
class _Offer:
    choice: Choice
    passes: int  # of all images that it meets


def _signs(evidence: Evidence) -> Mapping[str, Sign]:
    met = [
        Sign(s.name, s.message, weighs=s.level == "serious")
        for s in evidence.symptoms
        if s.level != "note"
    ]
    failed = [
        Sign(item.name, item.evidence, weighs=True)
        for item in checklist(evidence.trials)
        if item.state == "fail"
    ]
    return {sign.name: sign for sign in (*met, *_undecided(evidence.trials), *failed)}


def _undecided(t: Trials) -> Iterator[Sign]:
    """One image of a few that falls to more steps is no fault yet, but there may be others among those that were not looked at."""
    before, after = t.further or (t.judged[:0], t.judged[:0])
    taken = 0 if t.job.defense.random else int((before - after).sum())
    if taken > 0:
        yield Sign(
            CONVERGED,
            f"of {len(before)} images that stand, twice the steps of {t.climber} took {taken}",
            weighs=False,
        )


@dataclass(frozen=True)
class _Patient:
    """What is known when remedies are chosen."""

    plan: Plan
    trials: Trials

    def largest(self, way: Way, met: Sequence[Sign], passes: float) -> _Offer | None:
        """The largest size of a remedy for which so many passes pay: on all images, else on the nearest."""
        sizes = [size for size in way.sizes(self) if self.allowed(size.adversary)]
        for few in (False, True) if any(sign.weighs for sign in met) else (False,):
            for size in sizes:
                ids = self.ids(size.adversary, met)
                each = price(size.adversary, self.draws).total
                if few and self.plan.job.defense.unit == "example":
                    ids = self.nearest(ids, int(passes / each))
                if ids and each * len(ids) <= passes:
                    return self.offer(size, met, ids, each)
        return None

    def offer(self, size: Size, met: Sequence[Sign], ids: tuple[int, ...], each: int) -> _Offer:
        names = tuple(sign.name for sign in met)
        reason = (
            f"{', '.join(names)} ({met[0].told.rstrip('.')}), so {size.told}, on {len(ids)} images"
        )
        return _Offer(
            Choice(OnExamples(size.name, size.adversary, ids), reason, each, names), each * len(ids)
        )

    def allowed(self, adversary: Adversary) -> bool:
        job = self.plan.job
        granted = grants(job.threat.access, adversary.needs) and grants(
            job.defense.grants, adversary.needs
        )
        return granted and affordable(adversary, self.draws, job.threat.queries)

    def ids(self, adversary: Adversary, met: Sequence[Sign]) -> tuple[int, ...]:
        """Images that stand; where others outdo gradients, those that gradients left: can these be found after all?"""
        job = self.plan.job
        t = self.trials
        outdone = Sent.of(0, adversary).white_box and any(sign.name in _OUTDONE for sign in met)
        stands = (
            (t.left([one for one in t.sent if one.white_box]) if outdone else t.judged) >= 0.5
        ).tolist()
        if job.defense.unit == "stream":  # what is answered later depends on all that came before
            return tuple(range(len(stands))) if any(stands) else ()
        groups = (
            [group.tolist() for group in job.groups]
            if job.defense.unit == "batch"
            else [[k] for k in range(len(stands))]
        )
        return tuple(k for group in groups if any(stands[k] for k in group) for k in group)

    def nearest(self, ids: tuple[int, ...], count: int) -> tuple[int, ...]:
        """So many of the images, those first of which attacks left the smallest share of the right class's lead."""
        if count < _FEWEST:
            return ()
        pairs = [
            (group.verdict.margin[0], group.outcomes.episodes[0].margin[0])
            for group in self.trials.groups
        ]
        share = torch.cat([left / lead for left, lead in pairs]).nan_to_num(torch.inf).tolist()
        return tuple(sorted(sorted(ids, key=lambda k: share[k])[:count]))

    @property
    def draws(self) -> int:
        return self.plan.job.threat.draws if self.plan.job.defense.random else 1

    @property
    def width(self) -> float:
        """Wide enough to see over the steps of a quantizer."""
        space = self.plan.job.threat.space
        return max(space.radius / _PART, 1e-3) if space.p == math.inf else 1e-2

    @property
    def climber(self) -> str:
        """The attack of which remedies are variations, with its rules and its aim: one run of the strongest that climbs."""
        assert self.trials.core is not None, "asked for only where something climbs"
        return self.trials.core.name

    @property
    def direct(self) -> Direct:
        assert self.trials.core is not None, "asked for only where something climbs"
        return direct_of(self.trials.core)

    def climbing(self, starts: int = 1, **parts: Any) -> Adversary:
        """The same attack with other parts, from so many starts."""
        assert self.trials.core is not None, "asked for only where something climbs"
        climb = varied(self.trials.core, lambda direct: replace(direct, **parts))
        return climb if starts == 1 else Restarts(climb, starts)

    def onward(self, search: Adversary) -> Adversary:
        """The search, and where gradients can be followed row by row a climb from where it ends."""
        defense = self.plan.job.defense
        core = self.trials.core
        if not isinstance(core, Direct) or defense.random or defense.unit != "example":
            return search
        return WarmStart(
            search,
            replace(
                core, attack=PGD(2 * _STEPS, self.plan.job.threat.space.radius / 3), loss=margin
            ),
        )


# -- ways with gradients ----------------------------------------------------------------------------------------------------------


def _longer(p: _Patient) -> Iterator[Size]:
    """More steps from more starts; of what has none, more queries."""
    if p.trials.core is None:
        yield from _queries(p)
        return
    for times, starts in ((3, 2), (2, 2), (2, 1)):
        again = f"{p.climber} again with {times} times the steps" + (
            f" from {starts} starts" if starts > 1 else ""
        )
        yield Size(
            f"{p.climber}-longer", p.climbing(starts, attack=longer(p.direct.attack, times)), again
        )


def _draws(p: _Patient) -> Iterator[Size]:
    """Gradients averaged over more coins."""
    if p.trials.core is None or not isinstance(p.direct.estimator, EoT):
        return
    for times in (4, 2):
        estimator = replace(p.direct.estimator, draws=times * p.direct.estimator.draws)
        told = f"{p.climber} again with gradients averaged over {estimator.draws} draws"
        yield Size(f"{p.climber}-draws", p.climbing(estimator=estimator), told)


def _loss(p: _Patient) -> Iterator[Size]:
    """A loss of another shape: where a softmax is flat the margin is not."""
    if p.trials.core is None:
        return
    name, loss = ("ce", cross_entropy) if p.direct.loss is margin else ("margin", margin)
    for starts in (2, 1):
        told = f"{p.climber} again with another loss, the {loss.__name__.replace('_', '-')}"
        yield Size(f"{p.climber}-{name}", p.climbing(starts, loss=loss), told)


def _smoothed(p: _Patient) -> Iterator[Size]:
    """The gradient of the neighborhood instead of the point's; where coins are tossed, every draw looks at another neighbor."""
    if p.trials.core is None:
        return
    own = p.direct.estimator
    box = p.plan.job.threat.space.box
    for samples in (8, 4):
        smooth: Estimator = Smoothed(samples, p.width, box, own)
        if isinstance(own, EoT):
            smooth = replace(own, inner=Smoothed(1, p.width, box, own.inner))
        told = f"{p.climber} again with gradients averaged over neighbors, in short steps"
        yield Size(
            f"{p.climber}-smoothed",
            p.climbing(attack=PGD(_STEPS), loss=margin, estimator=smooth),
            told,
        )


def _around(p: _Patient) -> Iterator[Size]:
    """Another backward pass at every site where one can stand in; fixed points keep the rule that the climber has for them."""
    named = {site for trait in p.plan.traits if trait.name == "sites" for site in trait.places}
    ruled = [direct_of(one).rules for _, one in climbing(p.trials.sent)]
    sites = sorted(
        named.union(
            *({site for site, rule in rules.items() if isinstance(rule, BPDA)} for rules in ruled)
        )
    )
    for starts in (5, 2) if sites and p.trials.core is not None else ():
        rules: dict[str, Rule] = {**p.direct.rules, **dict.fromkeys(sites, BPDA())}
        told = f"short steps from {starts} starts with BPDA(identity) at {', '.join(f'`{site}`' for site in sites)}"
        yield Size(
            "pgd-bpda", p.climbing(starts, attack=PGD(_STEPS), loss=margin, rules=rules), told
        )


def _short(p: _Patient) -> Iterator[Size]:
    """Steps of a twentieth of the radius, which jump over little, as far as across the whole set."""
    attack = PGD(2 * _STEPS, p.plan.job.threat.space.radius / _STEPS)
    for starts in (5, 2, 1) if p.trials.core is not None else ():
        yield Size(
            "pgd-short",
            p.climbing(starts, attack=attack, loss=margin),
            f"shorter steps from {starts} starts",
        )


def _nearest(p: _Patient) -> Iterator[Size]:
    """The nearest mistake, wherever in the set it lies."""
    if p.trials.core is not None and p.plan.job.defense.memory == "none":
        yield Size(
            "fmn",
            p.climbing(attack=FMN(2 * _STEPS), loss=margin),
            "a search for the nearest mistake (FMN)",
        )


# -- ways without -----------------------------------------------------------------------------------------------------------------


def _differences(p: _Patient) -> Iterator[Size]:
    """Slopes from scores, unless they were tried."""
    most = (
        0 if any("SPSA" in one.kinds for one in p.trials.sent) else BUDGETS[p.plan.budget].samples
    )
    for samples, steps in ((most, _STEPS), (most // 2, _STEPS // 2)) if most else ():
        direct = Direct("apgd-spsa", APGD(steps), loss=margin, estimator=SPSA(samples, p.width))
        sent = AgainstAnswer(direct) if answer_is_not_last_view(p.plan.job.defense) else direct
        yield Size("apgd-spsa", sent, "slopes from differences of scores")


def _queries(p: _Patient) -> Iterator[Size]:
    """More queries, from more starts, for the attack without gradients that found most."""
    found = [
        (one, core(one.adversary))
        for one in p.trials.sent
        if one.black_box and one.kinds & {"Square", "RayS"}
    ]
    searches = [
        (p.trials.rows[one.index - 1].robust_accuracy, search)
        for one, search in found
        if search is not None
    ]
    if not searches:
        return
    best = min(searches, key=lambda pair: pair[0])[1]
    for times, starts in ((4, 3), (4, 1), (2, 1)):
        attack = longer(direct_of(best).attack, times)
        search = varied(best, lambda direct, attack=attack: replace(direct, attack=attack))  # type: ignore[misc]
        sent = p.onward(search)
        told = f"{best.name} again with {times} times the queries" + (
            f" from {starts} starts" if starts > 1 else ""
        )
        told += ", and a climb from where it ends" if sent is not search else ""
        yield Size(f"{best.name}-longer", Restarts(sent, starts) if starts > 1 else sent, told)


def _searching(p: _Patient) -> Iterator[Size]:
    """More queries, if what was still rising asks for scores or labels alone."""
    least = min(row.robust_accuracy for row in p.trials.rows)
    if any(
        one.black_box and p.trials.rows[one.index - 1].robust_accuracy == least
        for one in p.trials.sent
    ):
        yield from _queries(p)


# Gradients that others outdo, and gradients that are of no use.
_OUTDONE = ("black box beats white box", "transfer beats white box", MASKED, BACKWARD, ADAPTIVE)
_HIDDEN = ("unavailable gradients", "unbounded attack fails", "staircase", WHITE_BOX, UNBOUNDED)
WAYS: tuple[Way, ...] = (
    # What climbed well is not far from its end: it needs less than what lost its way.
    Way(
        (CONVERGED, "still rising", "incomplete optimization", "not converged", MASKED, ADAPTIVE),
        _longer,
        most=0.25,
    ),
    Way((RANDOMNESS, "EoT has not converged"), _draws),
    Way(("unavailable gradients", WHITE_BOX), _loss),
    Way(("gradients disagree", "unstable predictions", SINGLE), _smoothed),
    Way((*_OUTDONE, *_HIDDEN), _around),
    Way(("black box beats white box", MASKED, BACKWARD, *_HIDDEN), _queries),
    Way(("still rising",), _searching),
    Way((*_OUTDONE, *_HIDDEN), _differences),
    Way(("overshot", SINGLE), _short),
    Way(("overshot",), _nearest),
)
