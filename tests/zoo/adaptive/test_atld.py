"""ATLD: the manifold transformation, its half steps, the discriminator and the training."""

import pytest
import torch
from tests.problems import normal, uniform
from tests.zoo.adaptive.small_defenses import (
    CLASSES,
    Recording,
    atld,
    build_module,
    images,
    network,
    respond,
)
from torch import nn
from torch.testing import assert_close

import saddlepoint as sp
from saddlepoint.attacks.aims import last_view
from saddlepoint.evaluation.referee import play
from saddlepoint.zoo.adaptive import ATLD
from saddlepoint.zoo.adaptive.atld import DiscriminatorOutput, LatentTraining, LogitDiscriminator
from saddlepoint.zoo.adaptive.atld.training import smoothed
from saddlepoint.zoo.adaptive.fitting import Phase

EXACT = {"rtol": 0.0, "atol": 0.0}


class LinearDiscriminator(nn.Module):
    """Discriminator with log-odds that are a linear function of the logits."""

    def __init__(self, weight, bias=0.0):
        super().__init__()
        self.weight = weight
        self.bias = bias

    def forward(self, logits):
        return DiscriminatorOutput(logits @ self.weight + self.bias, logits)


@pytest.mark.parametrize("steps", [1, 3])
def test_the_output_equals_the_explicit_descent(steps):
    """x <- clip(x - m step sign(grad BCE(D(f(x)), 1))), with the sigmoid of the released code."""
    x = images()
    defense = atld(steps=steps, step_size=5 / 255)
    v = x
    for _ in range(steps):
        leaf = v.clone().requires_grad_()
        p = torch.sigmoid(defense.discriminator(defense.net(leaf)).natural_logit)
        loss = nn.functional.binary_cross_entropy(p, torch.ones_like(p))
        (grad,) = torch.autograd.grad(loss, leaf)
        m = torch.tensor([0.5 if 0.3 < q < 0.7 else 1.0 for q in p.tolist()], dtype=torch.float64)
        v = v - 5 / 255 * m[:, None, None, None] * grad.sign()
        v = v.clamp(x - 8 / 255, x + 8 / 255).clamp(0, 1)
    assert_close(respond(defense, x).detach(), defense.net(v).detach(), rtol=0, atol=1e-12)


def test_examples_with_an_uncertain_discriminator_take_half_a_step():
    net = network()
    x = images(4)
    record = Recording()
    logits = net(x).detach()
    weight = torch.linalg.lstsq(
        logits, torch.tensor([-2.0, 0.0, 0.8, 2.0], dtype=torch.float64)
    ).solution
    defense = ATLD(net, LinearDiscriminator(weight))  # probabilities 0.12, 0.5, 0.69, 0.88
    with torch.no_grad():
        respond(defense, x, imt=record)
    lengths = (record.states[0] - x).abs().amax((1, 2, 3))
    assert_close(
        lengths, torch.tensor([8.0, 4.0, 4.0, 8.0], dtype=torch.float64) / 255, rtol=0, atol=1e-12
    )


def test_the_step_increases_the_natural_logit():
    defense = ATLD(network(), LinearDiscriminator(normal(100, CLASSES)), step_size=1 / 255)
    x = images()
    record = Recording()
    with torch.no_grad():
        respond(defense, x, imt=record)
        assert (defense.natural_logit(record.states[0]) > defense.natural_logit(x)).all()


def test_log_odds_at_which_the_sigmoid_saturates_still_have_a_direction():
    """At log-odds of 50 the released sigmoid is 1 in single precision and its gradient is 0."""
    net = network().float()
    x = images().float()
    record = Recording()
    defense = ATLD(net, LinearDiscriminator(normal(101, CLASSES).float(), 50.0))
    with torch.no_grad():
        respond(defense, x, imt=record)
    assert ((record.states[0] - x).abs() > 0).all()


def test_all_iterates_stay_in_the_perturbation_set():
    x = uniform(102, 5, 3, 8, 8).round()
    record = Recording()
    with torch.no_grad():
        respond(atld(steps=5), x, imt=record)
    for state in record.states:
        assert sp.Linf(8 / 255).contains(state, x).all()


def test_the_discriminator_equals_the_convolutional_one_on_a_single_pixel():
    """On one pixel a padded 3 x 3 convolution uses only its center; compared on one block."""
    block = build_module(lambda: LogitDiscriminator(CLASSES, depth=10, widen=2), 3).body[1]
    linear = [m for m in block.modules() if isinstance(m, nn.Linear)]
    kernels = [normal(110 + k, *m.weight.shape, 3, 3) for k, m in enumerate(linear)]
    for m, kernel in zip(linear, kernels, strict=True):
        m.weight.data.copy_(kernel[:, :, 1, 1])
    x = normal(113, 6, 16)
    a = block.activation(x)

    def conv(v, kernel):
        return nn.functional.conv2d(v[:, :, None, None], kernel, padding=1)[:, :, 0, 0]

    expected = conv(a, kernels[2]) + conv(block.body[1:3](conv(a, kernels[0])), kernels[1])
    assert_close(block(x), expected, rtol=0, atol=1e-12)


def test_the_default_sizes_are_those_of_the_released_code():
    discriminator = LogitDiscriminator(10)
    linear = sum(isinstance(m, nn.Linear) for m in discriminator.modules())
    assert linear == 1 + 3 * 4 * 2 + 3 + 2  # stem, blocks, shortcuts, two heads
    assert discriminator.natural.in_features == 320
    defense = ATLD(network())
    assert (defense.steps, defense.step_size, defense.radius) == (1, 8 / 255, 8 / 255)


