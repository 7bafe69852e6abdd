"""Models and attacks of other packages, with the real packages where they are installed."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.references.hosting import imported_peer, to_points, why_missing, with_parameter
from torch import nn
from typer.testing import CliRunner

import saddlepoint as sp
from saddlepoint import zoo
from saddlepoint.audits import TargetError
from saddlepoint.audits.inputs import read_defense
from saddlepoint.audits.target.onnx_model import OnnxModel
from saddlepoint.cli import app
from saddlepoint.defenses import BlackBox, Context
from saddlepoint.runs.targets import resolve

X = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(0))
SPACE = sp.Linf(0.1)


def answer(target, x, y):
    defense = read_defense(target, x, y, SPACE)
    return defense, defense.respond(x, Context.seeded(0, len(x)))


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 4)).eval()


@pytest.mark.filterwarnings("ignore")
def test_an_image_classifier_of_transformers_is_evaluated():
    if importlib.util.find_spec("torchvision") is not None:
        import_torchvision()  # transformers imports it where it is installed
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=8,
        patch_size=4,
        num_channels=1,
        num_labels=4,
    )
    try:
        vit = transformers.ViTForImageClassification(config).eval()
    except ModuleNotFoundError as error:
        pytest.skip(f"the installed transformers has no vision models: {error}")
    expected = vit(X).logits
    y = expected.argmax(1)
    _, logits = answer(vit, X, y)
    assert torch.allclose(logits, expected, atol=1e-6)
    outcomes = sp.evaluate(vit, [sp.Direct("pgd", sp.PGD(steps=5))], X, y, threat=0.3)
    assert float(outcomes.accuracy()) < 1


@pytest.mark.filterwarnings("ignore")
def test_a_model_of_torchdeq_is_evaluated():
    torchdeq = pytest.importorskip("torchdeq", reason="torchdeq is not installed")

    class Equilibrium(nn.Module):
        """z = tanh(A z + B x), solved by torchdeq."""

        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.deq = torchdeq.get_deq(f_solver="fixed_point_iter", f_max_iter=30)
            self.inner = nn.Linear(8, 8)
            self.outer = nn.Linear(64, 8)
            self.head = nn.Linear(8, 4)
            self.inner.weight.data *= 0.3

        def forward(self, x):
            u = self.outer(x.flatten(1))
            z, _ = self.deq(lambda z: torch.tanh(self.inner(z) + u), torch.zeros_like(u))
            return self.head(z[-1])

    net = Equilibrium().eval()
    expected = net(X).detach()
    _, logits = answer(net, X, expected.argmax(1))
    assert torch.allclose(logits, expected, atol=1e-5)


def exported(net: nn.Module, path: Path, batch: int | str) -> str:
    """The net as an ONNX file, written with the helper functions of onnx."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    first = net[1]
    second = net[3]
    weights = {"a": first.weight.T, "b": first.bias, "c": second.weight.T, "d": second.bias}
    helper = onnx.helper
    graph = helper.make_graph(
        [
            helper.make_node("Flatten", ["images"], ["flat"]),
            helper.make_node("Gemm", ["flat", "a", "b"], ["hidden"]),
            helper.make_node("Relu", ["hidden"], ["active"]),
            helper.make_node("Gemm", ["active", "c", "d"], ["logits"]),
        ],
        "net",
        [helper.make_tensor_value_info("images", onnx.TensorProto.FLOAT, [batch, 1, 8, 8])],
        [
            helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, [batch, 4]),
            helper.make_tensor_value_info("active", onnx.TensorProto.FLOAT, [batch, 8]),
        ],
        [
            onnx.numpy_helper.from_array(np.ascontiguousarray(value.detach().numpy()), name)
            for name, value in weights.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.save(model, str(path))
    return str(path)


@pytest.mark.parametrize("batch", ["N", 1, 5])
def test_an_onnx_file_is_a_black_box_with_the_same_logits(batch, tmp_path):
    net = layers()
    path = exported(net, tmp_path / "net.onnx", batch)
    expected = net(X)
    y = expected.argmax(1)
    defense, logits = answer(path, X, y)
    assert isinstance(defense, BlackBox)
    assert torch.allclose(logits, expected, atol=1e-5)
    points = sp.attack(path, X, y, threat=0.2, method=sp.Square(60))
    assert (net(points).argmax(1) != y).any()


def test_an_onnx_file_is_a_target_of_the_command_line(tmp_path):
    path = exported(layers(), tmp_path / "net.onnx", "N")
    target, _ = resolve(path)
    assert isinstance(target, OnnxModel)
    assert torch.allclose(target(X)["logits"], layers()(X), atol=1e-5)


def test_onnx_files_that_are_missing_or_damaged_are_errors(tmp_path):
    with pytest.raises(TargetError, match="there is no ONNX file"):
        OnnxModel(str(tmp_path / "none.onnx"))
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(TargetError, match="cannot load"):
        OnnxModel(str(tmp_path / "bad.onnx"))


def torchattacks_pgd(model, x, y):
    import torchattacks

    return torchattacks.PGD(model, eps=0.1, alpha=0.025, steps=10)(x, y)


def foolbox_pgd(model, x, y):
    import foolbox

    attack = foolbox.attacks.LinfPGD(abs_stepsize=0.025, steps=10)
    return attack(foolbox.PyTorchModel(model, bounds=(0, 1)), x, y, epsilons=0.1)[1]


def art_pgd(model, x, y):
    from art.attacks.evasion import ProjectedGradientDescent
    from art.estimators.classification import PyTorchClassifier

    classifier = PyTorchClassifier(
        model,
        loss=nn.CrossEntropyLoss(),
        input_shape=tuple(x.shape[1:]),
        nb_classes=4,
        clip_values=(0, 1),
    )
    attack = ProjectedGradientDescent(
        classifier, eps=0.1, eps_step=0.025, max_iter=10, verbose=False
    )
    return attack.generate(x.numpy(), y.numpy())


@pytest.mark.parametrize(
    ("peer", "function"),
    [
        ("torchattacks", torchattacks_pgd),
        ("foolbox", foolbox_pgd),
        ("adversarial-robustness-toolbox", art_pgd),
    ],
)
def test_attacks_of_other_libraries_run_as_external_adversaries(peer, function):
    if reason := why_missing(peer):
        pytest.skip(reason)
    net = layers()
    y = net(X).argmax(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcomes = sp.evaluate(
            net,
            [sp.External(peer, function, outside="project"), sp.Direct("pgd", sp.PGD(steps=10))],
            X,
            y,
            threat=0.1,
        )
    theirs, own = outcomes.accuracy().flatten().tolist()
    assert theirs < 1
    assert abs(theirs - own) <= 3 / len(X)
    assert (outcomes.episodes[0].forward >= 10).all()
    assert (outcomes.episodes[0].backward >= 10).all()


def import_torchvision():
    """Import torchvision, whose compiled operators may not fit the installed torch.

    Classifiers use none of them, but the package refuses to be imported unless two of them are
    declared.
    """
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    try:
        return importlib.import_module("torchvision.models")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for operator in ("nms", "qnms"):
            signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{operator}", signature)
        return importlib.import_module("torchvision.models")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["googlenet", "resnet18"])
def test_models_of_torchvision_are_evaluated(name):
    models = import_torchvision()
    torch.manual_seed(0)
    net = models.get_model(name, weights=None, num_classes=4).eval()
    x = torch.rand(4, 3, 64, 64)
    expected = net(x).detach()
    _, logits = answer(net, x, expected.argmax(1))
    assert torch.allclose(logits, expected, atol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_a_model_of_timm_is_evaluated_and_recognized():
    import_torchvision()  # timm imports it
    timm = pytest.importorskip("timm", reason="timm is not installed")
    torch.manual_seed(0)
    options = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
    net = timm.create_model("vit_tiny_patch16_224", num_classes=4, **options).eval()
    x = torch.rand(20, 3, 16, 16)
    y = net(x).argmax(1)
    adversaries = [sp.Direct("pgd", sp.PGD(steps=3))]
    result = sp.audit(net, x, y, threat="8/255", budget="quick", adversaries=adversaries)
    assert result.clean_accuracy == 1
    assert any(found.name == "timm model" for found in result.recognized)


@pytest.mark.filterwarnings("ignore")
def test_points_that_autoattack_saved_have_the_same_accuracy_when_they_are_rescored(tmp_path):
    """The file has the form in which the script of AutoAttack saves its points."""
    if reason := why_missing("pyautoattack"):
        pytest.skip(reason)
    x, y = sp.load_data("digits", n=20)
    net = zoo.load("digits-pgd").float()
    with imported_peer("pyautoattack", 0) as autoattack:
        suite = autoattack.AutoAttack(
            with_parameter(net), eps=0.15, seed=0, version="custom", attacks=["apgd-ce"]
        )
        points = to_points(suite.run_standard_evaluation(x, y, batch_size=20)[0])
    torch.save({"adv_complete": points}, tmp_path / "aa.pth")
    words = ("--target", "zoo:digits-pgd", "--n", "20", "--eps", "0.15", "--json")
    result = CliRunner().invoke(app, ["rescore", str(tmp_path / "aa.pth"), *words])
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    expected = float((net(points).argmax(1) == y).double().mean())
    assert record["robust_accuracy"] == pytest.approx(expected)
    assert record["robust_accuracy"] < record["clean_accuracy"]
    assert record["outside"] == 0
