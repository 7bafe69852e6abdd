"""SOAP: descent on a task without labels, at the radius where it ends lowest."""

from __future__ import annotations

import pytest
import torch
from tests.zoo.adaptive.purifiers import CLASSES, context, images, smooth_net
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from saddlepoint.rng import Keys
from saddlepoint.zoo.adaptive import SOAP, LabelConsistency, Reconstruction, Rotation

EXACT = {"rtol": 0.0, "atol": 0.0}
N = 6


def stretched(x):
    """Mirrored, without its outer pixels, each pixel from the nearest: 4x4 -> 2x2 -> 4x4."""
    inner = x.flip(3)[:, :, 1:3, 1:3]
    return inner.repeat_interleave(2, 2).repeat_interleave(2, 3)


def disagreement(net, x):
    return (net(x) - net(stretched(x))).square().mean(1)


def descended(net, x, radius):
    delta = torch.zeros_like(x)
    for _ in range(5):
        delta = delta.detach().requires_grad_()
        (grad,) = torch.autograd.grad(disagreement(net, x + delta).mean(), delta)
        delta = (delta - 4 / 255 * grad.sign()).clamp(-radius, radius)
        delta = (x + delta).clamp(0, 1) - x
    return (x + delta).detach()


def varied(n=N):
    """Some rows want to go far, others stay: contrasts from faint to strong."""
    return images(n) * torch.linspace(0.02, 1.4, n, dtype=torch.float64).view(-1, 1, 1, 1)


def test_label_consistency_compares_the_picture_with_its_mirrored_inside():
    net = smooth_net()
    x = images(N)
    assert_close(LabelConsistency().transform(x), stretched(x), **EXACT)
    assert_close(LabelConsistency().loss(net, x), disagreement(net, x), rtol=1e-14, atol=0)
    big = torch.arange(32.0 * 32).view(1, 1, 32, 32)
    want = functional.interpolate(big.flip(3)[:, :, 2:30, 2:30], (32, 32))
    assert_close(LabelConsistency().transform(big), want, **EXACT)


def test_the_answer_is_that_of_the_one_radius_that_serves_the_batch_best():
    """All eleven radii are run here; the defense runs those that differ."""
    net = smooth_net()
    x = varied()
    ends = [descended(net, x, e * 4 / 255) for e in range(11)]
    best = min(range(11), key=lambda e: float(disagreement(net, ends[e]).mean().detach()))
    assert best > 0
    assert_close(SOAP(net).respond(x, context(N)), net(ends[best]), rtol=0, atol=1e-12)


def test_every_row_may_pick_a_radius_of_its_own():
    net = smooth_net()
    x = varied()
    ends = torch.stack([descended(net, x, e * 4 / 255) for e in range(11)])  # [E, N, ...]
    losses = torch.stack([disagreement(net, end) for end in ends])
    best = losses.argmin(0)
    assert len(best.clamp(max=5).unique()) > 1  # 5 steps of 4/255 reach no further than 20/255
    own = SOAP(net, coupled=False)
    assert_close(own.respond(x, context(N)), net(ends[best, torch.arange(N)]), rtol=0, atol=1e-12)
    assert_close(own.select_radius(x), best.clamp(max=5).double() * 4 / 255, rtol=1e-12, atol=0)
    assert len(SOAP(net).select_radius(x).unique()) == 1


def test_a_radius_out_of_reach_is_not_tried_twice():
    net = smooth_net()
    x = images(N)
    passes = []
    net.register_forward_hook(lambda *_: passes.append(1))
    SOAP(net).select_radius(x)
    # The loss at six ends, and five walks of five steps; each loss is two passes.
    assert len(passes) == 2 * (6 + 5 * 5)


def test_the_rotation_loss_is_the_mean_over_four_turns():
    net = smooth_net()
    x = images(N)
    task = Rotation.on(net, "3", x[:1])
    want = 0
    for k in range(4):
        given = net[:4](x.rot90(k, (2, 3))).mean((2, 3))
        want = (
            want
            + functional.cross_entropy(task.head[1](given), torch.full((N,), k), reduction="none")
            / 4
        )
    assert_close(task.loss(net, x), want, rtol=1e-13, atol=0)
    with pytest.raises(ValueError, match=r"square pictures .* got \[6, 1, 4, 3\]"):
        task.loss(net, x[..., :3])


