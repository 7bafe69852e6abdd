"""The call graph of `saddlepoint audit`: six stages in order."""

from __future__ import annotations

import functools
import sys

import pytest
from tests.cli.commands import call

from saddlepoint.audits.attack_stage import attack
from saddlepoint.audits.conclude import conclude
from saddlepoint.audits.diagnostics.stage import diagnose
from saddlepoint.audits.planning.plan import make_plan
from saddlepoint.audits.probes.stage import probe_stage
from saddlepoint.audits.remedies.stage import remedy

STAGES = {
    "probe": probe_stage,
    "plan": make_plan,
    "attack": attack,
    "diagnose": diagnose,
    "remedy": remedy,
    "conclude": conclude,
}
ONCE = ["probe", "plan", "attack", "diagnose", "remedy", "conclude"]
WITH_REMEDIES = ["probe", "plan", "attack", "diagnose", "remedy", "attack", "diagnose", "conclude"]


QUANTIZED = """
from torch import nn
from saddlepoint import zoo


class Quantized(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = zoo.load("digits-pgd")

    def forward(self, x):
        return self.net((8 * x).round() / 8)


def make():
    return Quantized().eval()
"""


@pytest.fixture
def seen(monkeypatch) -> list[str]:
    """The stages in the order in which they are called, whichever module calls them."""
    calls: list[str] = []
    modules = [module for name, module in sys.modules.items() if name.startswith("saddlepoint.")]
    for name, stage in STAGES.items():

        @functools.wraps(stage)
        def noted(*args, name=name, stage=stage):
            calls.append(name)
            return stage(*args)

        for module in modules:
            for attribute, value in list(vars(module).items()):
                if value is stage:
                    monkeypatch.setattr(module, attribute, noted)
    return calls


@pytest.mark.parametrize("remedies", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_audit_calls_its_stages_in_order(tmp_path, seen, remedies) -> None:
    """Gradients of a quantized model vanish, which calls for remedies."""
    words = ("zoo:digits-pgd", "--n", "8", "--budget", "quick")
    if remedies:
        file = tmp_path / "quantized.py"
        file.write_text(QUANTIZED)
        words = (f"{file}:make", "--n", "24", "--batch-size", "12")
    result = call("audit", *words, "--eps", "0.15", "--out", str(tmp_path / "run"))
    assert result.exit_code == 0, result.output
    assert seen == (WITH_REMEDIES if remedies else ONCE)
