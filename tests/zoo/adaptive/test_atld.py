"""ATLD: the manifold transformation written out, its half steps, the discriminator, and training against each other."""

import pytest
import torch
from tests.problems import normal, uniform
from tests.zoo.adaptive.small_defenses import (
    CLASSES,
    Recording,
    respond,
    atld,
    images,
    build_module,
    network,
)
from torch import nn
from torch.testing import assert_close

import saddlepoint as sp
from saddlepoint.zoo.adaptive import ATLD
from saddlepoint.zoo.adaptive.atld import DiscriminatorOutput, LatentTraining, LogitDiscriminator
from saddlepoint.zoo.adaptive.atld.training import smoothed
from saddlepoint.zoo.adaptive.fitting import Phase

EXACT = {"rtol": 0.0, "atol": 0.0}


class Odds(nn.Module):
    """A discriminator whose log-odds are a linear function of the logits."""

    def __init__(self, weight, bias=0.0):
        super().__init__()
        self.weight = weight
        self.bias = bias

    def forward(self, logits):
        return DiscriminatorOutput(logits @ self.weight + self.bias, logits)


@pytest.mark.parametrize("steps", [1, 3])
def test_the_forward_equals_the_descent_written_out(steps):
    """x <- clip(x - m step sign(grad BCE(D(f(x)), 1))), BCE and the sigmoid as the released code has them."""
    x = images()
    defense = atld(steps=steps, step_size=5 / 255)
    here = x
    for _ in range(steps):
        leaf = here.clone().requires_grad_()
        p = torch.sigmoid(defense.discriminator(defense.net(leaf)).natural_logit)
        grad = torch.autograd.grad(nn.functional.binary_cross_entropy(p, torch.ones_like(p)), leaf)[
            0
        ]
        m = torch.tensor([0.5 if 0.3 < q < 0.7 else 1.0 for q in p.tolist()], dtype=torch.float64)
        here = (
            (here - 5 / 255 * m[:, None, None, None] * grad.sign())
            .clamp(x - 8 / 255, x + 8 / 255)
            .clamp(0, 1)
        )
    assert_close(respond(defense, x).detach(), defense.net(here).detach(), rtol=0, atol=1e-12)


def test_rows_about_which_the_discriminator_is_unsure_take_half_a_step():
    net = network()
    x = images(4)
    record = Recording()
    logits = net(x).detach()
    weight = torch.linalg.lstsq(
        logits, torch.tensor([-2.0, 0.0, 0.8, 2.0], dtype=torch.float64)
    ).solution
    with torch.no_grad():
        respond(ATLD(net, Odds(weight)), x, imt=record)  # probabilities 0.12, 0.5, 0.69, 0.88
    lengths = (record.states[0] - x).abs().amax((1, 2, 3))
    assert_close(
        lengths, torch.tensor([8.0, 4.0, 4.0, 8.0], dtype=torch.float64) / 255, rtol=0, atol=1e-12
    )


def test_the_step_raises_the_odds_of_being_natural():
    defense = ATLD(network(), Odds(normal(100, CLASSES)), step_size=1 / 255)
    x = images()
    record = Recording()
    with torch.no_grad():
        respond(defense, x, imt=record)
        assert (defense.natural_logit(record.states[0]) > defense.natural_logit(x)).all()


def test_odds_that_a_sigmoid_cannot_tell_from_certainty_still_have_a_direction():
    """At log-odds of 50 the released sigmoid is 1 in single precision, and its gradient 0."""
    net = network().float()
    x = images().float()
    record = Recording()
    defense = ATLD(net, Odds(normal(101, CLASSES).float(), 50.0))
    with torch.no_grad():
        respond(defense, x, imt=record)
    assert ((record.states[0] - x).abs() > 0).all()


def test_all_iterates_stay_in_the_set():
    x = uniform(102, 5, 3, 8, 8).round()
    record = Recording()
    with torch.no_grad():
        respond(atld(steps=5), x, imt=record)
    for state in record.states:
        assert sp.Linf(8 / 255).contains(state, x).all()


def test_the_discriminator_is_the_convolutional_one_on_a_single_pixel():
    """A 3 x 3 convolution with padding sees only its center there: one residual block, both ways."""
    block = build_module(lambda: LogitDiscriminator(CLASSES, depth=10, widen=2), 3).body[1]
    linear = [m for m in block.modules() if isinstance(m, nn.Linear)]
    kernels = [normal(110 + k, *m.weight.shape, 3, 3) for k, m in enumerate(linear)]
    for m, kernel in zip(linear, kernels, strict=True):
        m.weight.data.copy_(kernel[:, :, 1, 1])
    x = normal(113, 6, 16)
    a = block.activation(x)
    conv = lambda v, kernel: nn.functional.conv2d(v[:, :, None, None], kernel, padding=1)[  # noqa: E731
        :, :, 0, 0
    ]
    expected = conv(a, kernels[2]) + conv(block.body[1:3](conv(a, kernels[0])), kernels[1])
    assert_close(block(x), expected, rtol=0, atol=1e-12)


