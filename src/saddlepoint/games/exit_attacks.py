"""Attacks on some of the exits of a network. Their points are judged on other exits than those attacked: max-value points only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from saddlepoint.attacks.aims import Aim, Gate, mean_of_losses, mixture
from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.best import AttackResult, BestSoFar
from saddlepoint.attacks.lafeat import CosineAscent, Latent, outwards
from saddlepoint.attacks.losses import Loss, cross_entropy, targeted_cross_entropy
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.pgd import FGSM, PGD
from saddlepoint.attacks.spaces import Radii
from saddlepoint.attacks.vmi import VMI
from saddlepoint.defenses import (
    Access,
    Context,
    Defense,
    Mix,
    MultiExit,
    Numbered,
    Strategy,
    Subset,
    Trace,
    View,
    exit_name,
    membership,
    refuse_subset,
    subset_name,
)
from saddlepoint.evaluation.adversary import Adversary, AdversaryWrapper
from saddlepoint.evaluation.attack_context import AttackContext
from saddlepoint.evaluation.combinators import Cascade, CleanCopies, MaxLossPoint, MultiTarget
from saddlepoint.evaluation.direct import Direct
from saddlepoint.evaluation.suites import autoattack
from saddlepoint.gradients import Backprop, EoT, Estimator

_ANSWER = "answer"
_DRAW = 7  # which adversary is drawn must not follow from the coins with which it starts


def partial(
    subset: Subset,
    attack: Attack[Any],
    *,
    loss: Loss = cross_entropy,
    aim: Aim = mean_of_losses,
    estimator: Estimator | None = None,
    name: str = "partial",
) -> Adversary:
    """max_x' 1/|E| sum_{i in E} loss(f_i(x')), the partial attack on the exits E (Xu et al., Eq. 4); one exit: Eq. 1.

    With `aim=loss_of_mean` it climbs the loss of the mean logits instead, which is what a defender who picks E answers.
    """
    direct = Direct(
        labeled(name, subset),
        attack,
        loss,
        aim,
        estimator=estimator or Backprop(),
        keep=views(subset),
    )
    return MaxLossPoint(direct)


def average(attack: Attack[Any], *, loss: Loss = cross_entropy, name: str = "average") -> Adversary:
    """The attack on all exits, however many there are (Xu et al., Eq. 2)."""
    return MaxLossPoint(Direct(name, attack, loss, mean_of_losses))


def expectation(
    mix: Mix,
    exits: int,
    attack: Attack[Any],
    *,
    loss: Loss = cross_entropy,
    name: str = "expectation",
) -> Adversary:
    """max_x' sum_j s_j loss(mean_{E_j} f(x')): the exact expectation that EoT estimates, against a defender who draws E_j."""
    aim = mixture(
        membership(mix.subsets, exits), torch.tensor(mix.probabilities, dtype=torch.float64)
    )
    return MaxLossPoint(Direct(name, attack, loss, aim))


def through(
    strategy: Strategy, attack: Attack[Any], *, loss: Loss = cross_entropy, name: str = "gate"
) -> Adversary:
    """The attack on the exits that a dynamic defender uses at each iterate; it keeps what fools that defender."""
    return Direct(name, attack, loss, Gate(strategy))


@dataclass(frozen=True)
class MaxAverage:
    """For each example the candidate with the largest loss averaged over all exits (Xu et al., Eq. 3; Hu et al. 2020).

    As Hu et al. mean it the candidates are attacks on the single exits. The best by this measure need not be the best against
    anybody in particular.
    """

    name: str
    candidates: tuple[Adversary, ...]
    loss: Loss = cross_entropy

    def __post_init__(self) -> None:
        if not self.candidates:
            raise ValueError(
                f"{self.name} chooses among no candidates. Give it at least one, such as `partial((1,), PGD())`."
            )

    @property
    def needs(self) -> Access:
        return Cascade(self.name, self.candidates).needs

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        objective = AttackObjective([defense], y, self.loss, mean_of_losses)
        best = BestSoFar(x, defense.unit != "example")
        for candidate in self.candidates:
            max_loss_point = candidate.move(context, defense, x, y).max_loss_point
            context.meter.charge(context.rows, 1, 0)
            with torch.no_grad():
                best.update(max_loss_point, objective(max_loss_point, context.simulated_keys()))
        return AttackResult(best.max_loss_point, best.max_loss_point)


@dataclass(frozen=True)
class Drawn:
    """One of several adversaries, drawn for every example by the attacker's coins: a mixed strategy (Xu et al., Eq. 7).

    Costs what one of them costs. Rows must be independent: a batch would be attacked by several adversaries at once.
    """

    name: str
    adversaries: tuple[Adversary, ...]
    probabilities: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.adversaries) != len(self.probabilities) or not self.adversaries:
            raise ValueError(
                f"{self.name} needs one probability for each adversary, got {len(self.probabilities)}."
            )
        if any(p < 0 for p in self.probabilities) or abs(sum(self.probabilities) - 1) > 1e-6:
            raise ValueError(
                f"{self.name}: probabilities must not be negative and must sum to one, got {self.probabilities}."
            )

    @property
    def needs(self) -> Access:
        return Cascade(self.name, self.adversaries).needs

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        if defense.unit != "example":
            raise ValueError(
                f"{self.name} draws an attack for each example, but this defense answers whole batches."
            )
        levels = torch.tensor(self.probabilities[:-1], dtype=torch.float64).cumsum(0).to(x.device)
        drawn = (
            context.attacker_keys().fold_in(_DRAW).uniform((1,), torch.float64).to(x.device)
            >= levels
        ).sum(1)  # [N]
        point = max_loss_point = x
        for k, adversary in enumerate(self.adversaries):
            rows = (drawn == k).nonzero()[:, 0]
            if len(rows):
                found = adversary.move(context.restrict(rows), defense, x[rows], y[rows])
                point = point.index_copy(0, rows, found.point)
                max_loss_point = max_loss_point.index_copy(0, rows, found.max_loss_point)
        return AttackResult(point, max_loss_point)


class Alone(Defense):
    """A network as if it answered with the mean logits of these exits: its last view, after those of the `latent` exits."""

    def __init__(self, inner: MultiExit | Numbered, subset: Subset, latent: Subset = ()) -> None:
        self.inner = inner
        self.subset = subset
        self.latent = latent
        self.coupled = inner.coupled
        self.static = inner.static

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        exits = self.inner.trace(x, ctx)
        latent = exits.select(views(self.latent)).views if self.latent else ()
        return Trace((*latent, View(_ANSWER, exits.select(views(self.subset)).logits.mean(0))))


@dataclass(frozen=True)
class AtExits(AdversaryWrapper):
    """An adversary for ordinary networks sent against the mean logits of some exits, for losses that need one vector of logits.

    Its max-value points are handed over, and no others.
    """

    subset: Subset
    latent: Subset = ()  # exits that the adversary sees besides

    @property
    def name(self) -> str:
        return labeled(self.adversary.name, self.subset)

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        if not isinstance(defense, MultiExit | Numbered):
            raise TypeError(
                f"{self.name} attacks exits, so it needs a MultiExit; got {type(defense).__name__}."
            )
        return MaxLossPoint(self.adversary).move(
            context, Alone(defense, self.subset, self.latent), x, y
        )


def views(subset: Subset) -> frozenset[str]:
    """The names of these exits' views."""
    refuse_subset(subset, max(subset, default=0))
    return frozenset(exit_name(number) for number in subset)


