"""Which adversaries a budget buys, given what the target is: every choice with its reason and its price."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from saddlepoint.attacks.aims import max_over_views, mean_of_losses
from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.ensemble import MinLoss
from saddlepoint.attacks.fab import FAB, own_facet
from saddlepoint.attacks.fmn import FMN
from saddlepoint.attacks.losses import cross_entropy, margin, targeted_margin
from saddlepoint.attacks.oracle import grants
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.rays import RayS
from saddlepoint.attacks.square import Square
from saddlepoint.audits.planning.budget import QueryBudget
from saddlepoint.audits.planning.cost import affordable, price
from saddlepoint.audits.probes.traits import Traits
from saddlepoint.audits.target.answer import AgainstAnswer, answer_is_not_last_view
from saddlepoint.audits.target.branches import AgainstBranch, Branch
from saddlepoint.audits.target.instrument import SCORES
from saddlepoint.defenses import Access, Defense, Plain
from saddlepoint.evaluation import (
    Adversary,
    Direct,
    Escalate,
    FixedPoint,
    GreedyModelSpace,
    MultiTarget,
    Restarts,
    RetrainedEnsemble,
    Threat,
    Transfer,
)
from saddlepoint.evaluation.suites import dlr_or_margin, targeted_dlr_or_margin
from saddlepoint.gradients import (
    BPDA,
    SPSA,
    Backprop,
    Checkpointed,
    EoT,
    Estimator,
    FixedRandomness,
    Phantom,
    Rule,
)

Budget = Literal["quick", "standard", "thorough"]
_DEAR_TARGETS = 3
_ROUTE_STEPS = 40
# Who is pursued: the share of the right class's lead that may be left after three targets, after all, after a first look at
# scores, and after a second. Tuned on nets that others trained.
_FALLING = 0.35
_CLOSE = 0.2
_NEAR = (0.45, 0.15)
_MASKED_QUERIES = 4
_MASKED_STARTS = 5  # times the queries, and starts, where gradients are masked


@dataclass(frozen=True)
class BudgetSpec:
    """How much of everything a budget buys."""

    steps: int  # of each APGD run
    targets: int  # classes that are targeted one by one
    toward: int  # steps towards each of them
    queries: int  # of score- and decision-based attacks
    draws: int  # per verdict of a random defense, and the most per EoT gradient
    boundary: int  # steps of FAB per target; 0: no FAB
    starts: int  # of a short PGD; 0: none
    rounds: int  # in which models are anticipated that a defense may learn
    samples: int  # differences per gradient where gradients cannot be had, or trusted; 0: none
    remedies: float  # for the symptoms that are found, in parts of what all that is sent anyway asks of every example; 0: none
    chase: int = 0  # steps to the nearest boundary for rows that gradients nearly broke; 0: none
    hunt: tuple[
        int, ...
    ] = ()  # queries for rows that a search nearly broke: a first look at all, and longer ones


BUDGETS: dict[Budget, BudgetSpec] = {
    "quick": BudgetSpec(
        steps=10,
        targets=0,
        toward=10,
        queries=0,
        draws=8,
        boundary=0,
        starts=0,
        rounds=2,
        samples=0,
        remedies=0.0,
    ),
    "standard": BudgetSpec(
        steps=30,
        targets=9,
        toward=20,
        queries=300,
        draws=20,
        boundary=0,
        starts=0,
        rounds=4,
        samples=32,
        remedies=0.75,
        chase=150,
        hunt=(200, 600, 3000),
    ),
    "thorough": BudgetSpec(
        steps=100,
        targets=9,
        toward=100,
        queries=5000,
        draws=50,
        boundary=100,
        starts=40,
        rounds=10,
        samples=128,
        remedies=0.5,
    ),
}


@dataclass(frozen=True)
class Choice:
    """An adversary, why it is sent, and what it may cost per example."""

    adversary: Adversary
    reason: str
    passes: int | None = None  # forward and backward, at most; None: not known
    against: tuple[str, ...] = ()  # symptoms and items of the checklist that it is a remedy for

    @property
    def name(self) -> str:
        return self.adversary.name


@dataclass(frozen=True)
class TargetFacts:
    """What was learnt about a defense that decides how it is attacked."""

    traits: Traits = field(default_factory=lambda: Traits(()))
    solves: frozenset[str] = frozenset()  # sites at which it solves for fixed points
    around: tuple[str, ...] = ()  # sites around which gradients get further than through them
    branches: tuple[Branch, ...] = ()  # ways that it may take, one of them for each image

    def has(self, name: str) -> bool:
        return name in self.traits

    @property
    def draws(self) -> int | None:
        """Gradients whose mean is more signal than noise."""
        amounts = [trait.amount for trait in self.traits if trait.name == "noisy gradients"]
        return None if not amounts or amounts[0] is None else math.ceil(amounts[0])

    @property
    def masked(self) -> bool:
        """Is there reason to trust what is answered more than its gradients?"""
        signs = (
            "no gradient", "non-finite gradients", "zero gradients", "misdirected gradients", "hidden scores", "grad mode",
            "requires grad",
        )  # fmt: skip
        return bool(self.around) or any(self.has(name) for name in signs)

    @property
    def dead(self) -> bool:
        """Is there nothing to climb without going around a site?"""
        zero = [
            trait.amount
            for trait in self.traits
            if trait.name == "zero gradients" and trait.present
        ]
        return self.has("no gradient") or zero == [1.0]


UNKNOWN = TargetFacts()


def compose(
    defense: Defense, threat: Threat, budget: Budget, known: TargetFacts = UNKNOWN
) -> tuple[Choice, ...]:
    """The adversaries, cheap ones first, against a defense of which something is known.

    What the threat model's queries do not pay for is left out.
    """
    kit = _Composer(defense, threat, BUDGETS[budget], known)
    draws = threat.draws if defense.random else 1
    chosen = [
        choice for choice in kit.choices() if affordable(choice.adversary, draws, threat.queries)
    ]
    return tuple(replace(choice, passes=price(choice.adversary, draws).total) for choice in chosen)


@dataclass(frozen=True)
class _Composer:
    """The parts from which adversaries are made for one defense."""

    defense: Defense
    threat: Threat
    spend: BudgetSpec
    known: TargetFacts

    def choices(self) -> Iterator[Choice]:
        access = (
            self.threat.access
            if grants(self.defense.grants, self.threat.access)
            else self.defense.grants
        )
        if access != "gradient":
            spend = replace(self.spend, queries=max(self.spend.queries, 200))
            yield from map(self._answering, replace(self, spend=spend).blind(access))
            if access == "score":
                yield from map(self._answering, self.sampled("no gradients"))
            return
        yield from map(self._answering, self.seeing())
        yield from self.rerouted()
        if self.known.masked:
            yield from map(self._answering, self.sampled("gradients cannot be trusted"))
        yield from self.views()
        if self.defense.memory != "none":
            yield from map(self._answering, self.anticipating())
        yield from self.transferred()
        if self.spend.queries and self.threat.space.p != 1:
            yield from map(self._answering, self.blind("score"))

    # -- parts ----------------------------------------------------------------------------------------------------------------

    @property
    def estimator(self) -> Estimator:
        """Half of the draws that the budget pays for, or all if the noise asks for them: few see all that coins can do."""
        if not self.defense.random:
            return Backprop()
        return EoT(max(1, min(max(self.known.draws or 0, self.spend.draws // 2), self.spend.draws)))

    @property
    def query_budget(self) -> QueryBudget:
        return QueryBudget.of(self.defense, self.threat, self.estimator)

    @property
    def around(self) -> dict[str, Rule]:
        return dict.fromkeys(self.known.around, BPDA())

    @property
    def apgd(self) -> Direct:
        """The one from which others are made."""
        stop = not self.defense.random and self.defense.unit == "example"
        attack = APGD(min(self.spend.steps, self.query_budget.steps))
        return Direct(
            "apgd-ce", attack, loss=cross_entropy, estimator=self.estimator, stop_at_success=stop, rules=self.around
        )  # fmt: skip

    @property
    def targets(self) -> int:
        """Fewer where each is dear: rows that answer together all go on to the end, and coins are tossed many times."""
        return (
            self.spend.targets
            if self.apgd.stop_at_success
            else min(self.spend.targets, _DEAR_TARGETS)
        )

    def _answering(self, choice: Choice) -> Choice:
        """Aimed at what is answered, where that is not the last view."""
        if not answer_is_not_last_view(self.defense):
            return choice
        return replace(
            choice,
            adversary=AgainstAnswer(choice.adversary),
            reason=f"{choice.reason}, on what is answered",
        )

    # -- with gradients -------------------------------------------------------------------------------------------------------

    def seeing(self) -> Iterator[Choice]:
        apgd = self.apgd
        query_budget = self.query_budget
        spend = self.spend
        yield Choice(apgd, f"cross-entropy{self._why()}")
        longer = APGD(min(spend.steps if self.chases else 3 * spend.steps // 2, query_budget.steps))
        yield Choice(
            replace(apgd, name="apgd-dlr", attack=longer, loss=dlr_or_margin),
            f"a loss without scale{self._why()}",
        )
        yield from self._other_rules()
        if self.defense.random:
            fixed = replace(
                apgd, name="apgd-fixed", attack=longer, loss=margin, estimator=FixedRandomness()
            )
            yield Choice(
                fixed,
                "random: one draw held fixed, for as many steps as averaging would not pay for",
            )
        toward = replace(apgd, name="apgd-t", attack=APGD(min(spend.toward, query_budget.steps)))
        if targets := query_budget.times(toward, self.targets):
            every = MultiTarget(toward, targets, targeted_margin)
            reason = f"{targets} classes one by one{self._why()}"
            yield self._chased(every, reason) if self.chases else Choice(every, reason)
        fab = Direct(
            "fab-t",
            FAB(max(spend.boundary, 1), facet=own_facet),
            stop_at_success=apgd.stop_at_success,
            rules=self.around,
        )
        if (
            not self.defense.random
            and spend.boundary
            and (targets := query_budget.times(fab, spend.targets))
        ):
            yield Choice(
                MultiTarget(fab, targets, targeted_margin),
                "the nearest boundary, which no loss of scale can hide",
            )
        # APGD's first step is two radii long and forgets where it started; short steps from many starts find corners it misses.
        pgd = replace(apgd, name="pgd", attack=PGD(20), loss=margin)
        if starts := query_budget.times(
            pgd, max(spend.starts, _MASKED_STARTS if self.known.masked else 0)
        ):
            reason = (
                "and go on where values stand still"
                if self.known.masked
                else "and find corners that long ones miss"
            )
            yield Choice(
                Restarts(pgd, starts), f"short steps from {starts} starts {reason}{self._why()}"
            )

    @property
    def chases(self) -> bool:
        """Can rows be told apart by how near gradients brought them?"""
        return bool(self.spend.chase) and self.apgd.stop_at_success and not self.known.masked

    def _chased(self, every: MultiTarget, reason: str) -> Choice:
        """Few targets first, all of them where these lead somewhere, the nearest boundary where all of them lead far."""
        few = replace(every, targets=min(every.targets, _DEAR_TARGETS))
        fmn = replace(every.direct, name="fmn", attack=FMN(self.spend.chase), loss=margin)
        chased = self._pursuing(few, Escalate(every, fmn, _CLOSE), _FALLING)
        told = f"{reason}, {few.targets} where these lead nowhere, and the nearest boundary where all lead far"
        return Choice(every, reason) if chased is few else Choice(chased, told)

    def _pursuing(self, first: Adversary, then: Adversary, within: float) -> Adversary:
        """Both, if queries pay for them, else the first."""
        pursuit = Escalate(first, then, within)
        return (
            pursuit
            if self.threat.queries is None or price(pursuit).forward <= self.threat.queries
            else first
        )

    def _why(self) -> str:
        parts = []
        inside = [site for site in self.known.around if site.startswith(SCORES)]
        if crossed := [f"`{site}`" for site in self.known.around if site not in inside]:
            lost = "vanish" if self.known.dead or self.known.has("zero gradients") else "mislead"
            parts.append(f"gradients {lost} through {', '.join(crossed)}: BPDA(identity) there")
        parts += (
            [f"answers hide what comes second: {', '.join(inside)} in their place"]
            if inside
            else []
        )
        if self.defense.random:
            parts.append(f"random: gradients averaged over {self.estimator.cost} draws")
        return "; " + "; ".join(parts) if parts else ""

    def _other_rules(self) -> Iterator[Choice]:
        """The same attack with other gradients across sites."""
        apgd = self.apgd
        through = replace(self.apgd, rules={})
        if self.known.around and not self.known.dead:
            # One step from a few images told that the way around leads further; over many steps it need not.
            reason = "the gradient through all sites, beside the one around them"
            yield Choice(replace(through, name="apgd-exact"), reason)
            # Slopes that jump are averaged by momentum.
            short = PGD(
                min(_ROUTE_STEPS, self.query_budget.steps),
                self.threat.space.radius / 8,
                momentum=0.75,
            )
            pgd = replace(through, name="pgd-exact", attack=short, loss=margin)
            if starts := self.query_budget.times(
                pgd, max(self.spend.starts, _MASKED_STARTS if self.known.masked else 0)
            ):
                yield Choice(
                    Restarts(pgd, starts), f"{reason}, in short steps from {starts} starts"
                )
        named = [trait.places for trait in self.known.traits if trait.name == "sites"]
        if named and named[0] and set(named[0]) != set(self.known.around):
            rules: dict[str, Rule] = dict.fromkeys(named[0], BPDA())
            sites = ", ".join(f"`{site}`" for site in named[0])
            yield Choice(
                replace(apgd, name="apgd-bpda", rules=rules),
                f"BPDA(identity) at {sites}, whatever is inside",
            )
        # The implicit gradient, which all others use, is the slope of a fixed point. Where the solver has not reached one, the
        # slope of its own steps is right, and that of a few steps from where it stopped often leads further.
        ways: dict[str, tuple[Rule, str]] = {
            "through": (Checkpointed(), "the gradient of the solver's own steps"),
            "unrolled": (
                Phantom(steps=5, damping=0.5),
                "the gradient of five steps from where the solver stopped",
            ),
        }
        for way, (rule, reason) in ways.items() if self.known.solves else ():
            crossed = {**self.around, **dict.fromkeys(self.known.solves, rule)}
            yield Choice(
                replace(apgd, name=f"apgd-{way}", rules=crossed),
                f"it solves for a fixed point: {reason}",
            )

    def rerouted(self) -> Iterator[Choice]:
        """Every way that could be taken: on its border two slopes meet, which momentum averages."""
        steps = min(_ROUTE_STEPS, self.query_budget.steps)
        pgd = replace(
            self.apgd,
            name="pgd-route",
            attack=PGD(steps, momentum=0.75),
            loss=margin,
            aim=max_over_views,
            stop_at_success=False,
        )
        for route in self.known.branches if self.spend.targets else ():
            reason = f"it chooses for each image: way {route}, and what decides for it{self._why()}"
            yield Choice(AgainstBranch(replace(pgd, aim=max_over_views), route), reason)

    def views(self) -> Iterator[Choice]:
        """The mean over views on the way: a gradient that is lost at the end may be whole before."""
        several = self.known.has("views disagree") or any(
            t.name == "views disagree" and t.amount is not None for t in self.known.traits
        )
        if several or answer_is_not_last_view(self.defense):
            yield Choice(
                replace(self.apgd, name="apgd-views", aim=mean_of_losses),
                "all views on the way at once, each with its loss",
            )

    # -- against learning -----------------------------------------------------------------------------------------------------

    def anticipating(self) -> Iterator[Choice]:
        """Attacks on models that the defense may turn into."""
        rounds = self.spend.rounds
        apgd = replace(self.apgd, stop_at_success=False)
        climbing = replace(apgd, name="apgd-margin", loss=margin)
        yield Choice(
            FixedPoint("fixed-point", apgd, rounds),
            f"it learns: the model it became last, {rounds} times",
        )
        yield Choice(
            GreedyModelSpace("gmsa-avg", climbing, rounds),
            f"it learns: all models it became, on average, {rounds} times",
        )
        least = GreedyModelSpace("gmsa-min", climbing, rounds, MinLoss())
        yield Choice(least, f"it learns: the model it became that is hurt least, {rounds} times")
        if self.defense.random:
            several = RetrainedEnsemble("retrained", climbing, rounds)
            yield Choice(several, f"it learns at random: {rounds} models that it might have become")
        if self.known.has("adapts differentiably"):
            yield Choice(
                replace(apgd, name="apgd-adapt", respond=True),
                "its learning can be differentiated: the gradient through it",
            )

    # -- from elsewhere -------------------------------------------------------------------------------------------------------

    def transferred(self) -> Iterator[Choice]:
        """Max-value points of the static net, by several losses: they know nothing of the defense, and cannot be misled by it."""
        static = self.defense.static
        if static is None or isinstance(self.defense, Plain):
            return
        source = Plain(static)
        apgd = replace(self.apgd, estimator=Backprop(), stop_at_success=False, rules={})
        reason = "a static net stands under it: its max-value points"
        yield Choice(Transfer(apgd, source), f"{reason} for the cross-entropy")
        yield Choice(
            Transfer(replace(apgd, name="apgd-margin", loss=margin), source),
            f"{reason} for the margin",
        )
        if self.spend.targets:
            toward = MultiTarget(
                replace(apgd, name="apgd-t"), _DEAR_TARGETS, targeted_dlr_or_margin
            )
            yield Choice(Transfer(toward, source), f"{reason} towards {_DEAR_TARGETS} classes")
        if self.spend.queries and self.threat.space.p != 1:
            for choice in replace(self, defense=source, known=UNKNOWN).blind(
                "score", everything=True
            ):
                yield Choice(
                    Transfer(choice.adversary, source), f"{choice.reason}, on the static net"
                )

    def sampled(self, why: str) -> Iterator[Choice]:
        """Slopes from differences of scores: what the target really answers, whatever its gradients say."""
        if self.spend.samples:
            # A quarter of the radius, so that the steps of a quantizer are seen.
            step = (
                max(self.threat.space.radius / 4, 1e-3) if self.threat.space.p == math.inf else 1e-2
            )
            spsa = Direct(
                "apgd-spsa", APGD(20), loss=margin, estimator=SPSA(self.spend.samples, step)
            )
            yield Choice(spsa, f"{why}: slopes from differences of scores")

    # -- without gradients ----------------------------------------------------------------------------------------------------

    def blind(self, access: Access, *, everything: bool = False) -> Iterator[Choice]:
        """Random search on scores, and rays on labels; of a net as it is, with its gradients at hand, the former alone."""
        defense = self.defense
        space = self.threat.space
        spend = self.spend
        queries = spend.queries * (
            _MASKED_QUERIES if self.known.masked or self.defense.grants != "gradient" else 1
        )
        estimator: Estimator = EoT(max(spend.draws // 4, 1)) if defense.random else Backprop()
        _refuse(defense, access, self.threat)
        graded = (
            isinstance(defense, Plain)
            and grants(self.threat.access, "gradient")
            and not self.known.masked
            and not everything
        )
        if access == "score":
            square: Adversary = Direct("square", Square(queries), estimator=estimator)
            hunts = graded and spend.hunt and self.chases
            reason = "scores alone: gradients that mislead do not count"
            yield (
                Choice(self._hunt(), f"{reason}; longer where that nearly wins")
                if hunts
                else Choice(square, reason)
            )
        if access == "decision" or (space.p == math.inf and not defense.coupled and not graded):
            yield Choice(
                Direct("rays", RayS(queries), estimator=estimator),
                "labels alone: neither gradients nor scores count",
            )

    def _hunt(self) -> Adversary:
        """A look at all rows, then ever longer searches of the ever fewer that came near."""
        searches: list[Adversary] = [
            Direct("square", Square(queries, rescale=True)) for queries in self.spend.hunt
        ]
        then = searches.pop()
        while searches:
            then = self._pursuing(searches.pop(), then, _NEAR[len(searches)])
        return then


def _refuse(defense: Defense, access: Access, threat: Threat) -> None:
    if access == "decision" and threat.space.p != math.inf:
        raise ValueError(
            f"with labels only, a target can be attacked in Linf (RayS), not in {threat.space}. Give score access, or use Linf."
        )
    if access == "decision" and defense.coupled:
        raise ValueError(
            "with labels only, rows must answer independently (RayS); these answer together. Give score access."
        )
    if threat.space.p == 1:
        raise ValueError(
            "without gradients, a target can be attacked in Linf and L2 (Square), not in L1."
        )
