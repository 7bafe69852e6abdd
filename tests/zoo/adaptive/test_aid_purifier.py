"""AID-purifier: signed ascent on a discriminator that uses layers of the network."""

from __future__ import annotations

import pytest
import torch
from tests.zoo.adaptive.purifiers import CLASSES, context, discriminator, images, smooth_net
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Plain
from saddlepoint.evaluation import AttackContext, Direct, Threat
from saddlepoint.rng import Keys
from saddlepoint.zoo.adaptive import AIDPurifier, Discriminator

EXACT = {"rtol": 0.0, "atol": 0.0}
N = 5


def test_the_discriminator_has_one_encoder_per_layer_and_halving_layers():
    net = smooth_net()
    x = images(N)
    # Layers "0" and "2", width 6, one further layer in each encoder, one halving layer.
    discriminator_net = discriminator(net)
    h = []
    for encoder, output in zip(discriminator_net.encoders, (net[:1](x), net[:3](x)), strict=True):
        v = output.mean((2, 3))
        for linear, norm, _ in encoder:
            v = norm(linear(v)).relu()
        h.append(v)
    linear, norm, _ = discriminator_net.decision[0][0]
    last = discriminator_net.decision[1]
    assert linear.weight.shape == (6, 12)
    expected = last(norm(linear(torch.cat(h, 1))).relu())[:, 0]
    assert_close(AIDPurifier(net, discriminator_net).natural_logit(x), expected, rtol=1e-13, atol=0)


def test_four_layers_have_the_sizes_of_the_released_network():
    """The encodings of four layers have 4096 units, which are halved three times."""
    channels = [16, 160, 320, 640]
    names = ["first", "block1", "block2", "block3"]
    discriminator_net = Discriminator(names, channels, off=("block1", "block3"))

    def widths(module):
        return [m.out_features for m in module.modules() if isinstance(m, nn.Linear)]

    assert widths(discriminator_net.decision) == [2048, 1024, 512, 1]
    assert [widths(encoder) for encoder in discriminator_net.encoders] == 4 * [[1024, 1024]]


def test_a_layer_that_is_off_has_no_effect_and_a_constant_encoding():
    net = smooth_net()
    whole = Discriminator.on(net, ("0", "2"), images(1), width=6, after=1)
    off = Discriminator.on(net, ("0", "2"), images(1), width=6, after=1, off=("2",))
    features = [net[:1](images(N)), net[:3](images(N))]
    other = [features[0], features[1] + 1]
    with torch.no_grad():
        assert_close(off(features), off(other), rtol=0, atol=0)
        assert not torch.equal(whole(features), whole(other))
        assert_close(off(features), whole([features[0], 0 * features[1]]), rtol=0, atol=0)


@pytest.mark.parametrize("off", [("0", "2"), ("1",)])
def test_all_layers_or_another_layer_cannot_be_off(off):
    with pytest.raises(ValueError, match="some but not all can be off"):
        Discriminator(("0", "2"), (3, 3), off=off)


def test_the_output_is_that_of_equation_7():
    """Ten steps of 0.031 / 4 that increase the probability of "natural"."""
    net = smooth_net()
    x = images(N) - 0.3
    discriminator_net = discriminator(net)
    v = x
    for _ in range(10):
        v = v.detach().requires_grad_()
        probability = discriminator_net([net[:1](v), net[:3](v)]).sigmoid()
        (grad,) = torch.autograd.grad(probability.sum(), v)
        v = (x + (v + 0.031 / 4 * grad.sign() - x).clamp(-0.031, 0.031)).clamp(0, 1)
    defense = AIDPurifier(net, discriminator_net)
    assert_close(defense.respond(x, context(N)), net(v), rtol=0, atol=1e-12)
    assert (defense.natural_logit(v) > defense.natural_logit(x)).all()


