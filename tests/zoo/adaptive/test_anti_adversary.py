"""Anti-adversary: it raises the confidence and does not protect against decision-based attacks."""

from __future__ import annotations

import pytest
import torch
from tests.zoo.adaptive.purifiers import context, images, smooth_net
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from saddlepoint.attacks.rays import RayS
from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Plain
from saddlepoint.evaluation import Direct, Threat
from saddlepoint.evaluation.referee import play
from saddlepoint.rng import Keys
from saddlepoint.zoo.adaptive import AntiAdversary

N = 64


def test_the_output_is_that_of_two_unprojected_steps():
    net = smooth_net()
    x = images(5)
    label = net(x).argmax(1)
    v = x
    for _ in range(2):
        v = v.detach().requires_grad_()
        (grad,) = torch.autograd.grad(functional.cross_entropy(net(v), label, reduction="sum"), v)
        v = v - 0.15 * grad.sign()
    assert v.min() < 0.05  # 0.3 - 2 x 0.15: there is no projection
    assert_close(AntiAdversary(net).respond(x, context(5)), net(v), rtol=0, atol=1e-13)


def test_every_step_increases_the_probability_of_the_predicted_class():
    trace = AntiAdversary(smooth_net(), steps=5, step_size=0.01).trace(images(N), context(N))
    label = trace.views[0].logits.argmax(1)
    probability = trace.logits.softmax(2).gather(2, label.expand(6, N)[..., None])[..., 0]  # [V, N]
    assert (probability[1:] > probability[:-1]).all()


def two_linear_classes() -> nn.Module:
    """Build a linear classifier with the decision boundary through the center of the box."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 2)).double().eval()
    with torch.no_grad():
        net[1].weight.copy_(Keys.of(2, torch.arange(2)).normal((16,), torch.float64))
        net[1].bias.copy_(-net[1].weight.sum(1) / 2)
    return net


def test_no_step_changes_the_label_of_a_linear_classifier_with_two_classes():
    """Each step moves z_1 - z_0 = w x + b by step ||w||_1 away from zero."""
    net = two_linear_classes()
    x = Keys.of(3, torch.arange(N)).uniform((1, 4, 4), torch.float64)
    logits = AntiAdversary(net).respond(x, context(N))
    w = net[1].weight[1] - net[1].weight[0]
    before = net(x)[:, 1] - net(x)[:, 0]
    assert_close(
        logits[:, 1] - logits[:, 0],
        before + 2 * 0.15 * w.abs().sum() * before.sign(),
        rtol=1e-12,
        atol=0,
    )


def rough_net() -> nn.Module:
    """Build a network with curved decision boundaries so near that long steps cross them."""
    net = smooth_net()
    with torch.no_grad():
        for layer in (net[0], net[2]):
            layer.weight.mul_(12)
        net[5].bias.copy_(-net[:5](images(N)).mean(0) @ net[5].weight.T)  # classes of similar size
    return net


def test_the_number_of_changed_labels_goes_to_zero_with_the_step_size():
    net = rough_net()
    x = images(N)
    label = net(x).argmax(1)
    changed = [
        int((AntiAdversary(net, step_size=a).respond(x, context(N)).argmax(1) != label).sum())
        for a in (0.15, 1e-2, 1e-5)
    ]
    assert changed[0] >= changed[1] >= changed[2] == 0
    assert changed[0] > 0


@pytest.mark.parametrize(
    ("net", "step", "radius"),
    [(two_linear_classes(), 0.15, 0.03), (rough_net(), 1e-9, 0.01)],
    ids=["two linear classes", "small steps"],
)
def test_rays_finds_the_same_points_with_and_without_the_defense(net, step, radius):
    """Croce et al. 2022, Sec. 3.8: the labels are unchanged, so a decision-based attack is as well.

    With more than two classes a signed step may decrease the margin to one of them. RayS bisects
    up to a distance of 1e-3 / 4 from the boundary, so the steps must be much shorter than that.
    """
    x = images(N)
    threat = Threat(Linf(radius), access="decision")
    y = net(x).argmax(1)
    rays = Direct("rays", RayS(150))
    plain, defended = (
        play(d, rays, x, y, threat) for d in (Plain(net), AntiAdversary(net, step_size=step))
    )
    assert_close(defended.points, plain.points, rtol=0, atol=0)
    assert_close(defended.correct, plain.correct, rtol=0, atol=0)
    assert 0 < plain.correct.mean() < 1