def test_smoothed_labels_sum_to_one():
    target = smoothed(torch.tensor([2, 0]), 4, 0.5)
    assert_close(target, torch.tensor([[1, 1, 3, 1], [3, 1, 1, 1]]) / 6, rtol=0, atol=1e-7)


@pytest.mark.parametrize(("depth", "widen"), [(9, 1), (4, 1), (10, 0)])
def test_invalid_sizes_raise(depth, widen):
    with pytest.raises(ValueError, match="6 n"):
        LogitDiscriminator(4, depth=depth, widen=widen)


def data(n=32):
    """Draw images of one constant color per class with noise."""
    y = torch.arange(n) % CLASSES
    level = torch.tensor([0.2, 0.4, 0.6, 0.8], dtype=torch.float64)[y]
    return (level[:, None, None, None] + 0.1 * (uniform(103, n, 3, 8, 8) - 0.5)).clamp(0, 1), y


def small():
    """Build a small discriminator."""
    return build_module(lambda: LogitDiscriminator(CLASSES, depth=10, widen=1), 6)


def test_with_learning_rate_zero_only_the_discriminator_is_trained():
    x, y = data(16)
    start = ATLD(network(), small())
    fitted = start.fit(x, y, training=LatentTraining(Phase(1, 8, 0.0), discriminator_rate=0.1))
    assert_close(dict(fitted.net.state_dict()), dict(network().state_dict()), **EXACT)
    assert not torch.equal(fitted.discriminator.natural.weight, small().natural.weight)
    # A copy of the discriminator was trained.
    assert_close(dict(start.discriminator.state_dict()), dict(small().state_dict()), **EXACT)


def test_training_fits_perturbed_images_and_leaves_eval_mode():
    x, y = data()
    start = ATLD(network(), small())
    fitted = start.fit(x, y, training=LatentTraining(Phase(40, 16, 0.1)), seed=1)
    perturbed = (x + 8 / 255 * normal(104, *x.shape).sign()).clamp(0, 1)

    def accuracy(defense):
        return (defense.static(perturbed).argmax(1) == y).double().mean()

    assert accuracy(fitted) > 0.9 > accuracy(start)
    assert fitted.static is fitted.net
    assert not any(
        m.training for part in (fitted.net, fitted.discriminator) for m in part.modules()
    )


class TwoLinearMaps(nn.Module):
    """Discriminator with log-odds and class logits that are linear functions of the logits."""

    def __init__(self):
        super().__init__()
        self.natural = nn.Linear(CLASSES, 1)
        self.classes = nn.Linear(CLASSES, CLASSES)

    def forward(self, logits):
        return DiscriminatorOutput(self.natural(logits).squeeze(1), self.classes(logits))


@pytest.mark.parametrize("seed", range(3))
def test_the_trained_discriminator_detects_adversarial_logits(seed):
    """A problem with a solution: f is the identity and all images lie close to gray.

    D(v) = w v + b distinguishes x from x' for every w: D(x') is D(x) - r ||w||_1 up to the random
    start, and natural images differ by less than that.
    """
    radius = 0.2
    x = 0.5 + 0.01 * normal(106, 32, 1, 2, CLASSES // 2)
    y = torch.arange(32) % CLASSES
    start = build_module(TwoLinearMaps, 7)
    training = LatentTraining(Phase(40, 16, 0.0), discriminator_rate=0.05, radius=radius)
    net = nn.Sequential(nn.Flatten(), nn.Linear(CLASSES, CLASSES, bias=False)).double().eval()
    nn.init.eye_(net[1].weight)
    fitted = ATLD(net, start).fit(x, y, training=training, seed=seed)
    step = fitted.discriminator.natural.weight.detach().sign().reshape(1, *x.shape[1:])
    adversarial = x - radius * step
    with torch.no_grad():
        natural = (fitted.natural_logit(x) > 0).double().mean()
        detected = (fitted.natural_logit(adversarial) < 0).double().mean()
    assert natural == detected == 1


def test_training_is_a_function_of_its_seed():
    x, y = data(16)
    training = LatentTraining(Phase(1, 8, 0.05))
    one, two, other = (
        ATLD(network(), small()).fit(x, y, training=training, seed=s).net.state_dict()
        for s in (1, 1, 2)
    )
    assert_close(dict(one), dict(two), **EXACT)
    assert not torch.equal(one["0.weight"], other["0.weight"])


def test_the_attacks_of_the_case_study_run_and_unknown_sites_raise():
    """Exact gradients, BPDA, and the mean over the trajectory."""
    x = images()
    y = torch.tensor([0, 1, 2, 3, 0])
    threat = sp.Threat(sp.Linf(8 / 255))
    for rules, aim in (
        ({}, last_view),
        ({"imt": sp.BPDA()}, last_view),
        ({"imt": sp.BPDA()}, sp.mean_of_losses),
    ):
        direct = sp.Direct("a", sp.PGD(steps=2), loss=sp.cross_entropy, aim=aim, rules=rules)
        found = play(atld(), direct, x, y, threat, ids=torch.arange(5), seed=0)
        assert found.correct.shape[-1] == 5
    with pytest.raises(ValueError, match=r"the sites \['imt'\]"):
        play(
            atld(),
            sp.Direct("a", sp.PGD(steps=1), rules={"im": sp.BPDA()}),
            x,
            y,
            threat,
            ids=torch.arange(5),
            seed=0,
        )
