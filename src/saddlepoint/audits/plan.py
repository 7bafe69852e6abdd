"""From a target to a plan, and from finished cells to a verdict; what lies between may run anywhere."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from saddlepoint.attacks.history import together
from saddlepoint.attacks.spaces import Ball
from saddlepoint.audits.cells import Group, Job
from saddlepoint.audits.diagnostics.baselines import compare
from saddlepoint.audits.diagnostics.checklist import checklist
from saddlepoint.audits.diagnostics.convergence import unsettled
from saddlepoint.audits.diagnostics.loss_curve import LossCurve
from saddlepoint.audits.diagnostics.symptoms import signs
from saddlepoint.audits.diagnostics.trials import Play, Trials
from saddlepoint.audits.planning.cost import entrance
from saddlepoint.audits.planning.properties import ANTICIPATING, kinds
from saddlepoint.audits.planning.suite import BUDGETS, Budget, Choice, TargetFacts, compose
from saddlepoint.audits.probes.traits import Traits
from saddlepoint.audits.remedies.results import Tried
from saddlepoint.audits.result import Audit, Examples, Row, Symptom
from saddlepoint.audits.statistics import over_units
from saddlepoint.audits.target.admission import Target
from saddlepoint.audits.target.check import check
from saddlepoint.defenses import Defense
from saddlepoint.describe import describe
from saddlepoint.evaluation import Adversary, FixedPoints, OnExamples, Threat


@dataclass(frozen=True)
class Plan:
    """A checked target and the adversaries that will be sent against it."""

    name: str
    budget: Budget
    job: Job
    adversaries: tuple[Adversary, ...]  # the clean images first
    findings: tuple[Symptom, ...]
    choices: tuple[
        Choice, ...
    ] = ()  # of all adversaries but the clean images: why they are sent, and what they may cost
    traits: Traits = field(default_factory=lambda: Traits(()))
    data: str = ""  # the name of the images, if they have one
    classes: tuple[str, ...] = ()  # and of their classes
    command: str = ""  # by which the audit was asked for, if by one
    claim: float | None = None  # the robust accuracy that somebody claims, to be tested
    allowance: int = 0  # passes per image, on average, for remedies; 0: none are tried

    @property
    def cells(self) -> list[tuple[int, int]]:
        """(group, adversary): all pieces of work, each independent of the others."""
        return [(g, a) for g in range(len(self.job.groups)) for a in range(len(self.adversaries))]

    def more(self, choices: Sequence[Choice]) -> Plan:
        """The plan with remedies, sent after all others: the cells that it had keep their numbers."""
        sent = tuple(choice.adversary for choice in choices)
        return replace(
            self, adversaries=(*self.adversaries, *sent), choices=(*self.choices, *choices)
        )


def plan(
    target: Target,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat | Ball,
    budget: Budget = "standard",
    adversaries: Sequence[Adversary] = (),
    seed: int = 0,
    batch_size: int = 128,
    name: str | None = None,
    claim: float | None = None,
) -> Plan:
    """Check the target and choose the adversaries, unless they are given."""
    if budget not in BUDGETS:
        raise ValueError(f"the budget is one of {', '.join(BUDGETS)}, got {budget!r}.")
    if batch_size < 1:
        raise ValueError(f"the batch size must be at least 1, got {batch_size}.")
    if claim is not None and not 0 <= claim <= 1:
        raise ValueError(
            f"a claimed accuracy is a share between 0 and 1, 0.62 for 62 %, got {claim}."
        )
    threat = threat if isinstance(threat, Threat) else Threat(threat)
    checked = check(target, x, y, threat.space)
    if checked.defense.random and threat.draws == 1:
        threat = replace(threat, draws=BUDGETS[budget].draws)
    job = Job(checked.defense, x.detach(), y.long(), threat, seed, batch_size)
    known = TargetFacts(checked.traits, checked.solves, checked.around, checked.branches)
    choices = tuple(Choice(sent, "asked for") for sent in adversaries) or compose(
        checked.defense, threat, budget, known
    )
    sent = tuple(choice.adversary for choice in choices)
    findings = (*checked.findings, *_unanticipated(checked.defense, sent))
    # What somebody asked for is sent as it is; what the budget composed may be followed by remedies.
    draws = threat.draws if checked.defense.random else 1
    allowance = (
        0
        if adversaries
        else int(BUDGETS[budget].remedies * sum(entrance(one, draws).total for one in sent))
    )
    return Plan(
        name or type(target).__name__, budget, job, (FixedPoints(), *sent), findings, choices, checked.traits, claim=claim,
        allowance=allowance,
    )  # fmt: skip


def _unanticipated(defense: Defense, sent: Sequence[Adversary]) -> Iterator[Symptom]:
    """A defense that learns from what it is asked is another one when it answers."""
    if defense.memory != "none" and not any(
        kinds(describe(adversary)) & ANTICIPATING for adversary in sent
    ):
        yield Symptom(
            "adapts at test time", "serious",
            "the defense learns from the images it is asked about, and no attack of this audit anticipates what it turns into: one "
            "that does (GreedyModelSpace) may do better.",
        )  # fmt: skip


@dataclass(frozen=True)
class Evidence:
    """What finished cells show."""

    groups: Sequence[Group]
    trials: Trials

    @cached_property
    def symptoms(self) -> tuple[Symptom, ...]:
        return tuple(signs(self.trials))

    @classmethod
    def of(
        cls,
        plan: Plan,
        groups: Sequence[Group],
        before: Evidence | None = None,
        play: Play = Job.play,
    ) -> Evidence:
        """`before`: what the same cells had shown before remedies were tried, whose trials need not all be repeated."""
        rows = _rows(
            groups, plan.adversaries, {choice.name: choice.reason for choice in plan.choices}
        )
        if before is None:
            return cls(groups, Trials(plan.job, plan.adversaries, groups, rows, play))
        return cls(groups, before.trials.after(plan.adversaries, groups, rows))


def conclude(plan: Plan, evidence: Evidence, seconds: float) -> Audit:
    """The verdict on all groups together."""
    job = plan.job
    groups = evidence.groups
    trials = evidence.trials
    correct, points = (
        torch.cat(parts)
        for parts in ([g.verdict.correct[0] for g in groups], [g.points for g in groups])
    )
    tried = Tried.of(plan.choices, trials)
    return Audit(
        target=plan.name,
        threat=str(job.threat),
        threat_description=_threat_description(job.threat),
        budget=plan.budget,
        seed=job.seed,
        n=len(job.x),
        clean_accuracy=float(torch.cat([g.outcomes.correct[0, 0] for g in groups]).mean()),
        robust_accuracy=float(correct.mean()),
        interval=over_units(correct, _units(job, groups), job.defense.unit),
        rows=trials.rows,
        symptoms=(*plan.findings, *unsettled(job, points), *map(tried.told, evidence.symptoms)),
        checklist=tuple(map(tried.beside, checklist(trials))),
        compared=compare(trials, plan.claim),
        versions={
            "saddlepoint": version("saddlepoint"),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        x=job.x.cpu(),
        y=job.y.cpu(),
        worst_points=points,
        correct=correct,
        answered=torch.cat([g.verdict.answered[0] for g in groups]),
        examples=_examples(job, groups),
        rejection_scores=torch.cat([g.verdict.rejection_scores for g in groups], dim=3)[
            :, :, :1
        ].flatten(1, 2),
        seconds=seconds,
        data=plan.data,
        classes=plan.classes,
        command=plan.command,
    )


def _threat_description(threat: Threat) -> dict[str, Any]:
    """Describe the threat as plain data, for the record."""
    description = describe(threat)
    assert isinstance(description, dict), "a dataclass is described by a dictionary"
    return description


def _units(job: Job, groups: Sequence[Group]) -> Tensor:
    """[N] which images were answered together; a stream is one, whatever its batches."""
    if job.defense.unit == "stream":
        return torch.zeros(len(job.x), dtype=torch.long)
    counts = [int(g.verdict.batch.amax()) + 1 for g in groups]
    return torch.cat([g.verdict.batch + sum(counts[:k]) for k, g in enumerate(groups)])


def _examples(job: Job, groups: Sequence[Group]) -> Examples:
    """The ledger: by which adversary each example fell, at what price, and whether that was seen again."""
    episodes = [g.outcomes.episodes for g in groups]
    claimed = torch.cat([g.outcomes.worst_case_per_example()[0] for g in groups])
    verdict = torch.cat([g.verdict.correct[0] for g in groups])
    return Examples(
        winner=tuple(name for g in groups for name in g.winner),
        margin=torch.cat([g.verdict.margin[0] for g in groups]),
        size=torch.cat([g.verdict.size for g in groups]),
        forward=torch.cat([torch.stack([e.forward for e in group]).sum(0) for group in episodes]),
        backward=torch.cat([torch.stack([e.backward for e in group]).sum(0) for group in episodes]),
        draws=job.threat.draws if job.defense.random else 1,
        verified=(claimed == verdict)
        if not job.defense.random
        else torch.ones_like(verdict, dtype=torch.bool),
    )


def _rows(
    groups: Sequence[Group], adversaries: Sequence[Adversary], reasons: Mapping[str, str]
) -> tuple[Row, ...]:
    """One row per adversary, in the order in which they were sent; the clean images, the first of them, are not a row."""
    n = sum(len(g.points) for g in groups)

    def running(upto: int) -> float:
        return float(
            torch.cat(
                [g.outcomes.only(range(upto)).worst_case_per_example()[0] for g in groups]
            ).mean()
        )

    rows = []
    before = running(1)
    for a, sent in enumerate(adversaries[1:], start=1):
        episodes = [g.outcomes.episodes[a] for g in groups]
        after = running(a + 1)
        met = [e.forward > 1 for e in episodes]  # one pass is the look that decided not to attack
        rows.append(
            Row(
                name=sent.name,
                # One that met only what others had left is judged together with them.
                robust_accuracy=after
                if isinstance(sent, OnExamples)
                else float(torch.cat([e.correct[0] for e in episodes]).mean()),
                running=after,
                gain=before - after,
                attacked=sum(int(m.sum()) for m in met),
                forward=sum(float(e.forward.sum()) for e in episodes) / n,
                backward=sum(float(e.backward.sum()) for e in episodes) / n,
                seconds=sum(e.seconds for e in episodes),
                copies=sum(
                    int((e.copies.cpu() & m).sum()) for e, m in zip(episodes, met, strict=True)
                ),
                loss_curve=LossCurve.of(together([e.loss_curve for e in episodes])),
                reason=reasons.get(sent.name, ""),
            )
        )
        before = after
    return tuple(rows)
