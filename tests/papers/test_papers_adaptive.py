"""The adaptive-defense paper again: every experiment at the tiny scale, its costs and its columns on known numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Plain
from saddlepoint.evaluation import Cascade, CleanCopies, Direct, MultiTarget, Restarts, Transfer
from saddlepoint.evaluation.adversaries import Adversary
from saddlepoint.papers import EXPERIMENTS, Request
from saddlepoint.papers.adaptive import EXPERIMENTS as OURS
from saddlepoint.papers.adaptive.attacks import PAPER, TRANSFERS, unaware
from saddlepoint.papers.adaptive.closed_loop import COLUMNS as TRIPLE
from saddlepoint.papers.adaptive.cost import cost, passing
from saddlepoint.papers.adaptive.defenses import DEFENSES, FITS, Base
from saddlepoint.papers.adaptive.experiment import Lab, apart
from saddlepoint.papers.adaptive.nets import further, recipes
from saddlepoint.papers.adaptive.scales import SETTINGS, Spend
from saddlepoint.papers.adaptive.table_1 import BEYOND, GAIN, LEAST, PAPERS, STATIC, SUITE
from saddlepoint.papers.adaptive.table_2 import gained
from saddlepoint.papers.registry import SCALES
from saddlepoint.papers.result import Cell, Result, read
from saddlepoint.papers.runner import Images
from saddlepoint.papers.transductive.nets import normed
from saddlepoint.papers.write import reproduce
from saddlepoint.training import initial
from saddlepoint.zoo.adaptive import SOAP, TABLE, AIDPurifier, AntiAdversary, HedgeDefense
from saddlepoint.zoo.adaptive.layers import refuse_unknown


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Networks and episodes of all experiments: what one has played, the next finds."""
    return tmp_path_factory.mktemp("adaptive")


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, Result]:
    return {one.name.partition("/")[2]: reproduce(one, Request(folder))[0] for one in OURS}


@pytest.fixture(scope="module")
def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return normed(4, 24, side=8).eval()


X = torch.linspace(0, 1, 5 * 64).view(5, 1, 8, 8)


def test_every_experiment_runs_and_its_record_can_be_read_again(results: dict[str, Result]) -> None:
    for name, result in results.items():
        assert read(result.text(), name).text() == result.text()
        assert result.findings
        assert result.forward > 0
        accuracies = [
            cell
            for row in result.tables[0].rows
            for cell in row.cells
            if cell and cell.interval and cell.mean >= 0
        ]
        assert all(0 <= cell.mean <= 100 for cell in accuracies), name


def test_the_first_table_has_the_paper_s_nine_rows_and_its_figures(
    results: dict[str, Result],
) -> None:
    table, costs, _ = results["table-1"].tables
    assert [row.labels[0] for row in table.rows] == [one.name for one in TABLE]
    for row, about in zip(table.rows, TABLE, strict=True):
        assert row.labels[2:] == ("8", about.attack, f"{about.reported:g}")
        assert table.cell(row.labels, PAPERS).paper == about.found
        assert table.cell(row.labels, STATIC).paper == about.static
    assert [row.cells[-1].paper for row in costs.rows if row.cells[-1]] == [
        one.inference for one in TABLE
    ]
    assert [row.labels[2] for row in costs.rows] == [one.principle for one in TABLE]


def test_the_worst_of_all_is_no_better_than_any_column_and_differences_are_those_of_columns(
    results: dict[str, Result],
) -> None:
    """Random defenses are picked on other answers than they are judged on, so only the others must obey."""
    table = results["table-1"].tables[0]
    for row in table.rows:
        cells = {
            column: cell.mean for column, cell in zip(table.columns, row.cells, strict=True) if cell
        }
        lowest = min(cells[name] for name in TRANSFERS)
        assert cells[BEYOND] == pytest.approx(cells[PAPERS] - lowest)
        assert cells[GAIN] == pytest.approx(cells[LEAST] - cells[STATIC])
        if "R" not in next(one.blocks for one in TABLE if one.name == row.labels[0]):
            assert (
                cells[LEAST]
                <= min(lowest, cells[PAPERS], cells.get(SUITE, 100.0), cells["clean"]) + 1e-9
            )
    assert sum(row.cells[table.columns.index(SUITE)] is not None for row in table.rows) == 1, (
        "the tiny scale sends one suite"
    )


