"""A defense is never rated above its static net because it was attacked less."""

from __future__ import annotations

import pytest
import torch

import saddlepoint as sp
from saddlepoint import zoo
from saddlepoint.audits.planning.suite import compose
from saddlepoint.evaluation import Cascade

NET = zoo.load("digits-pgd")
X, Y = sp.load_data("digits", n=24)
LINF = sp.Linf(0.15)


class Labels(sp.Defense):
    """The predictions of the static net as one-hot scores: hardly any attack of its own works."""

    static = NET
    grants = "score"

    def __init__(self, *, coupled=False):
        self.coupled = coupled

    def trace(self, x, ctx):
        label = NET(x).argmax(1)
        return sp.Trace((sp.View("final", torch.nn.functional.one_hot(label, 10).float()),))


class Reversed(sp.Defense):
    """The logits of the static net with the opposite gradient."""

    static = NET

    def trace(self, x, ctx):
        logits = NET(x)
        return sp.Trace((sp.View("final", 2 * logits.detach() - logits),))


@pytest.mark.slow
def test_a_defense_with_the_labels_of_its_static_net_ends_at_or_below_it():
    """Each batch is one unit, so points of single attacks on the static net are not enough."""
    static = sp.audit(NET, X, Y, threat=LINF, budget="quick").robust_accuracy
    defense = Labels(coupled=True)
    result = sp.audit(defense, X, Y, threat=LINF, budget="quick", batch_size=len(X))
    own = [row.robust_accuracy for row in result.rows if not row.name.startswith("transfer")]
    assert min(own) > static  # attacks on the defense itself are weaker
    assert result.robust_accuracy <= static
    assert result.compared.static is not None
    assert result.compared.static.robust_accuracy <= static


@pytest.mark.parametrize("budget", ["quick", "standard", "thorough"])
@pytest.mark.parametrize("defense", [Labels(), Reversed()], ids=["scores", "gradients"])
def test_the_whole_suite_of_the_static_net_is_transferred(defense, budget):
    threat = sp.Threat(LINF)
    (transfer,) = (
        choice.adversary
        for choice in compose(defense, threat, budget)
        if choice.name == "transfer worst case"
    )
    assert isinstance(transfer.adversary, Cascade)
    assert transfer.source.static is NET
    own = [choice.name for choice in compose(sp.Plain(NET), threat, budget)]
    assert [one.name for one in transfer.adversary.adversaries] == own


def test_an_attacker_without_gradients_has_no_static_net():
    threat = sp.Threat(LINF, access="score")
    assert not any("transfer" in one.name for one in compose(Labels(), threat, "standard"))


def test_a_plain_net_has_no_transfers():
    names = [choice.name for choice in compose(sp.Plain(NET), sp.Threat(LINF), "standard")]
    assert not any("transfer" in name for name in names)
