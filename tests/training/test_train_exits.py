"""Training of several exits: each exit has the loss of the method, and one attack targets all."""

from dataclasses import replace

import pytest
import torch
from tests.training.multi_exit_problem import CLASSES, SPACE, N, ThreeExits
from torch import nn
from torch.testing import assert_close

from saddlepoint.attacks.aims import mean_of_losses
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.data import load_data
from saddlepoint.rng import Keys
from saddlepoint.training import (
    FAT,
    MART,
    SGD,
    TRADES,
    FastTraining,
    MaxAverageTraining,
    OverExits,
    PGDTraining,
    Recipe,
    Standard,
    fit,
)
from saddlepoint.training.exits import max_average
from saddlepoint.training.inner_attack import adversarial_examples
from saddlepoint.training.recipe import judge
from saddlepoint.zoo.nets import resnet18

EXACT = {"rtol": 0.0, "atol": 0.0}
ROUNDING = {"rtol": 0.0, "atol": 1e-12}  # a few hundred additions of numbers of size one in float64
METHODS = [Standard(), PGDTraining(), TRADES(), MART(), FAT(), FastTraining()]


class Repeated(nn.Module):
    """A network with three identical exits."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return [self.net(x)] * 3


@pytest.fixture
def net():
    return ThreeExits().double()


@pytest.fixture
def batch():
    keys = Keys.of(5, torch.arange(N))
    return (
        keys.uniform((1, 3, 3), torch.float64),
        keys.fold_in(1).integers(CLASSES),
        keys.fold_in(2),
    )


def gradient(net, losses):
    return torch.autograd.grad(losses.mean(), list(net.parameters()))


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_identical_exits_have_the_loss_and_gradient_of_a_single_exit(batch, method):
    x, y, keys = batch
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        plain = nn.Sequential(
            nn.Flatten(), nn.Linear(9, 16), nn.Tanh(), nn.Linear(16, CLASSES)
        ).double()
    many = OverExits(method).loss(Repeated(plain), x, y, SPACE, keys)
    one = method.loss(plain, x, y, SPACE, keys)
    assert many.shape == (N,)
    assert_close(many, one, **ROUNDING)
    assert_close(
        gradient(plain, many), gradient(plain, method.loss(plain, x, y, SPACE, keys)), **ROUNDING
    )


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_the_loss_is_the_weighted_sum_over_exits(net, batch, method):
    x, y, keys = batch
    single = [
        OverExits(method, weights=tuple(float(k == i) for k in range(3))).loss(
            net, x, y, SPACE, keys
        )
        for i in range(3)
    ]
    assert_close(
        OverExits(method).loss(net, x, y, SPACE, keys), torch.stack(single).mean(0), **ROUNDING
    )
    weighted = OverExits(method, weights=(1.0, 0.5, 2.0)).loss(net, x, y, SPACE, keys)
    assert_close(weighted, single[0] + 0.5 * single[1] + 2 * single[2], **ROUNDING)
    assert not torch.allclose(single[0], single[2])


def test_the_training_attack_is_the_average_attack(net, batch):
    """x <- project(x + step sign(grad mean_i CE(f_i(x), y))), written out."""
    x, y, keys = batch
    point = SPACE.sample(x, keys.fold_in(2))
    for _ in range(10):
        point = point.detach().requires_grad_()
        value = torch.stack([cross_entropy(z, y) for z in net(point)]).mean(0)
        (grad,) = torch.autograd.grad(value.sum(), point)
        point = (
            (x + (point + 2.5 * 0.1 / 10 * grad.sign() - x).clamp(-0.1, 0.1)).clamp(0, 1).detach()
        )
    expected = torch.stack([cross_entropy(z, y) for z in net(point)]).mean(0)
    assert_close(OverExits(PGDTraining()).loss(net, x, y, SPACE, keys), expected, **ROUNDING)


def test_max_average_is_the_single_exit_attack_with_the_largest_mean_loss(net, batch):
    x, y, keys = batch
    attack = PGD(steps=5)

    def averaged(point):
        return torch.stack([cross_entropy(z, y) for z in net(point)]).mean(0).detach()

    class Alone(nn.Module):
        def __init__(self, k):
            super().__init__()
            self.net = net
            self.k = k

        def forward(self, x):
            return self.net(x)[self.k]

    singles = [adversarial_examples(Alone(k), x, y, SPACE, keys, attack) for k in range(3)]
    found = max_average(net, x, y, SPACE, keys, attack)
    values = torch.stack([averaged(point) for point in singles])
    assert_close(averaged(found), values.amax(0), **ROUNDING)
    # The best exit for the attacker differs between examples.
    assert len(values.argmax(0).unique()) > 1
    for row in range(N):
        assert any(torch.equal(found[row], point[row]) for point in singles)


def test_max_average_training_mixes_clean_and_adversarial_losses(net, batch):
    x, y, keys = batch
    clean = OverExits(Standard(), weights=(1.0, 1.0, 1.0)).loss(net, x, y, SPACE, keys)
    none, half, all_of_it = (
        MaxAverageTraining(share=s).loss(net, x, y, SPACE, keys) for s in (0.0, 0.5, 1.0)
    )
    assert_close(none, clean, **ROUNDING)
    assert_close(half, (none + all_of_it) / 2, **ROUNDING)
    assert (all_of_it > none).all()
    halved = MaxAverageTraining(weights=(0.5, 0.5, 0.5)).loss(net, x, y, SPACE, keys)
    assert_close(2 * halved, half, **ROUNDING)


@pytest.mark.parametrize(
    "method", [OverExits(PGDTraining()), MaxAverageTraining()], ids=["average", "max-average"]
)
def test_only_the_passes_of_the_loss_update_the_batch_statistics(batch, method):
    """The passes of the attack run in eval mode and must not update running statistics."""
    x, y, keys = batch
    net = Repeated(
        nn.Sequential(nn.Flatten(), nn.BatchNorm1d(9), nn.Linear(9, CLASSES)).double()
    ).train()
    method.loss(net, x, y, SPACE, keys)
    assert int(net.net[1].num_batches_tracked) == (1 if isinstance(method, OverExits) else 2)
    assert all(module.training for module in net.modules())


def test_a_wrong_number_of_weights_raises(net, batch):
    x, y, keys = batch
    with pytest.raises(ValueError, match="2 weights were given for the losses of 3 exits"):
        OverExits(Standard(), weights=(1.0, 1.0)).loss(net, x, y, SPACE, keys)
    with pytest.raises(ValueError, match="needs 0 <= share <= 1, got share=2"):
        MaxAverageTraining(share=2)


RECIPE = Recipe(
    name="exits",
    data="digits",
    net=resnet18,
    method=OverExits(PGDTraining(PGD(steps=2))),
    space=Linf(0.03),
    epochs=3,
    batch_size=24,
    optimizer=SGD(rate=0.1),
    select=judge(mean_of_losses),
)


def small():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return resnet18(8, (1, 1, 1), in_channels=1)


@pytest.mark.parametrize(
    "method",
    [RECIPE.method, MaxAverageTraining(attack=PGD(steps=1))],
    ids=["average", "max-average"],
)
def test_training_a_multi_exit_network_lowers_the_loss(method):
    data = load_data("digits", split="train", n=160)
    trained = fit(small(), data.x, data.y, replace(RECIPE, method=method), seed=1)
    losses = [epoch.loss for epoch in trained.history]
    assert losses[-1] < 0.9 * losses[0]
    assert len(trained.net(data.x[:3])) == 3


def test_a_method_that_changes_during_training_sees_the_share_that_is_done():
    shares = []

    class Recorded(Standard):
        def at(self, done):
            shares.append(done)
            return Standard()

    data = load_data("digits", split="train", n=40)
    recipe = replace(RECIPE, method=OverExits(Recorded()), epochs=2, batch_size=9, dev_share=0.1)
    fit(small(), data.x, data.y, recipe)
    assert shares == [k / 8 for k in range(8)]  # 36 examples, 4 batches per epoch


def test_a_method_for_one_exit_raises_on_several_exits():
    data = load_data("digits", split="train", n=40)
    with pytest.raises(
        ValueError,
        match=r"losses \[3, 18\] for 18 examples.*has 3 exits: "
        r"train several exits with OverExits\(method\)",
    ):
        fit(small(), data.x, data.y, replace(RECIPE, method=Standard()))


def test_exits_with_different_numbers_of_classes_raise():
    data = load_data("digits", split="train", n=40)
    net = small()
    net.heads[1] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 9))
    with pytest.raises(ValueError, match=r"outputs \[2, 9\] and \[2, 10\] for two examples"):
        fit(net, data.x, data.y, RECIPE)
