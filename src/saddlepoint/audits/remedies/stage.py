"""The remedy stage: further attacks for the symptoms of the first round.

Remedies run on unbroken images and share the passes that the budget has for them. If these are too
few for all images and the verdict depends on a remedy, it runs on the images closest to an error.
Nothing here is random or depends on time, so a resumed run chooses the same remedies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from saddlepoint.audits.diagnostics.checklist import checklist
from saddlepoint.audits.diagnostics.symptoms import symptoms
from saddlepoint.audits.evidence import Evidence
from saddlepoint.audits.planning.choice import Choice
from saddlepoint.audits.remedies.planner import Planner
from saddlepoint.audits.remedies.strategies import DISCRETE, OUTDONE, STRATEGIES
from saddlepoint.audits.remedies.variant import RemedyStrategy, Variant
from saddlepoint.audits.target.answer import answer_is_not_last_view
from saddlepoint.audits.verdict import ItemName, Level, State, SymptomName
from saddlepoint.evaluation import OnExamples
from saddlepoint.phrases import count, count_of


@dataclass(frozen=True)
class Trigger:
    """A symptom or failed checklist item that calls for a remedy."""

    name: SymptomName | ItemName
    message: str
    decisive: bool  # it alone prevents a credible verdict


@dataclass(frozen=True)
class _Offer:
    choice: Choice
    passes: int  # on all of its images together


def remedy(evidence: Evidence) -> tuple[Choice, ...]:
    """The remedies to run; none if nothing calls for one or no passes are left."""
    plan = evidence.plan
    if not plan.remedy_passes:
        return ()
    triggers = _triggers(evidence)
    planner = Planner(evidence)
    total = plan.remedy_passes * len(plan.job.x)
    left = float(total)
    chosen: list[Choice] = []
    for strategy in sorted(STRATEGIES, key=lambda one: not _decisive(one, triggers)):
        present = [triggers[name] for name in strategy.triggers if name in triggers]
        if not present:
            continue
        offer = _largest(planner, strategy, present, min(left, strategy.most * total))
        if offer is not None and offer.choice.name not in [choice.name for choice in chosen]:
            chosen.append(offer.choice)
            left -= offer.passes
    return tuple(chosen)


def _decisive(strategy: RemedyStrategy, triggers: Mapping[str, Trigger]) -> bool:
    return any(triggers[name].decisive for name in strategy.triggers if name in triggers)


def _triggers(evidence: Evidence) -> Mapping[str, Trigger]:
    found = list(_discrete(evidence))
    for symptom in symptoms(evidence):
        if symptom.level is not Level.NOTE and symptom.name not in _ABOUT_SOLVERS:
            decisive = symptom.level is Level.SERIOUS
            found.append(Trigger(symptom.name, symptom.message, decisive))
    found += _not_yet_converged(evidence)
    for item in checklist(evidence):
        if item.state is State.FAIL:
            found.append(Trigger(item.name, item.evidence, decisive=True))
    return {trigger.name: trigger for trigger in found}


_ABOUT_SOLVERS = (SymptomName.SOLVER_NOT_CONVERGED, SymptomName.BACKWARD_NOT_CONVERGED)


def _discrete(e: Evidence) -> Iterator[Trigger]:
    """What probing found about decisions that gradients do not show.

    Nothing for a randomized defense: its noise smooths such borders, and each start is expensive.
    """
    if e.defense.random:
        return
    for finding in e.plan.findings:
        if finding.name in DISCRETE:
            yield Trigger(finding.name, finding.message, decisive=False)
    if answer_is_not_last_view(e.defense):
        message = "the defense chooses among its views"
        yield Trigger(SymptomName.SEVERAL_EXITS, message, decisive=False)


def _not_yet_converged(e: Evidence) -> Iterator[Trigger]:
    """One image broken by more steps is no failure yet, but other images may be like it."""
    compared = e.diagnoses.longer
    if compared is None or e.defense.random:
        return
    broken = int((compared.first - compared.second).sum())
    if broken > 0:
        yield Trigger(
            ItemName.CONVERGED,
            f"twice the steps of {e.strongest_name} broke "
            f"{count_of(broken, int(compared.first.sum()), 'unbroken image')}",
            decisive=False,
        )


def _largest(
    planner: Planner, strategy: RemedyStrategy, triggers: Sequence[Trigger], passes: float
) -> _Offer | None:
    """The most expensive affordable variant: on all images, else on the closest ones."""
    variants = [one for one in strategy.variants(planner) if planner.allowed(one.adversary)]
    outdone = any(trigger.name in OUTDONE for trigger in triggers)
    selections = [False]
    if any(trigger.decisive for trigger in triggers):
        selections.append(True)
    for closest_only in selections:
        for variant in variants:
            cost = variant.adversary.cost(planner.draws)
            assert cost is not None, "all remedies have a known cost"
            ids = planner.ids(variant.adversary, outdone=outdone)
            if closest_only and planner.job.defense.unit == "example":
                ids = planner.closest(ids, int(passes / cost.total))
            if ids and cost.total * len(ids) <= passes:
                return _offer(variant, triggers, ids, cost.total)
    return None


def _offer(
    variant: Variant, triggers: Sequence[Trigger], ids: tuple[int, ...], passes: int
) -> _Offer:
    names = tuple(trigger.name for trigger in triggers)
    cause = f"{', '.join(names)} ({triggers[0].message.rstrip('.')})"
    reason = f"{cause}: {variant.description}, on {count(len(ids), 'image')}"
    adversary = OnExamples(variant.name, variant.adversary, ids)
    return _Offer(Choice(adversary, reason, passes, names), passes * len(ids))
