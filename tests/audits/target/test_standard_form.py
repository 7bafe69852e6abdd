"""Compiled and scripted modules, other outputs than tensors, and hooks of copies."""

from __future__ import annotations

import math
import weakref
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from tests.audits.probes.toy_targets import LINF, WEIGHT, X, Y
from torch import nn

import saddlepoint as sp
from saddlepoint.audits import AuditRequest, TargetError
from saddlepoint.audits.probes.stage import probe_stage
from saddlepoint.audits.target.copy import copy_target
from saddlepoint.audits.target.rounding import alike
from saddlepoint.audits.verdict import Level, SymptomName

Named = namedtuple("Named", ["logits", "auxiliary"])


@dataclass
class Output:
    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...] = ()


class Returns(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.form = form
        self.layer = nn.Linear(*WEIGHT.shape, bias=False, dtype=X.dtype)
        self.layer.weight = nn.Parameter(WEIGHT.T.to(X.dtype))

    def forward(self, x):
        return self.form(self.layer(x.flatten(1)))


def probed(net):
    return probe_stage(AuditRequest(net, X, Y, sp.Threat(LINF)))


def outputs(net):
    found = probed(net)
    return found, found.defense.respond(X, sp.Context.seeded(0, len(X)))


EXPECTED = X.flatten(1) @ WEIGHT.to(X)
FORMS = {
    "named tuple": lambda z: Named(z, None),
    "named tuple of two": lambda z: Named(z, -z),
    "dictionary": lambda z: {"loss": None, "logits": z},
    "one entry": lambda z: {"scores": z},
    "data class": lambda z: Output(z, (z, z)),
    "tuple with a number": lambda z: (z, z.mean()),
    "tuple with features": lambda z: (z, z[:, None, :]),
    "scores of a convolution": lambda z: {"logits": z[:, :, None, None], "auxiliary": None},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_logits_are_selected_from_other_outputs(form):
    found, out = outputs(Returns(form).eval())
    assert torch.equal(out, EXPECTED)
    (note,) = [one for one in found.findings if one.name is SymptomName.SELECTED_LOGITS]
    assert note.level is Level.NOTE


@pytest.mark.parametrize("form", [lambda z: (z, -z), lambda z: {"a": z, "b": z}, lambda z: (1, 2)])
def test_an_output_with_several_or_no_logits_is_refused(form):
    with pytest.raises(TargetError, match=r"SelectLogits|a module that returns its logits"):
        outputs(Returns(form).eval())


def test_a_compiled_net_is_audited_through_its_original():
    net = Returns(lambda z: z).eval()
    found, out = outputs(torch.compile(net, backend="eager"))
    assert torch.equal(out, EXPECTED)
    assert found.defense.net is net
    (note,) = [one for one in found.findings if one.name is SymptomName.COMPILED]
    assert note.level is Level.NOTE


class Quantized(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(WEIGHT.to(X.dtype))

    def forward(self, x):
        return ((x * 8).round() / 8).flatten(1) @ self.weight


COMPILERS = {
    "scripted": torch.jit.script,
    "traced": lambda net: torch.jit.trace(net, X),
    "frozen": lambda net: torch.jit.freeze(torch.jit.script(net)),
}


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
@pytest.mark.parametrize("compiled", COMPILERS.values(), ids=COMPILERS)
def test_a_quantizer_inside_a_scripted_net_is_a_serious_finding(compiled):
    found, _ = outputs(compiled(Quantized().eval()))
    levels = {one.name: one.level for one in found.findings}
    assert levels[SymptomName.SCRIPTED] is Level.NOTE
    assert levels[SymptomName.ZERO_GRADIENTS] is Level.SERIOUS


class Gated(nn.Module):
    """Chooses by its scores, image by image."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(WEIGHT.to(X.dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outs = []
        for i in range(x.size(0)):
            z = x[i : i + 1].flatten(1) @ self.weight
            if float(z.softmax(1).amax()) > 0.6:
                outs.append(z)
            else:
                outs.append(-z)
        return torch.cat(outs)


class WithOptions(nn.Module):
    """Chooses by shapes and options only."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(WEIGHT.to(X.dtype))
        self.drop = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(WEIGHT.shape[1], dtype=X.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = x.flatten(1) @ self.weight
        if x.dim() > 2:
            z = self.drop(z)
        return self.norm(z)


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
@pytest.mark.parametrize("freeze", [lambda net: net, torch.jit.freeze], ids=["scripted", "frozen"])
def test_a_decision_inside_a_scripted_net_is_a_serious_finding(freeze):
    def decides(net):
        findings = probed(freeze(torch.jit.script(net.eval()))).findings
        found = [one.level for one in findings if one.name is SymptomName.HIDDEN_DECISIONS]
        return found == [Level.SERIOUS]

    assert decides(Gated())
    assert not decides(WithOptions())


class ByHook(nn.Module):
    """Its features come through a hook that refers to it."""

    def __init__(self, refer):
        super().__init__()
        self.flat = nn.Flatten()
        owner = refer(self)

        def hook(module, inputs, out):
            (owner() if isinstance(owner, weakref.ref) else owner).features = out

        def outer(*args):
            hook(*args)

        self.flat.register_forward_hook(outer)

    def forward(self, x):
        self.flat(x)
        return self.features @ WEIGHT.to(x)


@pytest.mark.parametrize("refer", [lambda net: net, weakref.ref], ids=["strong", "weak"])
def test_hooks_of_a_copy_write_into_the_copy(refer):
    net = ByHook(refer).eval()
    copied = copy_target(net)
    copied(X)
    assert hasattr(copied, "features")
    assert not hasattr(net, "features")
    _, out = outputs(net)
    assert torch.equal(out, EXPECTED)


def test_noise_beside_almost_equal_outputs_is_no_rounding_error():
    z = torch.randn(16, 10, generator=torch.Generator().manual_seed(0))
    p = (z / 1e4).softmax(1)
    moved = ((z + torch.randn_like(z)) / 1e4).softmax(1)
    assert not alike(p, moved)
    assert alike(p, p + 2e-7)
    assert alike(100 * z, 100 * z + 1e-3)
    assert alike(z.half(), z.half() + 0.01)


def test_dimensions_of_size_one_behind_the_classes_are_removed():
    _, out = outputs(Returns(lambda z: z[:, :, None, None]).eval())
    assert torch.equal(out, EXPECTED)


def test_integer_scores_are_converted_to_floating_point():
    found, out = outputs(Returns(lambda z: (100 * z).round().long()).eval())
    assert out.is_floating_point()
    assert torch.equal(out, (100 * EXPECTED).round())
    notes = [finding for finding in found.findings if "integers" in finding.message]
    assert [note.level for note in notes] == [Level.NOTE]


def _minus_infinity(z):
    return z.masked_fill(z == z.amin(1, keepdim=True), -torch.inf)


@pytest.mark.parametrize("wrap", [lambda net: net, lambda net: lambda x: net(x)])
def test_negative_infinite_logits_become_the_lowest_finite_ones(wrap):
    found, out = outputs(wrap(Returns(_minus_infinity).eval()))
    infinite = EXPECTED.amin(1, keepdim=True) == EXPECTED
    assert torch.equal(out[~infinite], EXPECTED[~infinite])
    finite = EXPECTED.masked_fill(infinite, torch.inf)
    assert torch.equal(out.amin(1), finite.amin(1) - 100)
    notes = [finding for finding in found.findings if "negative infinity" in finding.message]
    assert [note.level for note in notes] == [Level.NOTE]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda z: z.masked_fill(z == z.amin(1, keepdim=True), torch.nan),
        lambda z: z.masked_fill(z == z.amax(1, keepdim=True), torch.inf),
        lambda z: torch.full_like(z, -torch.inf),
    ],
    ids=["NaN", "positive infinity", "no finite logit"],
)
def test_other_logits_that_are_not_finite_are_refused(spoil):
    with pytest.raises(TargetError, match="NaN or infinite logits"):
        outputs(Returns(spoil).eval())


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        (torch.float8_e4m3fn, "module"),
        (torch.float8_e5m2, "exits"),
        (torch.int8, "callable"),
        (torch.bool, "module"),
    ],
    ids=str,
)
def test_outputs_without_arithmetic_are_converted_to_the_type_of_the_images(dtype, kind):
    def narrow(z):
        return z == z.amax(1, keepdim=True) if dtype is torch.bool else (4 * z).to(dtype)

    net = Returns(lambda z: [narrow(z), narrow(z)] if kind == "exits" else narrow(z)).eval()
    target = (lambda x: net(x)) if kind == "callable" else net
    request = AuditRequest(target, X, Y, sp.Threat(LINF), allow_unusual=True)
    found = probe_stage(request)
    out = found.defense.respond(X, sp.Context.seeded(0, len(X)))
    assert out.dtype == X.dtype
    assert torch.equal(out.argmax(1), narrow(EXPECTED).to(X.dtype).argmax(1))
    assert any("changes no class" in finding.message for finding in found.findings)