def test_a_fitted_discriminator_detects_attacked_images_and_nothing_else_changes():
    net = smooth_net()
    x = images(96)
    with torch.no_grad():
        net[0].weight.mul_(4)
    y = net(x).argmax(1)
    space = Linf(0.2)
    raw = AIDPurifier(net, Discriminator.on(net, ("1", "3"), x[:1], width=16, after=1))
    before = {
        k: v.clone()
        for k, v in (*net.state_dict().items(), *raw.discriminator.state_dict().items())
    }
    fitted = raw.fit(x, y, space=space, epochs=10, batch_size=48, learning_rate=0.05)
    pgd = Direct("pgd", PGD(10), loss=cross_entropy)
    attacked = pgd.move(
        AttackContext.open(Threat(space), torch.arange(96), 7), Plain(net), x, y
    ).max_loss_point
    detected = (fitted.natural_logit(x) > fitted.natural_logit(attacked)).double().mean()
    assert detected > 0.8
    assert_close(
        {**dict(net.state_dict()), **dict(raw.discriminator.state_dict())}, before, **EXACT
    )
    assert all(p.grad is None for p in net.parameters())
    assert not fitted.discriminator.training


def test_the_target_of_a_mixture_is_the_weight_of_the_natural_image():
    """AVmixup: the loss at w x + (1 - w) v is the binary cross-entropy with target w."""
    net = smooth_net()
    x = images(8)
    y = torch.arange(8) % CLASSES
    calls = []
    gradients = []

    class Recording(Discriminator):
        def forward(self, features):
            out = super().forward(features)
            if self.training:
                calls.append((features[0], out.detach()))
                out.register_hook(gradients.append)
            return out

    discriminator_net = Recording(("0",), (3,), width=4, after=1).double().eval()
    fitted = [
        AIDPurifier(net, discriminator_net).fit(x, y, adversary=Brighter(), batch_size=8)
        for _ in range(2)
    ]
    assert_close(fitted[0].natural_logit(x), fitted[1].natural_logit(x), **EXACT)
    features, logit = calls[0]
    # The vertex is x + 2 (x' - x) = x + 0.2. The first layer is linear, so its output reveals w.
    natural = net[0](x)
    vertex = net[0](x + 0.2)
    order = Keys.of(0, torch.arange(8)).fold_in(0).uniform((), torch.float64).argsort(stable=True)
    w = ((vertex[order] - features) / (vertex[order] - natural[order])).flatten(1).mean(1)
    drawn = (
        Keys.of(0, torch.arange(8))
        .fold_in(0)[order]
        .fold_in(1)
        .fold_in(1)
        .uniform((), torch.float64)
    )
    assert_close(w, drawn, rtol=0, atol=1e-10)
    # The gradient of the mean binary cross-entropy with target w.
    assert_close(gradients[0], (logit.sigmoid() - w) / 8, rtol=0, atol=1e-10)


class Brighter:
    """Adversary that increases every pixel by 0.1."""

    name = "brighter"
    needs = "decision"

    def move(self, context, defense, x, y):
        return AttackResult(x + 0.1, x + 0.1)


def test_invalid_discriminators_raise():
    net = smooth_net()
    with pytest.raises(ValueError, match="4 units cannot be halved 3 times"):
        Discriminator.on(net, ("0",), images(1), width=4)
    with pytest.raises(ValueError, match=r"each name once, got \['0', '0'\]"):
        Discriminator.on(net, ("0", "0"), images(1))
    with pytest.raises(ValueError, match="the discriminator is in training mode"):
        AIDPurifier(net, discriminator(net).train())


def test_batch_norm_of_the_discriminator_uses_its_running_statistics():
    net = smooth_net()
    x = images(N)
    defense = AIDPurifier(net, discriminator(net))
    logits = defense.natural_logit(x)
    assert_close(logits[:1], defense.natural_logit(x[:1]), rtol=1e-13, atol=0)
    assert functional.mse_loss(logits, logits.mean().expand(N)) > 0
