"""Batches that are filled with further trials of the same rows give the same results."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.fmn import FMN
from saddlepoint.attacks.losses import targeted_margin
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.spaces import L2, Linf
from saddlepoint.attacks.square import Square
from saddlepoint.defenses import Defense, Plain, Trace, View
from saddlepoint.evaluation import Direct, Escalate, MultiTarget, SkipMisclassified, Threat
from saddlepoint.evaluation.attack_context import AttackContext
from saddlepoint.evaluation.referee import play
from saddlepoint.gradients import EoT
from saddlepoint.rng import Keys

X = torch.rand(24, 3, 6, 6, generator=torch.Generator().manual_seed(3))


def net() -> nn.Module:
    torch.manual_seed(1)
    layers = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 7)
    return nn.Sequential(*layers).eval()


def attacked(adversary, space, rows=slice(None), batch_size=256):
    model = net()
    ids = torch.arange(len(X))[rows]
    context = AttackContext.open(Threat(space), ids, 0, batch_size=batch_size)
    result = adversary.move(context, Plain(model), X[rows], model(X[rows]).argmax(1))
    return result.point, context.meter


@pytest.mark.parametrize("space", [Linf(0.02), L2(0.3)], ids=str)
def test_target_classes_together_give_the_points_of_one_after_another(space):
    direct = Direct("apgd-t", APGD(10), stop_at_success=True)
    adversary = MultiTarget(direct, 6, targeted_margin)
    together, _ = attacked(adversary, space)
    alone, meter = attacked(adversary, space, batch_size=len(X))
    assert torch.allclose(together, alone, atol=1e-5)
    some = net()(alone).argmax(1) != net()(X).argmax(1)
    assert some.any()
    assert not some.all()
    assert meter.forward[~some].amin() > meter.forward[some].amin()


@pytest.mark.parametrize("space", [Linf(0.05), L2(0.6)], ids=str)
def test_square_finds_the_same_points_with_any_lookahead(space):
    """Unless the queries run out, which discarded proposals use as well."""
    one, _ = attacked(Direct("square", Square(400)), space)
    many, meter = attacked(Direct("square", Square(400, lookahead=16)), space)
    broken = net()(one).argmax(1) != net()(X).argmax(1)
    assert broken.sum() >= 5
    ended = broken & (meter.forward < 400)
    assert torch.equal(one[ended], many[ended])
    assert meter.forward.amax() <= 400


def test_square_needs_fewer_batches_with_lookahead():
    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = net()
            self.batches = 0

        def forward(self, x):
            self.batches += 1
            return self.inner(x)

    batches = []
    for lookahead in (1, 16):
        counted = Counted()
        context = AttackContext.open(Threat(Linf(0.005)), torch.arange(len(X)), 0, batch_size=512)
        adversary = Direct("square", Square(300, lookahead=lookahead))
        adversary.move(context, Plain(counted), X, net()(X).argmax(1))
        batches.append(counted.batches)
    assert batches[0] == 300
    assert batches[1] < batches[0] / 4


def test_an_example_is_searched_alone_as_in_a_batch():
    adversary = Direct("square", Square(300, lookahead=16))
    whole, meter = attacked(adversary, Linf(0.01))
    part, meter_of_part = attacked(adversary, Linf(0.01), torch.arange(5, 9))
    assert torch.equal(whole[5:9], part)
    assert torch.equal(meter.forward[5:9], meter_of_part.forward)


class Noisy(Defense):
    """Noise of each row from its own keys."""

    random = True

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.batches: list[int] = []

    def trace(self, x, ctx):
        self.batches.append(len(x))
        noise = 0.1 * ctx.randn_like(x)
        return Trace((View("final", self.model(x + noise)),))


@pytest.mark.parametrize("rows", [3, 24])
def test_draws_in_one_batch_equal_draws_one_by_one(rows):
    model = net().double()
    x = X[:rows].double()
    keys = Keys.of(0, torch.arange(rows))
    found = {}
    for full in (0, 64, 256):
        defense = Noisy(model)
        objective = AttackObjective([defense], model(x).argmax(1), batch_size=full)
        value = EoT(10).evaluate(objective, x, keys)
        result = EoT(10).value_and_grad(objective, x, keys)
        found[full] = (value.value, result.evaluation.value, result.grad)
        assert torch.equal(value.success, result.evaluation.success)
        assert sum(defense.batches) == 2 * 10 * rows
        assert max(defense.batches) == max(rows, min(10, full // rows) * rows)
    for full in (64, 256):
        for a, b in zip(found[0], found[full], strict=True):
            torch.testing.assert_close(a, b)
    assert found[0][0].std() > 0


def test_networks_with_global_noise_draw_one_by_one():
    seen = []

    class Dropped(nn.Module):
        def forward(self, x):
            seen.append(len(x))
            return torch.dropout(x.flatten(1)[:, :5], 0.5, train=True)

    labels = torch.zeros(4, dtype=torch.long)
    objective = AttackObjective([Plain(Dropped(), random=True)], labels, batch_size=256)
    EoT(6).evaluate(objective, X[:4], Keys.of(0, torch.arange(4)))
    assert seen == [4] * 6


class Limited(Defense):
    """Memory for a few images at once; deterministic or with noise of each row."""

    def __init__(self, *, random: bool) -> None:
        self.random = random
        self.net = net()
        self.largest = 0

    def trace(self, x, ctx):
        self.largest = max(self.largest, len(x))
        noise = 0.01 * ctx.randn_like(x) if self.random else 0
        return Trace((View("final", self.net(x + noise)),))


@pytest.mark.parametrize(
    ("adversary", "random"),
    [
        (Direct("square", Square(60, lookahead=16)), False),
        (MultiTarget(Direct("apgd-t", APGD(4), stop_at_success=True), 6, targeted_margin), False),
        (Direct("apgd", APGD(4), estimator=EoT(8)), True),
    ],
    ids=["square", "targets", "draws"],
)
@pytest.mark.parametrize("batch_size", [1, 5])
def test_no_call_has_more_rows_than_the_batch_size(adversary, random, batch_size):
    """A network that fits few images into memory is audited with a small batch size."""
    defense = Limited(random=random)
    x = X[:10]
    y = defense.net(x).argmax(1)
    play(defense, adversary, x, y, Threat(Linf(0.01), draws=2), batch_size=batch_size)
    assert defense.largest == batch_size


class Counted(nn.Module):
    """Keeps the number of rows of every call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net().double()
        self.rows: list[int] = []

    def forward(self, x):
        self.rows.append(len(x))
        return self.inner(x)


def test_close_rows_of_several_batches_are_attacked_together():
    """No call has more rows than before, there are fewer calls, and the points are the same."""
    direct = Direct("apgd-t", APGD(6), stop_at_success=True)
    first = MultiTarget(direct, 2, targeted_margin)
    adversary = Escalate(first, replace(direct, attack=FMN(20)), within=0.9)
    found = []
    for batch_size in (6, 24):
        counted = Counted()
        x = X.double()
        y = counted.inner(x).argmax(1)
        threat = Threat(Linf(0.03))
        wrapped = SkipMisclassified(adversary)
        episode = play(
            Plain(counted), wrapped, x, y, threat, batch_size=batch_size, rows_per_call=6
        )
        found.append((episode, counted.rows))
    (apart, calls), (together, fewer) = found
    assert max(fewer) == max(calls) == 6
    assert len(fewer) < 0.8 * len(calls)
    assert sum(fewer) == sum(calls)
    torch.testing.assert_close(apart.points, together.points)
    for name in ("correct", "margin", "answered", "forward", "backward"):
        torch.testing.assert_close(getattr(apart, name), getattr(together, name))
    assert 0 < together.correct.sum() < len(X)
