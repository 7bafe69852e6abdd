"""Gradients of an equilibrium model in its input: whose losses are climbed, and how their cotangents cross the solver."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from saddlepoint.attacks.aims import Aim, last, mean_of_losses
from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.losses import Loss, cross_entropy
from saddlepoint.defenses import Defense
from saddlepoint.evaluation import (
    Adversary,
    AttackContext,
    Cascade,
    CleanCopies,
    Direct,
    MaxLossPoint,
    MultiTarget,
    autoattack,
)
from saddlepoint.evaluation.adversary import AdversaryWrapper
from saddlepoint.gradients import Phantom, Rule, SimultaneousAdjoint
from saddlepoint.papers.deq.scales import Budget
from saddlepoint.zoo.deq import DEQ, EarlyState, FinalState, MeanState, Solved, State
from saddlepoint.zoo.deq.model import FINAL, SITE


def walked(loss: Loss, logits: Tensor, y: Tensor) -> Tensor:
    """[N] the last view's loss, with the slopes of all views' losses.

    The adjoint process wants dL(z_n)/dz at every state it passes (Eq. 9), while the point that is kept is judged by the last one.
    """
    losses = loss(logits, y)  # [V, N]
    passed = losses[:-1].sum(0)
    return losses[-1] + (passed - passed.detach())


@dataclass(frozen=True)
class Gradient:
    """One column of the tables."""

    name: str
    keep: frozenset[str]  # views whose losses count
    rule: Rule
    aim: Aim
    state: State  # by which success is judged: the one that is attacked

    def direct(self, name: str, attack: Attack[Any]) -> Direct:
        return Direct(
            f"{name}, {self.name}",
            attack,
            cross_entropy,
            self.aim,
            {SITE: self.rule},
            keep=self.keep,
        )

    def pgd(self, attack: Attack[Any]) -> Adversary:
        """The max-value points of a climb: they are scored on all states."""
        return MaxLossPoint(self.direct("pgd", attack))

    def auto(self, budget: Budget, *, copies: bool = False) -> Adversary:
        """AutoAttack with this gradient: max-value points, or with `copies` what its stock code returns."""
        parts = autoattack(steps=budget.steps, targets=budget.targets, queries=budget.queries)
        sent = Cascade(f"autoattack, {self.name}", tuple(map(self._led, parts)))
        return AtState(CleanCopies(sent) if copies else sent, self.state)

    def _led(self, part: Adversary) -> Adversary:
        if isinstance(part, MultiTarget):
            return replace(part, direct=self._aimed(part.direct))
        assert isinstance(part, Direct)
        # An attack by scores needs no estimate of a gradient: it asks the attacked state itself.
        return (
            replace(part, keep=frozenset({self.state.name}))
            if part.needs == "score"
            else self._aimed(part)
        )

    def _aimed(self, direct: Direct) -> Direct:
        return replace(direct, aim=self.aim, rules={SITE: self.rule}, keep=self.keep)


@dataclass(frozen=True)
class AtState(AdversaryWrapper):
    """An adversary sent against the defense as if it answered with this state: its max-value points, and no others."""

    state: State

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        if not isinstance(defense, DEQ):
            raise TypeError(
                f"{self.name} attacks states of a solver, so it needs a DEQ; got {type(defense).__name__}."
            )
        answering = DEQ(defense.net, method=defense.method, after=defense.after, state=self.state)
        return MaxLossPoint(self.adversary).move(context, answering, x, y)


def early_names(count: int) -> frozenset[str]:
    """The views of z_1, ..., z_count."""
    return frozenset(EarlyState(n).name for n in range(1, count + 1))


def ready_made(solved: Solved) -> Gradient:
    """The final state's, in the way in which the network was trained."""
    return Gradient("ready-made", frozenset({FinalState.name}), solved.rule, last, FINAL)


def adjoint_at(n: int) -> Gradient:
    """(df(z_n)/dx)^T u_n of the simultaneous adjoint (Eq. 11), with the losses of z_1, ..., z_n on the way."""
    return Gradient(
        f"adjoint u{n}", early_names(n), SimultaneousAdjoint(emit=n), walked, EarlyState(n)
    )


def adjoint_final() -> Gradient:
    """The adjoint process to its end, at the solver's best state: the final state's loss, pulled back to there, stands in for all.

    Losses of the states on the way would not do: what is made of the best state has another slope in it than the head alone.
    """
    return Gradient(
        "adjoint final", frozenset({FinalState.name}), SimultaneousAdjoint(emit="last"), last, FINAL
    )


def adjoint_ensemble(solved: Solved) -> Gradient:
    """sum_n (df(z_n)/dx)^T u_n, every state with the weight one (Eq. 17)."""
    keep = early_names(solved.method.steps)
    return Gradient(
        "adjoint ensemble", keep, SimultaneousAdjoint(emit="all"), mean_of_losses, MeanState()
    )


def unrolled_at(n: int, steps: int, damping: float) -> Gradient:
    """`steps` damped steps from z_n, the loss at the unrolled state (Eq. 13-16)."""
    rule = Phantom(steps, damping, at="unrolled")
    name = f"unrolled z{n} k={steps} damping={damping:g}"
    return Gradient(name, frozenset({EarlyState(n).name}), rule, last, EarlyState(n))


def unrolled_final(solved: Solved, steps: int, damping: float = 0.5) -> Gradient:
    """Eq. 4-6: what an unrolled network was trained with; of others, `steps` steps from the best state, then their last one."""
    rule = solved.rule if solved.after.steps > 1 else Phantom(steps, damping, at="unrolled")
    return Gradient("unrolled final", frozenset({FinalState.name}), rule, last, FINAL)


def unrolled_ensemble(solved: Solved, steps: int, damping: float) -> Gradient:
    """The sum over z_1, ..., z_T of `unrolled_at` (Eq. 13 in the place of Eq. 11 in Eq. 17)."""
    rule = Phantom(steps, damping, at="unrolled")
    name = f"unrolled ensemble k={steps} damping={damping:g}"
    return Gradient(name, early_names(solved.method.steps), rule, mean_of_losses, MeanState())
