"""Small nets and defenses with one property each."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

import saddlepoint as sp
from saddlepoint.audits import AuditRequest
from saddlepoint.audits.probes.stage import probe_stage
from saddlepoint.audits.verdict import SymptomName
from saddlepoint.evaluation import Threat

N = 12
LINF = sp.Linf(0.1)
X = torch.rand(N, 1, 4, 4, generator=torch.Generator().manual_seed(0))
WEIGHT = torch.randn(16, 3, generator=torch.Generator().manual_seed(1))
Y = (X.flatten(1) @ WEIGHT).argmax(1)


def probed(target, x=X, y=Y, space=LINF):
    """The result of the probe stage. Some targets are at chance, which is left out."""
    found = probe_stage(AuditRequest(target, x, y, Threat(space), allow_unusual=True))
    others = tuple(one for one in found.findings if one.name is not SymptomName.UNUSUAL)
    return replace(found, findings=others)


class Net(nn.Module):
    """A linear net with three classes, and functions before and after it."""

    def __init__(self, after=lambda z: z, before=lambda x: x):
        super().__init__()
        self.weight = nn.Parameter(WEIGHT.clone())
        self.before = before
        self.after = after

    def forward(self, x):
        return self.after(self.before(x).flatten(1) @ self.weight)


def net(**functions):
    return Net(**functions).eval()


PLAIN = Net()


class Declared(sp.Defense):
    """A function of images and context, with declarations."""

    def __init__(self, fn, **declared):
        self.fn = fn
        for name, value in declared.items():
            setattr(self, name, value)

    def trace(self, x, ctx):
        out = self.fn(x, ctx)
        return out if isinstance(out, sp.Trace) else sp.Trace((sp.View("final", out),))


class Counting(nn.Module):
    """Has other outputs at every call."""

    def __init__(self, shift):
        super().__init__()
        self.calls = 0
        self.shift = shift
        self.net = Net()

    def forward(self, x):
        self.calls += 1
        return self.net(x) + self.shift * self.calls


class Caching(nn.Module):
    """Caches every image, and returns the cached output for images near to it."""

    def __init__(self, distance):
        super().__init__()
        self.seen = []
        self.outputs = []
        self.distance = distance
        self.net = Net()

    def forward(self, x):
        rows = []
        for row in x:
            near = [(old - row).abs().amax() < self.distance for old in self.seen]
            if any(near):
                rows.append(self.outputs[near.index(True)])
                continue
            self.seen.append(row.detach().clone())
            self.outputs.append(self.net(row[None]).detach())
            rows.append(self.net(row[None]))
        return torch.cat(rows)


class Tracking(nn.Module):
    """Counts calls in a buffer."""

    def __init__(self, counts):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.counts = counts
        self.net = Net()

    def forward(self, x):
        if self.counts:
            self.count += 1
        return self.net(x)
