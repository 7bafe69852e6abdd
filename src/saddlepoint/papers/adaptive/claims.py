"""The claims of the paper that our records decide."""

from __future__ import annotations

from typing import Literal

from saddlepoint.attacks.spaces import Ball, Linf
from saddlepoint.papers.adaptive.real_table_2 import SPACES
from saddlepoint.papers.adaptive.robust_net import NAME, RADIUS
from saddlepoint.papers.adaptive.table_2 import (
    COPIES_EXCESS,
    COPIES_GAP,
    TRANSFER_GAP,
    WORST_GAP,
)
from saddlepoint.papers.claims import CellReference, Claim

_CLOSED_LOOP = "adaptive/released-closed-loop"
_CLOSED_LOOP_AUDIT = "adaptive/released-closed-loop-audit"
_SOAP = "adaptive/released-soap"
_OLD = "gradient of PyTorch 1.3 to 1.5 on CUDA"
_TRAJECTORY = f"APGD+BPDA (traj.) at the selected radius, {_OLD}"


def _level(
    text: str,
    record: str,
    row: str,
    network: str,
    expected: Literal["published", "at most"] = "published",
    *,
    ours: bool = False,
) -> Claim:
    """A claim about an accuracy: it is the published one, or at most this."""
    return Claim(
        text,
        record,
        CellReference(0, (row,), "accuracy"),
        network,
        "cifar10",
        expected=expected,
        base=CellReference(0, ("clean, static",), "accuracy"),
        ours=ours,
    )


def _broken(defense: str, network: str, data: str) -> Claim:
    """A claim about a row of Table 1: the paper's attack is stronger than every transfer attack."""
    return Claim(
        f"{defense}: the adaptive attack is stronger than every transfer attack (Table 1).",
        "adaptive/table-1",
        CellReference(0, (defense,), "the paper's attack minus the strongest transfer"),
        network,
        data,
        expected="negative",
        base=CellReference(0, (defense,), "static, clean"),
    )


def _less_robust(defense: str) -> Claim:
    """A claim of Table 1 in its stricter form: the static network is more robust."""
    return Claim(
        f"{defense} is less robust than its robust static network (Table 1: no defense improves on "
        "one, and four are less robust).",
        "adaptive/table-1-real",
        CellReference(0, (defense,), "lowest of these minus static"),
        f"{NAME}, Linf 2/255",
        "cifar10",
        expected="negative",
        base=CellReference(0, (defense,), "static, clean"),
    )


def _in_two_norms(
    text: str,
    column: str,
    expected: Literal["positive", "negative"] = "positive",
    *,
    source: str = " (Table 2)",
) -> tuple[Claim, ...]:
    """Return the claims about a difference in Table 2, in Linf and in L2.

    Args:
        text: the claim.
        column: of the difference.
        expected: its sign.
        source: where the paper makes this claim; empty: it is ours.
    """
    return tuple(
        Claim(
            f"{text}, in {norm}{source}.",
            "adaptive/table-2-real",
            CellReference(1, (norm,), column),
            f"{NAME}, {space}",
            "cifar10",
            expected=expected,
            base=CellReference(0, (norm,), "clean"),
            ours=not source,
        )
        for norm, space in SPACES.items()
    )


def _at_radius(times: str, space: Ball) -> Claim:
    """Our claim that the effect does not depend on the radius."""
    return Claim(
        f"Under all attacks SODEF is less robust than its static network, at {times} the radius "
        "of its adversarial training.",
        "adaptive/radii-real",
        CellReference(0, (str(space),), "worst case minus static network"),
        f"{NAME}, {space}",
        "cifar10",
        expected="negative",
        ours=True,
    )


