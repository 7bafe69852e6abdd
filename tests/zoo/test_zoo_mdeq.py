"""The multiscale equilibrium network matches the published one, and its cell is a pure function."""

import copy
import math

import pytest
import torch
from tests.zoo.released_deq import released
from torch import nn
from torch.nn.utils import parametrize

from saddlepoint.defenses import Broyden, Context
from saddlepoint.gradients import Implicit
from saddlepoint.rng import Keys
from saddlepoint.zoo.deq import DEQ
from saddlepoint.zoo.nets import MDEQNet, mdeq_cifar, mdeq_digits, mdeq_large, mdeq_mnist, mdeq_xl

SMALL = {mdeq_digits: (1, 8, 8), mdeq_mnist: (1, 28, 28), mdeq_cifar: (3, 32, 32)}


def seeded(build, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build()


def images(n, shape, dtype=torch.float32):
    return Keys.of(1, torch.arange(n)).uniform(shape, dtype)


def count(module):
    return sum(p.numel() for p in module.parameters())


def with_dropout():
    return MDEQNet(image=(1, 8, 8), channels=(16, 32), planes=(4, 8), width=64, dropout=0.22)


@pytest.mark.parametrize(
    ("build", "total", "step", "stem", "injection", "classifier", "state"),
    [
        (mdeq_large, 11_097_438, 8_715_232, 10_208, 1_088, 2_370_910, 61_440),
        (mdeq_xl, 48_792_098, 44_083_512, 48_888, 5_328, 4_654_370, 138_240),
    ],
)
def test_the_published_networks_have_their_published_sizes(
    build, total, step, stem, injection, classifier, state
):
    with torch.device("meta"):
        net = build()
    assert [count(part) for part in (net, net.step, net.stem, net.injection, net.classifier)] == [
        total, step, stem, injection, classifier,
    ]  # fmt: skip
    assert sum(net.sizes) == state
    assert net.dropout == 0.22


def test_the_shapes_of_the_large_network():
    with torch.device("meta"):
        net = mdeq_large()
        u = net.inject(torch.empty(2, 3, 32, 32))
        z = net.cell(net.start(u), u)
    assert u.shape == (2, 32 * 32 * 32 + 480)
    assert z.shape == net.start(u).shape == (2, 61_440)
    assert net.head(z).shape == (2, 10)


@pytest.mark.parametrize(("build", "shape"), SMALL.items())
def test_rows_are_independent_and_states_keep_their_shape(build, shape):
    """In float64 a row alone differs from the row in its batch only by the order of additions."""
    net = seeded(build).double().eval()
    x = images(3, shape, torch.float64)
    u = net.inject(x)
    z = net.cell(net.cell(net.start(u), u), u)
    alone = net.inject(x[1:2])
    assert z.shape == (3, sum(net.sizes))
    assert net.head(z).shape == (3, 10)
    torch.testing.assert_close(
        net.cell(net.cell(net.start(alone), alone), alone), z[1:2], rtol=0, atol=1e-10
    )


def test_one_step_of_the_smallest_network_matches_the_published_equations():
    """Two resolutions and a nonzero state: blocks, fusion and the layers after it."""
    net = seeded(mdeq_digits).double().eval()
    u = net.inject(images(2, (1, 8, 8), torch.float64))
    z = Keys.of(2, torch.arange(2)).normal((1536,), torch.float64)
    high = z[:, :1024].view(2, 16, 8, 8)
    low = z[:, 1024:].view(2, 32, 4, 4)
    injected = net.stem(images(2, (1, 8, 8), torch.float64))
    torch.testing.assert_close(u[:, :1024].view(2, 16, 8, 8), injected, rtol=0, atol=1e-14)

    def block(k, state, injection):
        part = net.step.blocks[k]
        norm = nn.functional.group_norm
        first, scale, _, second = part.inner
        inside = norm(
            nn.functional.conv2d(state, first.weight, padding=1), 8, scale.weight, scale.bias
        ).relu()
        change = nn.functional.conv2d(inside, second.weight, padding=1) + injection
        change = norm(change, 8, part.before.weight, part.before.bias)
        return norm((change + state).relu(), 8, part.after.weight, part.after.bias)

    high = block(0, high, injected)
    low = block(1, low, 0)
    up = net.step.paths["1-0"]
    down = net.step.paths["0-1"]
    raised = nn.functional.group_norm(
        nn.functional.conv2d(low, up[0].weight), 8, up[1].weight, up[1].bias
    )
    raised = raised.repeat_interleave(2, 2).repeat_interleave(2, 3)
    lowered = nn.functional.group_norm(
        nn.functional.conv2d(high, down[0].weight, stride=2, padding=1),
        8,
        down[1].weight,
        down[1].bias,
    )
    fused = [
        nn.functional.group_norm(nn.functional.conv2d(y.relu(), after[1].weight), 4)
        for y, after in zip((high + raised, low + lowered), net.step.after, strict=True)
    ]
    expected = torch.cat([y.flatten(1) for y in fused], 1)
    torch.testing.assert_close(net.cell(z, u), expected, rtol=0, atol=1e-12)


def test_a_downsampling_path_changes_channels_only_in_its_last_convolution():
    with torch.device("meta"):
        path = mdeq_large().step.paths["0-3"]
    convs = [layer for layer in path if isinstance(layer, nn.Conv2d)]
    assert [(c.in_channels, c.out_channels, c.stride) for c in convs] == [
        (32, 32, (2, 2)),
        (32, 32, (2, 2)),
        (32, 256, (2, 2)),
    ]
    assert [type(layer) for layer in path] == [nn.Conv2d, nn.GroupNorm, nn.ReLU] * 2 + [
        nn.Conv2d,
        nn.GroupNorm,
    ]


def test_weight_normalized_convolutions_keep_the_initialization_of_pytorch():
    """They are uniform in +-1/sqrt(fan in), as in the released code; the others are 0.01 normal."""
    net = seeded(mdeq_cifar)
    normalized = [
        m for m in net.modules() if isinstance(m, nn.Conv2d) and parametrize.is_parametrized(m)
    ]
    plain = [
        m for m in net.modules() if isinstance(m, nn.Conv2d) and not parametrize.is_parametrized(m)
    ]
    assert len(normalized) == 3 * 3
    for conv in normalized:
        bound = conv.weight[0].numel() ** -0.5
        assert conv.weight.abs().max() <= bound * (1 + 1e-5)  # rounding of length times direction
        # Each has at least 256 numbers.
        assert conv.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.15)
        assert conv.parametrizations.weight.original0.shape == (conv.out_channels, 1, 1, 1)
    pooled = torch.cat([conv.weight.flatten() for conv in plain])
    assert pooled.std().item() == pytest.approx(0.01, rel=0.02)  # about 100 000 numbers