def test_the_reconstruction_loss_is_the_squared_error_of_the_decoder():
    net = smooth_net()
    x = images(N)
    task = Reconstruction.on(net, "4", x[:1], width=8)
    assert_close(
        task.loss(net, x), (task.head(net[:5](x)) - x).square().mean((1, 2, 3)), rtol=1e-13, atol=0
    )


@pytest.mark.parametrize("kind", [Rotation, Reconstruction])
def test_purifying_lowers_the_loss_of_any_task(kind):
    net = smooth_net()
    x = images(N)
    task = kind.on(net, "1", x[:1])
    defense = SOAP(net, task, step_size=1e-3, radii=(0.02,), coupled=False)
    end = x
    for _ in range(5):
        end = defense._step(end, x, x.new_full((N,), 0.02))
    assert (task.loss(net, end) < task.loss(net, x)).all()
    assert_close(defense.respond(x, context(N)), net(end), rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", [Rotation, Reconstruction])
def test_a_head_learns_its_task_and_the_net_stays_as_it_is(kind):
    net = smooth_net()
    x = stripes(48)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    raw = SOAP(net, kind.on(net, "4", x[:1]))
    untouched = {k: v.clone() for k, v in raw.task.head.state_dict().items()}
    fitted = raw.fit(x, epochs=15, batch_size=16, learning_rate=0.01)
    assert fitted.task.loss(net, x).mean() < 0.9 * raw.task.loss(net, x).mean()
    assert_close(dict(net.state_dict()), before, **EXACT)
    assert_close(dict(raw.task.head.state_dict()), untouched, **EXACT)
    assert not fitted.task.head.training
    again = raw.fit(x, epochs=15, batch_size=16, learning_rate=0.01)
    assert_close(dict(again.task.head.state_dict()), dict(fitted.task.head.state_dict()), **EXACT)
    assert (fitted.radii, fitted.steps, fitted.coupled) == (raw.radii, raw.steps, raw.coupled)


@pytest.mark.parametrize("kind", [LabelConsistency, Rotation, Reconstruction])
def test_net_and_task_learn_together_on_copies(kind):
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
    """Bright above and dark below, so that turns can be told apart."""
    ramp = torch.linspace(0.8, 0.0, 4, dtype=torch.float64).view(1, 1, 4, 1)
    return ramp + 0.2 * Keys.of(4, torch.arange(n)).uniform((1, 4, 4), torch.float64)


def test_a_random_view_while_learning_is_a_noisy_mirrored_crop():
    seen = []

    class Net(nn.Module):
        def forward(self, x):
            seen.append(x)
            return x.flatten(1)[:, :CLASSES]

    x = torch.arange(64.0, dtype=torch.float64).view(1, 1, 8, 8).expand(40, 1, 8, 8)
    practice = LabelConsistency().training_pass(Net(), x, Keys.of(0, torch.arange(40)))
    assert practice.logits.shape == (2, 40, CLASSES)
    whole = seen[0].floor()  # noise is at least 0 and below 1
    assert ((whole >= 0) & (whole <= 63)).all()
    step = (whole[..., 1:] - whole[..., :-1]).sum(-1)[
        :, 0
    ]  # how wide the crop is, and which way round
    assert set(step.sign().unique().tolist()) == {-1.0, 1.0}
    assert step.abs().min() >= 5 - 1
    assert step.abs().max() <= 7
    assert not torch.equal(seen[0], seen[1])


def test_what_has_no_head_cannot_be_fitted_alone():
    with pytest.raises(
        TypeError,
        match="LabelConsistency has no network of its own to fit: use SOAP as it is, or `fit_jointly`",
    ):
        SOAP(smooth_net()).fit(images(N))
    with pytest.raises(ValueError, match=r"at least one radius, none below 0, got \[\]"):
        SOAP(smooth_net(), radii=())
    with pytest.raises(ValueError, match="no layer called 'tanh'"):
        Rotation.on(smooth_net(), "tanh", images(1))
