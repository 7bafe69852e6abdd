"""Attacks on single rows of defenses that couple the rows of a batch."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Context, Plain
from saddlepoint.evaluation import RowByRow, RowRounds, Threat, play
from saddlepoint.papers.adaptive.attacks import apgd, on_soap
from saddlepoint.papers.adaptive.scales import AttackBudgets
from saddlepoint.zoo.adaptive import SOAP

ROWS = 8
BUDGETS = replace(AttackBudgets(), apgd_steps=6, soap_steps=3)
SPACE = Threat(Linf(0.05))


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 5))
    return nn.Sequential(*layers).eval().requires_grad_(False)


def dark_and_bright_images() -> Tensor:
    """Images for which SOAP prefers different radii."""
    x = torch.rand(ROWS, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return x * torch.linspace(0.05, 1, ROWS).view(ROWS, 1, 1, 1)


def test_rows_of_a_batch_have_their_own_best_points_and_step_sizes() -> None:
    net = network()
    x = torch.rand(ROWS, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    y = net(x).argmax(1)
    independent = Plain(net)
    coupled = Plain(net)
    coupled.coupled = True
    attack = apgd(BUDGETS)
    alone = play(independent, attack, x, y, threat=SPACE).points
    assert torch.equal(play(coupled, RowByRow(attack), x, y, threat=SPACE).points, alone)
    assert not torch.equal(play(coupled, attack, x, y, threat=SPACE).points, alone)
    assert RowByRow(attack).cost() == attack.cost()


def test_soap_at_the_selected_radius_gives_the_answers_of_soap() -> None:
    net = network()
    x = dark_and_bright_images()
    defense = SOAP(net)
    own = SOAP(net, coupled=False).select_radius(x)
    assert len(own.unique()) > 1, "rows alone would select other radii"
    one = defense.decouple(x)
    assert not one.coupled
    ctx = Context.seeded(0, ROWS)
    assert torch.equal(one.trace(x, ctx).logits, defense.trace(x, ctx).logits)
    part = one.trace(x[:3], Context.seeded(0, 3)).logits
    torch.testing.assert_close(part, one.trace(x, ctx).logits[:, :3])


def test_rounds_attack_only_rows_that_soap_classifies_correctly() -> None:
    net = network()
    x = dark_and_bright_images()
    defense = SOAP(net)
    y = defense.respond(x, Context.seeded(0, ROWS)).argmax(1)
    y[0] = (y[0] + 1) % 5  # misclassified without an attack
    first = replace(on_soap(defense, BUDGETS), stop_at_success=True)
    attack = RowRounds(first, (first.scaled(2), first.scaled(4)))
    found = play(defense, attack, x, y, threat=SPACE)
    correct = found.correct[0]
    assert 0 < int(correct.sum()) < ROWS
    most = attack.cost()
    assert (found.forward <= most.forward).all()
    assert (found.backward <= most.backward).all()
    assert found.backward[0] == 0
    assert (found.backward[correct == 1] > found.backward[correct == 0].min()).all()
    first = play(defense, replace(attack, then=()), x, y, threat=SPACE)
    assert correct.sum() <= first.correct[0].sum(), "later rounds start where earlier ones ended"
