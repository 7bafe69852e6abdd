"""The paper's attack on each defense, and attacks that know nothing of it: all of them made of shared parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

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
    autoattack,
)
from saddlepoint.gradients import BPDA, EoT
from saddlepoint.papers.adaptive.scales import Spend
from saddlepoint.papers.deq.gradients import walked
from saddlepoint.zoo.adaptive import SOAP, AdaptiveDenoising, HedgeDefense, constant

TRANSFERS = ("transfer FGSM", "transfer PGD", "transfer AutoAttack (clean copies)", "transfer APGD")


def static(defense: Defense) -> Plain:
    """The net under a defense."""
    assert defense.static is not None, f"{type(defense).__name__} stands on no static net"
    return Plain(defense.static)


def auto(spend: Spend) -> Cascade:
    budget = spend.auto
    return Cascade(
        "AutoAttack", autoattack(steps=budget.steps, targets=budget.targets, queries=budget.queries)
    )


def short(spend: Spend, name: str = "PGD") -> Direct:
    """PGD on the cross-entropy from the image itself, in steps of a quarter of the radius (B.2)."""
    return Direct(name, PGD(spend.pgd, Radii(1 / 4), random_start=False), loss=cross_entropy)


def long(spend: Spend, name: str = "APGD") -> Direct:
    return Direct(name, APGD(spend.apgd), loss=cross_entropy)


def unaware(defense: Defense, spend: Spend) -> tuple[Adversary, ...]:
    """Attacks on the static net whose points are handed to the defense, by the names of `TRANSFERS`.

    Points of FGSM, PGD and APGD are those of maximal loss; AutoAttack's are clean images where it failed, as stock code has it.
    """
    sent = (
        Direct("FGSM", FGSM(), loss=cross_entropy),
        short(spend),
        CleanCopies(auto(spend)),
        long(spend),
    )
    return tuple(Transfer(one, static(defense)) for one in sent)


def on_sodef(defense: Defense, spend: Spend) -> Adversary:
    """Points of maximal cross-entropy, margin and targeted DLR of the static net; the worst of them counts (Sec. 3.2)."""
    return Cascade("Transfer APGD", tuple(Transfer(one, static(defense)) for one in _three(spend)))


def through_sodef(spend: Spend) -> Adversary:
    """The same losses of the defense itself, by the gradient of the solver's own steps, which the paper did not take."""
    return Cascade("APGD through the ODE", _three(spend))


def _three(spend: Spend) -> tuple[Adversary, ...]:
    apgd = long(spend, "APGD-CE")
    return (
        apgd,
        replace(apgd, name="APGD-CW", loss=margin),
        MultiTarget(replace(apgd, name="APGD-T"), min(spend.targets, 3)),
    )


def on_closed_loop(defense: Defense, spend: Spend) -> Adversary:  # noqa: ARG001
    """APGD on the cross-entropy, with the gradient of the pass that answers: the controls it used are constants (Sec. 3.3)."""
    return replace(long(spend, "APGD+BPDA"), rules={"control": BPDA()})


def hedged(defense: Defense, spend: Spend) -> tuple[Transfer, Transfer]:
    """Points of targeted APGD on the static net, and on a hedge defense with few steps, by BPDA and EoT (Sec. 3.4)."""
    assert isinstance(defense, HedgeDefense)
    budget = spend.hedge
    few = spend.hedge.defense
    surrogate = HedgeDefense(
        defense.net, radius=defense.radius, steps=few, step_size=defense.ascent.step_size
    )
    apgd = Direct("APGD-T", APGD(budget.steps))
    adaptive = replace(
        apgd,
        name=f"APGD-T+BPDA+EoT from {few} steps",
        rules={"purify": BPDA()},
        estimator=EoT(budget.draws),
    )
    return (
        Transfer(MultiTarget(apgd, budget.targets), static(defense)),
        Transfer(MultiTarget(adaptive, budget.targets), surrogate),
    )


def on_hedge(defense: Defense, spend: Spend) -> Adversary:
    return Cascade("Transfer APGD+BPDA+EoT", hedged(defense, spend))


def on_anti_adversary(defense: Defense, spend: Spend) -> Adversary:  # noqa: ARG001
    """Labels alone, which the defense does not change (Sec. 3.8)."""
    return Direct("RayS", RayS(spend.rays))


def on_soap(defense: Defense, spend: Spend) -> Adversary:
    """APGD along the mean of the gradients at all purified iterates, judged by the last one (Sec. 3.5)."""
    assert isinstance(defense, SOAP)
    iterates = frozenset(f"purify/{t}" for t in range(1, defense.steps + 1))
    attack = Direct("APGD+BPDA (traj.)", APGD(spend.soap), loss=cross_entropy)
    return replace(attack, aim=walked, keep=iterates, rules={"purify": BPDA()})


def on_atld(defense: Defense, spend: Spend) -> Adversary:  # noqa: ARG001
    """APGD on the full defense, on the cross-entropy and towards targets, started again and again (A.1)."""
    apgd = long(spend)
    pair = Cascade("APGD", (apgd, MultiTarget(replace(apgd, name="APGD-T"), spend.targets)))
    return Restarts(pair, spend.atld)


def on_aid(defense: Defense, spend: Spend) -> Adversary:  # noqa: ARG001
    """APGD on the cross-entropy and towards targets, purification taken for the identity (Sec. 3.7)."""
    apgd = replace(long(spend), rules={"purify": BPDA()})
    return Cascade("APGD+BPDA", (apgd, MultiTarget(replace(apgd, name="APGD-T"), spend.targets)))


def on_contrastive(defense: Defense, spend: Spend) -> Adversary:  # noqa: ARG001
    """Short APGD runs on the cross-entropy and DLR, by BPDA and EoT, on all images of a batch together (Sec. 3.6)."""
    budget = spend.contrastive
    apgd = Direct(
        "APGD-CE",
        APGD(budget.steps),
        loss=cross_entropy,
        rules={"reverse": BPDA()},
        estimator=EoT(budget.draws),
    )
    return Restarts(
        Cascade("APGD+BPDA+EoT", (apgd, replace(apgd, name="APGD-DLR", loss=dlr))), budget.restarts
    )


def on_denoising(defense: Defense, spend: Spend) -> Adversary:
    """APGD on the margin of single runs, through the score network but neither its step sizes nor the noise (Sec. 3.9, B.9)."""
    assert isinstance(defense, AdaptiveDenoising)
    budget = spend.denoising
    single = AdaptiveDenoising(
        defense.net, defense.score, steps=defense.steps, runs=1, noise=defense.noise, share=defense.share, probe=defense.probe,
        limits=defense.limits, stop=defense.stop, coupled=defense.coupled,
    )  # fmt: skip
    rules = {"noise": BPDA(), "step size": BPDA(constant)}
    return Transfer(
        Direct(
            "APGD+EoT", APGD(budget.steps), loss=margin, rules=rules, estimator=EoT(budget.draws)
        ),
        single,
    )


PAPER: Mapping[str, Callable[[Defense, Spend], Adversary]] = {
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
