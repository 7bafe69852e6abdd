"""Every trait has a model that has it and a twin that has not."""

from __future__ import annotations

import random

import numpy
import pytest
import torch
from saddlepoint.audits.target.check import check
from torch import nn

import saddlepoint as sp
from saddlepoint.audits.target.admission import TargetError
from saddlepoint.audits.target.wrappers import ValueWithoutGrad
from saddlepoint.defenses import Picard
from saddlepoint.gradients.rule import straight_through
from saddlepoint.zoo import nets

N = 12
LINF = sp.Linf(0.1)
X = torch.rand(N, 1, 4, 4, generator=torch.Generator().manual_seed(0))
WEIGHT = torch.randn(16, 3, generator=torch.Generator().manual_seed(1))
Y = (X.flatten(1) @ WEIGHT).argmax(1)


class Net(nn.Module):
    """A smooth net with three classes, and a hook before and after it."""

    def __init__(self, after=lambda z: z, before=lambda x: x):
        super().__init__()
        self.weight = nn.Parameter(WEIGHT.clone())
        self.before = before
        self.after = after

    def forward(self, x):
        return self.after(self.before(x).flatten(1) @ self.weight)


class Layer(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, x):
        return self.fn(x)


class Deaf(torch.autograd.Function):
    """The identity, with the gradient that it is told."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor, None


class Counting(nn.Module):
    """Answers otherwise at every call."""

    def __init__(self, shift):
        super().__init__()
        self.calls = 0
        self.shift = shift
        self.net = Net()

    def forward(self, x):
        self.calls += 1
        return self.net(x) + self.shift * self.calls


class Caching(nn.Module):
    """Remembers every image it has answered and gives the old answer to what comes near."""

    def __init__(self, near):
        super().__init__()
        self.seen = []
        self.answers = []
        self.near = near
        self.net = Net()

    def forward(self, x):
        rows = []
        for row in x:
            known = [k for k, old in enumerate(self.seen) if (old - row).abs().amax() < self.near]
            if not known:
                self.seen.append(row.detach().clone())
                self.answers.append(self.net(row[None]).detach())
            rows.append(self.answers[known[0]] if known else self.net(row[None]))
        return torch.cat(rows)


class Tracking(nn.Module):
    """Writes into a buffer while it answers."""

    def __init__(self, writes):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.writes = writes
        self.net = Net()

    def forward(self, x):
        if self.writes:
            self.count += 1
        return self.net(x)


class Asking(nn.Module):
    """Looks at its own flag."""

    def __init__(self, shift):
        super().__init__()
        self.shift = shift
        self.net = Net()
        self.norm = nn.BatchNorm2d(1)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.net(self.drop(self.norm(x))) + (self.shift if self.training else 0.0)


class Declared(sp.Defense):
    def __init__(self, fn, **declared):
        self.fn = fn
        for name, value in declared.items():
            setattr(self, name, value)

    def trace(self, x, ctx):
        out = self.fn(x, ctx)
        return out if isinstance(out, sp.Trace) else sp.Trace((sp.View("final", out),))


class Mixing(Declared):
    """Answers with the mean of its views."""

    def answer(self, trace, ctx):
        return trace.logits.mean(0)


class Learning(sp.Defense):
    """Subtracts what it learned from the batch, times a factor."""

    memory = "batch"

    def __init__(self, factor=1.0, *, constant=False, mean=None):
        self.factor = factor
        self.constant = constant
        self.mean = mean

    def adapt(self, x, ctx):
        mean = x.mean(0)
        return Learning(
            self.factor, constant=self.constant, mean=mean.detach() if self.constant else mean
        )

    def trace(self, x, ctx):
        return sp.Trace(
            (sp.View("final", PLAIN(x if self.mean is None else x - self.factor * self.mean)),)
        )


class Unadmitted(sp.Defense):
    """Learns for every row alone, which nobody can see who looks at batch mates, and does not say so."""

    def __init__(self, shift=None):
        self.shift = shift

    def adapt(self, x, ctx):
        return Unadmitted(x.detach().flip(-1))

    def trace(self, x, ctx):
        return sp.Trace((sp.View("final", PLAIN(x if self.shift is None else x + self.shift)),))


PLAIN = Net()


def net(**kwargs):
    return Net(**kwargs).eval()


def sharper(x):
    """One step of ascent on the input, inside the model."""
    with torch.enable_grad():
        there = x.detach().requires_grad_()
        (grad,) = torch.autograd.grad(PLAIN(there).logsumexp(1).sum(), there)
    return x + 0.01 * grad


def two_views(other):
    return Declared(
        lambda x, ctx: sp.Trace((sp.View("first", other(PLAIN(x))), sp.View("last", PLAIN(x))))
    )


def solving(steps):
    half = torch.eye(16) * 0.9

    def fn(x, ctx):
        method = Picard(steps=steps, tolerance=1e-9)
        u = x.flatten(1)
        return PLAIN(
            ctx.solve(
                "solve", lambda z, v: z @ half + v, torch.zeros_like(u), u, method=method
            ).best.view_as(x)
            / 10
        )

    return Declared(fn)


def noisy(scale):
    return lambda x: x + scale * torch.randn_like(x)


def numpy_noise(x):
    return x + 0.1 * float(numpy.random.rand()) * random.random()  # noqa: NPY002


def place(x):
    return x * torch.linspace(1, 2, len(x)).view(-1, 1, 1, 1)


def crowd(x):
    return x * (1.0 + (len(x) == 1))


def graded(x):
    return x + 0.3 * torch.is_grad_enabled()


def required(x):
    return x + 0.3 * x.requires_grad


def quantized(levels):
    return lambda x: (x * levels).round() / levels


def through(fn):
    return Declared(lambda x, ctx: PLAIN(ctx.through("purify", fn, x)))


TRAITS = {
    "random": (net(before=noisy(0.1)), net(before=noisy(0.0))),
    "random, of numpy and Python": (net(before=numpy_noise), net()),
    "noise per row": (net(before=noisy(0.1)), net(before=lambda x: x + 0.1 * torch.randn(1))),
    "noise per batch": (net(before=lambda x: x + 0.1 * torch.randn(1)), net(before=noisy(0.1))),
    "coupled": (net(before=lambda x: x - x.mean(0)), net(before=lambda x: x - 0.5)),
    "coupled, though random": (net(before=lambda x: x - x.mean(0) + 0.1 * torch.randn(1)), net(before=noisy(0.1))),
    "row order": (net(before=place), net(before=lambda x: x - x.mean(0))),
    "batch size": (net(before=crowd), net(before=lambda x: x - x.mean(0))),
    "state": (Counting(0.1).eval(), Counting(0.0).eval()),
    "state, of answers that are kept": (Caching(0.2).eval(), Caching(0.0).eval()),
    "changes itself": (Tracking(True).eval(), Tracking(False).eval()),
    "changes itself, in a number": (Counting(0.0).eval(), net()),
    "changes its input": (net(before=lambda x: x.mul_(0.5)), net(before=lambda x: x.mul(0.5))),
    "grad mode": (net(before=graded), net()),
    "requires grad": (net(before=required), net(before=graded)),
    "training flag": (Asking(1.0).eval(), Asking(0.0).eval()),
    "no gradient": (net(after=lambda z: z.detach()), net()),
    "zero gradients": (net(before=quantized(8)), net()),
    "non-finite gradients": (net(before=lambda x: x + (x - x).abs().sqrt()), net()),
    "misdirected gradients": (net(before=lambda x: Deaf.apply(x, -1.0)), net(before=lambda x: Deaf.apply(x, 1.0))),
    "misdirected gradients, by chance": (
        net(before=lambda x: straight_through(x.flip(-1), x)), net(before=lambda x: straight_through(x, x)),
    ),
    "misdirected gradients, by a ripple": (
        net(before=lambda x: x + 2e-3 * torch.sin(3e3 * x)), net(before=lambda x: x + 2e-3 * torch.sin(3 * x)),
    ),
    "noisy gradients": (net(after=torch.sin, before=noisy(1.0)), net(after=torch.sin)),
    "saturated logits": (net(after=lambda z: 1e3 * z), net()),
    "probabilities": (net(after=lambda z: z.softmax(1)), net()),
    "hidden scores": (net(after=lambda z: torch.where(z == z.amax(1, keepdim=True), z, z.amin(1, keepdim=True))), net()),
    "quantized": (net(before=quantized(8)), net()),
    "optimizes inside": (net(before=sharper), net()),
    "solver off its fixed point": (solving(3), solving(200)),
    "adapts": (Learning(), Learning(0.0)),
    "adapts, and does not say so": (Unadmitted(), through(torch.sin)),
    "adapts differentiably": (Learning(), Learning(constant=True)),
    "sites": (through(torch.sin), Declared(lambda x, ctx: PLAIN(torch.sin(x)))),
    "views disagree": (two_views(lambda z: z.flip(1)), two_views(lambda z: 2 * z)),
    "answers otherwise": (Mixing(two_views(lambda z: z.flip(1)).fn), sp.MultiExit(net(after=lambda z: [z.flip(1), z]))),
    "costly": (
        Declared(lambda x, ctx: PLAIN(x) + PLAIN(x), static=PLAIN), Declared(lambda x, ctx: PLAIN(x), static=PLAIN),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "has", "has_not"), [(k, *v) for k, v in TRAITS.items()], ids=TRAITS
)
def test_a_trait_is_seen_where_it_is_and_not_in_a_twin(name, has, has_not):
    name = name.partition(",")[0]
    with_it, without = (
        sp.probe(target, X.clone(), Y, threat=LINF)[name] for target in (has, has_not)
    )
    assert with_it.present is True, with_it.evidence
    assert without.present is False, without.evidence
    assert with_it.confidence > 0.5
    assert without.confidence > 0.5


KINDS = (
    net(),
    net(after=torch.Tensor.detach),
    through(torch.sin),
    Learning(),
    lambda x: PLAIN(x),
    lambda x: PLAIN(x).argmax(1),
)


@pytest.mark.parametrize(
    "target", KINDS, ids=["net", "cut net", "defense", "learner", "scores", "labels"]
)
def test_every_trait_that_any_target_is_probed_for_has_such_a_pair(target):
    probed = [trait.name for trait in sp.probe(target, X, Y, threat=LINF)]
    assert sorted(probed) == sorted({name.partition(",")[0] for name in TRAITS})


def test_a_defense_that_learns_and_denies_it_is_refused():
    assert sp.probe(Unadmitted(), X, Y, threat=LINF).denied[0].name == "adapts"
    with pytest.raises(TargetError, match="Set memory = 'batch'"):
        check(Unadmitted(), X, Y, LINF)


def test_nothing_is_held_against_a_net_that_is_one():
    assert [trait.name for trait in sp.probe(net(), X, Y, threat=LINF) if trait.present] == []


def test_what_a_defense_declares_is_compared_with_what_is_measured():
    honest = Declared(lambda x, ctx: PLAIN(x + 0.1 * ctx.randn_like(x)), random=True)
    liar = Declared(lambda x, ctx: PLAIN(x + 0.1 * ctx.randn_like(x)))
    assert sp.probe(honest, X, Y, threat=LINF).denied == ()
    (trait,) = sp.probe(liar, X, Y, threat=LINF).denied
    assert (trait.name, trait.declared, trait.present) == ("random", False, True)
    assert sp.probe(net(), X, Y, threat=LINF)["random"].declared is None


def test_the_site_that_kills_gradients_is_named():
    traits = sp.probe(through(quantized(8)), X, Y, threat=LINF)
    assert traits["zero gradients"].places == ("purify",)
    assert sp.probe(through(torch.sin), X, Y, threat=LINF)["zero gradients"].places == ()


def test_a_site_around_which_a_gradient_leads_further_is_named():
    def backwards(x):
        return Deaf.apply(x, -1.0)

    traits = sp.probe(through(backwards), X, Y, threat=LINF)
    assert traits["misdirected gradients"].places == ("purify",)
    assert sp.probe(through(torch.sin), X, Y, threat=LINF)["misdirected gradients"].places == ()


@pytest.mark.parametrize("fn", [quantized(8), torch.Tensor.detach], ids=["flat", "cut"])
def test_the_innermost_layer_of_an_opaque_net_that_kills_gradients_is_named(fn):
    inner = nn.Sequential(Layer(torch.sin), Layer(fn))
    opaque = nn.Sequential(inner, nn.Flatten(), nn.Linear(16, 3)).eval()
    traits = sp.probe(opaque, X, Y, threat=LINF)
    name = "zero gradients" if fn is not torch.Tensor.detach else "no gradient"
    assert traits[name].places == ("0.1",)


def test_the_draws_of_a_noisy_gradient_are_as_many_as_its_noise_asks_for():
    # g = a + s n with |a|^2 = 1 over d = 16 pixels: the noise of one draw is 16 s^2, and the mean of 16 s^2 draws has as much of it
    # as of signal, here 4. Four draws on twelve images leave its estimate a factor of two.
    class Sloped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            unit = g / g.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
            return unit + 0.5 * torch.randn_like(g)

    traits = sp.probe(
        net(before=lambda x: Sloped.apply(x) + 1e-2 * torch.randn_like(x)), X, Y, threat=LINF
    )
    assert 2 <= traits["noisy gradients"].amount <= 8
    assert sp.probe(net(), X, Y, threat=LINF)["noisy gradients"].amount == 1


class Tossing(nn.Module):
    """One of two nets for a whole batch, by a coin of Python's."""

    def forward(self, x):
        return Net()(x) * (-1.0 if random.random() < 0.5 else 1.0)


