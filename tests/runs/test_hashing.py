"""What tells two pieces of work apart: a kept cell must never be taken for another."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from saddlepoint.audits.plan import plan
from torch import nn

import saddlepoint as sp
from saddlepoint.attacks.aims import expected
from saddlepoint.attacks.losses import saturated
from saddlepoint.locate import locate
from saddlepoint.runs.work import Work

X = torch.rand(8, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(8) % 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3, generator=torch.Generator().manual_seed(1)))

    def forward(self, x):
        return x @ self.weight


def key(net=None, threat=None, **direct):
    adversary = sp.Direct("pgd", sp.PGD(2), **direct)
    planned = plan(
        (net or Net()).eval(), X, Y, threat=threat or sp.Linf(0.1), adversaries=[adversary]
    )
    return Work.of(planned).keys[0, 1]


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
    "numpy's radius": ({"threat": sp.Linf(np.float32(0.1))}, {"threat": sp.Linf(np.float32(0.2))}),
    "torch's radius": (
        {"threat": sp.Linf(torch.tensor(0.1))},
        {"threat": sp.Linf(torch.tensor(0.2))},
    ),
    "numpy's step": (
        {"loss": saturated(sp.margin, np.float32(0.1))},
        {"loss": saturated(sp.margin, np.float32(0.2))},
    ),
}


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_work_that_differs_has_other_keys_and_the_same_work_the_same(one, other):
    assert key(**one) == key(**one)
    assert key(**one) != key(**other)


def test_a_net_that_answers_as_before_with_another_gradient_is_another_target(tmp_path):
    before = "from torch import nn\nclass Net(nn.Module):\n    def forward(self, x):\n        return x.detach()[:, :3] + 0 * x.sum()\n"
    (tmp_path / "before.py").write_text(before)
    (tmp_path / "after.py").write_text(before.replace(".detach()", ""))
    first, second = (locate(f"{tmp_path / name}.py:Net")() for name in ("before", "after"))
    assert torch.equal(first(X), second(X))
    assert key(first) != key(second)


def test_layers_that_share_a_name_have_the_same_key_in_every_process(tmp_path):
    """A set of classes is ordered by their addresses, which differ from process to process: four of them rarely agree by luck."""
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
