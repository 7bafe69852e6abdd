"""The probe stage reports how a target is treated and prepares it for attacks."""

from __future__ import annotations

import re

import pytest
import torch
from tests.audits.probes.toy_targets import LINF, PLAIN, WEIGHT, Declared, N, X, Y, net, probed
from torch import nn

import saddlepoint as sp
from saddlepoint.audits import TargetError
from saddlepoint.audits.target.wrappers import ValueWithoutGrad
from saddlepoint.audits.verdict import Level, SymptomName


def findings(target):
    return [(finding.name, finding.level) for finding in probed(target).findings]


def noise(x):
    return x + 0.1 * torch.randn_like(x)


def centered(x):
    return x - x.mean(0)


def test_a_sound_net_has_no_findings():
    found = probed(net())
    assert found.findings == ()
    assert (found.defense.unit, found.defense.random) == ("example", False)
    assert found.defense.respond(X, sp.Context.seeded(0, N)).shape == (N, 3)


def test_a_list_of_logits_is_treated_as_exits_and_reported():
    target = net(after=lambda z: [2 * z, z - z.flip(1)])
    found = probed(target)
    assert isinstance(found.defense, sp.MultiExit)
    assert findings(target) == [(SymptomName.SEVERAL_EXITS, Level.NOTE)]
    answer = found.defense.respond(X, sp.Context.seeded(0, N))
    torch.testing.assert_close(answer, net(after=lambda z: z - z.flip(1))(X))


def test_probabilities_are_reported_and_attacked_through_their_logarithm():
    found = probed(net(after=lambda z: z.softmax(1)))
    assert [finding.name for finding in found.findings] == [SymptomName.PROBABILITIES]
    logits = found.defense.respond(X, sp.Context.seeded(0, N))
    torch.testing.assert_close(logits.softmax(1), net()(X).softmax(1))


def test_randomness_of_a_net_is_reported():
    found = probed(net(before=noise))
    assert found.defense.random
    assert [finding.name for finding in found.findings] == [SymptomName.RANDOM_OUTPUTS]