def test_the_dropout_mask_is_drawn_once_per_pass_and_is_part_of_u():
    """There is one factor per example and channel, 0 or 1 / (1 - p).

    Over 48 channels of 200 examples the share of zeros is within 4 standard deviations of p.
    """
    net = seeded(with_dropout).train()
    x = images(200, (1, 8, 8))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        u = net.inject(x)
        factors = u[:, 1024:]
        z = net.start(u) + 0.1
        first = net.cell(z, u)
        again = net.cell(z, u)
    assert factors.shape == (200, 48)
    assert set(factors.unique().tolist()) == {0.0, float(torch.tensor(1 / 0.78))}
    assert abs(float((factors == 0).float().mean()) - 0.22) < 4 * (0.22 * 0.78 / 9600) ** 0.5
    assert torch.equal(first, again)
    assert torch.equal(net.eval().cell(z, u), first)  # only `inject` depends on the mode
    assert torch.equal(net.inject(x)[:, 1024:], torch.ones(200, 48))


def test_a_dropped_channel_loses_its_convolution_but_not_its_injection():
    net = seeded(with_dropout).double().eval()
    u = net.inject(images(1, (1, 8, 8), torch.float64))
    block = net.step.blocks[0]
    z = torch.ones(1, 16, 8, 8, dtype=torch.float64)
    injected = u[:, :1024].view(1, 16, 8, 8)
    dropped = block(z, injected, torch.zeros(1, 16, 1, 1, dtype=torch.float64))
    expected = block.after((z + block.before(injected)).relu())
    torch.testing.assert_close(dropped, expected, rtol=0, atol=1e-14)