def test_under_rays_the_anti_adversary_answers_as_its_static_net_label_for_label(
    results: dict[str, Result],
) -> None:
    table = results["table-1"].tables[2]
    defended, bare, labels, points = (cell.mean for cell in table.rows[0].cells if cell)
    assert defended == bare
    assert labels == points == SETTINGS["tiny"].scored
    assert any("label for label the same" in told for told in results["table-1"].findings)


def test_the_closed_loop_experiment_has_the_paper_s_triple_and_a_clean_accuracy(
    results: dict[str, Result],
) -> None:
    table = results["closed-loop"].tables[0]
    assert [table.cell(("closed-loop control",), name).paper for name in TRIPLE] == [
        89.1,
        34.5,
        9.5,
        5.6,
        None,
    ]


def test_nothing_is_trained_or_played_again(folder: Path, results: dict[str, Result]) -> None:
    said: list[str] = []
    again = EXPERIMENTS["adaptive/table-4"].run(Request(folder, say=said.append))
    assert all(message.startswith("fitting") for message in said)
    assert again.tables == results["table-4"].tables


def test_repeated_answers_of_the_hedge_defense_are_kept_apart(results: dict[str, Result]) -> None:
    table = results["table-3"].tables[0]
    draws = SETTINGS["tiny"].draws
    assert [len(cell.values) for row in table.rows for cell in row.cells[1:4] if cell] == [
        draws
    ] * 9


def parts(one: Adversary) -> list[Adversary]:
    """An adversary and all that it is made of."""
    inner = [getattr(one, name) for name in ("adversary", "direct") if hasattr(one, name)]
    return [
        one,
        *(part for each in (*inner, *getattr(one, "adversaries", ())) for part in parts(each)),
    ]


def test_every_attack_is_made_of_shared_parts(folder: Path, results: dict[str, Result]) -> None:
    lab = Lab.open(Request(folder))
    spend = SETTINGS["tiny"].spend
    shared = (Cascade, CleanCopies, Direct, MultiTarget, Restarts, Transfer)
    assert (
        set(PAPER) == set(DEFENSES) == {row.labels[0] for row in results["table-1"].tables[0].rows}
    )
    for name, attack in PAPER.items():
        defense = lab.subject(name).defense
        sent = [attack(defense, spend), *unaware(defense, spend)]
        assert all(isinstance(part, shared) for one in sent for part in parts(one)), name


def test_passes_are_those_of_the_papers(net: nn.Module) -> None:
    """Sec. 3.4: 21 forward and 20 backward. Sec. 3.5: 5 x 11 x 2 of both; of eleven radii only five move anything otherwise."""
    hedged = cost(HedgeDefense(net), X)
    assert (hedged.forward, hedged.backward) == (21, 20)
    surer = cost(AntiAdversary(net), X)
    assert (surer.forward, surer.backward) == (4, 2)
    consistent = cost(SOAP(net), X)
    radii = 5  # and radius 0, where nothing moves
    assert (consistent.forward, consistent.backward) == (
        (radii * 5 + 5 + radii + 1) * 2 + 1,
        (radii * 5 + 5) * 2,
    )
    plain = cost(Plain(net), X)
    assert (plain.forward, plain.backward, plain.work) == (1, 0, 1)


def test_operations_of_a_backward_pass_count(net: nn.Module) -> None:
    """To the input alone it takes as many operations as forward: 4 forward and 2 backward passes are 6 passes' work."""
    assert cost(AntiAdversary(net), X).work == pytest.approx(6, rel=0.01)


