"""The claims of the paper that our records decide, and ours."""

from __future__ import annotations

from saddlepoint.papers.claims import CellReference, Claim
from saddlepoint.papers.multi_exit.scales import SETTINGS
from saddlepoint.papers.multi_exit.third_party import SPACE

_GAME = "multi-exit/seven-exits-real"
_BASE = CellReference(0, ("7",), "clean")


def _effect(text: str, row: str, *, ours: bool = False) -> Claim:
    """A claim about a row of the table of effects: it is positive."""
    return Claim(
        text,
        _GAME,
        CellReference(3, (row,), "points"),
        f"triple-wins (ResNet-38, 7 exits), {SPACE}, PGD-{SETTINGS['real'].payoff.steps}",
        "cifar10",
        base=_BASE,
        ours=ours,
    )


CLAIMS = (
    _effect(
        "An attack on other exits than those that answer is weaker than the matched attack "
        "(Remarks 3.1-3.4).",
        "single exits: attacks on another exit minus the matched attack",
    ),
    _effect(
        "AIMER finds a lower robust accuracy than the attack on the last exit (Table 1).",
        "third exit: single attack minus AIMER",
    ),
    _effect(
        "AIMER finds a lower robust accuracy than the average attack (Table 1).",
        "third exit: average attack minus AIMER",
    ),
    _effect(
        "AIMER finds a lower robust accuracy than the max-average attack (Table 1).",
        "third exit: max-average attack minus AIMER",
    ),
    _effect(
        "Under AIMER, NEED is more robust than the last exit (Table 2).",
        "one attack for all images: NEED minus the last exit",
    ),
    _effect(
        "Under AIMER, NEED is more robust than the best fixed set of exits (Sec. 3.4).",
        "one attack for all images: NEED minus the best fixed set",
    ),
    _effect(
        "NEED is less robust if the attacker chooses an attack per image instead of one for all.",
        "NEED: one attack for all images minus the strongest attack per image",
        ours=True,
    ),
    _effect(
        "The matched attack on the last exit is not the strongest: an attacker that chooses the "
        "attacked exits per image breaks more.",
        "last exit: matched attack minus the strongest attack per image",
        ours=True,
    ),
    _effect(
        "Against an attacker that chooses per image, the mean of all exits, a fixed answer, is "
        "more robust than the last exit.",
        "strongest attack per image: all exits minus the last exit",
        ours=True,
    ),
    _effect(
        "Against an attacker that chooses per image, our mixed strategy is more robust than NEED.",
        "strongest attack per image: per-image mix minus NEED",
        ours=True,
    ),
    _effect(
        "Against an attacker that chooses per image, NEED is more robust than the best fixed set.",
        "strongest attack per image: NEED minus the best fixed set",
        ours=True,
    ),
)
