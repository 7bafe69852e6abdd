"""Attacks run on a copy with folded batch normalization; the given net is what is evaluated."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import saddlepoint as sp
from saddlepoint.audits import AuditRequest, prepare
from saddlepoint.audits.cells import Job
from saddlepoint.audits.planning.choice import Choice
from saddlepoint.audits.planning.engine import with_engine
from saddlepoint.audits.planning.facts import UNKNOWN
from saddlepoint.audits.planning.plan import Plan
from saddlepoint.defenses import Plain
from saddlepoint.evaluation import Direct, FixedPoints, Threat
from saddlepoint.evaluation.faster_copy import FasterCopy
from saddlepoint.runs.hashing import cell_keys

SPACE = sp.Linf(0.05)
PGD = Direct("pgd", sp.PGD(10), stop_at_success=True)


class Net(nn.Module):
    """Convolutions with normalization."""

    def __init__(self, norm=nn.BatchNorm2d):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = norm(4)
        self.out = nn.Linear(4 * 36, 3)

    def forward(self, x):
        return self.out(self.norm(self.conv(x)).relu().flatten(1))


def trained(norm=nn.BatchNorm2d):
    torch.manual_seed(0)
    net = Net(norm)
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.running_mean, -1, 1)
            nn.init.uniform_(layer.running_var, 0.5, 2)
            nn.init.uniform_(layer.weight, 0.5, 2)
    return net.eval()


X = torch.rand(40, 1, 6, 6, generator=torch.Generator().manual_seed(1))
NET = trained()
NET.out.bias.data.sub_(NET(X).detach().mean(0))  # so that all classes occur
Y = NET(X).argmax(1)


def plan_of(defense, adversary=PGD, n=40, **threat):
    x = X[:n]
    job = Job(defense, x, Y[:n], Threat(SPACE, **threat), seed=0, batch_size=32)
    return Plan("net", "quick", job, (FixedPoints(), adversary), choices=(Choice(adversary, ""),))


def form(plan, option="auto"):
    return with_engine(plan, option, UNKNOWN).job.engine


class Silent(sp.Adversary):
    """An adversary without a stated cost."""

    name = "silent"
    needs = "decision"

    def move(self, context, defense, x, y):
        raise AssertionError("a plan is only priced here, so it never moves")


LONG = replace(PGD, attack=sp.PGD(100))


@pytest.mark.parametrize(
    ("plan", "option", "expected", "reason"),
    [
        (plan_of(Plain(NET), LONG), "auto", "folded", "1 layer folded"),
        (plan_of(Plain(NET), LONG), "off", "plain", "the engine is off"),
        (plan_of(Plain(NET), LONG), "channels-last", "folded, channels-last", "1 layer folded"),
        (plan_of(Plain(NET), n=8), "auto", "plain", "saves time from 1280 passes on"),
        (plan_of(Plain(NET), n=8), "channels-last", "folded, channels-last", ""),
        (plan_of(Plain(NET), Silent()), "auto", "plain", "is not known"),
        (plan_of(Plain(NET), LONG, queries=500), "auto", "plain", "queries are limited"),
        (plan_of(Plain(NET, random=True), LONG), "auto", "plain", "randomized"),
        (plan_of(Plain(NET, coupled=True), LONG), "auto", "plain", "influence each other"),
        (plan_of(sp.BlackBox(NET), LONG), "auto", "plain", "not an ordinary net"),
        (plan_of(Plain(trained(lambda _: nn.Identity())), LONG), "auto", "plain", "no batch norm"),
    ],
)
def test_a_copy_is_used_where_it_is_sound_and_saves_time(plan, option, expected, reason):
    found = form(plan, option)
    assert found.form == expected
    assert reason in found.reason


def test_a_net_with_hooks_is_not_copied():
    net = trained()
    net.out.register_forward_hook(lambda layer, inputs, out: out)
    assert form(plan_of(Plain(net), LONG)).reason == "the net has hooks"


class Counting(Plain):
    """A net that counts its gradients and outputs."""

    def __init__(self, net):
        super().__init__(net)
        self.gradients = 0

    def trace(self, x, ctx):
        self.gradients += torch.is_grad_enabled()
        return super().trace(x, ctx)


def on_copy(copy):
    """A job on the given net with this copy, and the counting defenses."""
    given = Counting(NET)
    copied = Counting(copy)
    job = replace(plan_of(given).job, faster=FasterCopy(given, copied))
    return job, given, copied


def test_gradients_are_those_of_the_copy_and_outcomes_those_of_the_given_net():
    job, given, copied = on_copy(NET)
    rows = torch.arange(len(X))
    found = job.play(PGD, rows)
    assert (given.gradients, copied.gradients > 0) == (0, True)
    plain = replace(job, faster=None).play(PGD, rows)
    assert torch.equal(found.points, plain.points)
    assert torch.equal(found.correct, plain.correct)


class Wrong(nn.Module):
    """A copy that misclassifies everything: attacks on it stop at their first point."""

    def forward(self, x):
        return NET(x).roll(1, dims=1)


def test_rows_that_only_the_copy_misclassifies_are_attacked_again():
    job, given, _ = on_copy(Wrong())
    rows = torch.arange(len(X))
    found = job.play(PGD, rows)
    expected = replace(job, faster=None).play(PGD, rows)
    assert 0 < float(expected.correct.mean()) < 1
    assert torch.equal(found.correct, expected.correct)
    assert given.gradients > 0


def test_the_form_is_part_of_the_key_of_a_cell():
    plan = plan_of(Plain(NET), LONG)
    keys = [
        cell_keys(with_engine(plan, option, UNKNOWN), "target", 1, [(0, 1)])[0, 1]
        for option in ("off", "auto", "auto", "channels-last")
    ]
    assert keys[1] == keys[2]
    assert len(set(keys)) == 3


def test_audits_with_and_without_the_engine_agree_and_say_which_form_they_attacked():
    adversary = replace(LONG, name="long")
    options = {"threat": sp.Linf(0.02), "budget": "quick", "adversaries": [adversary]}
    fast = sp.audit(NET, X, Y, **options)
    slow = sp.audit(NET, X, Y, **options, engine="off")
    assert (fast.engine.form, slow.engine.form) == ("folded", "plain")
    assert torch.equal(fast.correct, slow.correct)
    assert "folded" in str(fast.cost)
    assert "the engine is off" in str(slow.cost)
    assert fast.record()["engine"] == {"form": "folded", "reason": "1 layer folded"}


def test_another_value_is_an_error():
    with pytest.raises(ValueError, match="one of auto, off, channels-last, got 'on'"):
        prepare(AuditRequest(NET, X, Y, Threat(SPACE), engine="on"))