def test_a_copy_has_its_own_weights():
    net = seeded(mdeq_digits).eval()
    other = copy.deepcopy(net)
    with torch.no_grad():
        other.step.blocks[0].inner[0].parametrizations.weight.original0.mul_(2)
    assert not torch.equal(other.step.blocks[0].inner[0].weight, net.step.blocks[0].inner[0].weight)
    net.load_state_dict(other.state_dict())
    assert torch.equal(other.step.blocks[0].inner[0].weight, net.step.blocks[0].inner[0].weight)


def test_invalid_shapes_raise():
    with pytest.raises(ValueError, match=r"channels in multiples of 8, got channels=\(12, 24\)"):
        MDEQNet(image=(1, 8, 8), channels=(12, 24), planes=(4, 8), width=8)
    with pytest.raises(ValueError, match="For one resolution use ConvDEQNet"):
        MDEQNet(image=(1, 8, 8), channels=(16,), planes=(4,), width=8)
    with pytest.raises(
        ValueError, match=r"halves its image 3 times, got 28x28\. Pad it to multiples of 8"
    ):
        MDEQNet(image=(1, 28, 28), channels=(8, 8, 8, 8), planes=(4, 4, 4, 4), width=8)


def four_resolutions():
    """A network like MDEQ-Large, with four resolutions and fewer channels."""
    return MDEQNet(
        image=(3, 16, 16), channels=(8, 16, 16, 16), planes=(4, 4, 4, 4), width=32, dropout=0.0
    )


@pytest.mark.parametrize("backward", [7, 30])
@pytest.mark.parametrize(
    ("build", "shape"),
    [(mdeq_digits, (1, 8, 8)), (four_resolutions, (3, 16, 16))],
    ids=["digits", "large-like"],
)
def test_logits_and_gradients_are_those_of_the_released_code(build, shape, backward):
    """On random weights neither solve converges: there the order of the two operations decides."""
    net = seeded(build).double().eval()
    x = images(2, shape, torch.float64)
    cotangent = Keys.of(3, torch.arange(2)).normal((10,), torch.float64)
    expected = [released(net, *pair, 8, backward) for pair in zip(x, cotangent, strict=True)]
    cosine = {}
    defense = DEQ(net, method=Broyden(steps=8, tolerance=0.0))
    for at in ("best", "following"):
        inputs = x.clone().requires_grad_()
        # The released code does not stop a backward solve that diverges.
        solver = Broyden(steps=backward, tolerance=0.0, divergence=math.inf)
        rule = Implicit(solver, at=at)
        context = Context(Keys.of(0, torch.arange(2)), {"solve": rule}, frozenset({"final"}))
        logits = defense.trace(inputs, context).last
        (grad,) = torch.autograd.grad(logits, inputs, cotangent)
        reference = torch.stack([one.grad for one in expected])
        cosine[at] = torch.cosine_similarity(grad.flatten(1), reference.flatten(1)).min()
        torch.testing.assert_close(
            logits, torch.stack([one.logits for one in expected]), rtol=1e-6, atol=0
        )
    assert cosine["following"] > 0.999
    # Swapping the two orders is at least a thousand times as far from the released gradient.
    assert 1 - cosine["best"] > 1000 * (1 - cosine["following"]).abs()