def test_a_fair_coin_for_the_whole_batch_does_not_hide():
    traits = sp.probe(Tossing().eval(), X, Y, threat=LINF)
    assert {"random", "noise per batch"} <= {trait.name for trait in traits if trait.present}
    assert "coupled" not in traits


def test_a_net_that_knows_it_is_attacked_gives_values_as_to_a_user_and_slopes_as_to_an_attacker():
    target = net(before=lambda x: x * (-1.0 if x.requires_grad else 1.0))
    checked = check(target, X, Y, LINF)
    assert isinstance(checked.defense, ValueWithoutGrad)
    x = X.clone().requires_grad_()
    value = checked.defense.respond(x, sp.Context.seeded(0, N))
    torch.testing.assert_close(value.detach(), PLAIN(X), rtol=0, atol=0)
    (grad,) = torch.autograd.grad(value[:, 0].sum(), x)
    torch.testing.assert_close(grad, -WEIGHT[:, 0].view(1, 1, 4, 4).expand_as(X))


STATIC = {
    "digits": (nets.DigitsCNN, (1, 8, 8)),
    "lenet": (lambda: nets.lenet(4, 32, side=8), (1, 8, 8)),
    "ResNet": (lambda: nets.resnet((1, 1), 8), (3, 16, 16)),
    "wide ResNet": (lambda: nets.wrn34_10(1, 16), (3, 16, 16)),
    "VGG": (lambda: nets.vgg16(8, (1, 1, 1)), (3, 16, 16)),
    "ViT": (lambda: nets.vit_small(16, 4, 24, 4), (3, 16, 16)),
    "DANN": (lambda: nets.dann_mnist(4, 16, side=8, kernel=3, padding=1), (1, 8, 8)),
}


@pytest.mark.parametrize(("make", "shape"), STATIC.values(), ids=STATIC)
def test_nothing_is_held_against_the_static_nets_of_the_zoo(make, shape):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        static = make().eval()
        x = torch.rand(N, *shape)
    with torch.no_grad():
        answer = static(x)
    y = (answer[-1] if isinstance(answer, list) else answer).argmax(1)
    traits = sp.probe(static, x, y, threat=sp.Linf(8 / 255))
    exits = {"views disagree"} if isinstance(answer, list) else set()
    assert {
        trait.name: trait.evidence for trait in traits if trait.present and trait.name not in exits
    } == {}


@pytest.mark.parametrize("salt", range(6))
def test_a_net_that_often_tosses_the_same_twice_is_random(salt):
    """One of three factors for the whole batch: two calls agree in a third of all cases."""

    def toss(z):
        torch.rand(salt * len(z))
        return z * (1 + torch.randint(0, 3, ()))

    traits = sp.probe(Net(after=toss).eval(), X, Y, threat=LINF)
    assert "random" in traits
    assert (
        "coupled" not in traits
    )  # a batch of another size meets other coins, which is no neighbor's doing