CLAIMS = (
    _level(
        "Closed-loop control keeps a high clean accuracy (Sec. 3.3).",
        _CLOSED_LOOP,
        "clean",
        "the evaluators' ResNet-20, Linf 2/255",
    ),
    _level(
        "Closed-loop control resists attacks on the static network (Sec. 3.3).",
        _CLOSED_LOOP,
        "PGD-20, transferred",
        "the evaluators' ResNet-20, Linf 2/255",
    ),
    _level(
        "PGD-20 with BPDA breaks closed-loop control (Sec. 3.3).",
        _CLOSED_LOOP,
        "PGD-20 + BPDA",
        "the evaluators' ResNet-20, Linf 2/255",
        "at most",
    ),
    _level(
        "APGD with BPDA breaks closed-loop control (Sec. 3.3).",
        _CLOSED_LOOP,
        "APGD + BPDA",
        "the evaluators' ResNet-20, Linf 2/255",
        "at most",
    ),
    _level(
        "An audit that is given only the model breaks closed-loop control as far as APGD with BPDA "
        "(its attacks were extended after an earlier audit of these images).",
        _CLOSED_LOOP_AUDIT,
        "audit, standard",
        "the evaluators' ResNet-20, Linf 2/255",
        "at most",
        ours=True,
    ),
    Claim(
        "PGD-20 with BPDA on the defense is stronger than PGD-20 on the static network (Sec. 3.3).",
        _CLOSED_LOOP,
        CellReference(0, ("PGD-20, transferred",), "accuracy"),
        "the evaluators' ResNet-20, Linf 2/255",
        "cifar10",
        second=CellReference(0, ("PGD-20 + BPDA",), "accuracy"),
        base=CellReference(0, ("clean, static",), "accuracy"),
    ),
    _level(
        "SOAP keeps a high clean accuracy (Sec. 3.5).",
        _SOAP,
        f"clean, {_OLD}",
        "the authors' ResNet, Linf 8/255",
    ),
    _level(
        "SOAP resists FGSM on the static network (Sec. 3.5).",
        _SOAP,
        f"FGSM, transferred, {_OLD}",
        "the authors' ResNet, Linf 8/255",
    ),
    _level(
        "APGD on the trajectory of SOAP breaks it (Sec. 3.5).",
        _SOAP,
        _TRAJECTORY,
        "the authors' ResNet, Linf 8/255",
        "at most",
    ),
    _level(
        "An audit that is given only the model breaks SOAP as far as APGD on its trajectory "
        "(its attacks were extended after earlier audits of these images).",
        _SOAP,
        "audit, standard",
        "the authors' ResNet, Linf 8/255",
        "at most",
        ours=True,
    ),
    Claim(
        "APGD on the trajectory of SOAP is stronger than FGSM on the static network (Sec. 3.5).",
        _SOAP,
        CellReference(0, (f"FGSM, transferred, {_OLD}",), "accuracy"),
        "the authors' ResNet, Linf 8/255",
        "cifar10",
        second=CellReference(0, (_TRAJECTORY,), "accuracy"),
        base=CellReference(0, ("clean, static",), "accuracy"),
    ),
    _less_robust("SODEF"),
    _less_robust("AntiAdversary"),
    _less_robust("ATLD"),
    _less_robust("AIDPurifier"),
    _less_robust("HedgeDefense"),
    *_in_two_norms(
        "Under AutoAttack's points with clean copies SODEF seems more robust than its static "
        "network",
        COPIES_GAP,
    ),
    *_in_two_norms(
        "Transferred points of maximal loss break SODEF more than AutoAttack's points with clean "
        "copies",
        COPIES_EXCESS,
    ),
    *_in_two_norms(
        "Under transferred points of maximal loss SODEF is less robust than its static network",
        TRANSFER_GAP,
        "negative",
    ),
    *_in_two_norms(
        "Under all attacks, one with the exact gradient through the ODE among them, SODEF is less "
        "robust than its static network",
        WORST_GAP,
        "negative",
        source="",
    ),
    _at_radius("half of", Linf(RADIUS / 2)),
    _at_radius("three times", Linf(3 * RADIUS)),
    # The paper's attacks on SODEF and HedgeDefense are transfers themselves.
    _broken("AntiAdversary", "PGD-AT", "mnist"),
    _broken("SOAP", "standard", "mnist"),
    _broken("ATLD", "standard", "mnist"),
    _broken("AIDPurifier", "PGD-AT", "mnist"),
)
