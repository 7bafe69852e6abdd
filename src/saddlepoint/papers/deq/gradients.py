"""Input gradients of an equilibrium model.

A gradient is defined by the views with the maximized losses and by the rule with which gradients
pass through the solver.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from saddlepoint.attacks.aims import (
    Aim,
    last_value_summed_gradient,
    last_view,
    mean_of_losses,
)
from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.defenses import Defense
from saddlepoint.evaluation import (
    Adversary,
    AttackContext,
    Cascade,
    CleanCopies,
    Direct,
    MaxLossPoint,
    MultiTarget,
)
from saddlepoint.evaluation.adversary import AdversaryWrapper
from saddlepoint.gradients import Phantom, Rule, SimultaneousAdjoint
from saddlepoint.papers.budgets import AutoAttackBudget
from saddlepoint.zoo.deq import DEQ, EarlyState, FinalState, MeanState, Solved, State
from saddlepoint.zoo.deq.model import FINAL, SITE


@dataclass(frozen=True)
class Gradient:
    """One gradient of the paper's tables, usable in any gradient attack."""

    name: str
    keep: frozenset[str]  # views that enter the loss
    rule: Rule  # how gradients pass through the solver
    aim: Aim
    state: State  # the attacked state; success is measured on it

    def direct(self, name: str, attack: Attack[Any]) -> Direct:
        """Return an attack on the cross-entropy with this gradient."""
        return Direct(
            f"{name}, {self.name}",
            attack,
            cross_entropy,
            self.aim,
            {SITE: self.rule},
            keep=self.keep,
        )

    def pgd(self, attack: Attack[Any]) -> Adversary:
        """Return PGD with this gradient; its points of highest loss are scored on all states."""
        return MaxLossPoint(self.direct("pgd", attack))

    def auto(self, budget: AutoAttackBudget, *, copies: bool = False) -> Adversary:
        """Return AutoAttack with this gradient.

        Args:
            budget: steps, targets and queries.
            copies: return the clean image where the attack fails, as AutoAttack's published code
                does; default: return the point of highest loss.
        """
        standard = budget.attack()
        parts = tuple(self._with_gradient(part) for part in standard.adversaries)
        attack = Cascade(f"autoattack, {self.name}", parts)
        return AtState(CleanCopies(attack) if copies else attack, self.state)

    def _with_gradient(self, part: Adversary) -> Adversary:
        if isinstance(part, MultiTarget):
            return replace(part, direct=self._replaced(part.direct))
        assert isinstance(part, Direct)
        if part.needs == "score":
            # A score-based attack needs no gradient estimate: it queries the attacked state.
            return replace(part, keep=frozenset({self.state.name}))
        return self._replaced(part)

    def _replaced(self, direct: Direct) -> Direct:
        return replace(direct, aim=self.aim, rules={SITE: self.rule}, keep=self.keep)


@dataclass(frozen=True)
class AtState(AdversaryWrapper):
    """Attacks the defense as if it answered with this state; returns points of highest loss."""

    state: State

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        """Attack the images x.

        Raises:
            TypeError: if the defense is not a DEQ.
        """
        if not isinstance(defense, DEQ):
            raise TypeError(
                f"{self.name} attacks states of a solver, so it needs a DEQ; got "
                f"{type(defense).__name__}."
            )
        attacked = DEQ(defense.net, method=defense.method, after=defense.after, state=self.state)
        return MaxLossPoint(self.adversary).move(context, attacked, x, y)


def early_names(count: int, *, start: bool = False) -> frozenset[str]:
    """Return the names of the views of z_1, ..., z_count, and of z_0 if `start`."""
    return frozenset(EarlyState(n).name for n in range(0 if start else 1, count + 1))


def ready_made(solved: Solved) -> Gradient:
    """Return the gradient at the final state by the rule with which the network was trained."""
    return Gradient("ready-made", frozenset({FinalState.name}), solved.rule, last_view, FINAL)


def adjoint_at(n: int, *, start: bool = True) -> Gradient:
    """Return (df(z_n)/dx)^T u_n of the simultaneous adjoint process (Eq. 11).

    The losses of z_0, ..., z_n enter the process (Eq. 9).

    Args:
        n: number of the state.
        start: use the loss of z_0, as the paper does. If False, the first step of the process uses
            the loss of z_1 instead, which is not the paper's process, and often stronger.
    """
    rule = SimultaneousAdjoint(emit=n)
    aim = last_value_summed_gradient
    name = f"adjoint u{n}" if start else f"adjoint u{n} without z0"
    return Gradient(name, early_names(n, start=start), rule, aim, EarlyState(n))


def adjoint_final() -> Gradient:
    """Return the gradient at the end of the adjoint process, at the solver's best state.

    Only the loss of the final state enters, pulled back to the best state. The losses of earlier
    states cannot be used: the final state is computed from the best state by further steps, so its
    loss has another gradient than the head alone.
    """
    rule = SimultaneousAdjoint(emit="last")
    return Gradient("adjoint final", frozenset({FinalState.name}), rule, last_view, FINAL)


def adjoint_ensemble(solved: Solved, *, start: bool = True) -> Gradient:
    """Return sum_n (df(z_n)/dx)^T u_n, in which every state has weight one (Eq. 17).

    Args:
        solved: the network.
        start: as in `adjoint_at`.
    """
    keep = early_names(solved.method.steps, start=start)
    rule = SimultaneousAdjoint(emit="all")
    name = "adjoint ensemble" if start else "adjoint ensemble without z0"
    return Gradient(name, keep, rule, mean_of_losses, MeanState())


def unrolled_at(n: int, steps: int, damping: float) -> Gradient:
    """Return the gradient of `steps` damped steps from z_n, loss at the unrolled state (Eq. 13-16).

    Args:
        n: number of the state.
        steps: number of steps k.
        damping: damping of each step.
    """
    rule = Phantom(steps, damping, at="unrolled")
    name = f"unrolled z{n} k={steps} damping={damping:g}"
    return Gradient(name, frozenset({EarlyState(n).name}), rule, last_view, EarlyState(n))


def unrolled_final(solved: Solved, steps: int, damping: float = 0.5) -> Gradient:
    """Return the unrolled gradient at the final state (Eq. 4-6).

    For a network trained with unrolled gradients it is the gradient of its training. For other
    networks it takes `steps` steps from the best state, then the network's last step.
    """
    rule = solved.rule if solved.after.steps > 1 else Phantom(steps, damping, at="unrolled")
    return Gradient("unrolled final", frozenset({FinalState.name}), rule, last_view, FINAL)


def unrolled_ensemble(solved: Solved, steps: int, damping: float) -> Gradient:
    """Return the sum of `unrolled_at` over z_1, ..., z_T (Eq. 17 with Eq. 13 instead of Eq. 11)."""
    rule = Phantom(steps, damping, at="unrolled")
    name = f"unrolled ensemble k={steps} damping={damping:g}"
    return Gradient(name, early_names(solved.method.steps), rule, mean_of_losses, MeanState())
