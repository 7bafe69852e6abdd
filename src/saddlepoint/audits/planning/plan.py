"""The plan of an audit: which adversaries run against the target, why, and at what cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from saddlepoint.audits.cells import AttackCell, Job
from saddlepoint.audits.planning.audit_cost import AuditCost, audit_cost
from saddlepoint.audits.planning.budget import BUDGETS, Budget
from saddlepoint.audits.planning.choice import Choice
from saddlepoint.audits.planning.parts import Parts
from saddlepoint.audits.planning.suite import compose
from saddlepoint.audits.probes.recognition import Recognized
from saddlepoint.audits.probes.stage import Probed
from saddlepoint.audits.probes.traits import TraitName, Traits
from saddlepoint.audits.profile import Spent, Stage
from saddlepoint.audits.request import AuditRequest
from saddlepoint.audits.verdict import Level, Symptom, SymptomName
from saddlepoint.defenses import Defense
from saddlepoint.evaluation import Adversary, FixedPoints


@dataclass(frozen=True)
class Plan:
    """A checked target and the adversaries that run against it."""

    name: str
    budget: Budget
    job: Job
    adversaries: tuple[Adversary, ...]  # the clean images first
    findings: tuple[Symptom, ...] = ()  # what probing found
    choices: tuple[Choice, ...] = ()  # one per adversary except the clean images
    traits: Traits = field(default_factory=lambda: Traits(()))
    data: str = ""  # name of the data set; empty if there is none
    classes: tuple[str, ...] = ()  # names of the classes
    command: str = ""  # the command line that started the audit; empty if there is none
    claim: float | None = None  # a claimed robust accuracy to test
    remedy_passes: int = 0  # mean passes per image for remedies; 0: no remedies
    recognized: tuple[Recognized, ...] = ()  # in the target
    composed: bool = False  # the budget chose the adversaries, not the user
    # Time and passes of the stages probe and plan.
    preparation: Mapping[Stage, Spent] = field(default_factory=dict, compare=False)

    @property
    def cells(self) -> list[AttackCell]:
        """All attack cells. Each is independent of the others."""
        groups = range(len(self.job.groups))
        return [(g, a) for g in groups for a in range(len(self.adversaries))]

    @property
    def cost(self) -> AuditCost | None:
        """The most passes per image, part by part; None if the cost of an adversary is unknown."""
        planned = [choice for choice in self.choices if not choice.against]
        return audit_cost(self.job, planned, self.remedy_passes)

    def most_passes(self, choice: Choice) -> int | None:
        """The most forward and backward passes per image of an adversary, as an audit counts them.

        It is the cost of the adversary and of what decides which rows are attacked, such as the
        output for the clean image. None if the choice states no cost.
        """
        draws = self.job.threat.draws if self.job.defense.random else 1
        cost = self.job.as_played(choice.adversary).cost(draws)
        return None if choice.passes is None or cost is None else cost.total

    def with_remedies(self, choices: Sequence[Choice]) -> Plan:
        """The plan with remedies after all other adversaries, which keep their numbers."""
        return replace(
            self,
            adversaries=(*self.adversaries, *(choice.adversary for choice in choices)),
            choices=(*self.choices, *choices),
        )


# All images of a batch share one draw of such noise, so its errors do not average out over images.
_SHARED_DRAWS = 4  # times the draws of the budget
# Remedies of costly targets continue on the few rows that are left, so that this is a loose bound.
_COSTLY_REMEDIES = 2  # times the passes of the budget


def make_plan(request: AuditRequest, probed: Probed) -> Plan:
    """Choose adversaries for what was measured, unless the request names them.

    Named adversaries run as they are. Adversaries that the budget composed may be followed by
    remedies.
    """
    threat = request.threat
    defense = probed.defense
    budget = BUDGETS[request.budget]
    shared = defense.random and TraitName.NOISE_PER_BATCH in probed.facts.traits
    if defense.random and threat.draws == 1:
        threat = replace(threat, draws=budget.draws * (_SHARED_DRAWS if shared else 1))
    job = Job(
        defense,
        request.x.detach(),
        request.y.long(),
        threat,
        request.seed,
        request.batch_size,
        shared_noise=shared,
    )
    named = tuple(Choice(adversary, "requested") for adversary in request.adversaries)
    extra = tuple(Choice(adversary, "requested beside the others") for adversary in request.extra)
    choices = (*(named or compose(defense, threat, request.budget, probed.facts)), *extra)
    adversaries = tuple(choice.adversary for choice in choices)
    draws = threat.draws if defense.random else 1
    share = budget.remedies
    counted = adversaries
    if Parts(defense, threat, budget, probed.facts).few_answers:
        # Passes of the static net cost next to nothing beside those of the target.
        counted = tuple(one for one in adversaries if not one.properties.transfers)
        share *= _COSTLY_REMEDIES
    return Plan(
        request.name,
        request.budget,
        job,
        (FixedPoints(), *adversaries),
        (*probed.findings, *_not_anticipated(defense, adversaries)),
        choices,
        probed.facts.traits,
        data=request.data,
        classes=request.classes,
        command=request.command,
        claim=request.claim,
        recognized=probed.recognized,
        composed=not named,
        remedy_passes=0 if named else _remedy_passes(share, counted, draws),
    )


def _remedy_passes(share: float, adversaries: Sequence[Adversary], draws: int) -> int:
    """Passes per image for remedies: a share of the cost of all planned adversaries."""
    costs = [adversary.first_stage_cost(draws) for adversary in adversaries]
    return int(share * sum(cost.total for cost in costs if cost is not None))


def _not_anticipated(defense: Defense, adversaries: Sequence[Adversary]) -> Iterator[Symptom]:
    """A defense that adapts to the batch is another model when it answers."""
    anticipated = any(a.properties.anticipates_adaptation for a in adversaries)
    if defense.memory != "none" and not anticipated:
        yield Symptom(
            SymptomName.NOT_ANTICIPATED,
            Level.SERIOUS,
            "the defense adapts to test images, and no attack of this audit anticipates the "
            "adapted model: one that does (GreedyModelSpace) may be stronger.",
        )