def test_the_default_is_the_released_one():
    d = LogitDiscriminator(10)
    assert (
        sum(isinstance(m, nn.Linear) for m in d.modules()) == 1 + 3 * 4 * 2 + 3 + 2
    )  # stem, blocks, shortcuts, two heads
    assert d.natural.in_features == 320
    defense = ATLD(network())
    assert (defense.steps, defense.step_size, defense.radius) == (1, 8 / 255, 8 / 255)


def test_smoothed_labels_sum_to_one():
    target = smoothed(torch.tensor([2, 0]), 4, 0.5)
    assert_close(target, torch.tensor([[1, 1, 3, 1], [3, 1, 1, 1]]) / 6, rtol=0, atol=1e-7)


@pytest.mark.parametrize(("depth", "widen"), [(9, 1), (4, 1), (10, 0)])
def test_sizes_that_make_no_network_are_refused(depth, widen):
    with pytest.raises(ValueError, match="6 n"):
        LogitDiscriminator(4, depth=depth, widen=widen)


def data(n=32):
    y = torch.arange(n) % CLASSES
    level = torch.tensor([0.2, 0.4, 0.6, 0.8], dtype=torch.float64)[y]
    return (level[:, None, None, None] + 0.1 * (uniform(103, n, 3, 8, 8) - 0.5)).clamp(0, 1), y


def small():
    return build_module(lambda: LogitDiscriminator(CLASSES, depth=10, widen=1), 6)


def test_with_rate_zero_only_the_discriminator_learns():
    x, y = data(16)
    start = ATLD(network(), small())
    fitted = start.fit(x, y, training=LatentTraining(Phase(1, 8, 0.0), discriminator_rate=0.1))
    assert_close(dict(fitted.net.state_dict()), dict(network().state_dict()), **EXACT)
    assert not torch.equal(fitted.discriminator.natural.weight, small().natural.weight)
    assert_close(
        dict(start.discriminator.state_dict()), dict(small().state_dict()), **EXACT
    )  # trained in a copy


def test_training_learns_the_classes_at_perturbed_images_and_leaves_eval_mode():
    x, y = data()
    start = ATLD(network(), small())
    fitted = start.fit(x, y, training=LatentTraining(Phase(40, 16, 0.1)), seed=1)
    away = (x + 8 / 255 * normal(104, *x.shape).sign()).clamp(0, 1)
    accuracy = lambda d: (d.static(away).argmax(1) == y).double().mean()  # noqa: E731
    assert accuracy(fitted) > 0.9 > accuracy(start)
    assert fitted.static is fitted.net
    assert not any(
        m.training for part in (fitted.net, fitted.discriminator) for m in part.modules()
    )


def test_the_discriminator_learns_to_tell_adversarial_logits():
    """On the network as it is, images against their perturbations by the network's gradient: the odds part."""
    x, y = data()
    training = LatentTraining(Phase(40, 16, 0.0), discriminator_rate=0.05, radius=0.2)
    fitted = ATLD(network(), small()).fit(x, y, training=training, seed=2)
    leaf = (x + 0.2 * (2 * uniform(105, *x.shape) - 1)).requires_grad_()
    step = torch.autograd.grad(nn.functional.softplus(fitted.natural_logit(leaf)).sum(), leaf)[
        0
    ].sign()
    adversarial = (leaf - 0.2 * step).clamp(x - 0.2, x + 0.2).clamp(0, 1).detach()
    with torch.no_grad():
        told = (
            (fitted.natural_logit(x) > 0).double().mean()
            + (fitted.natural_logit(adversarial) < 0).double().mean()
        ) / 2
    assert told > 0.75


def test_training_is_a_function_of_its_seed():
    x, y = data(16)
    training = LatentTraining(Phase(1, 8, 0.05))
    one, two, other = (
        ATLD(network(), small()).fit(x, y, training=training, seed=s).net.state_dict()
        for s in (1, 1, 2)
    )
    assert_close(dict(one), dict(two), **EXACT)
    assert not torch.equal(one["0.weight"], other["0.weight"])


def test_the_site_may_be_any_rule_for_the_audit():
    """The three attacks of the case study come from shared parts: exact, BPDA, trajectory mean."""
    x = images()
    y = torch.tensor([0, 1, 2, 3, 0])
    threat = sp.Threat(sp.Linf(8 / 255))
    for rules, aim in (
        ({}, sp.last),
        ({"imt": sp.BPDA()}, sp.last),
        ({"imt": sp.BPDA()}, sp.mean_of_losses),
    ):
        direct = sp.Direct("a", sp.PGD(steps=2), loss=sp.cross_entropy, aim=aim, rules=rules)
        found = sp.play(atld(), direct, x, y, threat, ids=torch.arange(5), seed=0)
        assert found.correct.shape[-1] == 5
    with pytest.raises(ValueError, match=r"the sites \['imt'\]"):
        sp.play(
            atld(),
            sp.Direct("a", sp.PGD(steps=1), rules={"im": sp.BPDA()}),
            x,
            y,
            threat,
            ids=torch.arange(5),
            seed=0,
        )
