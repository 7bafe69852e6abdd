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
from saddlepoint.zoo.adaptive import AIDPurifier, Discriminator, released_discriminator

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


class ReleasedLike(nn.Module):
    """The structure and the names of the released discriminator, written out."""

    def __init__(self, channels, width, before, after):
        super().__init__()

        def block(inside, outside):
            conv = nn.Conv2d(inside, outside, 1)
            return nn.Sequential(conv, nn.BatchNorm2d(outside), nn.ReLU())

        for k, size in enumerate(channels, 1):
            encoder = nn.Module()
            blocks = [block(size, width), *(block(width, width) for _ in range(before))]
            encoder.block_seq = nn.Sequential(*blocks)
            setattr(self, f"encoder_{k}", encoder)
        total = len(channels) * width
        halving = [block(total // 2**k, total // 2 ** (k + 1)) for k in range(after)]
        self.block_seq = nn.Sequential(nn.Identity(), *halving)
        self.fc = nn.Linear(total // 2**after, 1)
        self.net1 = nn.Sequential(nn.Conv2d(3, 16, 3))

    def forward(self, features, off):
        encoded = []
        for k, output in enumerate(features, 1):
            pooled = output.mean((2, 3), keepdim=True) * (k not in off)
            encoded.append(getattr(self, f"encoder_{k}").block_seq(pooled))
        return self.fc(self.block_seq(torch.cat(encoded, 1)).flatten(1))[:, 0]


@pytest.mark.parametrize(
    ("off", "before", "after", "prefix"),
    [((2, 4), 1, 3, ""), ((2, 3), 0, 2, "module.")],
    ids=["CIFAR", "SVHN"],
)
def test_weights_with_the_released_names_and_shapes_load(off, before, after, prefix):
    """On CIFAR layers 2 and 4 are off, on SVHN 2 and 3."""
    channels = (16, 160, 320, 640)
    names = ("conv1", "block1", "block2", "block3")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        released = ReleasedLike(channels, 64, before, after).double()
        features = [torch.randn(3, c, 2, 2, dtype=torch.float64) for c in channels]
        released(features, off)  # running statistics other than 0 and 1
    released.eval()
    state = {f"{prefix}{name}": tensor for name, tensor in released.state_dict().items()}
    assert state[f"{prefix}encoder_1.block_seq.0.0.weight"].shape == (64, 16, 1, 1)
    assert state[f"{prefix}block_seq.1.0.weight"].shape == (128, 256, 1, 1)
    loaded = released_discriminator(state, names, off=[names[k - 1] for k in off]).double()
    assert loaded(features).shape == (3,)
    assert_close(loaded(features), released(features, off), rtol=0, atol=1e-12)


def test_unknown_weights_and_a_wrong_number_of_layers_raise():
    state = ReleasedLike((3, 3), 4, 0, 1).state_dict()
    with pytest.raises(ValueError, match="2 encoders, expected one for each of 1 layer"):
        released_discriminator(state, ("0",))
    with pytest.raises(ValueError, match=r"'head\.weight' is not a tensor of the released"):
        released_discriminator({"head.weight": torch.zeros(1, 1)}, ("0",))


def test_the_detection_rate_compares_natural_with_attacked_images():
    net = smooth_net()
    purifier = AIDPurifier(net, discriminator(net))
    x = images(N)
    worse = images(N, seed=5)
    scores, others = purifier.natural_logit(x), purifier.natural_logit(worse)
    expected = sum(float(a > b) + 0.5 * float(a == b) for a in scores for b in others) / N**2
    assert purifier.detection_rate(x, worse) == pytest.approx(expected)
    assert purifier.detection_rate(x, x) == pytest.approx(0.5)
