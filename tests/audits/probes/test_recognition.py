"""Audits say what they recognized in a target."""

from __future__ import annotations

import pytest
import torch
from tests.audits.probes.toy_targets import X, Y, net
from torch import nn

import saddlepoint as sp
from saddlepoint.audits.probes.stage import probe_stage
from saddlepoint.audits.request import AuditRequest
from saddlepoint.evaluation import Threat
from saddlepoint.reports.html import write_report
from saddlepoint.zoo import load


class TwoExits(nn.Module):
    """The first classifier answers if it is sure, else the second one."""

    def __init__(self):
        super().__init__()
        self.first = load("digits-small-standard")
        self.second = load("digits-standard")

    def forward(self, x):
        first = self.first(x)
        sure = first.softmax(-1).amax(-1, keepdim=True) > 0.9
        return torch.where(sure, first, self.second(x))


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, x):
        return self.net(x + 0.1 * torch.randn_like(x))


def normalized():
    torch.manual_seed(0)
    width = X.flatten(1).shape[1]
    first = nn.Linear(width, 8, dtype=X.dtype)
    last = nn.Linear(8, 3, dtype=X.dtype)
    return nn.Sequential(nn.Flatten(), first, nn.BatchNorm1d(8, dtype=X.dtype), last)


def recognized(target, x=X, y=Y):
    request = AuditRequest(target, x, y, Threat(sp.Linf(0.1)), allow_unusual=True)
    return {one.name: one.evidence for one in probe_stage(request).recognized}


class TrainingInside(nn.Module):
    """Switches its own layers to training mode when it is called."""

    def __init__(self):
        super().__init__()
        self.net = normalized()

    def forward(self, x):
        self.net.train()
        return self.net(x)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (Noisy, "randomness"),
        (lambda: normalized().eval(), "batch normalization"),
        (lambda: lambda x: net()(x).detach(), "black box"),
    ],
)
def test_structure_and_behavior_are_recognized(make, expected):
    target = make()
    found = recognized(target.eval() if isinstance(target, nn.Module) else target)
    assert expected in found
    others = {"early exits", "randomness", "batch normalization", "black box"} - {expected}
    assert not others & set(found)


def test_exits_inside_a_plain_module_are_recognized():
    x, y = sp.load_data("digits", n=16)
    found = recognized(TwoExits().eval(), x, y)
    assert found["early exits"].startswith("2 outputs of classifiers inside")
    assert found["PyTorch module"] == "TwoExits"


def test_batch_normalization_in_training_mode_differs_from_stored_statistics():
    found = recognized(TrainingInside().eval())
    assert found["batch normalization in training mode"].startswith("1 layer")
    assert "rows of a batch influence each other" in found
    assert "batch normalization" not in found
    assert "batch normalization in training mode" not in recognized(normalized().eval())


def test_layers_of_libraries_are_recognized_by_their_package():
    layer = type("DEQSliced", (nn.Identity,), {"__module__": "torchdeq.core"})
    found = recognized(nn.Sequential(layer(), net()).eval())
    assert found["torchdeq layer"] == "DEQSliced of torchdeq"


def test_the_report_and_the_record_say_what_was_recognized(tmp_path):
    x, y = sp.load_data("digits", n=4)
    defense = sp.MultiExit(load("digits-exits"))
    attack = sp.Direct("pgd", sp.PGD(1))
    result = sp.audit(defense, x, y, threat=0.1, adversaries=[attack], budget="quick")
    assert "early exits" in [one.name for one in result.recognized]
    loaded = sp.Audit.load(result.save(tmp_path / "run"))
    assert loaded.recognized == result.recognized
    page = write_report(loaded, tmp_path / "report.html").read_text()
    assert "What was recognized" in page
    assert "early exits" in page
