"""Every transductive defense matches its declarations and can be attacked and audited."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.probing import probe_target
from tests.zoo.transductive_problem import context, digits, fingerprint, small, trained, two_classes
from torch import nn

from saddlepoint import audit
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.audits.verdict import SymptomName
from saddlepoint.defenses import Defense, Plain
from saddlepoint.evaluation import AttackContext, Direct, Threat, Transfer
from saddlepoint.evaluation.referee import play
from saddlepoint.training.recipe import Adam, unchanged
from saddlepoint.zoo.nets.dann import DANNNet
from saddlepoint.zoo.transductive import (
    DANN,
    RMC,
    TADV,
    Distinguishing,
    DomainTraining,
    Library,
    Pretrained,
    Tuning,
    URejectron,
)

# Trained for a few steps, a DANN stays at chance and warns of it.
pytestmark = pytest.mark.filterwarnings(
    "ignore::saddlepoint.zoo.transductive.ChanceAccuracyWarning"
)

SPACE = Linf(0.15)
TEST = digits("test", 24)


def dense() -> DANNNet:
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU())
    return DANNNet(encoder, nn.Linear(24, 10), nn.Linear(24, 2))


def rmc() -> RMC:
    data = digits(n=60)
    library = Library.build(
        trained(), data.x, data.y, space=SPACE, attack=PGD(1), copies=1, augment=unchanged
    )
    return RMC(trained(), library, neighbors=20, tuning=Tuning(epochs=1, rate=1e-3))


def dann() -> DANN:
    data = digits(n=60)
    return DANN(trained(), data.x, data.y, training=DomainTraining(build=dense, epochs=2))


def tadv() -> TADV:
    return TADV(trained(), Pretrained(tuple(trained(seed, 2) for seed in range(3))))


def urejectron() -> URejectron:
    return URejectron(
        trained(),
        digits(n=60).x,
        training=Distinguishing(build=two_classes, epochs=2, optimizer=Adam(1e-2)),
    )


each = pytest.mark.parametrize("build", [rmc, dann, tadv, urejectron])


@each
def test_the_declarations_match_the_measured_properties(build: Callable[[], Defense]) -> None:
    checked = probe_target(build(), TEST.x, TEST.y, SPACE)
    assert checked.classes == 10
    # The test allows nets that are hardly trained; everything else would be a wrong declaration.
    assert [f for f in checked.findings if f.name is not SymptomName.UNUSUAL] == []
    assert "adapts" in checked.facts.traits


@each
def test_a_game_does_not_change_the_defense(build: Callable[[], Defense]) -> None:
    defense = build()
    x = TEST.x[:6]
    y = TEST.y[:6]
    before = fingerprint(defense)
    attack = Direct("pgd", PGD(steps=3), loss=cross_entropy)
    direct = play(defense, attack, x, y, Threat(SPACE), batch_size=3)
    moved = play(defense, Transfer(attack, Plain(trained())), x, y, Threat(SPACE), batch_size=3)
    assert fingerprint(defense) == before
    assert direct.correct.shape == moved.correct.shape == (1, len(x))
    again = play(defense, attack, x, y, Threat(SPACE), batch_size=3)
    assert torch.equal(direct.points, again.points)
    assert torch.equal(direct.margin, again.margin)


@each
def test_the_adapted_defense_can_be_attacked(build: Callable[[], Defense]) -> None:
    adapted = build().adapt(TEST.x, context(TEST.x))
    attack = Direct("pgd", PGD(steps=5), loss=cross_entropy)
    context_of_attack = AttackContext.open(Threat(SPACE), torch.arange(len(TEST.x)), 0)
    move = attack.against([build(), adapted], context_of_attack, TEST.x, TEST.y)
    assert SPACE.contains(move.max_loss_point, TEST.x).all()
    assert (move.max_loss_point != TEST.x).any()


@pytest.mark.slow
def test_an_audit_of_a_defense_that_rejects_completes() -> None:
    result = audit(
        urejectron(), TEST.x, TEST.y, threat=Threat(SPACE, draws=2), budget="quick", batch_size=12
    )
    names = {symptom.name for symptom in result.symptoms}
    assert "rejections" in names
    assert "adapts at test time" not in names  # the planned attacks simulate the adaptation
    assert {"fixed-point", "gmsa-avg", "gmsa-min"} <= {row.name for row in result.rows}
    assert 0 <= result.robust_accuracy <= result.clean_accuracy <= 1
    point, wrong = result.rejection_scores[:2]  # [2, N]: both draws
    assert result.rejection_scores.shape == (4, 2, len(TEST.x))
    assert float(((wrong == 0) | (point > 0)).double().mean()) == result.robust_accuracy


def test_the_trained_network_of_the_tests_is_accurate() -> None:
    assert (trained()(TEST.x).argmax(1) == TEST.y).double().mean() > 0.8
    assert not small().eval()(TEST.x).argmax(1).eq(TEST.y).all()
