"""AID-purifier: signed ascent on a discriminator that stands on layers of the net."""

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
from saddlepoint.zoo.adaptive.feature_extraction import layer_outputs

EXACT = {"rtol": 0.0, "atol": 0.0}
N = 5


def test_the_discriminator_is_encoders_side_by_side_and_halvings():
    net = smooth_net()
    x = images(N)
    judge = discriminator(
        net
    )  # layers "0" and "2", width 6, one further layer in each encoder, one halving
    h = []
    for encoder, given in zip(judge.encoders, (net[:1](x), net[:3](x)), strict=True):
        v = given.mean((2, 3))
        for linear, norm, _ in encoder:
            v = norm(linear(v)).relu()
        h.append(v)
    (linear, norm, _) = judge.decision[0][0]
    last = judge.decision[1]
    assert linear.weight.shape == (6, 12)
    want = last(norm(linear(torch.cat(h, 1))).relu())[:, 0]
    assert_close(AIDPurifier(net, judge).natural_logit(x), want, rtol=1e-13, atol=0)


def test_the_paper_s_sizes_are_the_defaults():
    judge = Discriminator.on(smooth_net(), ("0", "2"), images(1))
    widths = [m.out_features for m in judge.decision.modules() if isinstance(m, nn.Linear)]
    assert widths == [1024, 512, 256, 1]
    assert [m.out_features for m in judge.encoders[0].modules() if isinstance(m, nn.Linear)] == [
        1024,
        1024,
    ]


def test_the_answer_is_that_of_equation_7():
    """Ten steps of 0.031 / 4 up the chance of being natural."""
    net = smooth_net()
    x = images(N) - 0.3
    judge = discriminator(net)
    v = x
    for _ in range(10):
        v = v.detach().requires_grad_()
        chance = judge([net[:1](v), net[:3](v)]).sigmoid()
        (grad,) = torch.autograd.grad(chance.sum(), v)
        v = (x + (v + 0.031 / 4 * grad.sign() - x).clamp(-0.031, 0.031)).clamp(0, 1)
    defense = AIDPurifier(net, judge)
    assert_close(defense.respond(x, context(N)), net(v), rtol=0, atol=1e-12)
    assert (defense.natural_logit(v) > defense.natural_logit(x)).all()


def test_layers_behind_the_last_one_looked_at_are_not_run():
    net = smooth_net()
    x = images(N)
    ran = []
    net[5].register_forward_hook(lambda *_: ran.append(1))
    given = layer_outputs(net, ("2", "0"), x)
    assert_close(given[0], net[:3](x), **EXACT)
    assert_close(given[1], net[:1](x), **EXACT)
    assert not ran
    assert [len(m._forward_hooks) for m in net] == [0, 0, 0, 0, 0, 1]


def test_a_fitted_discriminator_tells_attacked_from_natural_and_nothing_else_changes():
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
    told = (fitted.natural_logit(x) > fitted.natural_logit(attacked)).double().mean()
    assert told > 0.8
    assert_close(
        {**dict(net.state_dict()), **dict(raw.discriminator.state_dict())}, before, **EXACT
    )
    assert all(p.grad is None for p in net.parameters())
    assert not fitted.discriminator.training


def test_the_learned_label_is_the_share_of_the_natural_picture():
    """AVmixup: the loss at a mixture w x + (1 - w) v is the cross-entropy to w."""
    net = smooth_net()
    x = images(8)
    y = torch.arange(8) % CLASSES
    seen = []
    slopes = []

    class Judge(Discriminator):
        def forward(self, given):
            out = super().forward(given)
            if self.training:
                seen.append((given[0], out.detach()))
                out.register_hook(slopes.append)
            return out

    judge = Judge(("0",), (3,), width=4, after=1).double().eval()
    fitted = [
        AIDPurifier(net, judge).fit(x, y, adversary=Brighter(), batch_size=8) for _ in range(2)
    ]
    assert_close(fitted[0].natural_logit(x), fitted[1].natural_logit(x), **EXACT)
    given, logit = seen[0]
    # The vertex is x + 2 (x' - x) = x + 0.2: mixtures lie between, and a first layer that is linear shows where.
    low = net[0](x)
    high = net[0](x + 0.2)
    order = Keys.of(0, torch.arange(8)).fold_in(0).uniform((), torch.float64).argsort(stable=True)
    w = ((high[order] - given) / (high[order] - low[order])).flatten(1).mean(1)
    drawn = (
        Keys.of(0, torch.arange(8))
        .fold_in(0)[order]
        .fold_in(1)
        .fold_in(1)
        .uniform((), torch.float64)
    )
    assert_close(w, drawn, rtol=0, atol=1e-10)
    assert_close(
        slopes[0], (logit.sigmoid() - w) / 8, rtol=0, atol=1e-10
    )  # of the mean cross-entropy to the label w


class Brighter:
    """Every pixel 0.1 up."""

    name = "brighter"
    needs = "decision"

    def move(self, turn, defense, x, y):
        return AttackResult(x + 0.1, x + 0.1)


def test_what_cannot_be_built_is_refused():
    net = smooth_net()
    with pytest.raises(ValueError, match="4 units cannot be halved 3 times"):
        Discriminator.on(net, ("0",), images(1), width=4)
    with pytest.raises(ValueError, match="each once; got \\['0', '0'\\]"):
        Discriminator.on(net, ("0", "0"), images(1))
    with pytest.raises(ValueError, match="discriminator in training mode"):
        AIDPurifier(net, discriminator(net).train())


def test_batch_norm_of_the_discriminator_uses_what_it_has_learned():
    net = smooth_net()
    x = images(N)
    judge = AIDPurifier(net, discriminator(net))
    assert_close(judge.natural_logit(x)[:1], judge.natural_logit(x[:1]), rtol=1e-13, atol=0)
    assert functional.mse_loss(judge.natural_logit(x), judge.natural_logit(x).mean().expand(N)) > 0
