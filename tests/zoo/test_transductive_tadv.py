"""Transductive adversarial training: the network depends on the seed and not on the test images."""

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


def test_the_adapted_network_does_not_depend_on_the_test_images() -> None:
    defense = _defense()
    x = TEST.x
    adapted = [defense.adapt(batch, context(x)) for batch in (x, 1 - x, torch.zeros_like(x))]
    assert fingerprint(adapted[0]) == fingerprint(adapted[1]) == fingerprint(adapted[2])


def test_another_seed_gives_another_network_and_the_defense_is_not_changed() -> None:
    defense = _defense()
    x = TEST.x
    before = fingerprint(defense)
    with torch.no_grad():  # as the referee calls it
        one, other = (answers(defense.adapt(x, context(x, seed)), x) for seed in (0, 1))
    assert fingerprint(defense) == before
    assert not torch.equal(one, other)
    assert torch.equal(one, answers(defense.adapt(x, context(x)), x))
    assert torch.equal(answers(defense, x), trained()(x))


def test_the_points_of_the_attacker_do_not_depend_on_the_draw_of_the_defender() -> None:
    nets = tuple(trained(seed, epochs=2) for seed in range(4))
    theirs, ours = Pretrained(nets).divided(3)
    attack = Transfer(Direct("pgd", PGD(steps=5), loss=cross_entropy), TADV(nets[0], theirs))
    episodes = [
        play(TADV(nets[0], pool), attack, TEST.x, TEST.y, Threat(SPACE), seed=7)
        for pool in (ours, Pretrained((trained(9, 2),)))
    ]
    assert torch.equal(episodes[0].points, episodes[1].points)
    assert not torch.equal(episodes[0].margin, episodes[1].margin)


def test_a_divided_pool_has_no_network_in_both_parts() -> None:
    nets = tuple(nn.Linear(1, 1) for _ in range(12))
    theirs, ours = Pretrained(nets).divided(11)
    assert (len(theirs.nets), len(ours.nets)) == (11, 1)
    assert not {*theirs.nets} & {*ours.nets}
    for known in (0, 12):
        with pytest.raises(
            ValueError, match=f"both need a network of the 12: known must be 1 to 11, got {known}"
        ):
            Pretrained(nets).divided(known)
    with pytest.raises(ValueError, match="needs at least one"):
        Pretrained(())


def test_the_seed_selects_a_network_of_the_pool() -> None:
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
    # 832 + 51 264 + 3 212 288 + 10 250
    assert sum(p.numel() for p in mnist.net().parameters()) == 3274634
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


def test_odd_batches_and_single_images_work() -> None:
    for n in (1, 3):
        losses = HalfAdversarial(PGD(steps=1)).loss(
            trained(), digits().x[:n], digits().y[:n], SPACE, Keys.of(0, torch.arange(n))
        )
        assert losses.shape == (n,)


def test_the_initial_weights_depend_on_the_seed() -> None:
    data = digits()
    no_learning = replace(QUICK, epochs=1, optimizer=Adam(0.0))
    one, other = (Trainer(no_learning, data.x, data.y)(seed) for seed in (0, 1))
    assert not torch.equal(next(one.parameters()), next(other.parameters()))


def test_a_trainer_trains_once_per_seed() -> None:
    data = digits()
    no_learning = replace(QUICK, epochs=1, optimizer=Adam(0.0))
    trainer = Trainer(no_learning, data.x, data.y)
    copy = Trainer(no_learning, data.x, data.y)
    first = trainer(0)
    again = trainer(0)
    other = copy(0)
    assert again is first
    assert other is not first
    assert all(
        torch.equal(p, q) for p, q in zip(first.parameters(), other.parameters(), strict=True)
    )
