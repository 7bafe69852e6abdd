"""Attack loops do not wait for the device: no step reads a value of a tensor on the host."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import saddlepoint as sp
from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.projections import project_l2
from saddlepoint.attacks.spaces import L2, Linf
from saddlepoint.defenses import Plain
from saddlepoint.evaluation import Direct, Threat
from saddlepoint.evaluation.attack_context import AttackContext

READS = {"_local_scalar_dense", "nonzero", "is_nonzero", "item", "equal", "masked_select"}
X = torch.rand(6, 1, 5, 5, generator=torch.Generator().manual_seed(0))


class CountReads(TorchDispatchMode):
    """Counts operations whose result the host has to wait for."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function).split(".")[1]
        by_mask = name.startswith("index") and any(
            isinstance(at, torch.Tensor) and at.dtype == torch.bool
            for at in (args[1] if isinstance(args[1], list | tuple) else ())
        )
        self.count += name in READS or by_mask
        return function(*args, **(kwargs or {}))


@pytest.fixture
def stalling(monkeypatch):
    """A CPU that counts as a device on which the host should not read."""
    for module in ("projections", "best", "oracle"):
        monkeypatch.setattr(f"saddlepoint.attacks.{module}.reading_is_free", lambda device: False)


def net():
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)
    return nn.Sequential(*layers).eval()


def attacked(attack, space):
    model = net()
    context = AttackContext.open(Threat(space), torch.arange(len(X)), 0)
    return Direct("attack", attack).move(context, Plain(model), X, model(X).argmax(1)).point


@pytest.mark.parametrize("kind", [sp.PGD, APGD])
@pytest.mark.parametrize("space", [Linf(0.1), L2(0.7)], ids=str)
@pytest.mark.usefixtures("stalling")
def test_no_step_reads_a_value_on_the_host(kind, space):
    counts = []
    for steps in (5, 15):
        with CountReads() as reads:
            attacked(kind(steps), space)
        counts.append(reads.count)
    assert counts[0] == counts[1]


@pytest.mark.parametrize("kind", [sp.PGD, APGD])
@pytest.mark.parametrize("space", [Linf(0.1), L2(0.7)], ids=str)
def test_points_are_the_same_where_values_are_read(kind, space, request):
    expected = attacked(kind(10), space)
    request.getfixturevalue("stalling")
    assert torch.equal(attacked(kind(10), space), expected)


def test_projections_with_a_fixed_number_of_steps_are_inside(stalling):
    """A row may need more steps; it then stays inside of the ball instead of outside."""
    center = torch.rand(200, 40, generator=torch.Generator().manual_seed(1)).round()
    noise = torch.randn(200, 40, generator=torch.Generator().manual_seed(2))
    u = noise * torch.logspace(-3, 3, 40)  # coordinates become clipped one after the other
    radius = torch.linspace(0.1, 5, 200)
    d = project_l2(u, -center, 1 - center, radius)
    assert (d.norm(dim=1) <= radius * (1 + 1e-5)).all()
    assert ((d >= -center) & (d <= 1 - center)).all()
