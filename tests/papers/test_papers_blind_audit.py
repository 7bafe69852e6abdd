"""Blind audits: arithmetic on known numbers, and one defense of every family at the tiny scale."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.problems import normal
from torch import nn

import saddlepoint as sp
from saddlepoint.papers import EXPERIMENTS, Request
from saddlepoint.papers.blind_audit.audit import AuditedCase
from saddlepoint.papers.blind_audit.cases import AuditCase
from saddlepoint.papers.runner import Images, Runner
from saddlepoint.papers.write import reproduce

FAMILIES = {"adaptive": 8, "transductive": 32, "multi-exit": 12, "equilibrium": 6}  # images


@pytest.fixture(scope="module")
def case() -> AuditCase:
    """A linear network that is broken at this radius, and two attacks, the second one stronger."""
    net = nn.Linear(5, 3)
    x = 0.5 + 0.01 * normal(2, 8, 5).float()
    net.load_state_dict({"weight": normal(1, 3, 5).float(), "bias": torch.zeros(3)})
    all_correct = torch.ones(8, dtype=torch.float64)
    return AuditCase(
        name="linear",
        data="synthetic",
        defense=sp.Plain(net),
        images=Images(x, net(x).argmax(1)),
        threat=sp.Threat(sp.Linf(0.5)),
        batch=8,
        correct_clean=all_correct,
        correct_under={"weak": all_correct, "strong": torch.arange(8).lt(2).double()},
    )


def test_audit_is_compared_with_the_strongest_attack_of_the_paper_on_the_same_images(
    case: AuditCase, tmp_path: Path
) -> None:
    audited = AuditedCase.run(Runner(Request(tmp_path), 1, 1), case, "quick")
    assert case.strongest == "strong"
    assert float(case.correct_under_strongest.mean()) == 0.25
    # A radius of half the box breaks every image of a linear network with unequal rows.
    assert audited.audit.robust_accuracy == 0.0
    assert audited.difference.mean == -25.0
    assert not audited.audit_is_weaker
    perfect = replace(case, correct_under={"perfect": torch.zeros(8, dtype=torch.float64)})
    assert replace(audited, case=perfect).difference.mean == 0.0
    weaker = AuditedCase(perfect, replace(audited.audit, correct=case.correct_under_strongest))
    assert weaker.audit_is_weaker
    assert "more than one point above the paper's attack" in weaker.finding()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_defense_of_every_family_is_audited_and_stored(
    family: str, tmp_path: Path
) -> None:
    result, record = reproduce(EXPERIMENTS[f"blind-audit/{family}"], Request(tmp_path))
    (row,) = result.tables[0].rows
    clean, paper, audited, difference, forward, backward = (
        cell.mean for cell in row.cells if cell is not None
    )
    assert row.labels[2] == str(FAMILIES[family])
    assert record.is_file()
    assert clean >= paper
    assert difference == pytest.approx(audited - paper)
    assert forward > 0
    assert backward > 0
    assert result.forward == pytest.approx(forward * FAMILIES[family])
    assert result.backward == pytest.approx(backward * FAMILIES[family])
    assert result.seconds > 0
    (stored,) = (tmp_path / "audits").iterdir()
    assert sp.Audit.load(stored).robust_accuracy == pytest.approx(audited / 100)
