"""The call graph of `saddlepoint audit`: six stages in order."""

from __future__ import annotations

import sys
from types import CodeType, FrameType

import pytest
from tests.cli.commands import call

from saddlepoint.audits.attack_stage import attack
from saddlepoint.audits.conclude import conclude
from saddlepoint.audits.diagnostics.stage import diagnose
from saddlepoint.audits.planning.plan import make_plan
from saddlepoint.audits.probes.stage import probe_stage
from saddlepoint.audits.remedies.stage import remedy

STAGES: dict[CodeType, str] = {
    probe_stage.__code__: "probe",
    make_plan.__code__: "plan",
    attack.__code__: "attack",
    diagnose.__code__: "diagnose",
    remedy.__code__: "remedy",
    conclude.__code__: "conclude",
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


@pytest.mark.parametrize("remedies", [False, True])
def test_an_audit_calls_its_stages_in_order(tmp_path, remedies) -> None:
    """Gradients of a quantized model vanish, which calls for remedies."""
    seen: list[str] = []
    words = ("zoo:digits-pgd", "--n", "8", "--budget", "quick")
    if remedies:
        file = tmp_path / "quantized.py"
        file.write_text(QUANTIZED)
        words = (f"{file}:make", "--n", "24", "--batch-size", "12")

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code in STAGES:
            seen.append(STAGES[frame.f_code])

    sys.setprofile(note)
    try:
        result = call("audit", *words, "--eps", "0.15", "--out", str(tmp_path / "run"))
    finally:
        sys.setprofile(None)
    assert result.exit_code == 0, result.output
    assert seen == (WITH_REMEDIES if remedies else ONCE)