def test_every_entrance_to_a_net_is_counted_once(net: nn.Module) -> None:
    x = X.clone().requires_grad_()
    with passing(net) as passed:
        torch.autograd.grad((net(x) + net(x) + net(X)).sum(), x)
    assert (passed.forward, passed.backward) == (15, 10)
    net(x)
    assert passed.forward == 15, "the hook is gone"


def test_a_gain_is_said_only_beyond_the_interval() -> None:
    ones = torch.ones(40, dtype=torch.float64)
    half = (torch.arange(40) % 2).double()
    assert "more robust than" in gained("it", apart(ones, half))
    assert "less robust than" in gained("it", apart(half, ones, 3.0))
    assert "not to be told from" in gained("it", apart(half, half))
    assert apart(ones, half).mean == 50
    assert "the paper has +3.0" in gained("it", apart(half, ones, 3.0))


def test_lengths_inside_defenses_are_the_paper_s_at_its_radius(net: nn.Module) -> None:
    """On CIFAR-10 at 8/255: steps of 4/255 in 8/255, radii to 40/255, steps of 2/255 in 16/255."""
    images = SimpleNamespace(x=X, y=torch.arange(5))
    base = Base(net, (images.x, images.y), Linf(8 / 255), 0, "cifar10")  # type: ignore[arg-type]
    hedge = DEFENSES["HedgeDefense"].make(base, FITS["paper"])
    assert isinstance(hedge, HedgeDefense)
    assert (hedge.radius, hedge.ascent.step_size, hedge.steps) == (8 / 255, 4 / 255, 20)
    surer = DEFENSES["AntiAdversary"].make(base, FITS["paper"])
    assert isinstance(surer, AntiAdversary)
    assert (surer.ascent.step_size, surer.steps) == (0.15, 2)


@pytest.mark.parametrize(("data", "radii"), [("cifar10", 1), ("cifar100", 2), ("svhn", 1)])
def test_the_purifier_goes_as_far_as_released(net: nn.Module, data: str, radii: int) -> None:
    """0.031 and 0.062 at an attacker's 8/255, 0.047 at 12/255; its steps are a quarter of that."""
    fit = replace(FITS["tiny"], judged=("1",), judges=8)
    base = Base(net, Images(X, torch.arange(5)), Linf(8 / 255), 0, data)
    made = DEFENSES["AIDPurifier"].make(base, fit)
    assert isinstance(made, AIDPurifier)
    assert (made.space.radius, made.ascent.step_size) == (radii * 8 / 255, radii * 2 / 255)


def test_at_the_paper_s_scale_all_data_of_table_4_are_there() -> None:
    known = recipes("paper")
    assert [known[name].data for name in ("PGD-AT", *further("paper"))] == [
        "cifar10",
        "cifar100",
        "svhn",
    ]
    with torch.device("meta"):
        assert initial(known["PGD-AT cifar100"], 0)(torch.zeros(1, 3, 32, 32)).shape == (1, 100)


@pytest.mark.parametrize("scale", SCALES)
def test_layers_that_defenses_look_at_exist_at_every_scale(scale: str) -> None:
    known = recipes(scale)  # type: ignore[arg-type]
    for recipe, layers in (
        (known["ResNet-20"], FITS[scale].steered),
        (known["PGD-AT"], FITS[scale].judged),
    ):  # type: ignore[index]
        with torch.device("meta"):
            refuse_unknown(initial(recipe, 0), layers)


def test_the_paper_s_budgets_are_the_defaults() -> None:
    told = str(Spend())
    assert "AutoAttack with 100 steps, 9 targets and 5000 queries" in told
    assert "RayS 10000 queries" in told
    assert SETTINGS["paper"].spend == Spend()


def test_a_cell_of_a_difference_carries_its_sign() -> None:
    assert apart(torch.zeros(4), torch.ones(4)) == Cell((-100.0,), None, (-100.0, -100.0))
