"""The multi-exit architectures: published sizes at full width, and small versions that train."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from saddlepoint.rng import Keys
from saddlepoint.zoo import multi_exit as zoo

# The published size of the network with one exit, plus our early heads.
FULL = {
    "resnet18": (zoo.resnet18, {}, 4, 11_173_962 + (64 + 128 + 256 + 3) * 10),
    # Published with biases in its 4 224 convolution channels; batch norm cancels them.
    "vgg16": (zoo.vgg16, {}, 5, 14_728_266 - 4_224 + (64 + 128 + 256 + 512 + 4) * 10),
    "wrn34_10": (
        zoo.wrn34_10,
        {},
        4,
        46_160_474 + sum(2 * c + 10 * c + 10 for c in (160, 320, 640)),
    ),
    "vit_b16": (zoo.vit_b16, {"classes": 1000}, 4, 86_567_656 + 3 * (2 * 768 + 769 * 1000)),
}
TINY = {
    "resnet18": lambda c: zoo.resnet18(4, in_channels=c),
    "vgg16": lambda c: zoo.vgg16(4, in_channels=c),
    "wrn34_10": lambda c: zoo.wrn34_10(1, 16, in_channels=c),
    "vit_small": lambda c: zoo.vit_small({1: 8, 3: 32}[c], {1: 2, 3: 8}[c], 24, 4, in_channels=c),
    "msdnet": lambda c: zoo.msdnet(channels=4, growth=2, head_width=8, in_channels=c),
    "ranet-6": lambda c: zoo.ranet(step=1, channels=4, growth=2, head_width=8, in_channels=c),
    "ranet-8": lambda c: zoo.ranet(8, step=1, channels=4, growth=2, head_width=8, in_channels=c),
}
EXITS = {
    "resnet18": 4,
    "vgg16": 5,
    "wrn34_10": 4,
    "vit_small": 4,
    "msdnet": 5,
    "ranet-6": 6,
    "ranet-8": 8,
}
tiny = pytest.mark.parametrize("name", TINY)


def small(name, channels=1, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return TINY[name](channels)


def parameters(net):
    return sum(p.numel() for p in net.parameters())


def conv(channels, out, kernel=3):
    """Weights of a convolution and of the batch norm after it."""
    return channels * out * kernel**2 + 2 * out


def layer(channels, out, factor):
    inner = min(channels, factor * out)
    return conv(channels, inner, 1) + conv(inner, out)


def classifier(channels):
    return conv(channels, 128) + conv(128, 128) + 129 * 10


@pytest.mark.parametrize("name", FULL)
def test_a_full_network_has_the_published_size_and_the_exits_of_the_paper(name):
    build, options, exits, size = FULL[name]
    with torch.device("meta"):
        net = build(**options)
        outputs = net(torch.zeros(2, 3, 32, 32))
    assert parameters(net) == size
    assert [tuple(logits.shape) for logits in outputs] == [(2, options.get("classes", 10))] * exits
    assert net.exits == exits


def test_msdnet_has_the_layers_of_the_released_recipe():
    """Layers 1-5 have three scales, 6-10 two and 11-15 one; layers 6 and 11 halve the channels."""
    factors = (1, 2, 4)
    width = 16
    total = conv(3, 16) + conv(16, 32) + conv(32, 64)
    for number in range(1, 16):
        finest = (number - 1) // 5
        finest_in = max(number - 2, 0) // 5  # the finest input scale
        for s in range(finest, 3):
            if s == finest_in:
                total += layer(width * factors[s], 6 * factors[s], factors[s])
            else:
                total += layer(width * factors[s], 3 * factors[s], factors[s])
                total += layer(width * factors[s - 1], 3 * factors[s], factors[s - 1])
        width += 6
        if number in (6, 11):
            total += sum(
                conv(width * factors[s], width // 2 * factors[s], 1) for s in range(finest, 3)
            )
            width //= 2
        if number in (1, 3, 6, 10, 15):
            total += classifier(4 * width)
    with torch.device("meta"):
        net = zoo.msdnet()
        outputs = net(torch.zeros(2, 3, 32, 32))
    assert parameters(net) == total
    assert len(outputs) == 5
    assert [len(list(stage.children())) for stage in net.stages] == [1, 2, 3 + 1, 4, 5 + 1]
    assert net.heads[0][1].in_channels == 4 * (16 + 6)


@pytest.mark.parametrize(
    ("exits", "depths", "factors", "halving", "reducing"),
    [
        (6, [2, 4, 6, 8, 10, 12], (4, 2, 1), [(), (2,), (2, 4)], [(), (2,), (2, 4)]),
        (8, [4] * 8, (4, 2, 1, 1), [(), (2,), (2, 4), (4, 6)], [(), (2,), (2, 4), (2, 5)]),
    ],
)
def test_ranet_has_the_layers_of_the_released_recipes(exits, depths, factors, halving, reducing):
    total = 0
    width = 3
    below = []
    for factor in reversed(factors):
        total = total + conv(width, 16 * factor)
        width = 16 * factor
    for i, factor in enumerate(factors):
        width = 16 * factor
        growth = 6 * factor
        here = []
        for k in range(2 * (i + 1)):
            widths = [width + growth * j for j in range(depths[k] + 1)]
            if k < len(below):
                share = math.floor(growth * 0.25)
                total += sum(layer(w, growth - share, factor) for w in widths[:-1])
                total += sum(layer(w, share, factors[i - 1]) for w in below[k][:-1])
                total += conv(below[k][-1], math.floor(widths[-1] * 0.25), 1)
                width = widths[-1] + math.floor(widths[-1] * 0.25)
            else:
                total += sum(layer(w, growth, factor) for w in widths[:-1])
                width = widths[-1]
            if k + 1 in reducing[i]:
                total = total + conv(width, width // 2, 1)
                width = width // 2
            if k >= len(below):
                total += classifier(width)
            here.append(widths)
        below = here
    net = zoo.ranet(exits).eval()
    outputs = net(torch.zeros(2, 3, 32, 32))
    assert parameters(net) == total
    assert [tuple(logits.shape) for logits in outputs] == [(2, 10)] * exits
    strided = [
        tuple(
            k
            for k, block in enumerate(flow, start=1)
            if any(m.stride == (2, 2) for m in block.modules() if isinstance(m, nn.Conv2d))
        )
        for flow in net.flows
    ]
    assert strided == halving


@tiny
@pytest.mark.parametrize(("channels", "size"), [(1, 8), (1, 28), (3, 32)])
def test_small_versions_accept_all_small_image_sizes(name, channels, size):
    outputs = small(name, channels).eval()(torch.rand(2, channels, size, size))
    assert [tuple(logits.shape) for logits in outputs] == [(2, 10)] * EXITS[name]


@tiny
def test_all_parameters_have_gradients_and_early_exits_do_not_use_later_heads(name):
    net = small(name).train()
    x = Keys.of(1, torch.arange(6)).uniform((1, 8, 8))
    outputs = net(x)
    total = sum(logits.logsumexp(1).sum() - logits[:, 0].sum() for logits in outputs)
    assert all(
        g is not None
        for g in torch.autograd.grad(
            total, list(net.parameters()), retain_graph=True, allow_unused=True
        )
    )
    last = list(net.heads[-1].parameters())
    assert all(g is None for g in torch.autograd.grad(outputs[0].sum(), last, allow_unused=True))


@tiny
def test_rows_do_not_depend_on_other_rows(name):
    net = small(name).double().train()
    x = Keys.of(2, torch.arange(9)).uniform((1, 8, 8), torch.float64)
    net(x)  # updates the running statistics
    net.eval()
    rows = torch.tensor([4, 0])
    # Sums are split differently in another batch: a few units of 1e-16 times the hundreds of terms
    # of a convolution.
    assert_close(net(x[rows]), [logits[rows] for logits in net(x)], rtol=0, atol=1e-11)


@tiny
def test_a_small_version_learns_to_classify_bright_rows(name):
    keys = Keys.of(3, torch.arange(32))
    y = keys.integers(8)
    x = 0.5 * keys.fold_in(1).uniform((1, 8, 8))
    x[torch.arange(32), 0, y] += 0.5
    net = small(name).train()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    losses = []
    for _ in range(12):
        loss = torch.stack([nn.functional.cross_entropy(logits, y) for logits in net(x)]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.75 * losses[0]


def test_pixels_are_normalized_inside_the_network():
    x = Keys.of(4, torch.arange(3)).uniform((3, 16, 16), torch.float64)
    mean = (0.1, 0.2, 0.3)
    std = (0.5, 0.6, 0.7)
    torch.manual_seed(0)
    inside = zoo.resnet18(4, mean=mean, std=std).double().eval()
    outside = zoo.resnet18(4, mean=(0.0,), std=(1.0,)).double().eval()
    outside.load_state_dict(inside.state_dict())
    normalized = (x - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    # The constants are stored in single precision.
    assert_close(inside(x), outside(normalized), rtol=0, atol=1e-6)


def test_invalid_sizes_raise():
    with pytest.raises(ValueError, match="depth 6 n \\+ 4 with n >= 2, got depth=10"):
        zoo.wrn34_10(1, 10)
    with pytest.raises(ValueError, match="image_size must be a multiple of 5, got image_size=32"):
        zoo.vit_small(32, 5)
    with pytest.raises(ValueError, match="6 or 8 exits, got exits=7"):
        zoo.ranet(7)
