"""The claims of the paper that our records decide, and ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from saddlepoint.papers.adaptive.robust_net import NAME
from saddlepoint.papers.claims import CellReference, Claim, Strategies
from saddlepoint.papers.multi_exit import attached, published
from saddlepoint.papers.multi_exit.figure_3 import REMARKS
from saddlepoint.papers.multi_exit.five_exits import NEED_MINUS_SINGLE
from saddlepoint.papers.multi_exit.table_3 import STRONGEST
from saddlepoint.papers.multi_exit.third_party import SPACE

_GAME = (r"game on .*PGD-\d+",)  # what a note says about the payoffs
_STRATEGIES = 2  # index of the table of strategies
_TABLE_2 = published.TABLE_2["resnet-18"]


class _Effect(NamedTuple):
    """A claim about a row of a table of effects: it is positive."""

    text: str
    row: str
    ours: bool = False
    compares: tuple[str, str] | None = None  # two rows of the table of strategies
    published: float | None = None


def _need_minus(other: str) -> float:
    """Robust accuracy of NEED minus that of another defense in the paper's Table 2."""
    return _TABLE_2["Multi-exit (NEED)"][2] - _TABLE_2[other][2]


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
            strategies=None if effect.compares is None else Strategies(*map(_row, effect.compares)),
            published=effect.published,
            quotes=(r"^\d+ attacks.* x .*PGD with \d+ steps",),
        )


def _row(strategy: str) -> CellReference:
    return CellReference(_STRATEGIES, (strategy,), "clean, %")


_TRIPLE_WINS = f"triple-wins (ResNet-38, 7 exits), {SPACE}"
_SEVEN = _Record("multi-exit/seven-exits-real", _TRIPLE_WINS, 7)
_ATTACHED = f"{NAME} with {attached.EXITS} attached exits, PGD-AT, {attached.SPACE}"
_FIVE = _Record("multi-exit/five-exits-real", _ATTACHED, attached.EXITS)
_EFFECTS = (
    _Effect(
        "In the mean over pairs of single exits, an attack on the other exit is weaker than the "
        "matched attack (Remark 3.3).",
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
        compares=("NEED", "last exit"),
        published=_need_minus("Multi-exit (static)"),
    ),
    _Effect(
        "Under AIMER, NEED is more robust than the best fixed set of exits (Sec. 3.4).",
        "one attack for all images: NEED minus the best fixed set",
        compares=("NEED", "best fixed exit set"),
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
        compares=("per-image mix", "NEED"),
    ),
    _Effect(
        "Against an attacker that chooses per image, NEED is more robust than the best fixed set.",
        "strongest attack per image: NEED minus the best fixed set",
        ours=True,
        compares=("NEED", "best fixed exit set"),
    ),
)
_SINGLE = _Effect(
    "Under AIMER, NEED is more robust than the same network with a single exit (Table 2).",
    NEED_MINUS_SINGLE,
    published=_need_minus("Single-exit"),
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


_WEAKER: Mapping[str, str] = {  # other evaluations of Table 1
    "Single attack": "the attack on the last exit",
    "Average attack": "the average attack",
    "Max-average attack": "the max-average attack",
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
            f"{text}, AIMER finds a lower robust accuracy than {weaker}, with PGD-20 (Table 1).",
            record,
            cell(defense, evaluation),
            network,
            "cifar10",
            second=cell(defense, "AIMER"),
        )
        for defense, text in _NOT_STATIC.items()
        for evaluation, weaker in _WEAKER.items()
    )


def _of_table_2(text: str, defense: str) -> Claim:
    """The claim of Table 2 that NEED is more robust than another defense."""

    def cell(name: str) -> CellReference:
        return CellReference(0, ("triple-wins", "cifar10", name), "robust, %")

    return Claim(
        f"Under AIMER with PGD-20, NEED is more robust than {text} (Table 2).",
        "multi-exit/table-2-real",
        cell("Multi-exit (NEED)"),
        _TRIPLE_WINS,
        "cifar10",
        second=cell(defense),
    )


def _of_figure_3(remark: str) -> Claim:
    """The claim of a remark about all pairs of sets of exits, part of Assumption 3.5."""

    def cell(column: str) -> CellReference:
        return CellReference(1, (remark,), column)

    return Claim(
        f"No attack whose exits are {REMARKS[remark]} is stronger than the matched attack (Remark "
        f"{remark}, part of Assumption 3.5), on the game's images.",
        "multi-exit/figure-3-real",
        cell("pairs that contradict the remark"),
        _TRIPLE_WINS,
        "cifar10",
        second=cell("pairs"),
        expected="never",
        quotes=_GAME,
    )


def _of_figure_6(attacker: str, text: str) -> Claim:
    """The claim of Figure 6 about the mean over random strategies of the defender."""

    def cell(name: str) -> CellReference:
        return CellReference(0, (name,), "accuracy, %, test images")

    return Claim(
        "In the mean over random strategies of the defender, AIMER finds a lower robust accuracy "
        f"than {text} (Figure 6).",
        "multi-exit/figure-6-real",
        cell(attacker),
        _TRIPLE_WINS,
        "cifar10",
        second=cell("AIMER"),
        quotes=_GAME,
    )


CLAIMS = (
    *(_SEVEN.claim(effect) for effect in _EFFECTS),
    *(_of_figure_3(remark) for remark in REMARKS),
    *(_FIVE.claim(effect) for effect in (*_EFFECTS, _SINGLE)),
    *_of_table_1("multi-exit/table-1-real", 0, "triple-wins", _TRIPLE_WINS),
    *_of_table_1(_FIVE.name, 4, "resnet4b PGD-AT", _ATTACHED),
    _of_table_2("the last exit", "Multi-exit (static)"),
    _of_table_2("dynamic inference", "Multi-exit (dynamic)"),
    _of_figure_6("Random", "an attack on a random set of exits"),
    _of_figure_6("Single attack", _WEAKER["Single attack"]),
    _of_figure_6("Average attack", _WEAKER["Average attack"]),
    _of_figure_6("Max-average attack", _WEAKER["Max-average attack"]),
    *_TRAINED,
)
