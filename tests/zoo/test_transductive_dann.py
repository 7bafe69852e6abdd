"""Domain adversarial networks: the reversed gradient, its schedule, and adaptation to a batch."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tests.zoo.transductive_problem import answers, context, digits, fingerprint, trained
from torch import Tensor, nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.spaces import Linf
from saddlepoint.evaluation import FixedPoints, Threat
from saddlepoint.evaluation.referee import play
from saddlepoint.training.loop import initialized
from saddlepoint.training.recipe import Adam, Piecewise
from saddlepoint.zoo.nets.dann import DANNNet, dann_cifar, dann_mnist, reverse
from saddlepoint.zoo.transductive import (
    DANN,
    ChanceAccuracyWarning,
    DomainTraining,
    cifar_domains,
)
from saddlepoint.zoo.transductive.dann import domain_losses, train_domain_adversarial

# Trained for a few steps, a DANN stays at chance and warns of it.
pytestmark = pytest.mark.filterwarnings(
    "ignore::saddlepoint.zoo.transductive.ChanceAccuracyWarning"
)

DIGITS = partial(dann_mnist, 4, 16, side=8, kernel=3, padding=1)
QUICK = DomainTraining(build=DIGITS, epochs=2, batch_size=40, optimizer=Adam(3e-3))
TEST = digits("test", 80)


def test_reversal_keeps_the_value_and_negates_the_gradient() -> None:
    x = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    y = reverse(x, 0.3)
    assert torch.equal(y, x)
    (grad,) = torch.autograd.grad((y**2).sum(), x)
    torch.testing.assert_close(grad, -0.3 * 2 * x.detach(), rtol=0, atol=1e-15)


def _domain_gradients(net: DANNNet, alpha: float) -> tuple[list[Tensor], list[Tensor]]:
    """Return the gradients of the domain losses in the encoder and in the discriminator."""
    x = digits().x[:10].double()
    y = digits().y[:10]
    source, target = domain_losses(net, x, y, TEST.x[:10].double(), alpha)
    domain = source.sum() - cross_entropy(net(x), y).sum() + target.sum()
    encoder = list(net.encoder.parameters())
    discriminator = list(net.discriminator.parameters())
    grads = torch.autograd.grad(domain, [*encoder, *discriminator])
    return list(grads[: len(encoder)]), list(grads[len(encoder) :])


def test_with_alpha_zero_the_domain_loss_has_no_gradient_in_the_encoder() -> None:
    # In eval mode dropout is off, so the class losses of the two passes cancel.
    net = initialized(DIGITS, 0).double().eval()
    encoder, discriminator = _domain_gradients(net, 0.0)
    # Only the rounding error of the class losses that cancel remains.
    assert max(float(g.abs().max()) for g in encoder) < 1e-14
    assert max(float(g.abs().max()) for g in discriminator) > 1e-3


def test_alpha_scales_the_gradient_of_the_encoder_but_not_of_the_discriminator() -> None:
    net = initialized(DIGITS, 0).double().eval()
    (encoder, discriminator) = _domain_gradients(net, 1.0)
    (scaled, unscaled) = _domain_gradients(net, 0.1)
    for whole, part in zip(encoder, scaled, strict=True):
        torch.testing.assert_close(part, whole / 10, rtol=0, atol=1e-13)
    for one, other in zip(discriminator, unscaled, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-13)


def test_alpha_increases_from_zero_to_its_ceiling() -> None:
    training = DomainTraining()
    assert training.alpha(0.0) == 0
    assert training.alpha(1.0) == pytest.approx(0.09999, abs=1e-6)  # 0.1 tanh 5 = 0.099990920
    values = [training.alpha(k / 50) for k in range(51)]
    assert values == sorted(values)
    assert cifar_domains().alpha(1.0) == pytest.approx(0.99990920, abs=1e-8)


def test_the_settings_of_the_paper() -> None:
    mnist = DomainTraining()
    cifar = cifar_domains()
    assert (mnist.build, mnist.epochs, mnist.batch_size, mnist.optimizer.rate) == (
        dann_mnist,
        100,
        128,
        1e-3,
    )
    assert (mnist.schedule.factor(0.0), mnist.schedule.factor(0.999)) == (1, 1)
    assert (cifar.build, cifar.epochs, cifar.batch_size, cifar.optimizer.rate) == (
        dann_cifar,
        100,
        64,
        0.1,
    )
    assert [cifar.schedule.factor(p) for p in (0.49, 0.5, 0.75, 0.9)] == pytest.approx(
        [1, 0.1, 0.01, 0.001]
    )
    assert cifar.optimizer.over([nn.Parameter(torch.zeros(1))]).defaults["nesterov"]


def test_the_networks_of_the_paper() -> None:
    net = dann_mnist().eval()
    shape = net.encoder(torch.zeros(1, 1, 28, 28)).shape
    assert shape == (1, 128, 4, 4)  # 2048 numbers, as the first linear layers expect
    heads = net.heads(torch.zeros(1, 1, 28, 28), 0.1)
    assert (heads.classes.shape, heads.domain.shape) == ((1, 10), (1, 2))
    small = dann_cifar(4).eval()
    assert small.encoder(torch.zeros(1, 3, 32, 32)).shape == (1, 16, 8, 8)
    assert small(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    with pytest.raises(ValueError, match="too small"):
        dann_mnist(side=8)


def test_an_epoch_is_as_long_as_the_smaller_set(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int, float]] = []

    def recording(
        net: DANNNet, x: Tensor, y: Tensor, target: Tensor, alpha: float
    ) -> tuple[Tensor, Tensor]:
        calls.append((len(x), len(target), alpha))
        return domain_losses(net, x, y, target, alpha)

    monkeypatch.setattr("saddlepoint.zoo.transductive.dann.domain_losses", recording)
    data = digits()
    train_domain_adversarial(data.x, data.y, TEST.x, QUICK, seed=0)
    # 80 test images in batches of 40, for two epochs.
    assert [(source, target) for source, target, _ in calls] == [(40, 40)] * 4
    assert [alpha for *_, alpha in calls] == [QUICK.alpha(k / 4) for k in range(4)]


def test_each_domain_has_its_own_batch_statistics() -> None:
    net = initialized(DIGITS, 0).train()
    for module in net.modules():
        if isinstance(module, nn.Dropout2d):
            module.eval()
    data = digits()
    _, alone = domain_losses(net, data.x[:10], data.y[:10], TEST.x[:10], 0.1)
    _, other = domain_losses(net, 1 - data.x[:10], data.y[:10], TEST.x[:10], 0.1)
    torch.testing.assert_close(alone, other, rtol=0, atol=0)


def test_adapting_does_not_change_the_defense_and_depends_on_batch_and_seed() -> None:
    data = digits()
    defense = DANN(trained(), data.x, data.y, training=QUICK)
    assert (defense.unit, defense.random) == ("batch", True)
    before = fingerprint(defense)
    x = TEST.x[:40]
    with torch.no_grad():
        first = answers(defense.adapt(x, context(x)), x)
    assert fingerprint(defense) == before
    assert torch.equal(answers(defense, x), trained()(x))
    assert torch.equal(first, answers(defense.adapt(x, context(x)), x))
    assert not torch.equal(first, answers(defense.adapt(x, context(x, seed=1)), x))
    # It adapts to the test images.
    assert not torch.equal(first, answers(defense.adapt(1 - x, context(x)), x))


def test_training_does_not_change_the_global_generator() -> None:
    data = digits()
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    train_domain_adversarial(data.x[:80], data.y[:80], TEST.x[:40], QUICK, seed=0)
    assert torch.equal(torch.rand(1), expected)


def dense() -> DANNNet:
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU())
    return DANNNet(
        encoder, nn.Linear(48, 10), nn.Sequential(nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, 2))
    )


def test_it_classifies_digits_in_a_game() -> None:
    data = digits()
    training = DomainTraining(
        build=dense, epochs=60, batch_size=40, optimizer=Adam(1e-2), schedule=Piecewise(at=(0.8,))
    )
    episode = play(
        DANN(trained(), data.x, data.y, training=training),
        FixedPoints(),
        TEST.x,
        TEST.y,
        Threat(Linf(0.1)),
    )
    assert episode.correct.mean() > 0.85


def test_a_stronger_reversal_makes_the_domains_harder_to_distinguish() -> None:
    data = digits()
    # Without reversal a linear discriminator separates these negatives from the originals.
    negatives = (1 - TEST.x).clamp(0, 1)
    separation = []
    for ceiling in (0.0, 1.0):
        training = DomainTraining(
            build=dense, epochs=40, batch_size=40, optimizer=Adam(3e-3), ceiling=ceiling
        )
        net = train_domain_adversarial(data.x, data.y, negatives, training, seed=0)
        with torch.no_grad():
            source, target = (net.heads(x, 0.0).domain for x in (data.x, negatives))
            margin = (source[:, 0] - source[:, 1]).mean() + (target[:, 1] - target[:, 0]).mean()
            separation.append(float(margin))
    assert separation[1] < separation[0] / 2


def test_four_epochs_on_a_few_digits_warn_that_the_network_is_at_chance() -> None:
    data = digits()
    short = DomainTraining(build=DIGITS, epochs=4, batch_size=64)
    with pytest.warns(
        ChanceAccuracyWarning, match=r"after 4 epochs of 2 steps; a constant prediction has 1\d"
    ):
        train_domain_adversarial(data.x, data.y, TEST.x, short, seed=0)


def test_too_few_images_or_labels_raise() -> None:
    data = digits()
    with pytest.raises(ValueError, match="adapts to batches of test images, got 1"):
        DANN(trained(), data.x, data.y, training=QUICK).adapt(TEST.x[:1], context(TEST.x[:1]))
    with pytest.raises(ValueError, match="one label per image, got 400 images and 3 labels"):
        DANN(trained(), data.x, data.y[:3])
