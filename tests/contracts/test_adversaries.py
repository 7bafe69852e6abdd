"""Every adversary names the adversaries inside it, and never costs more than it states."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields

import pytest
from tests.contracts.test_wrappers import found, path
from tests.problems import Net, smooth, uniform
from torch import Tensor, nn

from saddlepoint.attacks.ensemble import MinLoss
from saddlepoint.attacks.losses import cross_entropy, margin
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.attacks.square import Square
from saddlepoint.defenses import Mix, MultiExit, Plain
from saddlepoint.evaluation import (
    Adversary,
    Annealed,
    Cascade,
    CleanCopies,
    CleanFallback,
    Direct,
    Escalate,
    Evolved,
    External,
    FixedPoint,
    FixedPoints,
    GreedyModelSpace,
    JointEquilibrium,
    MaxLossPoint,
    MultiTarget,
    OnExamples,
    OtherKeys,
    Points,
    Portfolio,
    Restarts,
    RetrainedEnsemble,
    RowByRow,
    RowRounds,
    RowSearch,
    SingleTarget,
    Skip,
    SkipMisclassified,
    Threat,
    Transfer,
    WarmStart,
    play,
)
from saddlepoint.evaluation.faster_copy import FasterCopy, OnFasterCopy
from saddlepoint.games.exit_adversaries import Drawn, MaxAverage, OnExits
from saddlepoint.gradients import EoT

THIS_FILE = "tests/contracts/test_adversaries.py"
N = 12
DRAWS = 3
NETS = tuple(smooth(10 * k) for k in range(2))
X = uniform(0, N, 1, 2, 3)
Y = NETS[1](X).argmax(1)
# Bases of adversaries, and parts that only exist inside a run of another adversary.
NOT_USED_ALONE = ("TwoStage", "AdversaryWrapper", "AroundDirect")


class Exits(nn.Module):
    """Two exits without shared layers."""

    def forward(self, x: Tensor) -> list[Tensor]:
        return [net(x) for net in NETS]


class Last(nn.Module):
    """The last exit alone."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


DEFENSES = {
    "deterministic": MultiExit(Exits()),
    "randomized": MultiExit(Exits(), Mix(((1,), (2,)), (0.5, 0.5))),
}
PGD2 = Direct("pgd", PGD(2))
AVERAGED = Direct("averaged", PGD(2), estimator=EoT(2))
SQUARE = Direct("square", Square(5))

EXAMPLES: dict[type, Adversary] = {
    Annealed: Annealed(PGD2, (margin, cross_entropy)),
    Cascade: Cascade("cascade", (PGD2, AVERAGED, SQUARE)),
    CleanCopies: CleanCopies(PGD2),
    CleanFallback: CleanFallback(PGD2),
    Direct: AVERAGED,
    Drawn: Drawn("drawn", (PGD2, SQUARE), (0.5, 0.5)),
    Escalate: Escalate(PGD2, AVERAGED, 1.0),
    Evolved: Evolved("evolution", (PGD2, PGD2), 5),
    External: External("external", lambda model, x, y: x),
    FixedPoint: FixedPoint("fpa", AVERAGED, 2),
    FixedPoints: FixedPoints(),
    GreedyModelSpace: GreedyModelSpace("gmsa", AVERAGED, 2, MinLoss()),
    JointEquilibrium: JointEquilibrium("joint"),
    MaxAverage: MaxAverage("max-average", (PGD2, AVERAGED)),
    MaxLossPoint: MaxLossPoint(PGD2),
    MultiTarget: MultiTarget(PGD2, 2),
    OnExamples: OnExamples("some", PGD2, (1, 4)),
    OnFasterCopy: OnFasterCopy(PGD2, FasterCopy(*2 * (DEFENSES["deterministic"],))),
    OnExits: OnExits(Cascade("both", (PGD2, AVERAGED)), (1, 2)),
    Points: Points("saved", X),
    Portfolio: Portfolio("portfolio", (PGD2, AVERAGED)),
    OtherKeys: OtherKeys(AVERAGED, 3),
    Restarts: Restarts(AVERAGED, 2),
    RetrainedEnsemble: RetrainedEnsemble("ensemble", AVERAGED, 2, MinLoss()),
    RowByRow: RowByRow(PGD2),
    RowRounds: RowRounds(PGD2, (PGD2,)),
    RowSearch: RowSearch("rows", PGD2, (PGD2, AVERAGED), 3, 2),
    SingleTarget: SingleTarget(PGD2, 1),
    Skip: Skip(PGD2),
    SkipMisclassified: SkipMisclassified(PGD2),
    Transfer: Transfer(AVERAGED, Plain(Last(NETS[0]))),
    WarmStart: WarmStart(SQUARE, PGD2),
}
DETERMINISTIC_ONLY = (
    CleanCopies,
    Escalate,
    Evolved,
    OnFasterCopy,
    SkipMisclassified,
    WarmStart,
    RowRounds,
)


def adversary_classes() -> list[type]:
    """The public adversaries of evaluation and games."""
    packages = ("saddlepoint.evaluation.", "saddlepoint.games.")
    classes = [cls for cls in found(Adversary) if cls.__module__.startswith(packages)]
    public = [cls for cls in classes if not cls.__name__.startswith("_")]
    return [cls for cls in public if cls.__name__ not in NOT_USED_ALONE]


def example(cls: type) -> Adversary:
    if cls not in EXAMPLES:
        pytest.fail(f"{path(cls)} has no entry. Add one to EXAMPLES in {THIS_FILE}.")
    return EXAMPLES[cls]


each_adversary = pytest.mark.parametrize("cls", adversary_classes(), ids=path)


def inside(adversary: Adversary) -> Iterator[Adversary]:
    """The adversaries in the fields of an adversary."""
    for field in fields(adversary):  # type: ignore[arg-type]
        value = getattr(adversary, field.name)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, Adversary):
                yield item


@each_adversary
def test_children_are_the_adversaries_in_the_fields(cls: type) -> None:
    adversary = example(cls)
    assert list(adversary.children()) == list(inside(adversary))
    assert not inspect.isabstract(cls)


@each_adversary
def test_properties_contain_those_of_the_children(cls: type) -> None:
    adversary = example(cls)
    properties = adversary.properties
    assert properties.needs == adversary.needs
    for child in adversary.children():
        for field in fields(child.properties):
            inherited = getattr(child.properties, field.name)
            if inherited is True:
                assert getattr(properties, field.name) is True


@each_adversary
@pytest.mark.parametrize("kind", DEFENSES)
@pytest.mark.parametrize("batch_size", [N, 5])
def test_the_stated_cost_is_never_exceeded(cls: type, kind: str, batch_size: int) -> None:
    adversary = example(cls)
    cost = adversary.cost(DRAWS if kind == "randomized" else 1)
    if cost is None:
        pytest.skip("the cost is not known")
    threat = Threat(Linf(0.1), draws=DRAWS)
    if kind == "randomized" and cls in DETERMINISTIC_ONLY:
        with pytest.raises(ValueError, match=r"needs a deterministic defense (with|that)"):
            play(DEFENSES[kind], adversary, X, Y, threat)
        return
    episode = play(DEFENSES[kind], adversary, X, Y, threat, batch_size=batch_size)
    assert int(episode.forward.amax()) <= cost.forward
    assert int(episode.backward.amax()) <= cost.backward
