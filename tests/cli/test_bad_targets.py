"""A target that cannot be audited gives one line: what was expected, what was found, what to do."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import tests.cli.bad_targets as bad_targets
import torch
from tests.cli.commands import QUICK, call, error_of

import saddlepoint as sp

BAD = Path(bad_targets.__file__)
X, Y = sp.load_data("digits", n=20)

MODELS = {  # models that a factory returns, and the error message about them
    "training": "the model is in training mode, and its outputs differ from those in evaluation "
    r"mode, .*\. Call net.eval\(\) first.",
    "double": "RuntimeError: mat1 and mat2 must have the same dtype.*"
    r"They are torch.float32: convert the target, .*net.float\(\)",
    "half": "RuntimeError: Input type .*They are torch.float32: convert the target, .*net.float",
    "other_images": r"images of shape \[16, 1, 8, 8\]\. .*images of another shape",
    "dictionary": "the model returns dict, and 2 of its values may be logits",
    "pair": r"the model returns tuple, and 2 of its values may be logits \(0, 1\). .*"
    r"Decide: saddlepoint.defenses.SelectLogits\(net, 0\) takes one value; sp.MultiExit\(net\)",
    "none": r"a tensor of logits \[N, C\], got NoneType. Return",
    "labels": r"floating-point logits \[16, C >= 2\], got torch.int64 \[16\]",
    "one_logit": r"one number per image, \[16, 1\], which decides between two classes, but labels "
    r"go up to 9. Return logits \[N, C\].",
    "maps": r"floating-point logits \[16, C >= 2\], "
    r"got torch.float32 \[16, 10, 2, 2\]",
    "one_row": r"floating-point logits \[16, C >= 2\], "
    r"got torch.float32 \[1, 10\]",
    "no_number": "NaN or infinite logits on 16 of 16 clean images. [A-Z]",
    "exploding": "NaN or infinite logits on 16 of 16 clean images. [A-Z]",
    "on_meta": r"on meta, .*the images are on cpu. Move it there: net.to\('cpu'\)",
}
TARGETS = {  # targets by the end of their text, and the error message about them
    "": "a target is 'file.py:factory', 'package.module:factory', 'zoo:NAME' or a file of ONNX, "
    "'model.onnx'; got",
    ":missing": "Nothing is called 'missing' in .*bad_targets.py. It has: ",
    ":raise": "Did you mean 'raises'?",
    ":raises": r"raises\(\) failed: KeyError: 'weights' \(bad_targets.py, line \d+\)",
    ":leaves": r"leaves\(\) failed: SystemExit: 3 \(bad_targets.py, line \d+\)",
    ":needs_arguments": "cannot be called without arguments .missing a required argument: "
    "'depth'.. A factory takes none",
    ":no_model": "returned a dict; a factory returns an nn.Module, a Defense or a callable",
    ":nothing": "returned None; a factory returns an nn.Module, a Defense or a callable",
    ":X": "Nothing is called 'X'",
    ":elsewhere": r"cannot be moved to cpu \(Cannot copy out of meta tensor; no data!.*"
    "its weights in.* memory",
    **{f":{name}": message for name, message in MODELS.items()},
}


def one_line(text: str) -> bool:
    """Whether a text has one line, apart from the line that says that probing has begun."""
    lines = text.strip().splitlines()
    return len([line for line in lines if not line.startswith("probe: ")]) == 1


@pytest.mark.parametrize("command", ["audit", "probe"])
@pytest.mark.parametrize("name", TARGETS)
def test_the_command_line_explains_a_bad_target_in_one_line(command, name):
    words = [command, f"{BAD}{name}", *(QUICK if command == "audit" else ())]
    assert re.search(TARGETS[name], error_of(*words))
    assert one_line(call(*words).stderr)
    assert not list(Path().glob("runs/*/cells"))


@pytest.mark.parametrize("function", [sp.audit, sp.probe], ids=["audit", "probe"])
@pytest.mark.parametrize("name", MODELS)
def test_the_library_gives_the_same_message(function, name):
    with pytest.raises(ValueError, match=MODELS[name]) as error:
        function(getattr(bad_targets, name)(), X, Y, threat=sp.Linf(0.05))
    assert one_line(str(error.value))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            3,
            "a target is an nn.Module, a saddlepoint.Defense or a callable on batches of images, "
            "got int.",
        ),
        (None, "got NoneType."),
        ("net.py:make", r"got (str\.|the text 'net\.py:make'\. Load the model first)"),
        (bad_targets.elsewhere(), "They are on cpu: move the target there, net.to"),
        (bad_targets.Linear, r"the callable raised TypeError: .* fits? the data"),
        (lambda x: x.double().sum(1), "floating-point logits"),
    ],
    ids=["number", "nothing", "text", "another device", "class", "callable"],
)
def test_objects_that_only_the_library_can_be_given(target, message):
    for function in (sp.audit, sp.probe):
        with pytest.raises(ValueError, match=message) as error:
            function(target, X, Y, threat=sp.Linf(0.05))
        assert one_line(str(error.value))


def test_labels_beyond_the_classes_of_the_target_are_an_error():
    for function in (sp.audit, sp.probe):
        with pytest.raises(ValueError, match=r"labels go up to 9, but the target .* 4 classes"):
            function(bad_targets.few_classes(), X, Y, threat=sp.Linf(0.05))
    assert "labels go up to 9, but the target" in error_of("probe", f"{BAD}:few_classes")


def test_a_target_that_modifies_its_input_in_place_is_an_error():
    with pytest.raises(ValueError, match=r"modifies its input in place. Copy it first"):
        sp.audit(bad_targets.overwriting(), X, Y, threat=sp.Linf(0.05))
    assert "modifies its input in place. Copy it first" in error_of(
        "audit", f"{BAD}:overwriting", *QUICK
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_a_network_of_another_precision_that_converts_its_input_is_audited(dtype):
    class Converting(bad_targets.Linear):
        def forward(self, x):
            return x.flatten(1).to(dtype) @ self.w.to(dtype).T

    audit = sp.audit(Converting().eval(), X, Y, threat=sp.Linf(0.05), budget="quick")
    plain = sp.audit(bad_targets.Linear().eval(), X, Y, threat=sp.Linf(0.05), budget="quick")
    # Rounding to half precision may change one image of twenty.
    assert abs(audit.robust_accuracy - plain.robust_accuracy) <= 0.05


PRINTING = """
from torch import nn
print("a file")
class Printing(nn.Linear):
    def forward(self, x):
        print("a forward pass")
        return super().forward(x.flatten(1))
def make():
    print("a factory")
    return Printing(64, 10).eval()
"""


@pytest.mark.parametrize(
    "words",
    [("audit", *QUICK), ("audit", *QUICK, "--seed", "1", "--dry-run"), ("probe",)],
    ids=["audit", "plan", "probe"],
)
def test_output_of_a_target_never_mixes_with_the_result(words):
    Path("printing.py").write_text(PRINTING)
    result = call(words[0], "printing.py:make", *words[1:], "--json")
    assert result.exit_code == 0, result.output
    json.loads(result.stdout)
    assert all(word in result.stderr for word in ("a file", "a factory", "a forward pass"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def make(:\n", "SyntaxError"),
        ("", "Nothing is called 'make'"),
        ("import no_such_thing", "No module named"),
    ],
)
def test_a_file_that_cannot_be_imported_is_explained(text, message):
    Path("mine.py").write_text(text)
    for command in ("audit", "probe"):
        assert message in error_of(command, "mine.py:make")
        assert one_line(call(command, "mine.py:make").stderr)
