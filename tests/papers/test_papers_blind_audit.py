"""Audits beside attacks that experts wrote: the arithmetic on known numbers, and every family at the tiny scale."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.problems import normal
from torch import nn

import saddlepoint as sp
from saddlepoint.papers import EXPERIMENTS, Request
from saddlepoint.papers.blind_audit.audit import Met
from saddlepoint.papers.blind_audit.contests import Contest
from saddlepoint.papers.runner import Bench, Images
from saddlepoint.papers.write import reproduce

FAMILIES = {"adaptive": 8, "transductive": 32, "multi-exit": 12, "equilibrium": 6}


@pytest.fixture(scope="module")
def contest() -> Contest:
    """A linear net that nobody can defend at this radius, and experts of whom the second is the stronger."""
    net = nn.Linear(5, 3)
    x = 0.5 + 0.01 * normal(2, 8, 5).float()
    net.load_state_dict({"weight": normal(1, 3, 5).float(), "bias": torch.zeros(3)})
    y = net(x).argmax(1)
    full = torch.ones(8, dtype=torch.float64)
    experts = {"weak": full, "strong": torch.arange(8).lt(2).double()}
    return Contest(
        "linear", "made up", sp.Plain(net), Images(x, y), sp.Threat(sp.Linf(0.5)), 8, full, experts
    )


def test_the_strongest_expert_counts_and_the_difference_is_that_of_the_same_images(
    contest: Contest, tmp_path: Path
) -> None:
    met = Met.of(Bench(Request(tmp_path), 1, 1), contest, "quick")
    assert contest.strongest == "strong"
    assert float(contest.left.mean()) == 0.25
    assert (
        met.audit.robust_accuracy == 0.0
    )  # with half the box as radius a linear net with unequal rows falls everywhere
    assert met.apart.mean == -25.0
    assert not met.behind
    assert (
        replace(
            met, contest=replace(contest, experts={"perfect": torch.zeros(8, dtype=torch.float64)})
        ).apart.mean
        == 0.0
    )
    better = Met(
        replace(contest, experts={"perfect": torch.zeros(8, dtype=torch.float64)}),
        replace(met.audit, correct=contest.left),
    )
    assert better.behind
    assert "behind" in better.told()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_of_every_family_is_audited_and_kept(family: str, tmp_path: Path) -> None:
    result, record = reproduce(EXPERIMENTS[f"untold/{family}"], Request(tmp_path))
    (row,) = result.tables[0].rows
    clean, expert, audited, apart, forward, backward = (
        cell.mean for cell in row.cells if cell is not None
    )
    assert row.labels[2] == str(FAMILIES[family])
    assert record.is_file()
    assert clean >= expert
    assert apart == pytest.approx(audited - expert)
    assert forward > 0
    assert backward > 0
    assert result.forward == pytest.approx(forward * FAMILIES[family])
    assert result.backward == pytest.approx(backward * FAMILIES[family])
    assert result.seconds > 0
    (kept,) = (tmp_path / "audits").iterdir()
    assert sp.Audit.load(kept).robust_accuracy == pytest.approx(audited / 100)
