"""The cost of an audit by stage and by attack."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import saddlepoint as sp
from saddlepoint.audits.profile import CostEntry, Profile, Stage


class Counted(nn.Module):
    """A linear net that counts the rows of its forward and backward passes."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 3)
        self.rows = [0, 0]

    def forward(self, x):
        self.rows[0] += len(x)
        out = self.layer(x.flatten(1))
        if out.requires_grad:
            out.register_hook(self._backward)
        return out

    def _backward(self, cotangent):
        self.rows[1] += len(cotangent)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    torch.manual_seed(0)
    net = Counted().eval()
    x = torch.rand(40, 1, 4, 4)
    y = net(x).argmax(1)
    folder = tmp_path_factory.mktemp("profile")
    audit = sp.audit(net, x, y, threat=sp.Linf(0.02), budget="quick", out=folder, batch_size=20)
    return audit, net, folder


def stages(audit):
    return {entry.name: entry for entry in audit.cost.stages}


def test_every_stage_has_seconds_and_passes(stored):
    audit, _, _ = stored
    found = stages(audit)
    run = [Stage.PROBE, Stage.PLAN, Stage.ATTACK, Stage.DIAGNOSE, Stage.CONCLUDE, Stage.STORE]
    assert list(found) == [*run, Stage.REPORT]
    assert all(entry.seconds > 0 for entry in found.values())
    for name in (Stage.PROBE, Stage.ATTACK, Stage.DIAGNOSE):
        assert found[name].forward > 0
        assert found[name].backward > 0
    for name in (Stage.PLAN, Stage.CONCLUDE, Stage.STORE):
        assert found[name].forward == 0


def test_the_attack_stage_has_the_passes_of_its_attacks_and_evaluations(stored):
    audit, _, _ = stored
    attack = stages(audit)[Stage.ATTACK]
    attacks = audit.cost.attacks
    assert [entry.name for entry in attacks] == [row.name for row in audit.rows]
    assert attack.backward == pytest.approx(sum(entry.backward for entry in attacks))
    # The clean images, the points of every attack and the worst points are evaluated once each.
    evaluations = len(attacks) + 2
    forward = sum(entry.forward for entry in attacks) + evaluations
    assert attack.forward == pytest.approx(forward)
    assert attack.seconds >= sum(entry.seconds for entry in attacks)


def test_the_cost_is_saved_and_loaded_without_the_time_of_the_report(stored):
    audit, _, folder = stored
    loaded = sp.Audit.load(folder)
    assert loaded.stages == audit.stages
    assert loaded.record() == audit.record()
    assert loaded.cost.stages == audit.cost.stages[:-1]


def test_a_run_that_is_repeated_has_the_cost_of_its_stored_cells(stored):
    audit, net, folder = stored
    again = sp.audit(
        net, audit.x, audit.y, threat=sp.Linf(0.02), budget="quick", out=folder, batch_size=20
    )
    for name in (Stage.ATTACK, Stage.DIAGNOSE):
        assert stages(again)[name] == stages(audit)[name]


def test_the_report_shows_the_stages(stored):
    _, _, folder = stored
    page = (folder / "report.html").read_text()
    assert all(f">{name}</t" in page for name in ("probe", "diagnose", "store"))


def test_the_profile_as_text_is_a_table_of_stages_and_attacks():
    stage = CostEntry("attack", 2.0, 30.0, 20.0)
    attack = CostEntry("apgd-ce", 1.5, 29.0, 20.0)
    text = str(Profile((stage,), (attack,)))
    assert text.splitlines() == [
        "stage or attack  seconds  forward  backward",
        "attack              2.00     30.0      20.0",
        "  apgd-ce           1.50     29.0      20.0",
        "Attacks ran on the given target: it was not chosen.",
    ]


def test_diagnostics_that_repeat_an_attack_make_a_share_of_its_passes(stored):
    audit, _, _ = stored
    found = stages(audit)
    # 8 rows of 40: the steps of the strongest attack and twice as many from two other starts.
    assert found[Stage.DIAGNOSE].backward < found[Stage.ATTACK].backward
