"""Adaptive and transductive defenses around networks that others trained."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from saddlepoint.data.record import Data
from saddlepoint.evaluation import Episode
from saddlepoint.papers.adaptive.real import COLUMNS, DefenseAttacks, step_size_exception
from saddlepoint.papers.adaptive.robust_net import LAYERS, NAME, RobustResNet, load_robust_net
from saddlepoint.papers.registry import Request
from saddlepoint.papers.transductive import real, real_dent
from saddlepoint.zoo.adaptive import TABLE, AntiAdversary
from saddlepoint.zoo.layers import check_known_layers

MODELS = Path(__file__).parents[3] / "shared" / "models"
LOADER = """
import torch
from torch import nn

class Exits(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Linear(144, 10)

    def forward(self, x):
        logits = self.head(self.body(x).flatten(1))
        return [-logits, logits]

def load(name):
    torch.manual_seed(0)
    return Exits().eval()
"""


@pytest.fixture
def request_at_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Request:
    """A request with a small network with two exits, and random images."""
    file = tmp_path / "models" / f"{real_dent.ROBUST}.safetensors"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"weights")
    (tmp_path / "models" / "modules.py").write_text(LOADER)
    x = torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    data = Data("cifar10", x, torch.arange(16) % 10, tuple("abcdefghij"))
    for module in (real, real_dent):
        monkeypatch.setattr(module, "load_data", lambda *names, **options: data)
    small = replace(real_dent.SETTING, images=8, batch=4, window=8, steps=1, rounds=1)
    monkeypatch.setattr(real_dent, "SETTING", small)
    return Request(tmp_path, "real", models=tmp_path / "models")


def test_dent_is_measured_on_the_last_exit_in_both_orders(request_at_real: Request) -> None:
    natural = real_dent.table_2(request_at_real)
    by_label = real_dent.table_5(request_at_real)
    for result, order in ((natural, "natural"), (by_label, "sorted by label")):
        (table,) = result.tables
        (row,) = table.rows
        assert row.labels == (real_dent.ROBUST, order)
        measured = [cell.interval for cell in row.cells if cell is not None]
        assert all(measured)
        assert len(measured) == (8 if order == "natural" else 6)
        assert table.n == 8
        assert list(result.weights) == [real_dent.ROBUST]
        assert "14 runs of 100 steps" in result.notes[0]
    same = [
        real_table.cell(real_table.rows[0].labels, "static, PGD").values
        for real_table in (*natural.tables, *by_label.tables)
    ]
    assert same[0] == same[1]


def test_costs_of_rmc_are_measured_and_grow_with_the_sequences(request_at_real: Request) -> None:
    one, five = real.table_1(request_at_real), real.table_6(request_at_real)
    assert not one.tables
    assert "36,000 answers of RMC" in one.not_run, "1000 images, 6 answers and 3 x 10 rounds"
    assert "115,000 answers of RMC" in five.not_run, "5 x 1000 images, 3 answers and 2 x 10 rounds"
    assert "measured on 16 images" in one.not_run


class TwoExits(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [x, x + 1]


def test_the_last_exit_is_the_last_of_the_logits() -> None:
    assert torch.equal(real_dent.LastExit(TwoExits())(torch.zeros(1, 2)), torch.ones(1, 2))


def episode(correct: list[float]) -> Episode:
    return SimpleNamespace(correct=torch.tensor([correct]))  # type: ignore[return-value]


def attacks(audited: list[float] | None) -> DefenseAttacks:
    audit = audited and SimpleNamespace(correct=torch.tensor(audited), verdict="overstated")
    return DefenseAttacks(
        next(row for row in TABLE if row.name == "SODEF"),
        None,  # type: ignore[arg-type]
        episode([1.0, 1.0, 1.0, 1.0]),
        episode([1.0, 1.0, 1.0, 1.0]),
        episode([1.0, 0.0, 1.0, 1.0]),
        episode([1.0, 1.0, 1.0, 0.0]),
        torch.tensor([1.0, 1.0, 1.0, 1.0]),
        torch.ones(4),
        audit,  # type: ignore[arg-type]
    )


def test_the_lowest_accuracy_counts_every_attack_and_the_audit() -> None:
    assert attacks([1.0, 1.0, 1.0, 1.0]).lowest.tolist() == [1, 0, 1, 0]
    row = attacks([0.0, 1.0, 1.0, 1.0]).row()
    assert attacks([0.0, 1.0, 1.0, 1.0]).lowest.tolist() == [0, 0, 1, 0]
    assert row.labels[1:4] == ("4", "Transfer APGD", "overstated")
    assert len(row.cells) == len(COLUMNS)
    audited = row.cells[COLUMNS.index("audit, standard")]
    gain = row.cells[-1]
    assert audited is not None
    assert gain is not None
    assert (audited.mean, gain.mean) == (75, -75)


def test_a_defense_without_audit_has_an_empty_cell() -> None:
    row = attacks(None).row()
    assert attacks(None).lowest.tolist() == [1, 0, 1, 0]
    assert row.labels[3] == "not audited"
    assert len(row.cells) == len(COLUMNS)
    assert row.cells[COLUMNS.index("audit, standard")] is None


def test_the_step_size_that_does_not_follow_the_radius_is_named() -> None:
    """AntiAdversary takes the published step of 0.15; the ratio to 2/255 would be a quarter."""
    rows = [attacks(None), replace(attacks(None), defense=AntiAdversary(nn.Identity().eval()))]
    assert "0.15 as in the paper at 8/255 instead of 0.0375" in step_size_exception(rows)


def test_the_robust_network_has_the_layers_that_defenses_need() -> None:
    check_known_layers(RobustResNet(), LAYERS)


@pytest.mark.skipif(not MODELS.is_dir(), reason="third-party networks are not here")
def test_the_robust_network_equals_the_one_of_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(MODELS))
    loaders = import_module("loaders")
    x = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    net = load_robust_net(MODELS / f"{NAME}.safetensors")
    assert torch.equal(net(x), loaders.load(NAME)(x))
    sys.modules.pop("loaders")
