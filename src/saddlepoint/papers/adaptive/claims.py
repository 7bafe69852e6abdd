"""The claims of the paper that our records decide."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from saddlepoint.attacks.spaces import Linf
from saddlepoint.papers.adaptive import published
from saddlepoint.papers.adaptive.radii import COLUMNS, FACTORS
from saddlepoint.papers.adaptive.real_table_2 import SPACES
from saddlepoint.papers.adaptive.robust_net import NAME, RADIUS
from saddlepoint.papers.adaptive.table_2 import (
    COPIES_EXCESS,
    COPIES_GAP,
    TRANSFER_GAP,
    WORST_GAP,
)
from saddlepoint.papers.claims import CellReference, Claim
from saddlepoint.zoo.adaptive import TABLE

_CLOSED_LOOP = "adaptive/released-closed-loop"
_CLOSED_LOOP_AUDIT = "adaptive/released-closed-loop-audit"
_SOAP = "adaptive/released-soap"
_OLD = "gradient of PyTorch 1.3 to 1.5 on CUDA"
_EVALUATORS_NET = "the evaluators' ResNet-20, Linf 2/255"
_AUTHORS_NET = "the authors' ResNet, Linf 8/255"
_VERDICT = (r"audit with the budget \w+: verdict [^,]*",)
_ROUNDS = (r"in \d+ rounds with twice the steps each, the first with \d+ steps",)
_WEAKENED = "is less robust than its robust static network"
_TRAJECTORY = f"APGD+BPDA (traj.) at the selected radius, {_OLD}"


def _level(
    text: str,
    record: str,
    row: str,
    network: str,
    expected: Literal["published", "at most"] = "published",
    *,
    ours: bool = False,
    quotes: tuple[str, ...] = (),
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
        quotes=quotes,
    )


def _broken(
    defense: str, source: str, network: str, data: str, effect: float | None = None
) -> Claim:
    """A claim that the adaptive attack on a defense is stronger than transfers.

    Args:
        defense: its name.
        source: where the paper makes this claim.
        network: the static network.
        data: its data.
        effect: the paper's; None: it has no number for a transfer of its own.
    """
    return Claim(
        f"{defense}: the adaptive attack is stronger than the strongest transfer from the static "
        f"network ({source}).",
        "adaptive/table-1",
        CellReference(0, (defense,), "the paper's attack minus the strongest transfer"),
        network,
        data,
        expected="negative",
        base=CellReference(0, (defense,), "static, clean"),
        published=effect,
    )


def _less_robust(defense: str, source: str, *, ours: bool = False) -> Claim:
    """A claim about a row of Table 1: the static network is more robust than the defense."""
    row = next(one for one in TABLE if one.name == defense)
    return Claim(
        f"{defense} {_WEAKENED} ({source}).",
        "adaptive/table-1-real",
        CellReference(0, (defense,), "lowest of these minus static"),
        f"{NAME}, Linf 2/255",
        "cifar10",
        expected="negative",
        base=CellReference(0, (defense,), "static, clean"),
        ours=ours,
        published=row.static - row.found,
    )


def _in_two_norms(
    text: str, column: str, expected: Literal["positive", "negative"] = "positive"
) -> tuple[Claim, ...]:
    """Return the claims of Table 2 about a difference, in Linf and in L2.

    Args:
        text: the claim.
        column: of the difference.
        expected: its sign.
    """
    return tuple(_in_norm(text, norm, column, expected) for norm in SPACES)


def _in_norm(text: str, norm: str, column: str, expected: Literal["positive", "negative"]) -> Claim:
    return Claim(
        f"{text}, in {norm} (Table 2).",
        "adaptive/table-2-real",
        CellReference(1, (norm,), column),
        f"{NAME}, {SPACES[norm]}",
        "cifar10",
        expected=expected,
        base=CellReference(0, (norm,), "clean"),
    )


def _under_all_attacks(norm: str) -> Claim:
    """A claim of Tables 1 and 2 under more attacks than the paper's."""
    static, _, transferred = published.TABLE_2[norm]
    text = (
        f"SODEF {_WEAKENED}, here under all attacks, one with the exact gradient through the ODE "
        "among them"
    )
    return replace(_in_norm(text, norm, WORST_GAP, "negative"), published=static - transferred)


def _at_radius(factor: float) -> Claim:
    """Our claim that the effect does not depend on the radius."""
    space = Linf(factor * RADIUS)
    times = "" if factor == 1 else f"{factor:g} times "
    return Claim(
        "Under all attacks SODEF is less robust than its static network, at "
        f"{times}the radius of its adversarial training.",
        "adaptive/radii-real",
        CellReference(0, (str(space),), COLUMNS[-1]),
        f"{NAME}, {space}",
        "cifar10",
        expected="negative",
        ours=True,
    )


