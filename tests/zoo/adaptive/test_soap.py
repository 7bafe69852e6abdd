"""SOAP: descent on an auxiliary loss, at the radius with the lowest final loss."""

from __future__ import annotations

import pytest
import torch
from tests.zoo.adaptive.purifiers import CLASSES, context, images, smooth_net
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from saddlepoint.attacks.spaces import Linf
from saddlepoint.rng import Keys
from saddlepoint.zoo.adaptive import SOAP, LabelConsistency, Reconstruction, Rotation
from saddlepoint.zoo.adaptive.gradient_steps import input_gradient

EXACT = {"rtol": 0.0, "atol": 0.0}
N = 6


def flipped_crop(x):
    """Flip the image, crop the outer pixels and resize by nearest neighbor: 4x4 -> 2x2 -> 4x4."""
    inner = x.flip(3)[:, :, 1:3, 1:3]
    return inner.repeat_interleave(2, 2).repeat_interleave(2, 3)


def disagreement(net, x):
    """Return the label consistency loss [N]."""
    return (net(x) - net(flipped_crop(x))).square().mean(1)


def purified(net, x, radius):
    """Run five signed descent steps at one radius."""
    delta = torch.zeros_like(x)
    for _ in range(5):
        delta = delta.detach().requires_grad_()
        (grad,) = torch.autograd.grad(disagreement(net, x + delta).mean(), delta)
        delta = (delta - 4 / 255 * grad.sign()).clamp(-radius, radius)
        delta = (x + delta).clamp(0, 1) - x
    return (x + delta).detach()


def varied(n=N):
    """Draw images of different contrast, which get different radii."""
    return images(n) * torch.linspace(0.02, 1.4, n, dtype=torch.float64).view(-1, 1, 1, 1)


def test_label_consistency_compares_the_image_with_its_flipped_crop():
    net = smooth_net()
    x = images(N)
    assert_close(LabelConsistency().transform(x), flipped_crop(x), **EXACT)
    assert_close(LabelConsistency().loss(net, x), disagreement(net, x), rtol=1e-14, atol=0)
    large = torch.arange(32.0 * 32).view(1, 1, 32, 32)
    expected = functional.interpolate(large.flip(3)[:, :, 2:30, 2:30], (32, 32))
    assert_close(LabelConsistency().transform(large), expected, **EXACT)


def test_the_output_uses_the_one_radius_with_the_lowest_mean_loss_of_the_batch():
    """The test runs all eleven radii; the defense runs those with different results."""
    net = smooth_net()
    x = varied()
    ends = [purified(net, x, e * 4 / 255) for e in range(11)]
    best = min(range(11), key=lambda e: float(disagreement(net, ends[e]).mean().detach()))
    assert best > 0
    assert_close(SOAP(net).respond(x, context(N)), net(ends[best]), rtol=0, atol=1e-12)


def test_uncoupled_examples_have_their_own_radius():
    net = smooth_net()
    x = varied()
    ends = torch.stack([purified(net, x, e * 4 / 255) for e in range(11)])  # [E, N, ...]
    losses = torch.stack([disagreement(net, end) for end in ends])
    best = losses.argmin(0)
    assert len(best.clamp(max=5).unique()) > 1  # 5 steps of 4/255 reach no further than 20/255
    own = SOAP(net, coupled=False)
    assert_close(own.respond(x, context(N)), net(ends[best, torch.arange(N)]), rtol=0, atol=1e-12)
    assert_close(own.select_radius(x), best.clamp(max=5).double() * 4 / 255, rtol=1e-12, atol=0)
    assert len(SOAP(net).select_radius(x).unique()) == 1


def test_only_one_unreachable_radius_is_tried():
    net = smooth_net()
    x = images(N)
    passes = []
    net.register_forward_hook(lambda *_: passes.append(1))
    SOAP(net).select_radius(x)
    # The loss at six end points, and the steps of five descents: the descent with a radius of k
    # steps shares its first k with all larger radii. Each loss takes two passes.
    assert len(passes) <= 2 * (6 + 5 + 4 + 3 + 2 + 1)


def test_descents_that_share_their_first_steps_have_the_losses_of_separate_ones():
    net = smooth_net()
    x = images(N)
    defense = SOAP(net)
    radii = [k * 4 / 255 for k in range(6)]
    losses = []
    for radius in radii:
        end = x
        for _ in range(5):
            ball = Linf(radius)
            grad = input_gradient(lambda v: defense.task.loss(net, v), end)
            end = ball.project(end - 4 / 255 * grad.sign(), x)
        losses.append(defense.task.loss(net, end).mean())
    selected = defense.select_radius(x)
    assert_close(selected, x.new_tensor(radii)[torch.stack(losses).argmin()].expand(N))


def test_the_rotation_loss_is_the_mean_over_four_rotations():
    net = smooth_net()
    x = images(N)
    task = Rotation.on(net, "3", x[:1])
    expected = 0
    for k in range(4):
        logits = task.head[1](net[:4](x.rot90(k, (2, 3))).mean((2, 3)))
        loss = functional.cross_entropy(logits, torch.full((N,), k), reduction="none")
        expected = expected + loss / 4
    assert_close(task.loss(net, x), expected, rtol=1e-13, atol=0)
    with pytest.raises(ValueError, match=r"square images .* got \[6, 1, 4, 3\]"):
        task.loss(net, x[..., :3])


