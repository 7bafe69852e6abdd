"""Remedies: which attacks are run for which symptoms and failed checklist items."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.fmn import FMN
from saddlepoint.attacks.losses import cross_entropy, margin
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Radii
from saddlepoint.attacks.square import Square
from saddlepoint.audits.diagnostics.attack_trials import longer_attack
from saddlepoint.audits.diagnostics.gradient_trials import direct_of
from saddlepoint.audits.planning.black_box import difference_width
from saddlepoint.audits.planning.budget import BUDGETS
from saddlepoint.audits.probes.traits import TraitName
from saddlepoint.audits.remedies.planner import Planner
from saddlepoint.audits.remedies.rows import continued_rows
from saddlepoint.audits.remedies.variant import RemedyStrategy, Variant
from saddlepoint.audits.target.answer import AgainstAnswer, answer_is_not_last_view
from saddlepoint.audits.target.operations import OtherWidth
from saddlepoint.audits.verdict import ItemName, SymptomName
from saddlepoint.evaluation import Adversary, Cascade, Direct, Evolved, OtherKeys, Restarts
from saddlepoint.gradients import BPDA, SPSA, EoT, Estimator, Rule, Smoothed
from saddlepoint.phrases import count, how_often

_QUERIES = 200  # of a search, at least, of which longer ones are multiples
_STEPS = 20  # of a short attack
_WIDTHS = (1 / 3, 1 / 10, 3)  # of surrogates, in units of the width that the plan uses
_POPULATION = 16  # of an evolutionary search
_GENERATIONS = 500  # later ones find little; another population finds more
_OTHER_STARTS = 104729  # a salt that no other attack uses


def _longer(p: Planner) -> Iterator[Variant]:
    """More steps from more starts; without an iterative attack, more queries."""
    if p.strongest is None:
        yield from _more_queries(p)
        return
    name = f"{p.strongest_name}-longer"
    # The attack of the diagnostic with the same random keys: what it broke is broken again.
    diagnosed = longer_attack(p.strongest, len(p.evidence.runs))
    three_times = p.strongest_with(2, attack=p.direct.attack.scaled(3))
    text = f"{p.strongest_name} again with"
    twice = f"{text} {how_often(2)} the steps from {count(2, 'start')}"
    yield Variant(
        name, Cascade(name, (diagnosed, three_times)), f"{twice}, and with {how_often(3)} the steps"
    )
    yield Variant(name, diagnosed, twice)
    yield Variant(
        name,
        p.strongest_with(attack=p.direct.attack.scaled(2)),
        f"{text} {how_often(2)} the steps",
    )


def _more_draws(p: Planner) -> Iterator[Variant]:
    """Gradients averaged over more draws."""
    if p.strongest is None or not isinstance(p.direct.estimator, EoT):
        return
    for times in (4, 2):
        estimator = replace(p.direct.estimator, draws=times * p.direct.estimator.draws)
        yield Variant(
            f"{p.strongest_name}-draws",
            p.strongest_with(estimator=estimator),
            f"{p.strongest_name} again with gradients averaged over "
            f"{count(estimator.draws, 'draw')}",
        )


def _other_loss(p: Planner) -> Iterator[Variant]:
    """Another loss: where a softmax saturates, the margin does not."""
    if p.strongest is None:
        return
    name = "margin"
    loss = margin
    if p.direct.loss is margin:
        name = "ce"
        loss = cross_entropy
    for starts in (2, 1):
        text = f"{p.strongest_name} again with the {loss.__name__.replace('_', '-')} as its loss"
        yield Variant(f"{p.strongest_name}-{name}", p.strongest_with(starts, loss=loss), text)


def _smoothed(p: Planner) -> Iterator[Variant]:
    """Gradients averaged over nearby points; with EoT, another nearby point for every draw."""
    if p.strongest is None:
        return
    own = p.direct.estimator
    box = p.job.threat.space.box
    width = difference_width(p.job.threat)
    for samples in (8, 4):
        estimator: Estimator = Smoothed(samples, width, box, own)
        if isinstance(own, EoT):
            estimator = replace(own, inner=Smoothed(1, width, box, own.inner))
        adversary = p.strongest_with(attack=PGD(_STEPS), loss=margin, estimator=estimator)
        text = f"{p.strongest_name} again with gradients averaged over nearby points, short steps"
        yield Variant(f"{p.strongest_name}-smoothed", adversary, text)


def _bpda(p: Planner) -> Iterator[Variant]:
    """BPDA at every site where the identity fits; solvers keep the rule of the strongest attack."""
    named = set(p.plan.traits.places(TraitName.SITES))
    rules_used = [direct_of(one).rules for _, one in p.evidence.iterative(p.evidence.runs)]
    replaced = {
        site for rules in rules_used for site, rule in rules.items() if isinstance(rule, BPDA)
    }
    sites = sorted(named | replaced)
    if not sites or p.strongest is None:
        return
    for starts in (5, 2):
        rules: dict[str, Rule] = {**p.direct.rules, **dict.fromkeys(sites, BPDA())}
        adversary = p.strongest_with(starts, attack=PGD(_STEPS), loss=margin, rules=rules)
        places = ", ".join(f"`{site}`" for site in sites)
        text = f"short steps from {count(starts, 'start')} with BPDA(identity) at {places}"
        yield Variant("pgd-bpda", adversary, text)


def _short_steps(p: Planner) -> Iterator[Variant]:
    """Steps of a twentieth of the radius, enough of them to cross the whole set."""
    if p.strongest is None:
        return
    attack = PGD(2 * _STEPS, p.job.threat.space.radius / _STEPS)
    for starts in (5, 2, 1):
        adversary = p.strongest_with(starts, attack=attack, loss=margin)
        yield Variant("pgd-short", adversary, f"shorter steps from {count(starts, 'start')}")


def _many_starts(p: Planner) -> Iterator[Variant]:
    """Short steps from many starts; momentum averages the gradients on both sides of a border."""
    if p.strongest is None:
        return
    attack = PGD(2 * _STEPS, Radii(1 / 8), momentum=0.75)
    for starts in (20, 10, 5):
        adversary = p.strongest_with(starts, attack=attack, loss=margin)
        yield Variant("pgd-starts", adversary, f"short steps from {count(starts, 'start')}")


def _other_widths(p: Planner) -> Iterator[Variant]:
    """Surrogates of other widths: a smooth step hides what happens within its width.

    The width of the plan makes the first steps longest. Another one finds other errors.
    """
    if p.strongest is None or not p.with_width:
        return
    attack = PGD(2 * _STEPS, Radii(1 / 8), momentum=0.75)
    for starts in (3, 2, 1):
        attacks = []
        for times in _WIDTHS:
            rules = {**p.direct.rules, **dict.fromkeys(p.with_width, OtherWidth(times=times))}
            for loss in (cross_entropy, margin):
                attacks.append(p.strongest_with(starts, attack=attack, loss=loss, rules=rules))
        places = ", ".join(f"`{site}`" for site in p.with_width)
        yield Variant(
            "pgd-widths",
            Cascade("pgd-widths", tuple(attacks)),
            f"narrower and wider surrogates at {places}, {count(starts, 'start')} each",
        )


def _evolution(p: Planner) -> Iterator[Variant]:
    """Queries from where gradient steps end: they cross plateaus that gradients do not see."""
    defense = p.job.defense
    if p.strongest is None or defense.random or defense.unit != "example":
        return
    attack = PGD(_STEPS, Radii(1 / 8), momentum=0.75)
    widths: tuple[float, ...] = (1.0, *_WIDTHS) if p.with_width else (1.0,)
    members = []
    for times in widths:
        rules = {**p.direct.rules, **dict.fromkeys(p.with_width, OtherWidth(times=times))}
        for loss in (cross_entropy, margin):
            members.append(p.strongest_with(attack=attack, loss=loss, rules=rules))
    population = tuple(members) * (_POPULATION // len(members))
    for starts in (4, 2, 1):
        ends = f"from where {count(len(population), 'gradient attack')} ended"
        text = f"{count(_GENERATIONS, 'query')} {ends}, {how_often(starts)}"
        one = Evolved("evolution", population, _GENERATIONS)
        yield Variant("evolution", Restarts(one, starts) if starts > 1 else one, text)


def _most_effective(p: Planner) -> Iterator[Variant]:
    """The white-box attack that broke most, if it is a search over exits or branches."""
    runs = [run for run in p.evidence.white_box if not run.remedy]
    if not runs:
        return
    run = min(runs, key=lambda one: p.evidence.row(one).robust_accuracy)
    if run.adversary.single_run() is not None:  # `_many_starts` repeats it
        return
    for starts in (5, 3, 1):
        adversary = OtherKeys(Restarts(run.adversary, starts), _OTHER_STARTS)
        text = f"{run.name} again from {count(starts, 'other start')}"
        yield Variant(f"{run.name}-again", adversary, text)


def _every_class(p: Planner) -> Iterator[Variant]:
    """More steps toward each of the most likely wrong classes."""
    for steps, targets in ((100, 9), (100, 3), (50, 3)):
        adversary = p.toward_classes(APGD(steps), targets)
        if adversary is not None:
            yield Variant(
                "apgd-t-longer",
                adversary,
                f"{count(steps, 'step')} toward each of at most {count(targets, 'class')}",
            )


def _minimum_norm(p: Planner) -> Iterator[Variant]:
    """A minimum-norm attack, which finds errors anywhere in the set."""
    if p.strongest is not None and p.job.defense.memory == "none":
        adversary = p.strongest_with(attack=FMN(2 * _STEPS), loss=margin)
        yield Variant("fmn", adversary, "a minimum-norm attack (FMN)")


def _score_differences(p: Planner) -> Iterator[Variant]:
    """Gradients from score differences, unless they were used already."""
    used = any(run.properties.score_differences for run in p.evidence.runs)
    most = 0 if used else BUDGETS[p.plan.budget].samples
    if not most:
        return
    width = difference_width(p.job.threat)
    for samples, steps in ((most, _STEPS), (most // 2, _STEPS // 2)):
        spsa = SPSA(samples, width)
        direct = Direct("apgd-spsa", APGD(steps), loss=margin, estimator=spsa)
        on_answer = answer_is_not_last_view(p.job.defense)
        adversary = AgainstAnswer(direct) if on_answer else direct
        yield Variant("apgd-spsa", adversary, "gradients from score differences")


def _more_queries(p: Planner) -> Iterator[Variant]:
    """More queries from more starts for the strongest query search."""
    searches = []
    for run in p.evidence.black_box:
        single = run.adversary.single_run()
        if run.properties.query_search and single is not None:
            searches.append((p.evidence.row(run).robust_accuracy, single))
    if not searches:
        return
    best = min(searches, key=lambda pair: pair[0])[1]
    unit = _unit(best)
    for times, starts in ((4 * unit, 3), (4 * unit, 1), (2 * unit, 1)):
        search = best.map_direct(partial(_scaled, times=times))
        adversary = p.continued(search)
        text = f"{best.name} again with {how_often(times)} the queries"
        if starts > 1:
            text += f" from {count(starts, 'start')}"
        if adversary is not search:
            text += ", and gradient steps from where it ends"
        repeated = Restarts(adversary, starts) if starts > 1 else adversary
        yield Variant(f"{best.name}-longer", repeated, text)


def _unit(search: Adversary) -> int:
    """How often the first search of a schedule fits into one that later ones are multiples of."""
    attack = search.attack if isinstance(search, Direct) else None
    short = isinstance(attack, Square) and attack.rescale
    return math.ceil(_QUERIES / attack.calls) if attack is not None and short else 1


def _scaled(direct: Direct, times: int) -> Direct:
    return direct.scaled(times)


def _queries_if_strongest(p: Planner) -> Iterator[Variant]:
    """More queries, if the strongest attack is a black-box attack."""
    rows = p.evidence.rows
    least = min(row.robust_accuracy for row in rows)
    black_box = p.evidence.black_box
    if any(p.evidence.row(run).robust_accuracy == least for run in black_box):
        yield from _more_queries(p)


# Other attacks are stronger than gradients of the defense.
OUTDONE = (
    SymptomName.BLACK_BOX_STRONGER,
    SymptomName.TRANSFER_STRONGER,
    ItemName.MASKED,
    ItemName.BACKWARD,
    ItemName.ADAPTIVE,
)
# Gradients of the defense are useless.
_USELESS = (
    SymptomName.UNAVAILABLE_GRADIENTS,
    SymptomName.UNBOUNDED_FAILS,
    SymptomName.PIECEWISE_CONSTANT,
    ItemName.WHITE_BOX,
    ItemName.UNBOUNDED,
)
# Predictions change where gradients show nothing. An attack that has converged may have missed an
# error behind a border, so these call for remedies even where nothing is wrong.
DISCRETE = (
    SymptomName.SEVERAL_EXITS,
    SymptomName.HARD_BRANCHES,
    SymptomName.HIDDEN_EXITS,
    SymptomName.HIDDEN_DECISIONS,
    SymptomName.JUMPS,
    SymptomName.SATURATED_SOFTMAX,
    SymptomName.ZERO_GRADIENTS,
    SymptomName.HIDDEN_SCORES,
    SymptomName.WRONG_GRADIENTS,
    SymptomName.NO_GRADIENT,
    SymptomName.NON_FINITE_GRADIENTS,
    SymptomName.PIECEWISE_CONSTANT,
)
# Outputs are flat or jump, so that gradients of surrogates need not lead to an error.
FLAT = (
    SymptomName.NO_GRADIENT,
    SymptomName.NON_FINITE_GRADIENTS,
    SymptomName.ZERO_GRADIENTS,
    SymptomName.WRONG_GRADIENTS,
    SymptomName.JUMPS,
    SymptomName.PIECEWISE_CONSTANT,
)
STRATEGIES: tuple[RemedyStrategy, ...] = (
    RemedyStrategy(
        (
            ItemName.CONVERGED,
            SymptomName.LOSS_INCREASING,
            SymptomName.INCOMPLETE_OPTIMIZATION,
            SymptomName.NOT_CONVERGED,
            *OUTDONE,
            *DISCRETE,
        ),
        continued_rows,
        most=1.0,
    ),
    # An attack that increased its loss steadily needs less than one in a bad direction.
    RemedyStrategy(
        (
            ItemName.CONVERGED,
            SymptomName.LOSS_INCREASING,
            SymptomName.INCOMPLETE_OPTIMIZATION,
            SymptomName.NOT_CONVERGED,
            ItemName.MASKED,
            ItemName.ADAPTIVE,
        ),
        _longer,
        most=0.25,
    ),
    RemedyStrategy((ItemName.RANDOMNESS, SymptomName.EOT_NOT_CONVERGED), _more_draws),
    RemedyStrategy((SymptomName.UNAVAILABLE_GRADIENTS, ItemName.WHITE_BOX), _other_loss),
    RemedyStrategy(
        (
            SymptomName.GRADIENTS_DISAGREE,
            SymptomName.UNSTABLE_PREDICTIONS,
            ItemName.SINGLE_STEP,
        ),
        _smoothed,
    ),
    RemedyStrategy((*OUTDONE, *_USELESS), _bpda),
    RemedyStrategy(
        (SymptomName.BLACK_BOX_STRONGER, ItemName.MASKED, ItemName.BACKWARD, *_USELESS),
        _more_queries,
    ),
    RemedyStrategy((SymptomName.LOSS_INCREASING,), _queries_if_strongest),
    RemedyStrategy((*OUTDONE, *_USELESS), _score_differences),
    RemedyStrategy((SymptomName.OVERSHOOTING, ItemName.SINGLE_STEP), _short_steps),
    RemedyStrategy((SymptomName.OVERSHOOTING,), _minimum_norm),
    RemedyStrategy(DISCRETE, _most_effective),
    RemedyStrategy(DISCRETE, _other_widths),
    RemedyStrategy(FLAT, _evolution),
    RemedyStrategy(DISCRETE, _many_starts),
    RemedyStrategy(DISCRETE, _every_class),
    RemedyStrategy(DISCRETE, _more_queries),
)