def test_randomness_of_a_net_follows_the_keys_and_leaves_the_global_generator_alone():
    defense = probed(net(before=noise)).defense
    state = torch.random.get_rng_state()
    first, again, other = (defense.respond(X, sp.Context.seeded(s, N)) for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_noise_is_distinguished_from_rounding_in_half_precision(dtype):
    noisy = net(after=lambda z: (z + 0.5 * torch.randn_like(z)).to(dtype))
    assert probed(noisy).defense.random
    assert not probed(net(after=lambda z: z.to(dtype))).defense.random


def test_batch_statistics_are_reported_and_batches_are_attacked_together():
    found = probed(net(before=centered))
    assert SymptomName.COUPLED_ROWS in {finding.name for finding in found.findings}
    assert found.defense.unit == "batch"


def test_batch_statistics_of_a_callable_are_reported():
    inner = net(before=centered)
    found = probed(lambda x: inner(x))
    expected = [SymptomName.COUPLED_ROWS, SymptomName.NO_GRADIENT_ACCESS]
    assert [finding.name for finding in found.findings] == expected
    assert found.defense.unit == "batch"


def test_a_callable_grants_scores_and_one_that_returns_labels_grants_decisions():
    logits = net()
    assert probed(lambda x: logits(x)).defense.grants == "score"
    assert probed(lambda x: logits(x).argmax(1)).defense.grants == "decision"


def outside_torch(x):
    return torch.from_numpy(x.numpy(force=True).round(1))


def other_shape_outside_torch(x):
    """Two numbers that are computed outside torch from all pixels."""
    pixels = x.numpy(force=True).reshape(len(x), -1)
    sums = torch.from_numpy(pixels.reshape(len(x), 2, -1).sum(-1))
    return x.detach() * 0 + sums.sum(1).to(x).view(-1, *[1] * (x.ndim - 1))


def test_a_missing_gradient_is_serious_and_leaves_score_access():
    target = net(before=other_shape_outside_torch)
    assert probed(target).defense.grants == "score"
    assert (SymptomName.NO_GRADIENT, Level.SERIOUS) in findings(target)


def test_a_gradient_that_is_lost_outside_torch_passes_by_the_identity():
    found = probed(net(before=outside_torch))
    assert found.defense.grants == "gradient"
    assert [site.split()[-1] for site in found.facts.bypassed] == ["from_numpy"]
    assert [symptom.level for symptom in found.findings] == [Level.WARNING]


def test_a_zero_gradient_that_cannot_be_bypassed_is_serious():
    target = net(before=lambda x: x * (x > 2))
    assert (SymptomName.ZERO_GRADIENTS, Level.SERIOUS) in findings(target)


@pytest.mark.parametrize(
    ("site", "before"),
    [
        (r"toy_targets\.py:\d+ round", torch.round),
        (r"toy_targets\.py:\d+ detach", torch.Tensor.detach),
        (r"test_stage\.py:\d+ gt", lambda x: (x > 0.5).float()),
    ],
)
def test_functions_without_a_gradient_are_bypassed(site, before):
    found = probed(net(before=before))
    assert len(found.facts.bypassed) == 1
    assert re.fullmatch(site, found.facts.bypassed[0])
    assert found.defense.grants == "gradient"
    assert {finding.level for finding in found.findings} == {Level.WARNING}


class SquareRoot(nn.Module):
    """The identity, with a NaN gradient."""

    def forward(self, x):
        return x + (x - x).abs().sqrt()


def test_a_layer_with_a_gradient_that_is_not_finite_is_bypassed():
    torch.manual_seed(0)
    target = nn.Sequential(SquareRoot(), nn.Flatten(), nn.Linear(16, 3)).eval()
    found = probed(target)
    assert found.facts.bypassed == ("0",)
    assert findings(target) == [(SymptomName.NON_FINITE_GRADIENTS, Level.WARNING)]
    rules = {"0": sp.BPDA()}
    x = X.clone().requires_grad_()
    ctx = sp.Context(sp.Context.seeded(0, N).keys, rules)
    (grad,) = torch.autograd.grad(found.defense.respond(x, ctx)[:, 0].sum(), x)
    expected = target[2].weight[0].view(1, 1, 4, 4).expand_as(X)
    torch.testing.assert_close(grad, expected)


def test_a_net_with_other_outputs_under_attack_gets_values_of_a_user_and_gradients_of_an_attacker():
    target = net(before=lambda x: x * (-1.0 if x.requires_grad else 1.0))
    found = probed(target)
    assert isinstance(found.defense, ValueWithoutGrad)
    assert (SymptomName.GRADIENT_MODE, Level.SERIOUS) in findings(target)
    x = X.clone().requires_grad_()
    value = found.defense.respond(x, sp.Context.seeded(0, N))
    torch.testing.assert_close(value.detach(), PLAIN(X), rtol=0, atol=0)
    (grad,) = torch.autograd.grad(value[:, 0].sum(), x)
    torch.testing.assert_close(grad, -WEIGHT[:, 0].view(1, 1, 4, 4).expand_as(X))


DECLARATIONS = {
    "random": (lambda x, ctx: PLAIN(x + 0.1 * ctx.randn_like(x)), {"random": True}),
    "coupled": (lambda x, ctx: PLAIN(x - x.mean(0)), {"coupled": True}),
}


@pytest.mark.parametrize("name", DECLARATIONS)
def test_a_wrong_declaration_is_rejected_and_the_right_one_accepted(name):
    fn, declared = DECLARATIONS[name]
    assert probed(Declared(fn, **declared)).findings == ()
    with pytest.raises(TargetError, match=name):
        probed(Declared(fn))


def test_a_defense_must_draw_its_randomness_from_the_context():
    fn = Declared(lambda x, ctx: PLAIN(x + 0.1 * torch.randn_like(x)), random=True)
    with pytest.raises(TargetError, match="same randomness"):
        probed(fn)


def test_a_net_declared_random_need_not_declare_coupled_rows():
    assert probed(sp.Plain(net(before=noise), random=True)).findings == ()


class UndeclaredAdaptation(sp.Defense):
    """Adapts to every row separately, so that rows are not coupled, and does not declare it."""

    def __init__(self, shift=None):
        self.shift = shift

    def adapt(self, x, ctx):
        return UndeclaredAdaptation(x.detach().flip(-1))

    def trace(self, x, ctx):
        return sp.Trace((sp.View("final", PLAIN(x if self.shift is None else x + self.shift)),))


def test_undeclared_adaptation_is_rejected():
    denied = sp.probe(UndeclaredAdaptation(), X, Y, threat=LINF).denied
    assert denied[0].name == "adapts"
    with pytest.raises(TargetError, match="Set memory = 'batch'"):
        probed(UndeclaredAdaptation())


def test_declared_reads_must_be_enough_for_the_answer():
    class TwoViews(sp.Defense):
        reads = frozenset({"last"})

        def trace(self, x, ctx):
            first = PLAIN(x).flip(1) if ctx.keeps("first") else 0
            return sp.Trace((sp.View("last", PLAIN(x) + first),))

    with pytest.raises(TargetError, match="Set reads = None"):
        probed(TwoViews())
