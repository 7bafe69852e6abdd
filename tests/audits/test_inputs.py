"""Targets and threat models as people have them lead to the same numbers."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.audits.probes.toy_targets import X, Y, net, probed
from torch import nn

import saddlepoint as sp
from saddlepoint.audits import TargetError
from saddlepoint.audits.inputs import read_defense, read_target, read_threat
from saddlepoint.defenses import (
    BinaryLogits,
    BinaryProbabilities,
    BlackBox,
    Context,
    MultiExit,
    Plain,
    SelectLogits,
)
from saddlepoint.evaluation import Threat

SPACE = sp.Linf(0.1)
LOGITS = net()(X).detach()
SIGN = (LOGITS[:, 0] > 0).long()


class ImageClassifierOutput(OrderedDict):
    """Like the outputs of transformers: a mapping whose values are attributes as well."""

    def __getattr__(self, name):
        return self[name]


def answer(target, y=Y):
    defense = read_defense(target, X, y, SPACE)
    return defense, defense.respond(X, Context.seeded(0, len(X)))


@pytest.mark.parametrize(
    "after",
    [
        lambda z: z,
        lambda z: SimpleNamespace(logits=z, hidden_states=None),
        lambda z: {"logits": z, "embedding": z @ z.new_ones(3, 5)},
        lambda z: ImageClassifierOutput(loss=None, logits=z),
        lambda z: (z, z.new_ones(len(z), 7, 7, 7)),
        lambda z: [z.flip(1), z],
    ],
    ids=["tensor", "attribute", "dict", "transformers", "tuple", "exits"],
)
def test_logits_are_found_in_the_output_of_a_module(after):
    _, logits = answer(net(after=after))
    assert torch.equal(logits, LOGITS)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("kind", ["traced", "scripted", "frozen"])
def test_modules_of_torchscript_are_evaluated(kind):
    layers = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).eval()
    made = torch.jit.trace(layers, X) if kind == "traced" else torch.jit.script(layers)
    made = torch.jit.freeze(made) if kind == "frozen" else made
    _, logits = answer(made)
    assert torch.allclose(logits, layers(X))


def test_a_compiled_module_is_evaluated_by_its_original():
    inner = net()
    compiled = torch.compile(inner, backend="eager")
    defense, logits = answer(compiled)
    assert isinstance(defense, Plain)
    assert torch.equal(logits, LOGITS)


@pytest.mark.parametrize(
    "convert",
    [
        lambda z: z.numpy(),
        lambda z: z.double().numpy(),
        lambda z: z.tolist(),
        lambda z: {"logits": z.numpy(), "probabilities": z.softmax(1).numpy()},
        lambda z: SimpleNamespace(logits=z),
    ],
    ids=["array", "float64", "list", "dict", "attribute"],
)
def test_callables_may_return_arrays_and_lists(convert):
    inner = net()
    defense, logits = answer(lambda x: convert(inner(x).detach()))
    assert isinstance(defense, BlackBox)
    assert torch.allclose(logits, LOGITS)


def test_callables_may_return_labels_as_an_array():
    inner = net()
    defense, logits = answer(lambda x: inner(x).argmax(1).numpy())
    assert defense.grants == "decision"
    assert torch.equal(logits.argmax(1), LOGITS.argmax(1))


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_one_logit_per_image_becomes_two_classes(shape):
    defense, logits = answer(net(after=lambda z: z[:, 0].reshape(shape)), SIGN)
    assert isinstance(defense, Plain)
    assert torch.equal(logits.argmax(1), SIGN)
    binary = nn.functional.binary_cross_entropy_with_logits(LOGITS[:, 0], SIGN.float())
    assert torch.allclose(nn.functional.cross_entropy(logits, SIGN), binary)


def test_a_dict_with_one_logit_per_image_and_a_callable_with_one_score():
    _, logits = answer(net(after=lambda z: {"logits": z[:, :1]}), SIGN)
    inner = net()
    _, scores = answer(lambda x: inner(x)[:, 0].detach().numpy(), SIGN)
    assert torch.equal(logits.argmax(1), SIGN)
    assert torch.allclose(logits, scores)


def test_two_classes_are_reported_once():
    found = probed(net(after=lambda z: z[:, 0]), X, SIGN).findings
    notes = [symptom for symptom in found if "class 1 against class 0" in symptom.message]
    assert len(notes) == 1
    assert "[N]" in notes[0].message


def test_numbers_between_0_and_1_may_be_logits_or_probabilities_and_the_wrappers_decide():
    probability = net(after=lambda z: z[:, 0].sigmoid())
    with pytest.raises(TargetError, match=r"BinaryLogits\(net\).*BinaryProbabilities\(net\)"):
        answer(probability, SIGN)
    _, read = answer(BinaryProbabilities(probability), SIGN)
    assert torch.equal(read.argmax(1), SIGN)
    assert torch.allclose(read.softmax(1)[:, 1], LOGITS[:, 0].sigmoid())
    _, as_logits = answer(BinaryLogits(probability), SIGN)
    assert (as_logits.argmax(1) == 1).all()


def test_one_number_per_image_cannot_answer_ten_classes():
    with pytest.raises(TargetError, match="two classes, but labels go up to 2"):
        answer(net(after=lambda z: z[:, 0]))


def test_a_tuple_of_several_logits_has_two_readings_and_the_error_shows_both():
    pair = net(after=lambda z: (z.flip(1), z))
    with pytest.raises(TargetError, match=r"SelectLogits\(net, 0\).*sp\.MultiExit\(net\)"):
        answer(pair)
    _, first = answer(SelectLogits(pair, 0))
    assert torch.equal(first, LOGITS.flip(1))
    _, last = answer(MultiExit(pair))
    assert torch.equal(last, LOGITS)


def test_a_callable_with_several_arrays_is_rejected():
    with pytest.raises(TargetError, match="the exit that answers"):
        answer(lambda x: [np.ones((len(x), 3)), np.ones((len(x), 3))])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (0.03, sp.Linf(0.03)),
        (1, sp.Linf(1.0)),
        ("8/255", sp.Linf(8 / 255)),
        ("0.5", sp.Linf(0.5)),
        (sp.L2("1/2"), sp.L2(0.5)),
        (sp.Linf("8/255"), sp.Linf(8 / 255)),
        (sp.L1("12"), sp.L1(12)),
        (Threat(sp.L2(1.0), access="score"), Threat(sp.L2(1.0), access="score")),
    ],
)
def test_a_threat_may_be_a_radius_a_set_or_a_threat_model(given, expected):
    expected = expected if isinstance(expected, Threat) else Threat(expected)
    assert read_threat(given) == expected


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("linf", r"threat=sp\.Linf\('8/255'\)"),
        ("Linf", r"threat=sp\.Linf\('8/255'\)"),
        ("l2", r"threat=sp\.L2\(0\.5\)"),
        ("L_1", r"threat=sp\.L1\(12\)"),
        ("8/0", r"sp\.Linf\('8/255'\)"),
        ("large", r"sp\.Linf\('8/255'\)"),
    ],
)
def test_a_norm_without_a_radius_is_an_error_with_the_line_that_decides(given, line):
    with pytest.raises(ValueError, match=line):
        read_threat(given)


def test_a_radius_that_is_no_number_is_an_error():
    with pytest.raises(ValueError, match="such as 8/255"):
        sp.Linf("eight")


def test_other_targets_and_threats_are_errors():
    with pytest.raises(TargetError, match="Load the model first"):
        read_target("resnet18")
    with pytest.raises(TargetError, match="pass the path"):
        read_target(SimpleNamespace(get_inputs=1, run=2))
    with pytest.raises(TypeError, match="got list"):
        read_threat([0.1])


def test_images_with_channels_last_are_recognized_in_the_error():
    layers = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten()).eval()
    x = torch.rand(4, 8, 8, 3)
    with pytest.raises(TargetError, match=r"permute\(0, 3, 1, 2\)"):
        sp.evaluate(layers, [sp.Direct("pgd", sp.PGD())], x, torch.zeros(4).long(), threat=0.1)


def test_a_randomized_and_a_coupled_module_are_measured():
    noisy, _ = answer(net(before=lambda x: x + torch.randn_like(x)))
    coupled, _ = answer(net(before=lambda x: x - x.mean(0)))
    assert (noisy.random, noisy.coupled) == (True, False)
    assert (coupled.random, coupled.coupled) == (False, True)


def test_evaluate_and_audit_of_a_module_agree_with_its_defense():
    attacks = [sp.Direct("pgd", sp.PGD(steps=5))]
    of_net = sp.evaluate(net(), attacks, X.numpy(), Y.tolist(), threat="0.1")
    of_defense = sp.evaluate(sp.Plain(net()), attacks, X, Y, threat=sp.Linf(0.1))
    assert torch.equal(of_net.correct, of_defense.correct)
    assert 0 < float(of_net.accuracy()) < 1


class LazyRegistry(OrderedDict):
    """Like the registries of transformers: entries are created when they are read."""

    def __getitem__(self, name):
        raise RuntimeError("an entry was created by a probe")

    def items(self):
        return [(name, self[name]) for name in self]


REGISTRY = LazyRegistry(relu=nn.ReLU)


def test_probes_do_not_create_entries_of_registries():
    _, logits = answer(net(after=lambda z: z * len(REGISTRY)))
    assert torch.equal(logits, LOGITS)


def test_a_probe_reads_targets_data_and_threats_as_an_audit_does():
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x):
            return {"logits": self.net(x)}

    expected = sp.probe(net(), X, Y, threat=sp.Linf(0.1)).record()
    batches = [(X[:5], Y[:5]), (X[5:], Y[5:])]
    assert sp.probe(net(), batches, threat=0.1).record() == expected
    assert sp.probe(net(), X.numpy(), Y.tolist(), threat="1/10").record() == expected
    measured = {trait["name"] for trait in sp.probe(Wrapped(), X, Y, threat=0.1).record()}
    assert measured == {trait["name"] for trait in expected}
    scores = sp.probe(lambda x: net()(x).detach().numpy(), X, Y, threat=0.1)
    assert scores["random"].present is False
