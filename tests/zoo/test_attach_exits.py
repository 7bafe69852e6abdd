"""Exits on an ordinary network: the heads see the network's own features, and the network stays as it was."""

import copy
import threading

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.testing import assert_close

import saddlepoint as sp
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


def assert_untouched(net, before):
    weights, modes = before
    assert_close(dict(net.state_dict()), weights, **EXACT)
    assert [m.training for m in net.modules()] == modes
    assert not any(m._forward_hooks for m in net.modules())


def test_exits_are_the_heads_on_the_networks_own_features(net, x):
    net.eval()
    first = head(4)
    second = head(6)
    shown = attach_exits(net, {"layer1.0": second, "stem": first})(x)
    stem = net.stem(x)
    assert_close(
        shown, [first(stem), second(net.layer1[0](stem)), net(x)], **EXACT
    )  # in the order of the forward pass


def test_it_is_a_public_name():
    assert sp.attach_exits is attach_exits


def test_missing_heads_are_sized_by_an_example_and_the_network_is_left_alone(net, x):
    before = snapshot(net)
    attached = attach_exits(net, {"stem": None, "layer2": None}, example=x[:1])
    assert_untouched(net, before)
    assert [
        tuple(m.weight.shape) for m in attached.heads.modules() if isinstance(m, nn.Linear)
    ] == [(CLASSES, 4), (CLASSES, 8)]
    net.eval()
    linear = attached.heads[0][1]
    assert_close(attached(x)[0], linear(net.stem(x).mean((2, 3))), **EXACT)
    assert [tuple(z.shape) for z in attached(x)] == [(N, CLASSES)] * 3
    assert attached.exits == 3


def test_tokens_are_averaged_by_a_default_head(x):
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


def test_no_hook_stays_behind_and_copies_answer_for_themselves(net, x):
    attached = attach_exits(net, {"layer1": head(6)}).eval()
    shown = attached(x)
    assert not any(m._forward_hooks for m in attached.modules())
    twin = copy.deepcopy(attached)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert twin(x)[0].abs().amax() == 0
    assert_close(attached(x), shown, **EXACT)


def test_hooks_are_gone_when_a_pass_fails(net):
    attached = attach_exits(net, {"layer1": head(6)})
    with pytest.raises(RuntimeError):
        attached(torch.zeros(2, 7, 8, 8).double())
    assert not any(m._forward_hooks for m in attached.modules())


def test_gradients_flow_to_the_input_and_none_are_kept_without_grad(net, x):
    attached = attach_exits(net, {"layer1": head(6)}).eval()
    x = x.requires_grad_()
    early, last = attached(x)
    (grad,) = torch.autograd.grad(early.sum() + last.sum(), x)
    assert (grad != 0).any()
    with torch.no_grad():
        assert not any(z.requires_grad for z in attached(x))


def test_it_can_be_called_as_a_function_of_its_parameters(net, x):
    attached = attach_exits(net, {"layer1": head(6)}).eval()
    doubled = {name: 2 * p for name, p in attached.named_parameters() if name.startswith("heads")}
    assert_close(functional_call(attached, doubled, x)[0], 2 * attached(x)[0], rtol=0, atol=1e-12)


def test_threads_that_share_the_network_do_not_answer_for_each_other(net):
    """Both passes are inside the network at the same time; each must see its own features."""
    meet = threading.Barrier(2, timeout=20)

    class Meeting(nn.Module):
        def forward(self, z):
            meet.wait()
            return z

    net.stem.append(Meeting())
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


def test_exits_upon_exits(net, x):
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
    shown = outer(x)
    assert_close([shown[1], shown[2]], inner(x), **EXACT)