def labeled(name: str, subset: Subset) -> str:
    """'pgd-20 at 1+3'."""
    return f"{name} at {subset_name(subset)}"


Craft = Callable[[Subset], Adversary]  # how a subset of exits is attacked: a row of the exit game

_QUARTER = Radii(1 / 4)  # 2/255 at the paper's 8/255, and as much of any other radius

# The six attacks of Xu et al. (Sec. 4.1) on any exits; where the paper is silent, with the settings of torchattacks. PGD starts at
# a uniform point and keeps its best iterate. The two draws of EoT-PGD find one and the same gradient, since nothing in a partial
# attack is random: for a defender who draws, `expectation` is exact. AutoAttack needs one vector of logits: the mean of the exits.
ATTACKS: Mapping[str, Craft] = {
    "fgsm": lambda subset: partial(subset, FGSM(), name="fgsm"),
    "pgd-20": lambda subset: partial(subset, PGD(20, _QUARTER), name="pgd-20"),
    "pgd-100": lambda subset: partial(subset, PGD(100, _QUARTER), name="pgd-100"),
    "eot-pgd-20": lambda subset: partial(
        subset, PGD(20, _QUARTER), estimator=EoT(2), name="eot-pgd-20"
    ),
    "vmi-fgsm": lambda subset: partial(subset, VMI(20, _QUARTER, samples=5), name="vmi-fgsm"),
    "autoattack": lambda subset: AtExits(Cascade("autoattack", autoattack()), subset),
}

# How the expected loss of a mix is ascended by an attacker who makes the rows by the attack of that name. AutoAttack has no form of
# its own for an expectation: the optimizer that it is made of.
ASCENTS: Mapping[str, Attack[Any]] = {
    "fgsm": FGSM(),
    "pgd-20": PGD(20, _QUARTER),
    "pgd-100": PGD(100, _QUARTER),
    "eot-pgd-20": PGD(20, _QUARTER),
    "vmi-fgsm": VMI(20, _QUARTER, samples=5),
    "autoattack": APGD(100),
}


def stock_autoattack(subset: Subset) -> Adversary:
    """AutoAttack on the mean logits of these exits as its stock code returns it, clean copies included: for comparison only."""
    return AtExits(CleanCopies(Cascade("autoattack", autoattack())), subset)


def max_average(
    craft: Craft, exits: int, *, loss: Loss = cross_entropy, name: str = "max-average"
) -> MaxAverage:
    """The max-average attack made of one attack on each exit: `max_average(ATTACKS['pgd-20'], exits=4)`."""
    return MaxAverage(name, tuple(craft((number,)) for number in range(1, exits + 1)), loss)


def lafeat(
    subset: Subset,
    exits: int,
    *,
    steps: int = 100,
    betas: Sequence[float] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    targets: int = 9,
) -> Adversary:
    """LAFEAT (Yu, Gao & Xu 2021) on the mean logits of these exits, with the network's other exits as the latent heads.

    Every head and every beta, from the middle outwards, first away from the label and then towards each of `targets` classes. Heads
    need not be trained for the purpose, as they must be for a network with one exit. A row that is fooled moves on, where the
    released code holds it: its points are judged on other exits too.
    """
    heads = tuple(number for number in range(1, exits + 1) if (number,) != subset)
    pairs = (
        [(beta, (head,)) for beta in outwards(betas) for head in (heads if beta else heads[:1])]
        if heads
        else [(0.0, ())]
    )
    runs = [
        Direct(
            f"lafeat {beta:g} of {subset_name(head)}" if head else "lafeat",
            CosineAscent(steps),
            cross_entropy,
            Latent(beta),
            keep=frozenset([*(exit_name(number) for number in head), _ANSWER]),
        )
        for beta, head in pairs
    ]
    aimed = [MultiTarget(run, targets, targeted_cross_entropy) for run in runs] if targets else []
    return AtExits(Cascade("lafeat", (*runs, *aimed)), subset, heads)
