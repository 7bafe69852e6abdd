"""What remedies are built from: the evidence, and the strongest attack that they vary."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.losses import margin, targeted_margin
from saddlepoint.attacks.oracle import Differentiates, grants
from saddlepoint.attacks.pgd import PGD
from saddlepoint.audits.cells import Job
from saddlepoint.audits.diagnostics.gradient_trials import direct_of
from saddlepoint.audits.evidence import Evidence
from saddlepoint.audits.planning.plan import Plan
from saddlepoint.audits.planning.suite import affordable
from saddlepoint.audits.target.answer import AgainstAnswer, answer_is_not_last_view
from saddlepoint.audits.target.surrogates import SurrogateOperations
from saddlepoint.defenses.wrapper import DefenseWrapper
from saddlepoint.evaluation import (
    Adversary,
    Direct,
    MultiTarget,
    Restarts,
    RowRounds,
    WarmStart,
)

_FEWEST = 8  # images on which a remedy can show its effect
_CONTINUED_STEPS = 40


@dataclass(frozen=True)
class Planner:
    """The evidence after the first round of attacks."""

    evidence: Evidence

    @property
    def plan(self) -> Plan:
        """The plan of the first round."""
        return self.evidence.plan

    @property
    def job(self) -> Job:
        """What all cells share."""
        return self.plan.job

    @property
    def draws(self) -> int:
        """Draws over which the defense is evaluated."""
        return self.job.threat.draws if self.job.defense.random else 1

    @property
    def strongest(self) -> Adversary | None:
        """One run of the strongest iterative white-box attack, which remedies vary."""
        return None if self.evidence.strongest is None else self.evidence.strongest[1]

    @property
    def strongest_name(self) -> str:
        """Its name; only where there is one."""
        assert self.strongest is not None, "used only where there is an iterative attack"
        return self.strongest.name

    @property
    def direct(self) -> Direct:
        """The optimizer and objective inside it; only where there is one."""
        assert self.strongest is not None, "used only where there is an iterative attack"
        return direct_of(self.strongest)

    @property
    def with_width(self) -> list[str]:
        """Operations where the strongest attack uses a smooth step or a softmax of some width."""
        found: list[str] = []
        defense = self.job.defense
        while isinstance(defense, DefenseWrapper):
            if isinstance(defense, SurrogateOperations):
                found += [str(one) for one in defense.operations if one.has_width]
            defense = defense.inner
        return [site for site in found if site in self.direct.rules]

    @property
    def rounds(self) -> RowRounds | None:
        """The strongest attack of single rows that was run; None if rows are independent."""
        e = self.evidence
        planned = [run for run in e.runs if not run.remedy]
        planned.sort(key=lambda run: e.row(run).robust_accuracy)
        inner = (
            run.adversary.adversary if isinstance(run.adversary, AgainstAnswer) else run.adversary
            for run in planned
        )
        return next((one for one in inner if isinstance(one, RowRounds)), None)

    def on_answer(self, adversary: Adversary) -> Adversary:
        """The adversary aimed at the defense's answer, if that is not its last view."""
        on_answer = answer_is_not_last_view(self.job.defense)
        return AgainstAnswer(adversary) if on_answer else adversary

    def strongest_with(self, starts: int = 1, **parts: Any) -> Adversary:
        """The strongest attack with other parts, from several starts."""
        assert self.strongest is not None, "used only where there is an iterative attack"
        changed = self.strongest.map_direct(lambda direct: replace(direct, **parts))
        return changed if starts == 1 else Restarts(changed, starts)

    def toward_classes(self, attack: Attack[Differentiates], targets: int) -> Adversary | None:
        """The strongest attack toward each of the most likely wrong classes, where it can be."""
        strongest = self.strongest
        if isinstance(strongest, Direct):
            direct = replace(strongest, attack=attack)
            return MultiTarget(direct, targets, targeted_margin)
        if isinstance(strongest, AgainstAnswer) and isinstance(strongest.adversary, Direct):
            direct = replace(strongest.adversary, attack=attack)
            return AgainstAnswer(MultiTarget(direct, targets, targeted_margin))
        return None

    def continued(self, search: Adversary) -> Adversary:
        """The search, followed by gradient steps where rows are independent and deterministic."""
        defense = self.job.defense
        strongest = self.strongest
        independent = not defense.random and defense.unit == "example"
        if not isinstance(strongest, Direct) or not independent:
            return search
        pgd = PGD(_CONTINUED_STEPS, self.job.threat.space.radius / 3)
        return WarmStart(search, replace(strongest, attack=pgd, loss=margin))

    def allowed(self, adversary: Adversary) -> bool:
        """Whether access and query limit allow an adversary."""
        threat = self.job.threat
        needs = adversary.needs
        granted = grants(threat.access, needs) and grants(self.job.defense.grants, needs)
        return granted and affordable(adversary, self.draws, threat.queries)

    def ids(self, adversary: Adversary, *, outdone: bool) -> tuple[int, ...]:
        """The unbroken images.

        Where other attacks are stronger than gradients, a white-box remedy is run on the images
        that gradients did not break, to see whether it breaks them.
        """
        e = self.evidence
        white_box = outdone and adversary.properties.white_box
        correct = e.remaining(e.white_box) if white_box else e.robust
        unbroken = (correct >= 0.5).tolist()
        unit = self.job.defense.unit
        if unit == "stream":  # later outputs depend on all earlier images
            return tuple(range(len(unbroken))) if any(unbroken) else ()
        groups = [[k] for k in range(len(unbroken))]
        if unit == "batch":
            groups = [group.tolist() for group in self.job.groups]
        return tuple(k for group in groups if any(unbroken[k] for k in group) for k in group)

    def closest(self, ids: tuple[int, ...], count: int) -> tuple[int, ...]:
        """The images that attacks brought closest to an error.

        They have the smallest remaining fraction of the clean lead of the correct class.
        """
        if count < _FEWEST:
            return ()
        shares = []
        for group in self.evidence.groups:
            clean = group.outcomes.episodes[0].margin[0]
            shares.append(group.verdict.margin[0] / clean)
        share = torch.cat(shares).nan_to_num(torch.inf).tolist()
        return tuple(sorted(sorted(ids, key=lambda k: share[k])[:count]))
