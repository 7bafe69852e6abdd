"""Exits on an ordinary network: heads use its features, and the network is not changed."""

import copy
import threading

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.testing import assert_close

from saddlepoint.rng import Keys
from saddlepoint.zoo.multi_exit import attach_exits, multiply_adds, resnet18, vit_b16, vit_small

EXACT = {"rtol": 0.0, "atol": 0.0}
N = 5
CLASSES = 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.layer1 = nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU())
        self.layer2 = nn.Sequential(nn.Conv2d(6, 8, 3), nn.ReLU())
        self.unused = nn.Linear(2, 2)
        self.act = nn.ReLU()
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x):
        z = self.act(self.act(self.layer2(self.layer1(self.stem(x)))))
        return self.fc(z.mean((2, 3)))


@pytest.fixture
def net():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return Net().double().train()


@pytest.fixture
def x():
    return Keys.of(8, torch.arange(N)).uniform((1, 8, 8), torch.float64)


def head(width):
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)).double()


def snapshot(net):
    return {name: value.clone() for name, value in net.state_dict().items()}, [
        m.training for m in net.modules()
    ]


def assert_unchanged(net, before):
    weights, modes = before
    assert_close(dict(net.state_dict()), weights, **EXACT)
    assert [m.training for m in net.modules()] == modes
    assert not any(m._forward_hooks for m in net.modules())


def test_exits_are_the_heads_on_the_features_of_the_network(net, x):
    net.eval()
    first = head(4)
    second = head(6)
    exits = attach_exits(net, {"layer1.0": second, "stem": first})(x)
    stem = net.stem(x)
    # Exits are in the order of the forward pass.
    assert_close(exits, [first(stem), second(net.layer1[0](stem)), net(x)], **EXACT)


def test_attach_exits_is_a_public_name():
    assert attach_exits is attach_exits


def test_default_heads_take_their_size_from_the_example_and_the_network_is_unchanged(net, x):
    before = snapshot(net)
    attached = attach_exits(net, {"stem": None, "layer2": None}, example=x[:1])
    assert_unchanged(net, before)
    assert [
        tuple(m.weight.shape) for m in attached.heads.modules() if isinstance(m, nn.Linear)
    ] == [(CLASSES, 4), (CLASSES, 8)]
    net.eval()
    linear = attached.heads[0][1]
    assert_close(attached(x)[0], linear(net.stem(x).mean((2, 3))), **EXACT)
    assert [tuple(z.shape) for z in attached(x)] == [(N, CLASSES)] * 3
    assert attached.exits == 3


def test_a_default_head_averages_tokens(x):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dtype=torch.float64)
    net = nn.Sequential(
        nn.Flatten(2),
        nn.Linear(64, 8, dtype=torch.float64),
        layer,
        nn.Flatten(),
        nn.Linear(8, 4).double(),
    ).eval()
    attached = attach_exits(net, {"1": None}, example=x)
    assert_close(attached(x)[0], attached.heads[0][1](net[1](x.flatten(2)).mean(1)), **EXACT)


def test_hooks_are_removed_and_copies_are_independent(net, x):
    attached = attach_exits(net, {"layer1": head(6)}).eval()
    exits = attached(x)
    assert not any(m._forward_hooks for m in attached.modules())
    twin = copy.deepcopy(attached)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert twin(x)[0].abs().amax() == 0
    assert_close(attached(x), exits, **EXACT)


def test_hooks_are_removed_when_a_pass_fails(net):
    attached = attach_exits(net, {"layer1": head(6)})
    with pytest.raises(RuntimeError):
        attached(torch.zeros(2, 7, 8, 8).double())
    assert not any(m._forward_hooks for m in attached.modules())


def test_the_input_has_a_gradient_and_no_graph_is_built_without_grad(net, x):
    attached = attach_exits(net, {"layer1": head(6)}).eval()
    x = x.requires_grad_()
    early, last = attached(x)
    (grad,) = torch.autograd.grad(early.sum() + last.sum(), x)
    assert (grad != 0).any()
    with torch.no_grad():
        assert not any(z.requires_grad for z in attached(x))


