"""State outside of a net: calls that depend on it are separated, others are left alone."""

from __future__ import annotations

import functools
from typing import ClassVar

import pytest
import torch
from tests.audits.probes.toy_targets import LINF, WEIGHT, X, Y
from torch import nn

import saddlepoint as sp
from saddlepoint.audits import AuditRequest
from saddlepoint.audits.probes.stage import probe_stage
from saddlepoint.audits.target.outside import Isolated
from saddlepoint.audits.target.standard_form import standard_form
from saddlepoint.audits.verdict import Level, SymptomName

CACHE: dict[bytes, torch.Tensor] = {}
LOG: list[int] = []
CALLS = 0


class Linear(nn.Module):
    def logits(self, x):
        return x.flatten(1) @ WEIGHT.to(x)


class GlobalCache(Linear):
    def forward(self, x):
        key = x.detach().numpy().tobytes()
        if key not in CACHE:
            CACHE[key] = self.logits(x)
        return CACHE[key].detach() if len(CACHE) > 1 else CACHE[key]


class ClassCache(Linear):
    cache: ClassVar[dict[bytes, torch.Tensor]] = {}

    def forward(self, x):
        key = x.detach().numpy().tobytes()
        if key in self.cache:
            return self.cache[key]
        z = self.logits(x)
        self.cache[key] = z.detach()
        return z


@functools.lru_cache
def remembered(pixels, shape):
    x = torch.frombuffer(bytearray(pixels), dtype=torch.float32).view(shape)
    return x.flatten(1) @ WEIGHT.to(x)


class FunctionCache(Linear):
    """The first output for an image has a gradient, later ones come from a cache."""

    def forward(self, x):
        key = (x.detach().numpy().tobytes(), tuple(x.shape))
        hits = remembered.cache_info().hits
        known = remembered(*key)
        return known if remembered.cache_info().hits > hits else self.logits(x)


class ClassCounter(Linear):
    """From its 21st call on it has other outputs, whichever copy is called."""

    calls = 0

    def forward(self, x):
        type(self).calls += 1
        return self.logits(x if type(self).calls <= 20 else x.round())


class GlobalCounter(Linear):
    def forward(self, x):
        global CALLS
        CALLS += 1
        return self.logits(x if CALLS <= 20 else x.round())


class Logging(Linear):
    def forward(self, x):
        LOG.append(len(x))
        return self.logits(x)


NETS = (GlobalCache, ClassCache, FunctionCache, ClassCounter, GlobalCounter)


def probed(net):
    return probe_stage(AuditRequest(net.eval(), X, Y, sp.Threat(LINF)))


@pytest.mark.parametrize("kind", NETS)
def test_every_call_has_the_outputs_and_gradients_of_the_first_one(kind):
    net = kind().eval()
    found = probed(net)
    expected = Linear().logits(X)
    for _ in range(25):
        x = X.clone().requires_grad_()
        out = found.defense.respond(x, sp.Context.seeded(0, len(X)))
        assert torch.allclose(out, expected)
        assert torch.autograd.grad(out.sum(), x)[0].abs().sum() > 0
    (note,) = [one for one in found.findings if one.name is SymptomName.OUTSIDE_STATE]
    assert note.level is Level.WARNING


def test_a_cache_filled_before_the_audit_does_not_hide_gradients():
    net = ClassCache().eval()
    with torch.no_grad():
        net(X[:16])
        net(X)
    filled = len(ClassCache.cache)
    found = probed(net)
    x = X.clone().requires_grad_()
    assert found.defense.respond(x, sp.Context.seeded(0, len(X))).requires_grad
    assert len(ClassCache.cache) == filled
    ClassCache.cache.clear()


def test_a_log_outside_of_a_net_is_noted_and_still_written():
    LOG.clear()
    form = standard_form(Logging().eval(), X)
    assert not isinstance(form.target, Isolated)
    assert [note.level for note in form.notes] == [Level.NOTE]
    assert sum(LOG) > 0


def test_a_net_without_state_outside_is_returned_unchanged():
    net = nn.Sequential(nn.Flatten(), nn.Linear(X[0].numel(), 3)).eval()
    form = standard_form(net, X)
    assert form.target is net
    assert form.notes == ()
