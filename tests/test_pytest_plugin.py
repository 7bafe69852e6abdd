"""The fixture `audit` of pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

OWN = """
import pytest
import torch
import saddlepoint as sp

X = torch.rand(12, 1, 4, 4, generator=torch.Generator().manual_seed(0))
W = torch.randn(16, 3, generator=torch.Generator().manual_seed(1))
NET = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3, bias=False)).eval()
NET[1].weight.data = W.T.contiguous()
Y = NET(X).argmax(1)
SMALL = dict(threat=0.05, budget="quick", adversaries=[sp.Direct("pgd", sp.PGD(steps=2))])
RESULT = sp.audit(NET, X, Y, **SMALL)

@pytest.fixture(autouse=True)
def one_audit_is_enough(monkeypatch):
    monkeypatch.setattr("saddlepoint.api.audit", lambda *data, **arguments: RESULT)

def test_passes(audit):
    assert audit(NET, X, Y, at_least=RESULT.robust_accuracy, **SMALL) is RESULT

def test_is_too_low(audit):
    audit(NET, X, Y, at_least=1.0, **SMALL)

def test_is_not_credible(audit):
    audit(NET, X, Y, credible=True, **{**SMALL, "budget": "standard"})

def test_can_never_be_credible(audit):
    audit(NET, X, Y, credible=True, **SMALL)

def test_wrong_number(audit):
    audit(NET, X, Y, at_least=45)

def test_text_as_number(audit):
    audit(NET, X, Y, at_least="0.6")

def test_misspelled(audit):
    audit(NET, X, Y, atleast=0.6)
"""


def test_a_test_passes_or_fails_with_the_numbers(tmp_path):
    (tmp_path / "test_own.py").write_text(OWN)
    page = (Path(__file__).parent.parent / "docs" / "ci.md").read_text()
    (tmp_path / "test_page.py").write_text(page.split("```python\n")[1].partition("```")[0])
    words = ["-m", "pytest", "-q", "--junit-xml=out.xml", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, *words, "test_own.py", "test_page.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "6 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert "warning" not in done.stdout.lower()
    cases = ElementTree.parse(tmp_path / "out.xml").findall(".//testcase")
    failed = {case.get("name"): case.find("failure") is not None for case in cases}
    assert [name for name, fails in failed.items() if not fails] == ["test_passes", "test_robust"]
    properties = {one.get("name"): one.get("value") for one in cases[0].iter("property")}
    assert properties["clean_accuracy"] == "1.0"
    assert set(properties) == {"clean_accuracy", "robust_accuracy", "verdict"}
    text = {case.get("name"): "".join(case.itertext()) for case in cases}
    assert "at least 100 % is required" in text["test_is_too_low"]
    assert "not credible" in text["test_is_not_credible"]
    assert "for 45 % write 0.45" in text["test_wrong_number"]
    assert "expected a number between 0 and 1" in text["test_text_as_number"]
    assert "Did you mean 'at_least'?" in text["test_misspelled"]
    assert "credible=True needs budget='standard'" in text["test_can_never_be_credible"]


def test_the_plugin_does_not_import_torch():
    code = "import sys, saddlepoint.pytest_plugin; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_plugin_is_declared():
    import tomllib

    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    plugins = project["project"]["entry-points"]["pytest11"]
    assert plugins == {"saddlepoint": "saddlepoint.pytest_plugin"}
