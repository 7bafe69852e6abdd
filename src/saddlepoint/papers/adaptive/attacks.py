"""The paper's attack on each defense, and attacks that use only the static model.

Every attack is composed of parts that the library shares between defenses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from saddlepoint.attacks.aims import last_value_summed_gradient
from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.losses import cross_entropy, dlr, margin
from saddlepoint.attacks.pgd import FGSM, PGD
from saddlepoint.attacks.rays import RayS
from saddlepoint.attacks.spaces import Radii
from saddlepoint.defenses import Defense, Plain
from saddlepoint.evaluation import (
    Adversary,
    Cascade,
    CleanCopies,
    Direct,
    MultiTarget,
    Restarts,
    Transfer,
)
from saddlepoint.gradients import BPDA, EoT
from saddlepoint.papers.adaptive.scales import AttackBudgets
from saddlepoint.zoo.adaptive import SOAP, AdaptiveDenoising, HedgeDefense, constant

TRANSFERS = ("transfer FGSM", "transfer PGD", "transfer AutoAttack (clean copies)", "transfer APGD")


def static(defense: Defense) -> Plain:
    """Return the static model under a defense, as a defense."""
    assert defense.static is not None, f"{type(defense).__name__} has no static model"
    return Plain(defense.static)


def auto(budgets: AttackBudgets) -> Cascade:
    """Return AutoAttack."""
    return budgets.auto.attack("AutoAttack")


def pgd(budgets: AttackBudgets, name: str = "PGD") -> Direct:
    """Return PGD on the cross-entropy.

    It starts at the clean image and takes steps of a quarter of the radius (B.2).
    """
    attack = PGD(budgets.pgd_steps, Radii(1 / 4), random_start=False)
    return Direct(name, attack, loss=cross_entropy)


def apgd(budgets: AttackBudgets, name: str = "APGD") -> Direct:
    """Return APGD on the cross-entropy."""
    return Direct(name, APGD(budgets.apgd_steps), loss=cross_entropy)


def transfers(defense: Defense, budgets: AttackBudgets) -> tuple[Adversary, ...]:
    """Return attacks on the static model that transfer to the defense, in the order of `TRANSFERS`.

    FGSM, PGD and APGD return their points of maximal loss. AutoAttack returns the clean image
    where it failed, as its published code does.
    """
    attacks = (
        Direct("FGSM", FGSM(), loss=cross_entropy),
        pgd(budgets),
        CleanCopies(auto(budgets)),
        apgd(budgets),
    )
    return tuple(Transfer(attack, static(defense)) for attack in attacks)


def on_sodef(defense: Defense, budgets: AttackBudgets) -> Adversary:
    """Transfer points of maximal loss from the static model (Sec. 3.2).

    The losses are cross-entropy, margin and targeted DLR; the strongest point per image is used.
    """
    parts = tuple(Transfer(attack, static(defense)) for attack in _three_losses(budgets))
    return Cascade("Transfer APGD", parts)


def through_sodef(budgets: AttackBudgets) -> Adversary:
    """Attack SODEF itself with the same losses and the exact gradient of the solver's steps.

    The paper did not use this attack.
    """
    return Cascade("APGD through the ODE", _three_losses(budgets))


def _three_losses(budgets: AttackBudgets) -> tuple[Adversary, ...]:
    attack = apgd(budgets, "APGD-CE")
    return (
        attack,
        replace(attack, name="APGD-CW", loss=margin),
        MultiTarget(replace(attack, name="APGD-T"), min(budgets.targets, 3)),
    )


def on_closed_loop(defense: Defense, budgets: AttackBudgets) -> Direct:  # noqa: ARG001
    """APGD on the cross-entropy with the gradient of the last pass (Sec. 3.3).

    The controls that the defense found are treated as constants.
    """
    return replace(apgd(budgets, "APGD+BPDA"), rules={"control": BPDA()})


def hedge_transfers(defense: Defense, budgets: AttackBudgets) -> tuple[Transfer, Transfer]:
    """Transfer targeted APGD from the static model and from a shorter hedge defense (Sec. 3.4).

    The second attack uses BPDA and EoT on a hedge defense with few steps.
    """
    assert isinstance(defense, HedgeDefense)
    budget = budgets.hedge
    surrogate = HedgeDefense(
        defense.net,
        radius=defense.radius,
        steps=budget.defense,
        step_size=defense.ascent.step_size,
    )
    attack = Direct("APGD-T", APGD(budget.steps))
    adaptive = replace(
        attack,
        name=f"APGD-T+BPDA+EoT from {budget.defense} steps",
        rules={"purify": BPDA()},
        estimator=EoT(budget.draws),
    )
    return (
        Transfer(MultiTarget(attack, budget.targets), static(defense)),
        Transfer(MultiTarget(adaptive, budget.targets), surrogate),
    )


def hedge_clean_copies(defense: Defense, budgets: AttackBudgets) -> Transfer:
    """Targeted APGD on the static model as the AutoAttack library returns it (B.3).

    The clean image is returned where the attack fails or the image is misclassified.
    """
    from_static, _ = hedge_transfers(defense, budgets)
    return Transfer(CleanCopies(from_static.adversary), static(defense))


def on_hedge(defense: Defense, budgets: AttackBudgets) -> Adversary:
    """Use the stronger of both transfers per image (Sec. 3.4)."""
    return Cascade("Transfer APGD+BPDA+EoT", hedge_transfers(defense, budgets))


def on_anti_adversary(defense: Defense, budgets: AttackBudgets) -> Adversary:  # noqa: ARG001
    """RayS, which uses only predicted labels; the defense does not change them (Sec. 3.8)."""
    return Direct("RayS", RayS(budgets.rays_queries))


def on_soap(defense: Defense, budgets: AttackBudgets) -> Direct:
    """APGD with the mean gradient over all purified iterates (Sec. 3.5).

    Success is measured at the last iterate.
    """
    assert isinstance(defense, SOAP)
    iterates = frozenset(f"purify/{t}" for t in range(1, defense.steps + 1))
    attack = Direct("APGD+BPDA (traj.)", APGD(budgets.soap_steps), loss=cross_entropy)
    return replace(attack, aim=last_value_summed_gradient, keep=iterates, rules={"purify": BPDA()})


def on_atld(defense: Defense, budgets: AttackBudgets) -> Adversary:  # noqa: ARG001
    """APGD on the full defense with cross-entropy and with targets, with many restarts (A.1)."""
    attack = apgd(budgets)
    targeted = MultiTarget(replace(attack, name="APGD-T"), budgets.targets)
    return Restarts(Cascade("APGD", (attack, targeted)), budgets.atld_restarts)


def on_aid(defense: Defense, budgets: AttackBudgets) -> Adversary:  # noqa: ARG001
    """APGD with cross-entropy and with targets; BPDA treats purification as identity (Sec. 3.7)."""
    attack = replace(apgd(budgets), rules={"purify": BPDA()})
    targeted = MultiTarget(replace(attack, name="APGD-T"), budgets.targets)
    return Cascade("APGD+BPDA", (attack, targeted))


def on_aid_longer(budgets: AttackBudgets) -> Adversary:
    """APGD with ten times the iterations and ten restarts, half of them with targets (B.7)."""
    attack = Direct(
        "APGD-CE", APGD(budgets.longer_steps), loss=cross_entropy, rules={"purify": BPDA()}
    )
    half = budgets.longer_restarts
    targeted = MultiTarget(replace(attack, name="APGD-T"), half)
    return Cascade("longer APGD+BPDA", (Restarts(attack, half), targeted))


def on_contrastive(defense: Defense, budgets: AttackBudgets) -> Adversary:  # noqa: ARG001
    """Short APGD runs with cross-entropy and with DLR, by BPDA and EoT (Sec. 3.6).

    All images of a batch are attacked together.
    """
    budget = budgets.contrastive
    attack = Direct(
        "APGD-CE",
        APGD(budget.steps),
        loss=cross_entropy,
        rules={"reverse": BPDA()},
        estimator=EoT(budget.draws),
    )
    return _both_losses(attack, "APGD+BPDA+EoT", budget.restarts)


def on_contrastive_with_known_randomness(budgets: AttackBudgets) -> Adversary:
    """The same attack without EoT, for a defense whose random seed is fixed (Sec. 3.6)."""
    budget = budgets.contrastive
    attack = Direct("APGD-CE", APGD(budget.steps), loss=cross_entropy, rules={"reverse": BPDA()})
    return _both_losses(attack, "APGD+BPDA, known seed", budget.restarts)


def on_static_of_contrastive(budgets: AttackBudgets) -> Adversary:
    """APGD with cross-entropy and DLR on the static model, with the same budget (Sec. 3.6)."""
    budget = budgets.contrastive
    attack = Direct("APGD-CE", APGD(budget.steps), loss=cross_entropy)
    return _both_losses(attack, "APGD", budget.restarts)


def _both_losses(attack: Direct, name: str, restarts: int) -> Adversary:
    pair = (attack, replace(attack, name="APGD-DLR", loss=dlr))
    return Restarts(Cascade(name, pair), restarts)


def on_denoising(defense: Defense, budgets: AttackBudgets) -> Adversary:
    """APGD on the margin of single denoising runs (Sec. 3.9, B.9).

    Gradients pass through the score network, but not through its step sizes and noise.
    """
    assert isinstance(defense, AdaptiveDenoising)
    budget = budgets.denoising
    single = AdaptiveDenoising(
        defense.net,
        defense.score,
        steps=defense.steps,
        runs=1,
        noise=defense.noise,
        share=defense.share,
        probe=defense.probe,
        limits=defense.limits,
        stop=defense.stop,
        coupled=defense.coupled,
    )
    attack = Direct(
        "APGD+EoT",
        APGD(budget.steps),
        loss=margin,
        rules={"noise": BPDA(), "step size": BPDA(constant)},
        estimator=EoT(budget.draws),
    )
    return Transfer(attack, single)


PAPER_ATTACKS: Mapping[str, Callable[[Defense, AttackBudgets], Adversary]] = {
    "SODEF": on_sodef,
    "ClosedLoopControl": on_closed_loop,
    "HedgeDefense": on_hedge,
    "AntiAdversary": on_anti_adversary,
    "SOAP": on_soap,
    "ATLD": on_atld,
    "AIDPurifier": on_aid,
    "ContrastiveReversal": on_contrastive,
    "AdaptiveDenoising": on_denoising,
}
