"""The parts from which adversaries are built for one defense."""

from __future__ import annotations

from dataclasses import dataclass, replace

from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.audits.planning.budget import BudgetSpec, QueryBudget
from saddlepoint.audits.planning.choice import Choice
from saddlepoint.audits.planning.facts import TargetFacts
from saddlepoint.audits.probes.traits import TraitName
from saddlepoint.audits.target.answer import AgainstAnswer, answer_is_not_last_view
from saddlepoint.audits.target.instrument import SCORES
from saddlepoint.defenses import Defense
from saddlepoint.evaluation import Adversary, Direct, Escalate, Threat
from saddlepoint.gradients import BPDA, Backprop, EoT, Estimator, Rule
from saddlepoint.phrases import count, names

FEW_TARGETS = 3  # where each target is expensive
MASKED_RESTARTS = 5  # where gradients are masked


@dataclass(frozen=True)
class Parts:
    """Defense, threat model, budget and facts, with the adversary parts that follow from them."""

    defense: Defense
    threat: Threat
    budget: BudgetSpec
    facts: TargetFacts

    @property
    def estimator(self) -> Estimator:
        """Half of the draws of the budget, or up to all of them if the noise is strong."""
        if not self.defense.random:
            return Backprop()
        wanted = max(self.facts.draws or 0, self.budget.draws // 2)
        return EoT(max(1, min(wanted, self.budget.draws)))

    @property
    def query_budget(self) -> QueryBudget:
        """What the query limit of the threat model allows."""
        return QueryBudget.of(self.defense, self.threat, self.estimator)

    @property
    def bypass(self) -> dict[str, Rule]:
        """BPDA with the identity at all bypassed sites."""
        return dict.fromkeys(self.facts.bypassed, BPDA())

    @property
    def whole_gradient(self) -> dict[str, Rule]:
        """The rules with which no part of the gradient is cut; empty if nothing cuts it."""
        cuts = self.facts.replaced.cuts
        return {**self.bypass, **dict.fromkeys(cuts, BPDA())} if cuts else {}

    @property
    def apgd(self) -> Direct:
        """APGD on the cross-entropy, from which other attacks are derived."""
        return Direct(
            "apgd-ce",
            APGD(min(self.budget.steps, self.query_budget.steps)),
            loss=cross_entropy,
            estimator=self.estimator,
            stop_at_success=not self.defense.random and self.defense.unit == "example",
            rules=self.bypass,
        )

    @property
    def targets(self) -> int:
        """Fewer target classes where rows cannot stop at success."""
        if self.apgd.stop_at_success:
            return self.budget.targets
        return min(self.budget.targets, FEW_TARGETS)

    @property
    def restarts(self) -> int:
        """Restarts of a short PGD: more where gradients are masked."""
        masked = MASKED_RESTARTS if self.facts.masked else 0
        return max(self.budget.restarts, masked)

    @property
    def single_rows(self) -> bool:
        """Rows influence each other, but each can be attacked while the others keep their points.

        This needs outputs that can be repeated.
        """
        defense = self.defense
        repeatable = not defense.random and defense.memory == "none"
        return defense.coupled and repeatable and not self.threat.online_queries

    @property
    def few_answers(self) -> bool:
        """Only attacks with few answers are affordable: a whole batch is costly to evaluate."""
        return self.single_rows and self.facts.costly

    @property
    def escalates(self) -> bool:
        """Rows that came close to success can be selected for longer attacks."""
        selectable = self.apgd.stop_at_success and not self.facts.masked
        return bool(self.budget.fmn_steps) and selectable

    def escalate(
        self, first: Adversary, then: Adversary, within: float, unless: Direct | None = None
    ) -> Adversary:
        """`Escalate(first, then)` if the query limit allows it, else `first`."""
        both = Escalate(first, then, within, unless)
        cost = both.cost()
        limit = self.threat.queries
        return both if limit is None or (cost is not None and cost.forward <= limit) else first

    def on_answer(self, choice: Choice) -> Choice:
        """The choice aimed at the defense's answer, if that is not its last view."""
        if not answer_is_not_last_view(self.defense):
            return choice
        reason = f"{choice.reason}, on the defense's answer"
        return replace(choice, adversary=AgainstAnswer(choice.adversary), reason=reason)

    def why(self) -> str:
        """The reasons for gradient rules and averaging, as the end of a sentence."""
        reasons = []
        layers = [site for site in self.facts.bypassed if site.startswith(SCORES)]
        sites = [f"`{site}`" for site in self.facts.bypassed if site not in layers]
        if sites:
            zero = self.facts.no_exact_gradient or self.facts.has(TraitName.ZERO_GRADIENTS)
            problem = "vanish" if zero else "are wrong"
            surrogate = "BPDA" if self.facts.replaced.operations else "BPDA(identity)"
            reasons.append(f"gradients {problem} at {names(sites)}: {surrogate} there")
        if layers:
            reasons.append(f"outputs hide other classes: {names(layers)} instead")
        if self.defense.random:
            reasons.append(
                f"randomized: gradients averaged over {count(self.estimator.cost, 'draw')}"
            )
        return "; " + "; ".join(reasons) if reasons else ""
