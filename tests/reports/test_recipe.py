"""The Python code on a report runs, and repeats the audit."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from tests.reports.audits import (
    an_audit,
    page,
)
from tests.reports.parsed import Page

import saddlepoint
from saddlepoint.attacks.spaces import L2, Linf
from saddlepoint.audits import Audit
from saddlepoint.describe import describe
from saddlepoint.evaluation import (
    BatchControl,
    NaturalOrder,
    SortedByLabel,
    Threat,
    WorstCaseOrder,
)
from saddlepoint.reports.recipe import python_call, verification_code
from saddlepoint.reports.threats import read_threat

_HOSTILE = '<script>alert("x")</script>&\'"'


_THREATS = {
    "default": Threat(Linf(8 / 255)),
    "decimal radius": Threat(Linf(0.1)),
    "many digits": Threat(L2(0.123456789)),
    "box": Threat(Linf(8.0, box=(0.0, 255.0))),
    "scores": Threat(L2(0.5), access="score", queries=100, draws=8),
    "stream": Threat(
        Linf(0.1),
        randomness="public",
        state_visible=False,
        order=SortedByLabel(64),
        batch_control=BatchControl(0.2, victims="benign"),
    ),
    "order": Threat(Linf(0.1), order=WorstCaseOrder(tries=3)),
    "online": Threat(Linf(0.1), access="decision", rounds="one", online_queries=True),
}


def run_verification(audit: Audit, capsys) -> list[list[str]]:
    """Run the code on the page with a model that outputs the recorded predictions.

    The model recognizes the saved points and accepts nothing else. Returns the words printed.
    """
    outputs = torch.nn.functional.one_hot(audit.answered, 10).float()

    def model(points):
        assert torch.equal(points, audit.worst_points)
        return outputs

    code = verification_code(audit).replace("target = ...", "target = model")
    exec(code, {"model": model})
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_the_verification_code_runs_and_prints_size_and_accuracy(tmp_path, monkeypatch, capsys):
    audit = an_audit()
    audit.save(tmp_path)
    monkeypatch.chdir(tmp_path)
    size, _, accuracy = run_verification(audit, capsys)
    assert size[:2] == ["largest", "perturbation"]
    assert float(size[2]) <= 0.1 + 1e-6
    assert accuracy[:2] == ["robust", "accuracy"]
    assert float(accuracy[2]) == pytest.approx(audit.robust_accuracy)


def test_an_old_record_shows_its_command_but_no_python_call_and_checks_no_sizes(
    tmp_path, monkeypatch, capsys
):
    audit = an_audit(threat_description={})
    audit.save(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = Page(page(audit)).words
    assert "The Python call cannot be shown: the record is too old" in words
    assert audit.command in words
    assert "from saddlepoint import" not in words
    _, accuracy = run_verification(audit, capsys)
    assert float(accuracy[2]) == pytest.approx(audit.robust_accuracy)


def test_a_threat_with_a_class_of_the_user_gets_a_page_without_python_call():
    @dataclass(frozen=True)
    class Reversed(NaturalOrder):
        pass

    description = describe(Threat(Linf(0.1), order=Reversed()))
    words = Page(page(an_audit(threat_description=description))).words
    assert "the threat model uses Reversed, which is not part of saddlepoint" in words
    assert "largest perturbation ≤ 0.1 up to rounding" in words


@pytest.mark.parametrize("threat", _THREATS.values(), ids=_THREATS.keys())
def test_a_threat_is_rebuilt_from_the_record_of_an_audit(threat, tmp_path):
    audit = an_audit(n=10, threat_description=describe(threat))
    loaded = Audit.load(audit.save(tmp_path))
    assert read_threat(loaded.threat_description) == threat


@pytest.mark.parametrize("threat", _THREATS.values(), ids=_THREATS.keys())
def test_the_python_call_on_the_page_passes_the_same_threat_data_budget_and_seed(
    threat, monkeypatch, capsys
):
    calls = []

    class Result:
        def summary(self):
            return "done"

    def record_call(target, x, y, **arguments):
        calls.append((len(x), len(y), arguments))
        return Result()

    monkeypatch.setattr(saddlepoint, "audit", record_call)
    exec(python_call(an_audit(n=10, seed=3, threat_description=describe(threat))), {})
    [(images, labels, arguments)] = calls
    passed = arguments.pop("threat")
    assert (passed if isinstance(passed, Threat) else Threat(passed)) == threat
    assert (images, labels, arguments) == (10, 10, {"budget": "standard", "seed": 3})
    assert capsys.readouterr().out == "done\n"


def test_the_python_call_is_short_for_a_default_threat():
    assert "threat=Linf(8 / 255), budget" in python_call(
        an_audit(threat_description=describe(Threat(Linf(8 / 255))))
    )


@pytest.mark.parametrize("code_of", [python_call, verification_code])
def test_a_name_cannot_leave_the_comment_that_contains_it(code_of):
    code = code_of(an_audit(target="net\nimport os; os.abort()"))
    assert not any(line.startswith("import os") for line in code.splitlines())
    compile(code, "page", "exec")