def test_functional_call_replaces_the_parameters(net, x):
    attached = attach_exits(net, {"layer1": head(6)}).eval()
    doubled = {name: 2 * p for name, p in attached.named_parameters() if name.startswith("heads")}
    assert_close(functional_call(attached, doubled, x)[0], 2 * attached(x)[0], rtol=0, atol=1e-12)


def test_threads_that_share_the_network_get_their_own_exits(net):
    """Both passes are inside the network at the same time; each must use its own features."""
    barrier = threading.Barrier(2, timeout=20)

    class Waiting(nn.Module):
        def forward(self, z):
            barrier.wait()
            return z

    net.stem.append(Waiting())
    attached = attach_exits(net, {"stem": head(4), "layer1": head(6)}).eval()
    inputs = [torch.full((1, 1, 8, 8), value).double() for value in (0.2, 0.9)]
    found = [None, None]

    def run(k):
        found[k] = attached(inputs[k])

    threads = [threading.Thread(target=run, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    net.stem[-1] = nn.Identity()
    for k in range(2):
        assert_close(found[k], attached(inputs[k]), **EXACT)
    assert not torch.equal(found[0][0], found[1][0])


def test_exits_can_be_attached_to_a_network_with_exits(net, x):
    inner = attach_exits(net, {"layer1": head(6)}).eval()

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x)[-1]

    outer = attach_exits(
        Last(), {"inner.net.layer1": inner.heads[0], "inner.net.stem": head(4)}
    ).eval()
    exits = outer(x)
    assert_close([exits[1], exits[2]], inner(x), **EXACT)


def train(attached, x, y):
    """Take eight steps of SGD and return the losses."""
    optimizer = torch.optim.SGD(attached.parameters(), 0.1, weight_decay=1e-2)
    losses = []
    for _ in range(8):
        loss = torch.stack([nn.functional.cross_entropy(z, y) for z in attached(x)]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_training_does_not_change_a_frozen_network(net, x):
    y = torch.arange(N) % CLASSES
    before = snapshot(net)
    attached = attach_exits(net, {"layer1": None, "stem": None}, example=x, freeze=True).train()
    losses = train(attached, x, y)
    assert losses[-1] < losses[0]
    assert_unchanged(net, before)
    assert all(p.requires_grad for p in net.parameters())
    assert_close(dict(attached.net.state_dict()), before[0], **EXACT)  # running statistics as well
    assert not any(m.training for m in attached.net.modules())
    assert all(m.training for m in attached.heads.modules())


def test_joint_training_changes_the_given_network(net, x):
    weights = snapshot(net)[0]
    attached = attach_exits(net, {"layer1": head(6)}).train()
    losses = train(attached, x, torch.arange(N) % CLASSES)
    assert losses[-1] < losses[0]
    assert attached.net is net
    assert not torch.equal(net.stem[0].weight, weights["stem.0.weight"])


def test_an_unknown_layer_raises_and_names_the_nearest(net):
    with pytest.raises(ValueError, match=r"no layer called 'layer_2'\. Nearest: 'layer2'"):
        attach_exits(net, {"layer_2": head(8)})
    with pytest.raises(ValueError, match=r"no layer called 'QQQQ'\. Nearest: 'stem', 'layer1'"):
        attach_exits(net, {"QQQQ": head(8)})
    with pytest.raises(ValueError, match="needs at least one layer"):
        attach_exits(net, {})


def test_a_layer_that_is_not_called_exactly_once_raises(net, x):
    unused = nn.Linear(2, CLASSES)
    with pytest.raises(ValueError, match=r"never calls \['unused'\]"):
        attach_exits(net, {"unused": unused}, example=x)
    with pytest.raises(ValueError, match=r"never calls \['unused'\]"):
        attach_exits(net, {"unused": None}, example=x)
    with pytest.raises(ValueError, match=r"never calls \['unused'\]"):
        attach_exits(net, {"unused": unused})(x)
    with pytest.raises(ValueError, match="'act' is called more than once"):
        attach_exits(net, {"act": head(8)})(x)


def test_heads_with_wrong_outputs_raise(net, x):
    other = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 7)).double()
    with pytest.raises(
        ValueError,
        match=r"the same number of classes, found \{'layer1': 7, 'the network itself': 3\}",
    ):
        attach_exits(net, {"layer1": other}, example=x)
    with pytest.raises(
        ValueError, match=r"'layer1' outputs \[5, 6, 6, 6\], expected logits \[N, C\]"
    ):
        attach_exits(net, {"layer1": nn.Identity()}, example=x)
    with pytest.raises(ValueError, match=r"no head was given for \['layer1'\]: pass example"):
        attach_exits(net, {"layer1": None})
    with pytest.raises(ValueError, match="'the network itself' outputs list"):
        attach_exits(resnet18(2, in_channels=1), {"stem": None}, example=x.float())


