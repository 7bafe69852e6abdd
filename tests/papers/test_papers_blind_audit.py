"""Blind audits: arithmetic on known numbers, and one defense of every family at the tiny scale."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.problems import normal
from torch import nn

import saddlepoint as sp
from saddlepoint.attacks.rays import RayS
from saddlepoint.papers import EXPERIMENTS, Request
from saddlepoint.papers.blind_audit.audit import AuditedCase
from saddlepoint.papers.blind_audit.cases import AuditCase
from saddlepoint.papers.blind_audit.paper_attack import PaperAttack, budget_share, cost_share
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
        attacks={
            "weak": PaperAttack(all_correct, 10, 10, 1.0),
            "strong": PaperAttack(torch.arange(8).lt(2).double(), 1000, 1000, 1.0),
        },
    )


@pytest.fixture(scope="module")
def audited(case: AuditCase, tmp_path_factory: pytest.TempPathFactory) -> AuditedCase:
    runner = Runner(Request(tmp_path_factory.mktemp("blind")), 1, 1)
    return AuditedCase.run(runner, case, "quick")


def under(audited: AuditedCase, attack: PaperAttack, not_compared: str = "") -> AuditedCase:
    """The audited case with another attack of the paper."""
    case = replace(audited.case, attacks={"RayS": attack}, not_compared=not_compared)
    return replace(audited, case=case)


def test_audit_is_compared_with_the_strongest_attack_of_the_paper_on_the_same_images(
    audited: AuditedCase,
) -> None:
    case = audited.case
    assert case.strongest == "strong"
    assert case.attack.accuracy == 25.0
    # A radius of half the box breaks every image of a linear network with unequal rows.
    assert audited.audit.robust_accuracy == 0.0
    assert audited.difference.mean == audited.excess == -25.0
    assert not audited.audit_is_weaker
    perfect = under(audited, PaperAttack(torch.zeros(8, dtype=torch.float64), 1000, 1000, 1.0))
    assert perfect.difference.mean == 0.0
    weaker = replace(perfect, audit=replace(audited.audit, correct=case.attack.correct))
    assert weaker.audit_is_weaker
    assert "more than one point above the paper's attack" in weaker.finding()
    assert "2000 passes per image, 100 % of the published budget" in weaker.finding()


def test_a_reduced_attack_is_compared_at_equal_passes_only(audited: AuditedCase) -> None:
    """The running accuracy of an audit with known rows, at three numbers of passes."""
    rows = tuple(
        replace(audited.audit.rows[0], running=running, forward=100.0, backward=50.0)
        for running in (0.5, 0.125)
    )
    audited = replace(audited, audit=replace(audited.audit, rows=rows))
    half = torch.arange(8).lt(2).double()  # 25 %
    few = under(audited, PaperAttack(half, 149, 0, 0.05))
    assert few.at_equal_passes is None
    assert few.excess is None
    assert "no equal comparison: the budget of the paper's attack was reduced" in few.finding()
    one = under(audited, PaperAttack(half, 200, 99, 0.05))
    assert one.at_equal_passes == 50.0
    assert one.excess == 25.0
    assert one.audit_is_weaker
    assert "at equal passes (+25.0 points) the audit is more than one point" in one.finding()
    both = under(audited, PaperAttack(half, 200, 100, 0.05))
    assert both.excess == -12.5
    assert not both.audit_is_weaker
    assert "5 % of the published budget" in both.finding()


def test_an_attack_that_the_paper_reports_as_rejected_is_no_comparison(
    audited: AuditedCase,
) -> None:
    full = PaperAttack(torch.ones(8, dtype=torch.float64), 1000, 1000, 1.0)
    rejected = under(audited, full, "the paper reports that its points are rejected")
    assert rejected.excess is None
    assert "no comparison: the paper reports that its points are rejected" in rejected.finding()


def test_the_share_of_a_budget_follows_from_passes() -> None:
    ten = sp.Direct("pgd", sp.PGD(10))
    assert cost_share(ten, ten) == 1.0
    assert cost_share(ten, sp.Direct("pgd", sp.PGD(1000))) == pytest.approx(0.01, rel=0.1)
    assert cost_share(sp.Direct("r", RayS(500)), sp.Direct("r", RayS(10_000))) == 0.05
    assert budget_share(20, 10) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_defense_of_every_family_is_audited_and_stored(
    family: str, tmp_path: Path
) -> None:
    result, record = reproduce(EXPERIMENTS[f"blind-audit/{family}"], Request(tmp_path))
    (row,) = result.tables[0].rows
    values = [None if cell is None else cell.mean for cell in row.cells]
    clean, paper, audited, difference, equal, share, own_forward, own_backward, *passes = values
    forward, backward = passes
    assert row.labels[2] == str(FAMILIES[family])
    assert record.is_file()
    assert clean >= paper
    assert difference == pytest.approx(audited - paper)
    assert forward > 0
    assert backward > 0
    assert own_forward + own_backward > 0
    assert 0 < share <= 100
    assert equal is None or equal >= audited
    compared = "0" if equal is None and share < 100 else "1"
    assert result.findings[0].startswith(f"{compared} of 1 audits can be compared")
    assert result.forward == pytest.approx(forward * FAMILIES[family])
    assert result.backward == pytest.approx(backward * FAMILIES[family])
    assert result.seconds > 0
    (stored,) = (tmp_path / "audits").iterdir()
    assert sp.Audit.load(stored).robust_accuracy == pytest.approx(audited / 100)
