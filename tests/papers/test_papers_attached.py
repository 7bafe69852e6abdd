"""Scale real on a stand-in for the robust network: attached exits, and SODEF in two norms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import L2, Linf
from saddlepoint.data.record import Data
from saddlepoint.papers import EXPERIMENTS, Request
from saddlepoint.papers import experiment as base_experiment
from saddlepoint.papers.adaptive import real, real_table_2
from saddlepoint.papers.adaptive.fitting import FITS
from saddlepoint.papers.adaptive.robust_net import NAME, RADIUS, RobustResNet, load_robust_net
from saddlepoint.papers.adaptive.scales import AttackBudgets
from saddlepoint.papers.adaptive.table_2 import WORST_GAP
from saddlepoint.papers.budgets import AutoAttackBudget
from saddlepoint.papers.multi_exit import attached, five_exits, published, table_3
from saddlepoint.papers.multi_exit.attached import attached_recipe, attached_subject
from saddlepoint.training import initial


@pytest.fixture
def request_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Request:
    """A request with a network of random weights and random images."""
    file = tmp_path / "models" / f"{NAME}.safetensors"
    file.parent.mkdir(parents=True)
    (tmp_path / "models" / "modules.py").write_text("")
    torch.manual_seed(0)
    weights = RobustResNet().state_dict()
    save_file({key.replace("stem.0.", "conv1."): one for key, one in weights.items()}, file)

    def load(name: str, *, split: str, n: int, root: Path | None) -> Data:
        x = torch.rand(n, 3, 32, 32, generator=torch.Generator().manual_seed(len(split)))
        return Data(name, x, torch.arange(n) % 10, tuple("abcdefghij"))

    for module in (base_experiment, real, real_table_2):
        monkeypatch.setattr(module, "load_data", load)
    monkeypatch.setattr(attached, "TRAINING_IMAGES", 20)
    monkeypatch.setattr(attached, "EPOCHS", 1)
    few = replace(
        attached.SETTING,
        game_images=6,
        test_images=8,
        reduced_images=8,
        payoff=PGD(1),
        attacks={"FGSM": attached.SETTING.attacks["FGSM"]},
    )
    monkeypatch.setattr(attached, "SETTING", few)
    return Request(tmp_path, "real", models=tmp_path / "models")


def test_attached_exits_keep_the_network_and_are_trained_with_it(
    request_real: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attached, "TRAINING_IMAGES", 260)  # two steps, the first of length zero
    assert request_real.models
    file = request_real.models / f"{NAME}.safetensors"
    net = initial(attached_recipe(file, "PGD-AT"), 0)
    x = torch.rand(2, 3, 32, 32)
    exits = net(x)
    assert len(exits) == attached.EXITS
    assert torch.equal(exits[-1], load_robust_net(file)(x))
    assert all(parameter.requires_grad for parameter in net.parameters())
    subject = attached_subject(attached.open_experiment(request_real), "PGD-AT")
    assert not torch.allclose(subject.base.net(x)[-1], exits[-1]), "the network was trained"
    assert not torch.equal(subject.game.x[0], subject.test.x[0])


def test_five_exits_are_scored_beside_their_twin_with_one_exit(request_real: Request) -> None:
    result = EXPERIMENTS["multi-exit/five-exits"].run(request_real)
    assert list(result.weights) == [NAME]
    exits, evaluations, defenders, effects, attacks = result.tables
    assert len(exits.rows) == attached.EXITS
    assert evaluations.columns == published.EVALUATIONS
    assert defenders.rows[-1].labels == (five_exits.SINGLE, "1")
    assert effects.rows[-1].labels == (five_exits.NEED_MINUS_SINGLE,)
    assert (attacks.columns, attacks.n) == (("FGSM",), 8)
    assert "15 attacks, on neighboring exits, x 31 sets" in " ".join(result.notes)
    assert attached.training_note() in result.notes


@pytest.mark.slow
def test_table_3_compares_five_methods_on_the_third_party_network(
    request_real: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_3, "IMAGES", 8)
    monkeypatch.setattr(table_3, "ATTACKS", ("FGSM",))
    result = EXPERIMENTS["multi-exit/table-3"].run(request_real)
    table, changes = result.tables
    methods = list(published.TABLE_3)
    assert [row.labels[0] for row in table.rows[::2]] == methods
    assert [row.labels[0] for row in table.rows[1::2]] == [f"{one} + NEED" for one in methods]
    assert table.columns == ("clean", "FGSM")
    papers = [cell.paper for cell in table.rows[0].cells if cell]
    assert papers == list(published.TABLE_3["Standard"][0][:2])
    assert [row.labels[0] for row in changes.rows] == methods
    assert changes.columns == ("clean images", "FGSM", table_3.STRONGEST)
    for method in methods:
        single, need = (
            table.cell((name, "cifar10"), "FGSM") for name in (method, f"{method} + NEED")
        )
        change = changes.cell((method, "cifar10"), "FGSM")
        assert change.mean == pytest.approx(need.mean - single.mean)
        assert change.interval
        assert any(note.startswith(f"NEED of {method}: exits ") for note in result.notes)
    assert "FGSM with the paper's budgets; PGD-20, PGD-100" in " ".join(result.notes)
    assert "another network and a larger radius" in result.symptoms[-1]
    assert any(text.startswith("Of 5 changes of the accuracy") for text in result.findings)


def test_sodef_is_attacked_in_both_norms_with_the_papers_ratio_of_radii(
    request_real: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = replace(FITS["tiny"], images=20)
    once = AttackBudgets(auto=AutoAttackBudget(1, 1, 1), apgd_steps=1, targets=1)
    monkeypatch.setattr(real, "FIT", short)
    for name, value in (("FIT", short), ("BUDGETS", once), ("IMAGES", 6)):
        monkeypatch.setattr(real_table_2, name, value)
    result = EXPERIMENTS["adaptive/table-2"].run(request_real)
    table, differences = result.tables
    assert table.n == differences.n == 6
    spaces = (Linf(RADIUS), L2(RADIUS * 255 / 16))
    assert [row.labels[:2] for row in table.rows] == [
        (norm, str(space)) for norm, space in zip(("Linf", "L2"), spaces, strict=True)
    ]
    for row in table.rows:
        static, worst = (
            table.cell(row.labels, name) for name in ("static, AutoAttack", "worst case")
        )
        gap = differences.cell(row.labels[:1], WORST_GAP)
        assert gap.interval
        assert gap.mean == pytest.approx(worst.mean - static.mean)
    assert sum(text.startswith("L2: under points of maximal loss") for text in result.findings) == 1