def test_the_cost_is_the_sum_over_layers(net):
    """For an 8x8 image: 64 pixels x 9 x 1 x 4 in the stem, then 36 x 9 x 4 x 6, 16 x 9 x 6 x 8.

    The linear layers are added.
    """
    attached = attach_exits(net, {"stem": head(4), "layer1": head(6)})
    stem = 64 * 9 * 4
    first = 36 * 9 * 24
    second = 16 * 9 * 48
    expected = (stem + 12, stem + 12 + first + 18, stem + 12 + first + 18 + second + 24)
    assert multiply_adds(attached, torch.zeros(3, 1, 8, 8).double()) == expected
    assert multiply_adds(net, torch.zeros(1, 1, 8, 8).double()) == (stem + first + second + 24,)
    assert not any(m._forward_hooks for m in attached.modules())


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_attention_is_counted_on_every_device(device):
    """There are 16 tokens and the class token, with 24 numbers each.

    A block has four products of width 24^2, two of 24 x 4 x 24, and two of tokens^2 x 24.
    """
    with torch.device(device):
        net = vit_small(8, 2, 24, 4, 3, in_channels=1)
        found = multiply_adds(net, torch.zeros(2, 1, 8, 8))
    tokens = 17
    embed = 16 * 4 * 24
    linear = 24 * 10
    block = tokens * (4 * 24**2 + 8 * 24**2) + 2 * tokens**2 * 24
    assert found == tuple(embed + k * (block + linear) for k in range(1, 5))


def test_the_attention_layer_of_torch_is_counted():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.fc = nn.Linear(8, 3)

        def forward(self, x):
            return self.fc(self.layer(x).mean(1))

    (found,) = multiply_adds(Pooled(), torch.zeros(2, 5, 8))
    assert found == 5 * (4 * 64 + 2 * 8 * 16) + 2 * 25 * 8 + 24


def test_the_published_costs():
    """ResNet-18 at 32x32 with one exit: 0.56 G. ViT-B/16 at 224x224: 17.6 G.

    The cost of the early heads is negligible.
    """
    with torch.device("meta"):
        resnet = multiply_adds(resnet18(), torch.zeros(1, 3, 32, 32))
        vit = multiply_adds(vit_b16(classes=1000), torch.zeros(1, 3, 224, 224))
    assert round(resnet[-1] / 1e9, 2) == 0.56
    assert round(vit[-1] / 1e9, 1) == 17.6
    assert list(resnet) == sorted(resnet)


def test_logits_that_are_not_the_output_of_a_module_raise(net, x):
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            logits = self.net(x)
            return [logits + 1, logits]

    with pytest.raises(ValueError, match="logits of exit 1 are not the output of a module"):
        multiply_adds(Sum(), x)
