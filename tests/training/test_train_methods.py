"""Each training loss against its equation, in float64."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import L2, Linf
from saddlepoint.rng import Keys
from saddlepoint.training import (
    FAT,
    MART,
    TRADES,
    FastTraining,
    GrowingTau,
    PGDTraining,
    Standard,
)
from saddlepoint.training.inner_attack import adversarial_examples
from saddlepoint.training.method import boosted_cross_entropy, divergence

EXACT = {"rtol": 0.0, "atol": 0.0}
ROUNDING = {"rtol": 0.0, "atol": 1e-12}  # a few hundred additions of numbers of size one in float64
N = 12
CLASSES = 4


@pytest.fixture
def net():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(9, 16), nn.Tanh(), nn.Linear(16, CLASSES)
        ).double()


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


def test_attacks_with_radius_zero_give_standard_training(net, batch):
    x, y, keys = batch
    losses = [
        m.loss(net, x, y, Linf(0.0), keys)
        for m in (Standard(), PGDTraining(), FastTraining(), FAT())
    ]
    for loss in losses[1:]:
        assert_close(loss, losses[0], **EXACT)
        assert_close(
            gradient(net, loss), gradient(net, Standard().loss(net, x, y, Linf(0.0), keys)), **EXACT
        )


def test_trades_with_beta_zero_is_standard_training(net, batch):
    x, y, keys = batch
    standard, trades = (m.loss(net, x, y, Linf(0.1), keys) for m in (Standard(), TRADES(beta=0.0)))
    assert_close(trades, standard, **EXACT)
    assert_close(gradient(net, trades), gradient(net, standard), **EXACT)


def test_trades_adds_a_divergence_larger_than_at_a_random_point(net, batch):
    x, y, keys = batch
    extra = TRADES(beta=1.0).loss(net, x, y, Linf(0.2), keys) - Standard().loss(
        net, x, y, Linf(0.2), keys
    )
    random = divergence(net(x), net(Linf(0.2).sample(x, keys)))
    assert (extra > random).all()


@pytest.mark.parametrize("space", [Linf(0.2), L2(0.5)])
def test_friendly_training_with_tau_equal_to_steps_is_pgd_training(net, batch, space):
    x, y, keys = batch
    friendly, pgd = (m.loss(net, x, y, space, keys) for m in (FAT(tau=10), PGDTraining()))
    assert_close(friendly, pgd, **EXACT)


def test_tau_of_friendly_training_grows_as_in_the_released_code() -> None:
    """120 epochs: tau is 0 up to epoch 50, 1 up to epoch 90, then 2; the batch does not matter."""
    for epoch in range(1, 121):
        expected = 0 if epoch <= 50 else 1 if epoch <= 90 else 2
        for batch in (0, 0.5, 0.99):
            assert FAT().at((epoch - 1 + batch) / 120).tau == expected
    assert FAT(tau=3).at(0.9) == FAT(tau=3)


@pytest.mark.parametrize("tau", [0, 1, 3])
def test_friendly_training_stops_pgd_tau_steps_after_the_first_success(net, batch, tau):
    x, y, keys = batch
    y = net(x).argmax(1)  # every clean example is classified correctly
    space = Linf(0.3)
    attack = PGD(steps=12, step_size=0.05, random_start=False)

    def reference(i):  # the paper's algorithm for one example
        point = x[i : i + 1]
        left = tau
        for _ in range(attack.steps):
            wrong = net(point).argmax(1) != y[i]
            if wrong and left == 0:
                break
            left -= int(wrong)
            point = point.detach().requires_grad_()
            (grad,) = torch.autograd.grad(cross_entropy(net(point), y[i : i + 1]).sum(), point)
            point = space.project(point + attack.step_size * grad.sign(), x[i : i + 1]).detach()
        return point

    expected = torch.cat([reference(i) for i in range(N)])
    assert_close(
        adversarial_examples(net, x, y, space, keys, attack, tau=tau), expected, **ROUNDING
    )
    # Some rows stop early, otherwise the test would prove nothing.
    assert not torch.allclose(expected, adversarial_examples(net, x, y, space, keys, attack))


def test_divergence_matches_its_formula_and_is_never_negative():
    keys = Keys.of(0, torch.arange(200))
    p = keys.normal((5,), torch.float64) * 5
    q = keys.fold_in(1).normal((5,), torch.float64) * 5
    a = p.softmax(1)
    b = q.softmax(1)
    assert_close(divergence(p, q), (a * (a / b).log()).sum(1), rtol=1e-9, atol=1e-12)
    assert (divergence(p, q) >= 0).all()
    assert_close(divergence(p, p + 7), torch.zeros(200, dtype=torch.float64), **ROUNDING)


def test_mart_matches_the_formula_of_the_paper(net, batch):
    x, y, keys = batch
    method = MART(weight=2.5)
    space = Linf(0.2)
    attacked = adversarial_examples(net, x, y, space, keys, method.attack)
    p = net(x).softmax(1)
    q = net(attacked).softmax(1)
    expected = []
    for i in range(N):
        others = [q[i, k] for k in range(CLASSES) if k != y[i]]
        bce = -q[i, y[i]].log() - (1 - max(others)).log()
        kl = sum(p[i, k] * (p[i, k] / q[i, k]).log() for k in range(CLASSES))
        expected.append(bce + 2.5 * kl * (1 - p[i, y[i]]))
    assert_close(method.loss(net, x, y, space, keys), torch.stack(expected), **ROUNDING)


def test_boosted_cross_entropy_is_finite_when_a_wrong_class_has_probability_one():
    logits = torch.tensor([[0.0, 60.0, -3.0]])
    loss = boosted_cross_entropy(logits, torch.tensor([0]))
    # -log p_y = 60 and -log(1 - p_1) = 60 - log(1 + e^-3); in float32 1 - p_1 is 0.
    assert_close(loss, torch.tensor([120 - math.log1p(math.exp(-3))]))


def test_fast_training_takes_one_step_of_five_quarters_of_the_radius(net, batch):
    x, y, keys = batch
    space = Linf(0.08)
    start = space.sample(x, keys.fold_in(2)).requires_grad_()
    (grad,) = torch.autograd.grad(cross_entropy(net(start), y).sum(), start)
    moved = (start + 1.25 * 0.08 * grad.sign() - x).clamp(-0.08, 0.08)
    expected = cross_entropy(net((x + moved).clamp(0, 1)), y)
    assert_close(
        FastTraining().loss(net, x, y, space, keys), expected.detach(), check_dtype=True, **ROUNDING
    )


@pytest.mark.parametrize(
    "method",
    [PGDTraining(), TRADES(), MART(), FAT(), FastTraining()],
    ids=lambda m: type(m).__name__,
)
def test_the_loss_of_an_example_does_not_depend_on_its_batch(net, batch, method):
    x, y, keys = batch
    rows = torch.tensor([7, 2, 9])
    together = method.loss(net, x, y, Linf(0.1), keys)[rows]
    assert_close(
        method.loss(net, x[rows], y[rows], Linf(0.1), keys[rows]), together, rtol=0, atol=1e-9
    )


def test_the_attack_does_not_change_statistics_modes_or_gradients(batch):
    x, y, keys = batch
    layers = [
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.BatchNorm2d(4),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(4, CLASSES),
    ]
    net = nn.Sequential(*layers).double().train()
    net[2].eval()  # a layer in eval mode must stay in eval mode
    for k, parameter in enumerate(net.parameters()):
        parameter.grad = torch.full_like(parameter, float(k))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    modes = [m.training for m in net.modules()]
    generator = torch.get_rng_state()
    adversarial_examples(net, x, y, Linf(0.1), keys, PGD(steps=3))
    assert_close(dict(net.state_dict()), before, **EXACT)
    assert [m.training for m in net.modules()] == modes
    assert all((p.grad == k).all() for k, p in enumerate(net.parameters()))
    assert torch.equal(torch.get_rng_state(), generator)


def test_modes_are_restored_when_the_attack_fails(batch):
    x, y, keys = batch
    # The input size of the linear layer does not match 3x3 images.
    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(5, CLASSES)).double().train()
    with pytest.raises(RuntimeError):
        adversarial_examples(net, x, y, Linf(0.1), keys, PGD(steps=3))
    assert net.training
    assert net[0].training


@pytest.mark.parametrize("method", [TRADES(), MART()], ids=["trades", "mart"])
def test_the_regularizer_contributes_to_the_gradient(net, batch, method):
    """Half the weight gives half of its contribution, and the contribution is not zero."""
    x, y, keys = batch
    name = "beta" if isinstance(method, TRADES) else "weight"
    none, half, full = (
        gradient(net, replace(method, **{name: w}).loss(net, x, y, Linf(0.2), keys))[0]
        for w in (0.0, 1.0, 2.0)
    )
    assert_close(full - none, 2 * (half - none), rtol=0, atol=1e-12)
    assert (full - none).abs().amax() > 1e-4


def test_a_negative_weight_raises():
    with pytest.raises(ValueError, match="TRADES needs beta >= 0, got beta=-1"):
        TRADES(beta=-1)
    with pytest.raises(ValueError, match="FAT needs tau >= 0"):
        FAT(tau=-1)
    with pytest.raises(ValueError, match="FAT needs tau >= 0"):
        FAT(tau=GrowingTau((0, -1), (0.5,)))
    with pytest.raises(ValueError, match="one value more than increasing changes"):
        GrowingTau((0, 1), (0.5, 0.7))