def _stronger(text: str, record: str, weaker: str, stronger: str, network: str) -> Claim:
    """A claim that one attack finds a lower accuracy than another."""
    return Claim(
        text,
        record,
        CellReference(0, (weaker,), "accuracy"),
        network,
        "cifar10",
        second=CellReference(0, (stronger,), "accuracy"),
        base=CellReference(0, ("clean, static",), "accuracy"),
    )


_RELEASED = (
    _level(
        "Closed-loop control keeps a high clean accuracy (Sec. 3.3).",
        _CLOSED_LOOP,
        "clean",
        _EVALUATORS_NET,
    ),
    _level(
        "Closed-loop control resists PGD-20 that is transferred from the static network (Sec. "
        "3.3).",
        _CLOSED_LOOP,
        "PGD-20, transferred",
        _EVALUATORS_NET,
    ),
    _level(
        "PGD-20 leaves no image correct on the static network (Sec. 3.3).",
        _CLOSED_LOOP,
        "PGD-20 on the static network",
        _EVALUATORS_NET,
    ),
    _level(
        "PGD-20 with BPDA breaks closed-loop control (Sec. 3.3).",
        _CLOSED_LOOP,
        "PGD-20 + BPDA",
        _EVALUATORS_NET,
        "at most",
    ),
    _level(
        "APGD with BPDA breaks closed-loop control (Sec. 3.3).",
        _CLOSED_LOOP,
        "APGD + BPDA",
        _EVALUATORS_NET,
        "at most",
    ),
    _level(
        "An audit that is given only the model breaks closed-loop control as far as APGD with BPDA "
        "(its attacks were extended after earlier audits of these images).",
        _CLOSED_LOOP_AUDIT,
        "audit, standard",
        _EVALUATORS_NET,
        "at most",
        ours=True,
        quotes=_VERDICT,
    ),
    _stronger(
        "PGD-20 with BPDA on closed-loop control is stronger than PGD-20 transferred from the "
        "static network (Sec. 3.3).",
        _CLOSED_LOOP,
        "PGD-20, transferred",
        "PGD-20 + BPDA",
        _EVALUATORS_NET,
    ),
    _level(
        "SOAP keeps a high clean accuracy (Sec. 3.5).",
        _SOAP,
        f"clean, {_OLD}",
        _AUTHORS_NET,
    ),
    _level(
        "SOAP resists FGSM that is transferred from the static network (B.5).",
        _SOAP,
        f"FGSM, transferred, {_OLD}",
        _AUTHORS_NET,
    ),
    _level(
        "APGD on the trajectory of SOAP breaks it (Sec. 3.5; published with 1000 steps).",
        _SOAP,
        _TRAJECTORY,
        _AUTHORS_NET,
        "at most",
        quotes=_ROUNDS,
    ),
    _level(
        "An audit that is given only the model breaks SOAP as far as APGD on its trajectory "
        "(its attacks were extended after earlier audits of these images).",
        _SOAP,
        "audit, standard",
        _AUTHORS_NET,
        "at most",
        ours=True,
        quotes=_VERDICT,
    ),
    replace(
        _stronger(
            "APGD on the trajectory of SOAP is stronger than FGSM transferred from the static "
            "network (Sec. 3.5, B.5; published with 1000 steps).",
            _SOAP,
            f"FGSM, transferred, {_OLD}",
            _TRAJECTORY,
            _AUTHORS_NET,
        ),
        quotes=_ROUNDS,
    ),
)
_TRANSFERRED, _DIRECT = published.TABLE_4["CIFAR-10"][1:]
_ANTI_ADVERSARY = Claim(
    "AntiAdversary: RayS, which needs labels alone, finds the accuracy of the static network "
    "(Sec. 3.8).",
    "adaptive/table-1",
    CellReference(2, ("",), "anti-adversary"),
    "PGD-AT",
    "mnist",
    second=CellReference(2, ("",), "static"),
    expected="zero",
    base=CellReference(0, ("AntiAdversary",), "static, clean"),
    quotes=(r"RayS \d+ queries",),
)

CLAIMS = (
    *_RELEASED,
    _less_robust("SODEF", "Table 1, Sec. 3.2"),
    *(_under_all_attacks(norm) for norm in SPACES),
    _less_robust("AIDPurifier", "Table 1, Sec. 3.7"),
    _less_robust("HedgeDefense", "Table 1, Sec. 3.4"),
    _less_robust("AntiAdversary", "Table 1 reports the same robustness of both", ours=True),
    _less_robust(
        "ATLD",
        "Table 1 reports that it is more robust than a static network that is not",
        ours=True,
    ),
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
    *(_at_radius(factor) for factor in FACTORS),
    # The paper's attacks on SODEF and HedgeDefense are transfers themselves.
    _ANTI_ADVERSARY,
    _broken("SOAP", "Sec. 3.5", "standard", "mnist"),
    _broken("ATLD", "Appendix A", "standard", "mnist"),
    _broken("AIDPurifier", "Sec. 3.7, Table 4", "PGD-AT", "mnist", _TRANSFERRED - _DIRECT),
)
