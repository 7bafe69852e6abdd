"""Adversaries that follow gradients of the defense."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from saddlepoint.attacks.aims import mean_of_losses, min_over_views
from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.ensemble import MinLoss
from saddlepoint.attacks.fab import FAB, own_facet
from saddlepoint.attacks.fmn import FMN
from saddlepoint.attacks.losses import (
    SmoothError,
    clipped_margin,
    cross_entropy,
    margin,
    targeted_margin,
)
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Radii
from saddlepoint.audits.planning.choice import Choice
from saddlepoint.audits.planning.parts import FEW_TARGETS, Parts
from saddlepoint.audits.probes.traits import TraitName
from saddlepoint.audits.target.answer import answer_is_not_last_view
from saddlepoint.audits.target.branches import AgainstBranch
from saddlepoint.audits.target.pixel_grid import OnGrid
from saddlepoint.audits.target.saturation import AgainstSoftened
from saddlepoint.evaluation import (
    Adversary,
    Annealed,
    Direct,
    Escalate,
    FixedPoint,
    GreedyModelSpace,
    MultiTarget,
    Restarts,
    RetrainedEnsemble,
    RowSearch,
    SingleTarget,
)
from saddlepoint.evaluation.suites import dlr_or_margin
from saddlepoint.gradients import BPDA, Checkpointed, FixedRandomness, Phantom, Rule
from saddlepoint.phrases import count, names, whole

_BRANCH_STEPS = 40
_BRANCH_RESTARTS = 3
_TEMPERATURES = (1, 4)  # times the lead of the highest score in a saturated softmax
_COUNT_STEPS = 60  # of ascent on a count of errors
_COUNT_WIDTHS = (1.0, 0.5, 0.2, 0.1, 0.05)  # of the count, one after another
_COUNT_RESTARTS = 3
_ROW_STEPS = 15  # of few rows of a batch while the others keep their points
_ROW_EXCHANGES = 300
_ROW_SUBSETS = 8
_START_STEPS = 20
_STARTS_PER_LOSS = 2
_START_CLASSES = 5  # the most likely wrong classes, one after another
# Rows are attacked longer if at most this fraction of the clean lead is left: after a few targets,
# and after all targets. Tuned on third-party nets.
_AFTER_FEW_TARGETS = 0.35
_AFTER_ALL_TARGETS = 0.2


def gradient_attacks(parts: Parts) -> Iterator[Choice]:
    """APGD with several losses, targeted attacks, minimum-norm attacks and restarts."""
    apgd = parts.apgd
    budget = parts.budget
    limit = parts.query_budget
    why = parts.why()
    yield Choice(apgd, f"cross-entropy{why}")
    steps = budget.steps if parts.escalates else 3 * budget.steps // 2
    longer = APGD(min(steps, limit.steps))
    dlr = replace(apgd, name="apgd-dlr", attack=longer, loss=dlr_or_margin)
    yield Choice(dlr, f"a scale-invariant loss{why}")
    yield from _other_rules(parts)
    if parts.defense.random and not parts.facts.has(TraitName.UNSEEDED):
        fixed = replace(
            apgd, name="apgd-fixed", attack=longer, loss=margin, estimator=FixedRandomness()
        )
        yield Choice(
            fixed, "randomized: one draw held fixed, which allows more steps than averaging"
        )
    yield from _error_counts(parts)
    yield from _targeted(parts)
    fab = Direct(
        "fab-t",
        FAB(max(budget.fab_steps, 1), facet=own_facet),
        stop_at_success=apgd.stop_at_success,
        rules=parts.bypass,
    )
    targets = limit.repetitions(fab, budget.targets) if budget.fab_steps else 0
    if not parts.defense.random and targets:
        yield Choice(
            MultiTarget(fab, targets, targeted_margin),
            "minimum-norm attack, which does not depend on the scale of a loss",
        )
    # The first step of APGD is two radii long and forgets where it started; short steps from many
    # starts find corners that it misses.
    pgd = replace(apgd, name="pgd", attack=PGD(20), loss=margin)
    restarts = limit.repetitions(pgd, parts.restarts)
    if restarts:
        benefit = "find corners that long steps miss"
        if parts.facts.masked:
            benefit = "continue where outputs are constant"
        yield Choice(
            Restarts(pgd, restarts), f"short steps from {count(restarts, 'start')} {benefit}{why}"
        )


def _error_counts(parts: Parts) -> Iterator[Choice]:
    """Ascent on counts of errors: of a batch, or of the draws of a randomized defense."""
    if not parts.budget.targets:
        return
    if parts.defense.unit != "example":
        yield from _errors_of_a_batch(parts)
    elif parts.defense.random:
        # Each step of a randomized defense is expensive, so there are no restarts.
        steps = min(_COUNT_STEPS, parts.query_budget.steps)
        pgd = PGD(steps, Radii(1 / 8), momentum=0.75)
        direct = replace(parts.apgd, name="pgd-errors", attack=pgd, loss=SmoothError())
        if parts.query_budget.repetitions(direct, 1):
            reason = "randomized: a smooth count of errors over draws instead of the mean loss"
            yield Choice(direct, f"{reason}{parts.why()}")


def _errors_of_a_batch(parts: Parts) -> Iterator[Choice]:
    """Ascent on losses in which misclassified rows have no weight, where rows influence each other.

    The sum of other losses may increase because few rows are misclassified by a large margin.
    """
    limit = parts.query_budget
    pgd = PGD(min(_COUNT_STEPS, limit.steps), Radii(0.3), momentum=0.75, decreasing=True)
    clipped = replace(parts.apgd, name="pgd-clipped", attack=pgd, loss=clipped_margin)
    restarts = limit.repetitions(clipped, _COUNT_RESTARTS)
    if not restarts:
        return
    why = "rows influence each other, so the sum of losses is not the count of errors"
    yield Choice(
        Restarts(clipped, restarts),
        f"{why}: margins, clipped where a row is misclassified{parts.why()}",
    )
    # As many queries in all: each stage also evaluates its last point and its best one.
    steps = pgd.calls // len(_COUNT_WIDTHS) - 2
    if steps < 1:
        return
    smooth = Annealed(
        replace(clipped, name="pgd-errors", attack=replace(pgd, steps=steps)),
        tuple(SmoothError(width) for width in _COUNT_WIDTHS),
    )
    yield Choice(
        Restarts(smooth, restarts), f"{why}: a count of errors that is smooth at first{parts.why()}"
    )
    yield from _row_search(parts, clipped, smooth)


def _row_search(parts: Parts, clipped: Direct, smooth: Annealed) -> Iterator[Choice]:
    """A search over single rows, where an output can be repeated."""
    if parts.defense.random or parts.defense.memory != "none":
        return
    assert isinstance(clipped.attack, PGD), "made above"
    pgd = clipped.attack
    few_rows = replace(clipped, attack=PGD(_ROW_STEPS, Radii(0.4), momentum=0.75))
    # Batches that differ are worth more than batches with many errors.
    losses = (cross_entropy, clipped_margin, SmoothError(), margin)
    shorter = [
        replace(clipped, attack=replace(pgd, steps=_START_STEPS), loss=one) for one in losses
    ]
    toward = [SingleTarget(shorter[-1], rank, targeted_margin) for rank in range(_START_CLASSES)]
    starts = (parts.apgd, clipped, smooth, *_STARTS_PER_LOSS * shorter, *toward)
    search = RowSearch("rows", few_rows, starts, _ROW_EXCHANGES, _ROW_SUBSETS)
    reason = (
        "rows influence each other: points of single rows are exchanged, and few rows move while "
        "all others keep their points"
    )
    yield Choice(search, f"{reason}{parts.why()}")
    uncut = parts.whole_gradient
    if uncut:
        others = [one.map_direct(lambda direct: replace(direct, rules=uncut)) for one in starts]
        moved = replace(few_rows, rules=uncut)
        yield Choice(
            replace(search, name="rows-whole", direct=moved, starts=tuple(others)),
            f"{reason}, along the whole gradient",
        )


def _targeted(parts: Parts) -> Iterator[Choice]:
    steps = min(parts.budget.targeted_steps, parts.query_budget.steps)
    direct = replace(parts.apgd, name="apgd-t", attack=APGD(steps))
    targets = parts.query_budget.repetitions(direct, parts.targets)
    if not targets:
        return
    every = MultiTarget(direct, targets, targeted_margin)
    reason = f"{count(targets, 'target class')}{parts.why()}"
    if not parts.escalates:
        yield Choice(every, reason)
        return
    # Few targets first, all targets where these come close, a minimum-norm attack where all do.
    few = replace(every, targets=min(every.targets, FEW_TARGETS))
    fmn = replace(direct, name="fmn", attack=FMN(parts.budget.fmn_steps), loss=margin)
    escalated = parts.escalate(few, Escalate(every, fmn, _AFTER_ALL_TARGETS), _AFTER_FEW_TARGETS)
    if escalated is few:
        yield Choice(every, reason)
        return
    yield Choice(
        escalated,
        f"{reason}: {whole(few.targets)} on all images, all where these come close to success, and "
        "a minimum-norm attack where all come close",
    )


def _other_rules(parts: Parts) -> Iterator[Choice]:
    """The same attack with other gradient rules at sites."""
    apgd = parts.apgd
    facts = parts.facts
    exact = replace(apgd, rules={})
    if facts.bypassed and not facts.no_exact_gradient:
        # BPDA gave the better first step on a few images; over many steps it need not be better.
        reason = "exact gradients at all sites, beside the replaced ones"
        yield Choice(replace(exact, name="apgd-exact"), reason)
        # Momentum averages gradients that jump.
        steps = min(_BRANCH_STEPS, parts.query_budget.steps)
        short = PGD(steps, parts.threat.space.radius / 8, momentum=0.75)
        pgd = replace(exact, name="pgd-exact", attack=short, loss=margin)
        restarts = parts.query_budget.repetitions(pgd, parts.restarts)
        if restarts:
            yield Choice(
                Restarts(pgd, restarts), f"{reason}, in short steps from {count(restarts, 'start')}"
            )
    uncut = parts.whole_gradient
    if uncut:
        cuts = names(f"`{cut}`" for cut in facts.replaced.cuts)
        reason = f"a part of the gradient is cut at {cuts}: the whole gradient"
        yield Choice(replace(apgd, name="apgd-whole", rules=uncut), reason)
        yield Choice(replace(apgd, name="apgd-whole-margin", rules=uncut, loss=margin), reason)
    named = facts.traits.places(TraitName.SITES)
    if named and set(named) != set(facts.bypassed):
        rules: dict[str, Rule] = dict.fromkeys(named, BPDA())
        sites = ", ".join(f"`{site}`" for site in named)
        yield Choice(
            replace(apgd, name="apgd-bpda", rules=rules), f"BPDA(identity) at all sites: {sites}"
        )
    # All other attacks use the implicit gradient, which is the gradient of a fixed point. Where the
    # solver has not reached one, the gradient of its own steps is right, and that of a few steps
    # from its last state is often more useful.
    variants: dict[str, tuple[Rule, str]] = {
        "through": (Checkpointed(), "the gradient of the solver's own steps"),
        "unrolled": (
            Phantom(steps=5, damping=0.5),
            "the gradient of five steps from the solver's last state",
        ),
    }
    for name, (rule, reason) in variants.items() if facts.solves else ():
        solve_rules = {**parts.bypass, **dict.fromkeys(facts.solves, rule)}
        yield Choice(
            replace(apgd, name=f"apgd-{name}", rules=solve_rules),
            f"it solves for a fixed point: {reason}",
        )


def grid_attacks(parts: Parts) -> Iterator[Choice]:
    """Attacks limited to 8-bit images, where outputs jump next to images."""
    facts = parts.facts
    if not (facts.has(TraitName.JUMPS) and facts.eight_bit and parts.threat.space.p == math.inf):
        return
    reason = (
        "outputs jump next to the images, which have 8-bit pixel values: points with such values"
    )
    steps = min(parts.budget.steps, parts.query_budget.steps)
    apgd = replace(parts.apgd, name="apgd-margin", attack=APGD(steps), loss=margin)
    yield Choice(OnGrid(apgd), f"{reason}{parts.why()}")
    direct = replace(parts.apgd, name="apgd-t", attack=APGD(parts.budget.targeted_steps))
    targets = parts.query_budget.repetitions(direct, min(parts.targets, FEW_TARGETS))
    if targets:
        classes = count(targets, "target class")
        yield Choice(
            OnGrid(MultiTarget(direct, targets, targeted_margin)),
            f"{reason}, {classes}{parts.why()}",
        )


def softened_attacks(parts: Parts) -> Iterator[Choice]:
    """Gradients at higher temperatures, where a softmax inside the target is saturated."""
    gap = parts.facts.saturation
    if gap is None:
        return
    reason = "a softmax inside is saturated: gradients at a higher temperature"
    apgd = replace(parts.apgd, loss=margin)
    direct = replace(parts.apgd, name="apgd-t", attack=APGD(parts.budget.targeted_steps))
    targets = parts.query_budget.repetitions(direct, min(parts.targets, FEW_TARGETS))
    for factor in _TEMPERATURES:
        named = replace(apgd, name=f"apgd-{factor}")
        yield Choice(AgainstSoftened(named, factor * gap), f"{reason}{parts.why()}")
        if targets:
            every = MultiTarget(replace(direct, name=f"apgd-t-{factor}"), targets, targeted_margin)
            yield Choice(AgainstSoftened(every, factor * gap), f"{reason}{parts.why()}")


def branch_attacks(parts: Parts) -> Iterator[Choice]:
    """One attack per discrete branch; momentum averages the gradients on both sides of a border."""
    if not parts.budget.targets:
        return
    attack = PGD(min(_BRANCH_STEPS, parts.query_budget.steps), momentum=0.75)
    pgd = replace(
        parts.apgd,
        name="pgd-branch",
        attack=attack,
        loss=margin,
        aim=min_over_views,
        stop_at_success=False,
    )
    restarts = max(1, parts.query_budget.repetitions(pgd, _BRANCH_RESTARTS))
    for branch in parts.facts.branches:
        yield Choice(
            Restarts(AgainstBranch(pgd, branch), restarts),
            f"discrete branches: option {branch.option + 1} of decision {branch.decision + 1}, "
            f"with the scores that select it{parts.why()}",
        )


def view_attacks(parts: Parts) -> Iterator[Choice]:
    """The mean loss over all views: a gradient may vanish only in the last one."""
    several = parts.facts.traits.amount(TraitName.VIEWS_DISAGREE) is not None
    if several or answer_is_not_last_view(parts.defense):
        yield Choice(
            replace(parts.apgd, name="apgd-views", aim=mean_of_losses),
            "the mean loss over all intermediate views",
        )


def adaptation_attacks(parts: Parts) -> Iterator[Choice]:
    """Attacks on models that the defense may adapt to."""
    rounds = parts.budget.rounds
    apgd = replace(parts.apgd, stop_at_success=False)
    on_margin = replace(apgd, name="apgd-margin", loss=margin)
    yield Choice(
        FixedPoint("fixed-point", apgd, rounds),
        f"it adapts: attack the last adapted model, {count(rounds, 'round')}",
    )
    yield Choice(
        GreedyModelSpace("gmsa-avg", on_margin, rounds),
        f"it adapts: attack the mean loss of all adapted models, {count(rounds, 'round')}",
    )
    least: Adversary = GreedyModelSpace("gmsa-min", on_margin, rounds, MinLoss())
    yield Choice(
        least, f"it adapts: attack the least loss of all adapted models, {count(rounds, 'round')}"
    )
    if parts.defense.random:
        yield Choice(
            RetrainedEnsemble("retrained", on_margin, rounds),
            f"its adaptation is randomized: attack an ensemble of {count(rounds, 'adapted model')}",
        )
    if parts.facts.has(TraitName.ADAPTS_DIFFERENTIABLY):
        yield Choice(
            replace(apgd, name="apgd-adapt", respond=True),
            "its adaptation is differentiable: the gradient through it",
        )