def test_the_reconstruction_loss_is_the_squared_error_of_the_decoder():
    net = smooth_net()
    x = images(N)
    task = Reconstruction.on(net, "4", x[:1], width=8)
    assert_close(
        task.loss(net, x), (task.head(net[:5](x)) - x).square().mean((1, 2, 3)), rtol=1e-13, atol=0
    )


@pytest.mark.parametrize("kind", [Rotation, Reconstruction])
def test_purification_lowers_the_loss_of_every_task(kind):
    net = smooth_net()
    x = images(N)
    task = kind.on(net, "1", x[:1])
    defense = SOAP(net, task, step_size=1e-3, radii=(0.02,), coupled=False)
    end = x
    for _ in range(5):
        end = defense.ascent(lambda v: -task.loss(net, v), end, x, x.new_full((N,), 0.02))
    assert (task.loss(net, end) < task.loss(net, x)).all()
    assert_close(defense.respond(x, context(N)), net(end), rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", [Rotation, Reconstruction])
def test_fitting_trains_a_copy_of_the_head_and_leaves_the_network_unchanged(kind):
    net = smooth_net()
    x = stripes(48)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    raw = SOAP(net, kind.on(net, "4", x[:1]))
    head_before = {k: v.clone() for k, v in raw.task.head.state_dict().items()}
    fitted = raw.fit(x, epochs=15, batch_size=16, learning_rate=0.01)
    assert fitted.task.loss(net, x).mean() < 0.9 * raw.task.loss(net, x).mean()
    assert_close(dict(net.state_dict()), before, **EXACT)
    assert_close(dict(raw.task.head.state_dict()), head_before, **EXACT)
    assert not fitted.task.head.training
    again = raw.fit(x, epochs=15, batch_size=16, learning_rate=0.01)
    assert_close(dict(again.task.head.state_dict()), dict(fitted.task.head.state_dict()), **EXACT)
    assert (fitted.radii, fitted.steps, fitted.coupled) == (raw.radii, raw.steps, raw.coupled)


@pytest.mark.parametrize("kind", [LabelConsistency, Rotation, Reconstruction])
def test_joint_fitting_trains_copies_of_network_and_head(kind):
    net = smooth_net()
    x = stripes(48)
    y = (x[:, 0, :, :2].mean((1, 2)) > x[:, 0, :, 2:].mean((1, 2))).long()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    raw = SOAP(net, LabelConsistency() if kind is LabelConsistency else kind.on(net, "1", x[:1]))
    fitted = raw.fit_jointly(x, y, epochs=8, batch_size=16, learning_rate=0.02)

    def cost(defense):
        return (
            functional.cross_entropy(defense.net(x), y) + defense.task.loss(defense.net, x).mean()
        ).item()

    assert cost(fitted) < cost(raw)
    assert_close(dict(net.state_dict()), before, **EXACT)
    assert not any(module.training for module in fitted.net.modules())


def stripes(n):
    """Draw images that are bright above and dark below, so that rotations are distinguishable."""
    ramp = torch.linspace(0.8, 0.0, 4, dtype=torch.float64).view(1, 1, 4, 1)
    return ramp + 0.2 * Keys.of(4, torch.arange(n)).uniform((1, 4, 4), torch.float64)


def test_a_random_training_view_is_a_noisy_flipped_crop():
    inputs = []

    class Net(nn.Module):
        def forward(self, x):
            inputs.append(x)
            return x.flatten(1)[:, :CLASSES]

    x = torch.arange(64.0, dtype=torch.float64).view(1, 1, 8, 8).expand(40, 1, 8, 8)
    result = LabelConsistency().training_pass(Net(), x, Keys.of(0, torch.arange(40)))
    assert result.logits.shape == (2, 40, CLASSES)
    pixels = inputs[0].floor()  # the noise is at least 0 and less than 1
    assert ((pixels >= 0) & (pixels <= 63)).all()
    # The sum of differences in a row is the width of the crop; its sign shows a flip.
    step = (pixels[..., 1:] - pixels[..., :-1]).sum(-1)[:, 0]
    assert set(step.sign().unique().tolist()) == {-1.0, 1.0}
    assert step.abs().min() >= 5 - 1
    assert step.abs().max() <= 7
    assert not torch.equal(inputs[0], inputs[1])


def test_a_task_without_head_an_empty_list_of_radii_and_an_unknown_layer_raise():
    with pytest.raises(
        TypeError,
        match=r"LabelConsistency has no head to train\. Use SOAP without fitting, or `fit_jointly`",
    ):
        SOAP(smooth_net()).fit(images(N))
    with pytest.raises(ValueError, match=r"at least one radius and no negative ones, got \[\]"):
        SOAP(smooth_net(), radii=())
    with pytest.raises(ValueError, match="no layer called 'tanh'"):
        Rotation.on(smooth_net(), "tanh", images(1))
