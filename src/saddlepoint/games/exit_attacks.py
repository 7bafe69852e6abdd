"""Attacks on subsets of exits.

Their points are evaluated on other exits too, so the points of highest loss are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from saddlepoint.attacks.aims import Aim, Gate, mean_of_losses, mixture
from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.lafeat import CosineAscent, Latent, outwards
from saddlepoint.attacks.losses import Loss, cross_entropy, targeted_cross_entropy
from saddlepoint.attacks.pgd import FGSM, PGD
from saddlepoint.attacks.spaces import Radii
from saddlepoint.attacks.vmi import VMI
from saddlepoint.defenses import (
    Mix,
    Strategy,
    Subset,
    check_subset,
    exit_name,
    membership,
    subset_name,
)
from saddlepoint.evaluation.adversary import Adversary
from saddlepoint.evaluation.combinators import Cascade, CleanCopies, MaxLossPoint, MultiTarget
from saddlepoint.evaluation.direct import Direct
from saddlepoint.evaluation.suites import autoattack
from saddlepoint.games.exit_adversaries import MaxAverage, OnExits, attack_name
from saddlepoint.games.exit_views import ANSWER_VIEW, exit_views
from saddlepoint.games.matrix import as_distribution

ExitAttack = Callable[[Subset], Adversary]  # builds the attack on a subset of exits

_QUARTER = Radii(1 / 4)  # the step size: 2/255 at the paper's radius of 8/255


def partial_attack(
    subset: Subset,
    attack: Attack[Any],
    *,
    loss: Loss = cross_entropy,
    aim: Aim = mean_of_losses,
    name: str = "partial",
) -> Adversary:
    """The partial attack on the exits E: max_x' 1/|E| sum_{i in E} loss(f_i(x')).

    Xu et al., Eq. 4; for one exit Eq. 1.

    Args:
        subset: the attacked exits, numbered from 1 and increasing.
        attack: the optimizer.
        loss: per-example loss of one exit; default: cross-entropy.
        aim: how the losses of several exits are combined; default: their mean. `loss_of_mean` is
            the loss of the mean logits, with which a defender that uses the same exits answers.
        name: the name shown in tables, before the exits.
    """
    direct = Direct(
        attack_name(name, subset),
        attack,
        loss,
        aim,
        keep=exit_views(subset),
    )
    return MaxLossPoint(direct)


def average(attack: Attack[Any], *, loss: Loss = cross_entropy, name: str = "average") -> Adversary:
    """The attack on the mean loss of all exits, however many there are (Xu et al., Eq. 2)."""
    return MaxLossPoint(Direct(name, attack, loss, mean_of_losses))


def expectation(
    mix: Mix,
    exits: int,
    attack: Attack[Any],
    *,
    loss: Loss = cross_entropy,
    name: str = "expectation",
) -> Adversary:
    """The attack on a defender that draws a subset of exits.

    max_x' sum_j s_j loss(mean_{E_j} f(x')), the exact expectation that EoT estimates.

    Args:
        mix: the subsets E_j and their probabilities s_j.
        exits: number of exits of the network.
        attack: the optimizer.
        loss: per-example loss; default: cross-entropy.
        name: the name shown in tables.
    """
    probabilities = torch.tensor(mix.probabilities, dtype=torch.float64)
    aim = mixture(membership(mix.subsets, exits), probabilities)
    return MaxLossPoint(Direct(name, attack, loss, aim))


def through(
    strategy: Strategy, attack: Attack[Any], *, loss: Loss = cross_entropy, name: str = "gate"
) -> Adversary:
    """The attack on the exits that a gate selects at each iterate.

    It keeps the points that are misclassified by the defender with this gate.
    """
    return Direct(name, attack, loss, Gate(strategy))


@dataclass(frozen=True)
class AttackSettings:
    """How the rows of an exit game are attacked.

    Args:
        views: names of the views of the defense, exit 1 first.
        attack: the optimizer.
        loss: per-example loss; default: cross-entropy.
        aim: how the losses of several exits are combined; default: their mean.
        exit_attack: builds the attack on a subset instead, such as `ATTACKS["autoattack"]`.
    """

    views: tuple[str, ...]
    attack: Attack[Any]
    loss: Loss = cross_entropy
    aim: Aim = mean_of_losses
    exit_attack: ExitAttack | None = None

    def on_subset(self, subset: Subset) -> Adversary:
        """The partial attack on a subset of exits (Xu et al., Eq. 4)."""
        check_subset(subset, len(self.views))
        if self.exit_attack is not None:
            return self.exit_attack(subset)
        keep = frozenset(self.views[number - 1] for number in subset)
        direct = Direct(subset_name(subset), self.attack, self.loss, self.aim, keep=keep)
        return MaxLossPoint(direct)

    def on_expected_loss(
        self, subsets: Sequence[Subset], probabilities: Tensor, name: str = "expected loss"
    ) -> MaxLossPoint:
        """The attack on the expected loss of a mixed strategy.

        max sum_j s_j loss(mean logits of E_j), which is exact: nothing is drawn.

        Args:
            subsets: the subsets E_j, [D].
            probabilities: their probabilities s_j, [D].
            name: the name shown in tables.
        """
        distribution = as_distribution(probabilities, len(subsets))
        aim = mixture(membership(subsets, len(self.views)), distribution)
        return MaxLossPoint(Direct(name, self.attack, self.loss, aim))


# The six attacks of Xu et al. (Sec. 4.1) on any subset of exits. Settings that the paper does not
# give are those of torchattacks. PGD starts at a uniform random point and keeps its best iterate.
# EoT-PGD attacks an expectation over the exits that the defender may draw. For an attacker that
# knows only a subset, that is one exit of it, drawn uniformly: the mean of losses, so EoT-PGD-20 on
# a subset is PGD-20. Against a known mixed strategy it is `expectation`. AutoAttack needs one logit
# vector: the mean of the exits.
ATTACKS: Mapping[str, ExitAttack] = {
    "fgsm": lambda subset: partial_attack(subset, FGSM(), name="fgsm"),
    "pgd-20": lambda subset: partial_attack(subset, PGD(20, _QUARTER), name="pgd-20"),
    "pgd-100": lambda subset: partial_attack(subset, PGD(100, _QUARTER), name="pgd-100"),
    "eot-pgd-20": lambda subset: partial_attack(subset, PGD(20, _QUARTER), name="eot-pgd-20"),
    "vmi-fgsm": lambda subset: partial_attack(
        subset, VMI(20, _QUARTER, samples=5), name="vmi-fgsm"
    ),
    "autoattack": lambda subset: OnExits(Cascade("autoattack", autoattack()), subset),
}

# The optimizer of the attack on an expected loss, if the rows are attacked by the attack of that
# name. AutoAttack has no form for an expectation: its optimizer APGD is used.
OPTIMIZERS: Mapping[str, Attack[Any]] = {
    "fgsm": FGSM(),
    "pgd-20": PGD(20, _QUARTER),
    "pgd-100": PGD(100, _QUARTER),
    "eot-pgd-20": PGD(20, _QUARTER),
    "vmi-fgsm": VMI(20, _QUARTER, samples=5),
    "autoattack": APGD(100),
}


def stock_autoattack(subset: Subset) -> Adversary:
    """AutoAttack on the mean logits of these exits with the clean copies of its stock code.

    For comparison with published numbers only.
    """
    return OnExits(CleanCopies(Cascade("autoattack", autoattack())), subset)


def max_average(
    exit_attack: ExitAttack, exits: int, *, loss: Loss = cross_entropy, name: str = "max-average"
) -> MaxAverage:
    """The max-average attack from one attack per exit: `max_average(ATTACKS["pgd-20"], exits=4)`.

    Args:
        exit_attack: builds the attack on a subset of exits.
        exits: number of exits of the network.
        loss: the loss that is averaged over exits; default: cross-entropy.
        name: the name shown in tables.
    """
    candidates = tuple(exit_attack((number,)) for number in range(1, exits + 1))
    return MaxAverage(name, candidates, loss)


def lafeat(
    subset: Subset,
    exits: int,
    *,
    steps: int = 100,
    betas: Sequence[float] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    targets: int = 9,
) -> Adversary:
    """LAFEAT (Yu, Gao & Xu, CVPR 2021) on the mean logits of these exits.

    Xu et al. use LAFIT (Yu, Gao & Xu, TPAMI 2023), the later version of this attack. Its code is
    not public, so this is LAFEAT, whose code is, and it carries that name.

    The other exits are the latent heads, so no heads have to be trained. Every head is used with
    every beta, from the middle of the range outwards, first untargeted and then toward each of
    `targets` classes. Misclassified rows continue to move, whereas the released code stops them,
    because their points are evaluated on other exits too.

    Args:
        subset: the attacked exits, numbered from 1.
        exits: number of exits of the network.
        steps: steps of each run.
        betas: weights of the latent loss.
        targets: target classes; 0: untargeted runs only.
    """
    heads = tuple(number for number in range(1, exits + 1) if (number,) != subset)
    runs = [
        Direct(
            f"lafeat {beta:g} of {subset_name(head)}" if head else "lafeat",
            CosineAscent(steps),
            cross_entropy,
            Latent(beta),
            keep=frozenset([*(exit_name(number) for number in head), ANSWER_VIEW]),
        )
        for beta, head in _lafeat_pairs(heads, betas)
    ]
    targeted = []
    if targets:
        targeted = [MultiTarget(run, targets, targeted_cross_entropy) for run in runs]
    return OnExits(Cascade("lafeat", (*runs, *targeted)), subset, heads)


def _lafeat_pairs(heads: Subset, betas: Sequence[float]) -> list[tuple[float, Subset]]:
    """The runs as pairs of a weight and a latent head; with weight 0 the head has no effect."""
    if not heads:
        return [(0.0, ())]
    return [(beta, (head,)) for beta in outwards(betas) for head in (heads if beta else heads[:1])]
