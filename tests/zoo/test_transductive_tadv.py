"""Transductive adversarial training: nothing is learned from the test images, and everything from fresh coins."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.zoo.transductive_problem import answers, context, digits, fingerprint, small, trained
from torch import nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.evaluation import Direct, FixedPoints, Threat, Transfer
from saddlepoint.evaluation.referee import play
from saddlepoint.rng import Keys
from saddlepoint.training.inner_attack import adversarial_examples
from saddlepoint.training.method import HalfAdversarial
from saddlepoint.training.recipe import Adam, Piecewise, Recipe
from saddlepoint.zoo.transductive import TADV, Pretrained, Trainer
from saddlepoint.zoo.transductive.tadv import cifar_recipe, mnist_recipe

SPACE = Linf(0.1)
TEST = digits("test", 40)
QUICK = Recipe(
    name="tadv-digits",
    data="digits",
    net=small,
    method=HalfAdversarial(PGD(steps=2)),
    space=SPACE,
    epochs=3,
    batch_size=50,
    optimizer=Adam(3e-3),
    schedule=Piecewise(at=()),
    select=FixedPoints(),
)


def _defense() -> TADV:
    data = digits()
    return TADV(trained(), Trainer(QUICK, data.x, data.y))


def test_what_was_asked_changes_nothing_of_the_network_that_answers() -> None:
    defense = _defense()
    x = TEST.x
    asked = [defense.adapt(batch, context(x)) for batch in (x, 1 - x, torch.zeros_like(x))]
    assert fingerprint(asked[0]) == fingerprint(asked[1]) == fingerprint(asked[2])


def test_other_coins_train_another_network_and_the_defense_stays_as_it_was() -> None:
    defense = _defense()
    x = TEST.x
    before = fingerprint(defense)
    with torch.no_grad():  # as the referee calls it
        one, other = (answers(defense.adapt(x, context(x, seed)), x) for seed in (0, 1))
    assert fingerprint(defense) == before
    assert not torch.equal(one, other)
    assert torch.equal(one, answers(defense.adapt(x, context(x)), x))
    assert torch.equal(answers(defense, x), trained()(x))


def test_the_attackers_points_do_not_depend_on_the_defenders_draw() -> None:
    nets = tuple(trained(seed, epochs=2) for seed in range(4))
    theirs, ours = Pretrained(nets).divided(3)
    attack = Transfer(Direct("pgd", PGD(steps=5), loss=cross_entropy), TADV(nets[0], theirs))
    episodes = [
        play(TADV(nets[0], pool), attack, TEST.x, TEST.y, Threat(SPACE), seed=7)
        for pool in (ours, Pretrained((trained(9, 2),)))
    ]
    assert torch.equal(episodes[0].points, episodes[1].points)
    assert not torch.equal(episodes[0].margin, episodes[1].margin)


def test_a_pool_is_divided_so_that_no_network_is_on_both_sides() -> None:
    nets = tuple(nn.Linear(1, 1) for _ in range(12))
    theirs, ours = Pretrained(nets).divided(11)
    assert (len(theirs.nets), len(ours.nets)) == (11, 1)
    assert not {*theirs.nets} & {*ours.nets}
    for known in (0, 12):
        with pytest.raises(
            ValueError, match="both sides need a network of 12, so the attacker may have 1 to 11"
        ):
            Pretrained(nets).divided(known)
    with pytest.raises(ValueError, match="needs at least one"):
        Pretrained(())


def test_a_pool_is_drawn_from_by_the_seed() -> None:
    nets = tuple(nn.Linear(1, 1) for _ in range(5))
    drawn = {id(Pretrained(nets)(seed)) for seed in range(10)}
    assert drawn == {id(net) for net in nets}


def test_the_settings_of_the_paper() -> None:
    mnist = mnist_recipe()
    cifar = cifar_recipe()
    assert (mnist.epochs, mnist.batch_size, mnist.space) == (100, 128, Linf(0.3))
    assert mnist.method == HalfAdversarial(PGD(steps=40, step_size=0.01))
    assert (cifar.epochs, cifar.batch_size, cifar.space) == (110, 128, Linf(8 / 255))
    assert cifar.method == HalfAdversarial(PGD(steps=10, step_size=2 / 255))
    assert [cifar.schedule.factor(epoch / 110) for epoch in (99, 100, 105)] == pytest.approx(
        [1, 0.1, 0.01]
    )
    assert (
        sum(p.numel() for p in mnist.net().parameters()) == 3274634
    )  # 832 + 51 264 + 3 212 288 + 10 250
    widths = [m.out_channels for m in cifar.net().modules() if isinstance(m, nn.Conv2d)]
    assert sorted(set(widths)) == [64, 128, 256]
    assert (
        len(
            [
                m
                for m in cifar.net().modules()
                if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)
            ]
        )
        == 19
    )


def test_half_of_the_batch_is_clean_and_half_adversarial() -> None:
    x = digits().x[:10]
    y = digits().y[:10]
    net = trained()
    keys = Keys.of(0, torch.arange(10))
    method = HalfAdversarial(PGD(steps=3))
    losses = method.loss(net, x, y, SPACE, keys)
    rows = torch.arange(5, 10)
    attacked = adversarial_examples(net, x[rows], y[rows], SPACE, keys[rows], method.attack)
    torch.testing.assert_close(losses[:5], cross_entropy(net(x[:5]), y[:5]), rtol=0, atol=1e-6)
    torch.testing.assert_close(losses[5:], cross_entropy(net(attacked), y[5:]), rtol=0, atol=1e-6)
    assert (losses[5:] > cross_entropy(net(x), y)[5:]).all()


def test_an_odd_batch_and_a_single_image_are_trained_on_too() -> None:
    for n in (1, 3):
        losses = HalfAdversarial(PGD(steps=1)).loss(
            trained(), digits().x[:n], digits().y[:n], SPACE, Keys.of(0, torch.arange(n))
        )
        assert losses.shape == (n,)


def test_seeds_are_told_apart_by_the_initial_weights_too() -> None:
    data = digits()
    still = replace(QUICK, epochs=1, optimizer=Adam(0.0))
    one, other = (Trainer(still, data.x, data.y)(seed) for seed in (0, 1))
    assert not torch.equal(next(one.parameters()), next(other.parameters()))


def test_a_network_is_trained_once_for_each_seed_of_a_trainer() -> None:
    data = digits()
    still = replace(QUICK, epochs=1, optimizer=Adam(0.0))
    trainer = Trainer(still, data.x, data.y)
    twin = Trainer(still, data.x, data.y)
    net = trainer(0)
    again = trainer(0)
    other = twin(0)
    assert again is net
    assert other is not net
    assert all(
        torch.equal(mine, yours)
        for mine, yours in zip(net.parameters(), other.parameters(), strict=True)
    )