def test_exits_without_gradients_are_audited():
    net = Returns(lambda z: [(20 * z).to(torch.int8), (20 * z).to(torch.int8)]).eval()
    result = sp.audit(net, X, Y, threat=LINF, budget="quick")
    assert result.robust_accuracy <= 1.0
    assert result.verdict == "inconclusive"


def test_training_mode_without_an_effect_is_accepted_once_and_the_model_is_not_changed():
    net = Returns(lambda z: z)
    assert net.training
    found, out = outputs(net)
    notes = [each for each in found.findings if each.name == SymptomName.IN_TRAINING_MODE]
    assert [note.level for note in notes] == [Level.NOTE]
    assert torch.equal(out, EXPECTED)
    assert net.training


def test_nan_is_reported_as_nan_in_training_mode_too():
    with pytest.raises(TargetError, match="NaN or infinite logits"):
        probed(Returns(lambda z: z * math.nan))


class CountsCalls(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, z):
        if self.training:
            self.calls += 1
        return z


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.Dropout(0.5), "differ from those in evaluation mode"),
        (nn.BatchNorm1d(WEIGHT.shape[1], dtype=X.dtype), "differ from those in evaluation mode"),
        (CountsCalls(), "changes `form.calls`"),
    ],
    ids=["dropout", "batch norm", "buffer"],
)
def test_training_mode_with_an_effect_is_rejected_with_reason_and_fix(layer, reason):
    with pytest.raises(TargetError, match=rf"training mode.*{reason}.*net\.eval\(\)"):
        probed(Returns(layer))
