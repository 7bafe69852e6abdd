"""Keys of cells: different work has different keys, the same work has the same key."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import saddlepoint as sp
from saddlepoint.attacks.aims import expected
from saddlepoint.attacks.losses import saturated
from saddlepoint.audits import AuditRequest, prepare
from saddlepoint.evaluation import Threat
from saddlepoint.locate import locate
from saddlepoint.runs.hashing import _fingerprint
from saddlepoint.runs.work import Work

X = torch.rand(8, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(8) % 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3, generator=torch.Generator().manual_seed(1)))

    def forward(self, x):
        return x @ self.weight


def key(net=None, space=None, **direct):
    adversary = sp.Direct("pgd", sp.PGD(2), **direct)
    threat = Threat(space or sp.Linf(0.1))
    request = AuditRequest((net or Net()).eval(), X, Y, threat, adversaries=(adversary,))
    return Work.of(prepare(request)).keys[0, 1]


def scaled(loss, logits, y, *, factor):
    return factor * loss(logits[-1], y)


def between(low, high):
    return lambda loss, logits, y: loss(logits[-1], y).clamp(low, high)


DIFFERENT = {
    "weights inside an aim": (
        {"aim": expected(torch.tensor([1.0]))},
        {"aim": expected(torch.tensor([2.0]))},
    ),
    "variables of a closure": ({"aim": between(0, 1)}, {"aim": between(0, 2)}),
    "arguments of a partial": (
        {"aim": partial(scaled, factor=1)},
        {"aim": partial(scaled, factor=2)},
    ),
    "a NumPy radius": ({"space": sp.Linf(np.float32(0.1))}, {"space": sp.Linf(np.float32(0.2))}),
    "a torch radius": (
        {"space": sp.Linf(torch.tensor(0.1))},
        {"space": sp.Linf(torch.tensor(0.2))},
    ),
    "a NumPy argument of a loss": (
        {"loss": saturated(sp.margin, np.float32(0.1))},
        {"loss": saturated(sp.margin, np.float32(0.2))},
    ),
}


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_different_work_has_different_keys_and_the_same_work_the_same_key(one, other):
    assert key(**one) == key(**one)
    assert key(**one) != key(**other)


def test_a_net_with_the_same_outputs_and_other_gradients_is_another_target(tmp_path):
    before = (
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x.detach()[:, :3] + 0 * x.sum()\n"
    )
    (tmp_path / "before.py").write_text(before)
    (tmp_path / "after.py").write_text(before.replace(".detach()", ""))
    first = locate(f"{tmp_path / 'before.py'}:Net")()
    second = locate(f"{tmp_path / 'after.py'}:Net")()
    assert torch.equal(first(X), second(X))
    assert key(first) != key(second)


@pytest.mark.slow
def test_classes_with_the_same_name_give_the_same_key_in_every_process(tmp_path):
    """A set of classes is ordered by their addresses, which differ between processes.

    Four processes rarely agree by chance.
    """
    (tmp_path / "ours.py").write_text(
        "from torch import nn\n"
        "from saddlepoint.runs.hashing import _fingerprint\n"
        "from saddlepoint.describe import digest\n"
        "class Linear(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = nn.Linear(1, 1).requires_grad_(False)\n"
        "        self.layer.weight.fill_(1.0), self.layer.bias.fill_(0.0)\n"
        "print(digest(_fingerprint(Linear(), 0)))\n"
    )
    started = [
        subprocess.Popen([sys.executable, tmp_path / "ours.py"], stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    assert len({process.communicate()[0] for process in started}) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_quantized_modules_are_fingerprinted_by_their_packed_weights():
    """Their state has types and tuples of packed weights beside tensors."""

    def quantized(bias: float) -> nn.Module:
        net = nn.Sequential(nn.Linear(6, 3))
        with torch.no_grad():
            net[0].weight.copy_(torch.ones(3, 6))
            net[0].bias.fill_(bias)
        return torch.ao.quantization.quantize_dynamic(net, {nn.Linear}, dtype=torch.qint8)

    one = _fingerprint(quantized(1.0), 0)
    assert one == _fingerprint(quantized(1.0), 0)
    assert one != _fingerprint(quantized(2.0), 0)
