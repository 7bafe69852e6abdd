"""The claims of the paper that our records decide, and ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from saddlepoint.papers.adaptive.robust_net import NAME
from saddlepoint.papers.claims import CellReference, Claim
from saddlepoint.papers.multi_exit import attached, published
from saddlepoint.papers.multi_exit.five_exits import NEED_MINUS_SINGLE
from saddlepoint.papers.multi_exit.scales import SETTINGS
from saddlepoint.papers.multi_exit.table_3 import STRONGEST
from saddlepoint.papers.multi_exit.third_party import SPACE


class _Effect(NamedTuple):
    """A claim about a row of a table of effects: it is positive."""

    text: str
    row: str
    ours: bool = False


@dataclass(frozen=True)
class _Record:
    """A game with a table of effects."""

    name: str
    network: str
    exits: int

    def claim(self, effect: _Effect) -> Claim:
        """Return the claim about one effect."""
        return Claim(
            effect.text,
            self.name,
            CellReference(3, (effect.row,), "points"),
            self.network,
            "cifar10",
            base=CellReference(0, (str(self.exits),), "clean"),
            ours=effect.ours,
        )


_SEVEN = _Record(
    "multi-exit/seven-exits-real",
    f"triple-wins (ResNet-38, 7 exits), {SPACE}, PGD-{SETTINGS['real'].payoff.steps}",
    7,
)
_FIVE = _Record(
    "multi-exit/five-exits-real",
    f"{NAME} with {attached.EXITS} attached exits, PGD-AT, {attached.SPACE}, "
    f"PGD-{attached.SETTING.payoff.steps}",
    attached.EXITS,
)
_EFFECTS = (
    _Effect(
        "An attack on other exits than those that answer is weaker than the matched attack "
        "(Remarks 3.1-3.4).",
        "single exits: attacks on another exit minus the matched attack",
    ),
    _Effect(
        "If exit 3 answers, AIMER finds a lower robust accuracy than the attack on the last exit "
        "(Table 1).",
        "third exit: single attack minus AIMER",
    ),
    _Effect(
        "If exit 3 answers, AIMER finds a lower robust accuracy than the average attack (Table 1).",
        "third exit: average attack minus AIMER",
    ),
    _Effect(
        "If exit 3 answers, AIMER finds a lower robust accuracy than the max-average attack "
        "(Table 1).",
        "third exit: max-average attack minus AIMER",
    ),
    _Effect(
        "Under AIMER, NEED is more robust than the last exit (Table 2).",
        "one attack for all images: NEED minus the last exit",
    ),
    _Effect(
        "Under AIMER, NEED is more robust than the best fixed set of exits (Sec. 3.4).",
        "one attack for all images: NEED minus the best fixed set",
    ),
    _Effect(
        "NEED is less robust if the attacker chooses an attack per image instead of one for all.",
        "NEED: one attack for all images minus the strongest attack per image",
        ours=True,
    ),
    _Effect(
        "The matched attack on the last exit is not the strongest: an attacker that chooses the "
        "attacked exits per image breaks more.",
        "last exit: matched attack minus the strongest attack per image",
        ours=True,
    ),
    _Effect(
        "Against an attacker that chooses per image, the mean of all exits, a fixed answer, is "
        "more robust than the last exit.",
        "strongest attack per image: all exits minus the last exit",
        ours=True,
    ),
    _Effect(
        "Against an attacker that chooses per image, our mixed strategy is more robust than NEED.",
        "strongest attack per image: per-image mix minus NEED",
        ours=True,
    ),
    _Effect(
        "Against an attacker that chooses per image, NEED is more robust than the best fixed set.",
        "strongest attack per image: NEED minus the best fixed set",
        ours=True,
    ),
)
_SINGLE = _Effect(
    "Under AIMER, NEED is more robust than the same network with a single exit (Table 2).",
    NEED_MINUS_SINGLE,
)
_TRAINING = {
    "Standard": "Fine-tuned for 3 epochs without attacks (not the paper's standard training)"
}
_TRAINED = tuple(
    Claim(
        f"{_TRAINING.get(method, f'Trained with {method}')}, NEED is more robust than the same "
        "network with a single exit, under the strongest of the attacks per image (Table 3).",
        "multi-exit/table-3-real",
        CellReference(1, (method,), STRONGEST),
        f"{NAME} with {attached.EXITS} attached exits, {method}, {attached.SPACE}",
        "cifar10",
        base=CellReference(0, (method,), "clean"),
    )
    for method in published.TABLE_3
)
_NOT_STATIC = {  # the other defenses of Table 1, whose exit depends on chance or on the image
    "Random (3rd or 5th)": "If exit 3 or exit 5 answers at random",
    "Dynamic, entropy [16]": "If the entropy of the outputs decides which exit answers",
    "Dynamic, confidence (a guess of [3])": "If the confidence decides which exit answers",
}


def _of_table_1(record: str, table: int, subject: str, network: str) -> tuple[Claim, ...]:
    """Return the claims of Table 1 about defenses whose exit is not fixed.

    Args:
        record: its name.
        table: index of the table.
        subject: name of the network in the table.
        network: the network.
    """

    def cell(defense: str, evaluation: str) -> CellReference:
        return CellReference(table, (defense, subject, "cifar10", evaluation), "PGD-20")

    return tuple(
        Claim(
            f"{text}, AIMER finds a lower robust accuracy than the attack on the last exit, with "
            "PGD-20 (Table 1).",
            record,
            cell(defense, "Single attack"),
            network,
            "cifar10",
            second=cell(defense, "AIMER"),
        )
        for defense, text in _NOT_STATIC.items()
    )


CLAIMS = (
    *(_SEVEN.claim(effect) for effect in _EFFECTS),
    *(_FIVE.claim(effect) for effect in (*_EFFECTS, _SINGLE)),
    *_of_table_1(
        "multi-exit/table-1-real", 0, "triple-wins", f"triple-wins (ResNet-38, 7 exits), {SPACE}"
    ),
    *_of_table_1(_FIVE.name, 4, "resnet4b PGD-AT", _FIVE.network),
    *_TRAINED,
)