def steps(attached, x, y):
    optimizer = torch.optim.SGD(attached.parameters(), 0.1, weight_decay=1e-2)
    losses = []
    for _ in range(8):
        loss = torch.stack([nn.functional.cross_entropy(z, y) for z in attached(x)]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_frozen_network_is_a_copy_that_training_does_not_change(net, x):
    y = torch.arange(N) % CLASSES
    before = snapshot(net)
    attached = attach_exits(net, {"layer1": None, "stem": None}, example=x, freeze=True).train()
    losses = steps(attached, x, y)
    assert losses[-1] < losses[0]
    assert_untouched(net, before)
    assert all(p.requires_grad for p in net.parameters())
    assert_close(dict(attached.net.state_dict()), before[0], **EXACT)  # running statistics too
    assert not any(m.training for m in attached.net.modules())
    assert all(m.training for m in attached.heads.modules())


def test_joint_training_changes_the_network_given(net, x):
    weights = snapshot(net)[0]
    attached = attach_exits(net, {"layer1": head(6)}).train()
    losses = steps(attached, x, torch.arange(N) % CLASSES)
    assert losses[-1] < losses[0]
    assert attached.net is net
    assert not torch.equal(net.stem[0].weight, weights["stem.0.weight"])


def test_an_unknown_layer_is_answered_with_the_nearest(net):
    with pytest.raises(ValueError, match=r"no layer called 'layer_2'\. Nearest: 'layer2'"):
        attach_exits(net, {"layer_2": head(8)})
    with pytest.raises(ValueError, match=r"no layer called 'QQQQ'\. Nearest: 'stem', 'layer1'"):
        attach_exits(net, {"QQQQ": head(8)})
    with pytest.raises(ValueError, match="given no layer"):
        attach_exits(net, {})


def test_a_layer_that_is_not_reached_or_reached_twice_is_refused(net, x):
    unused = nn.Linear(2, CLASSES)
    with pytest.raises(ValueError, match=r"never calls \['unused'\]"):
        attach_exits(net, {"unused": unused}, example=x)
    with pytest.raises(ValueError, match=r"never calls \['unused'\]"):
        attach_exits(net, {"unused": None}, example=x)
    with pytest.raises(ValueError, match=r"never calls \['unused'\]"):
        attach_exits(net, {"unused": unused})(x)
    with pytest.raises(ValueError, match="'act' is reached more than once"):
        attach_exits(net, {"act": head(8)})(x)


def test_heads_that_disagree_are_refused(net, x):
    other = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 7)).double()
    with pytest.raises(
        ValueError,
        match=r"agree on the number of classes, found \{'layer1': 7, 'the network itself': 3\}",
    ):
        attach_exits(net, {"layer1": other}, example=x)
    with pytest.raises(
        ValueError, match=r"'layer1' answers \[5, 6, 6, 6\], expected logits \[N, C\]"
    ):
        attach_exits(net, {"layer1": nn.Identity()}, example=x)
    with pytest.raises(ValueError, match=r"no head was given for \['layer1'\]: pass example"):
        attach_exits(net, {"layer1": None})
    with pytest.raises(ValueError, match="'the network itself' answers list"):
        attach_exits(resnet18(2, in_channels=1), {"stem": None}, example=x.float())


def test_costs_add_up_layer_by_layer(net):
    """Of an 8x8 picture: 64 pixels x 9 x 1 x 4 in the stem, 36 x 9 x 4 x 6, 16 x 9 x 6 x 8, and the linear layers."""
    attached = attach_exits(net, {"stem": head(4), "layer1": head(6)})
    stem = 64 * 9 * 4
    first = 36 * 9 * 24
    second = 16 * 9 * 48
    expected = (stem + 12, stem + 12 + first + 18, stem + 12 + first + 18 + second + 24)
    assert multiply_adds(attached, torch.zeros(3, 1, 8, 8).double()) == expected
    assert multiply_adds(net, torch.zeros(1, 1, 8, 8).double()) == (stem + first + second + 24,)
    assert not any(m._forward_hooks for m in attached.modules())


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_attention_is_counted_wherever_it_is_computed(device):
    """16 tokens and the class token of 24 numbers: four products of width 24^2, two of 24 x 4 x 24, and two of tokens^2 x 24."""
    with torch.device(device):
        net = vit_small(8, 2, 24, 4, 3, in_channels=1)
        found = multiply_adds(net, torch.zeros(2, 1, 8, 8))
    tokens = 17
    embed = 16 * 4 * 24
    linear = 24 * 10
    block = tokens * (4 * 24**2 + 8 * 24**2) + 2 * tokens**2 * 24
    assert found == tuple(embed + k * (block + linear) for k in range(1, 5))


def test_torchs_own_attention_layer_is_counted():
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
    """ResNet-18 at 32x32: 0.56 G with one exit; ViT-B/16 at 224x224: 17.6 G. Early heads add next to nothing."""
    with torch.device("meta"):
        resnet = multiply_adds(resnet18(), torch.zeros(1, 3, 32, 32))
        vit = multiply_adds(vit_b16(classes=1000), torch.zeros(1, 3, 224, 224))
    assert round(resnet[-1] / 1e9, 2) == 0.56
    assert round(vit[-1] / 1e9, 1) == 17.6
    assert list(resnet) == sorted(resnet)


def test_logits_of_no_module_have_no_cost(net, x):
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            logits = self.net(x)
            return [logits + 1, logits]

    with pytest.raises(ValueError, match="logits of exit 1 come from no module"):
        multiply_adds(Sum(), x)
