"""The experiments on adaptive defenses at the tiny scale, their costs, and their arithmetic."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Plain
from saddlepoint.evaluation import Cascade, CleanCopies, Direct, MultiTarget, Restarts, Transfer
from saddlepoint.evaluation.adversary import Adversary
from saddlepoint.papers import EXPERIMENTS, Request
from saddlepoint.papers.adaptive import EXPERIMENTS as OURS
from saddlepoint.papers.adaptive import real
from saddlepoint.papers.adaptive.attacks import (
    PAPER_ATTACKS,
    TRANSFERS,
    on_aid_longer,
    transfers,
)
from saddlepoint.papers.adaptive.closed_loop import COLUMNS as CLOSED_LOOP_COLUMNS
from saddlepoint.papers.adaptive.cost import counted_passes, inference_cost
from saddlepoint.papers.adaptive.defenses import (
    DEFENSES,
    StaticModel,
)
from saddlepoint.papers.adaptive.experiment import AdaptiveExperiment
from saddlepoint.papers.adaptive.findings import compared_with_static
from saddlepoint.papers.adaptive.fitting import FITS
from saddlepoint.papers.adaptive.nets import further, recipes
from saddlepoint.papers.adaptive.radii import FACTORS
from saddlepoint.papers.adaptive.reductions import reductions
from saddlepoint.papers.adaptive.scales import SETTINGS, AttackBudgets
from saddlepoint.papers.adaptive.table_1 import (
    BEYOND_TRANSFER,
    GAIN,
    PAPER_ATTACK,
    STATIC,
    SURROGATE,
    WORST_CASE,
)
from saddlepoint.papers.adaptive.table_3 import CLEAN_COPIES
from saddlepoint.papers.adaptive.table_4 import DETECTION
from saddlepoint.papers.cells import difference_cell
from saddlepoint.papers.registry import TRAINED_SCALES, Scale
from saddlepoint.papers.result import Cell, Plot, Result, read
from saddlepoint.papers.runner import Images
from saddlepoint.papers.transductive.nets import small_cnn
from saddlepoint.papers.write import reproduce
from saddlepoint.training import initial
from saddlepoint.zoo.adaptive import SOAP, TABLE, AIDPurifier, AntiAdversary, HedgeDefense
from saddlepoint.zoo.layers import check_known_layers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared output folder: each experiment reuses the networks and attacks of the others."""
    return tmp_path_factory.mktemp("adaptive")


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, Result]:
    return {one.name.partition("/")[2]: reproduce(one, Request(folder))[0] for one in OURS}


@pytest.fixture(scope="module")
def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return small_cnn(4, 24, side=8).eval()


X = torch.linspace(0, 1, 5 * 64).view(5, 1, 8, 8)


@pytest.mark.slow
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


@pytest.mark.slow
def test_table_1_has_the_nine_rows_and_the_numbers_of_the_paper(
    results: dict[str, Result],
) -> None:
    table, costs, _ = results["table-1"].tables
    assert [row.labels[0] for row in table.rows] == [one.name for one in TABLE]
    for row, surveyed in zip(table.rows, TABLE, strict=True):
        assert row.labels[2:5] == ("8", surveyed.attack, f"{surveyed.reported:g}")
        assert " of " in row.labels[5], "the tiny scale reduces every defense or attack"
        assert table.cell(row.labels, PAPER_ATTACK).paper == surveyed.found
        assert table.cell(row.labels, STATIC).paper == surveyed.static
    assert [row.cells[-1].paper for row in costs.rows if row.cells[-1]] == [
        one.inference for one in TABLE
    ]
    assert [row.labels[2] for row in costs.rows] == [one.principle for one in TABLE]


@pytest.mark.slow
def test_the_worst_case_is_at_most_every_column_and_differences_are_those_of_columns(
    results: dict[str, Result],
) -> None:
    """The worst case is checked for deterministic defenses only.

    For a randomized defense the worst attack is selected on other draws than those that are scored.
    """
    table = results["table-1"].tables[0]
    for row in table.rows:
        cells = {
            column: cell.mean for column, cell in zip(table.columns, row.cells, strict=True) if cell
        }
        lowest = min(cells[name] for name in TRANSFERS)
        assert cells[BEYOND_TRANSFER] == pytest.approx(cells[PAPER_ATTACK] - lowest)
        assert cells[GAIN] == pytest.approx(cells[WORST_CASE] - cells[STATIC])
        if "R" not in next(one.blocks for one in TABLE if one.name == row.labels[0]):
            surrogate = cells.get(SURROGATE, 100.0)
            others = (lowest, surrogate, cells[PAPER_ATTACK], cells["clean"])
            assert cells[WORST_CASE] <= min(others) + 1e-9


@pytest.mark.slow
def test_under_rays_the_anti_adversary_and_its_static_network_predict_the_same_labels(
    results: dict[str, Result],
) -> None:
    table = results["table-1"].tables[2]
    defended, static, labels, points = (cell.mean for cell in table.rows[0].cells if cell)
    assert defended == static
    assert labels == points == SETTINGS["tiny"].test_images
    assert any("the same label on every image" in text for text in results["table-1"].findings)


@pytest.mark.slow
def test_the_closed_loop_experiment_has_the_four_numbers_of_the_paper(
    results: dict[str, Result],
) -> None:
    table = results["closed-loop"].tables[0]
    row = next(one.labels for one in table.rows if one.labels[0] == "closed-loop control")
    papers = [table.cell(row, name).paper for name in CLOSED_LOOP_COLUMNS]
    assert papers == [89.1, 34.5, 9.5, 5.6, None]


@pytest.mark.slow
def test_larger_radii_are_attacked_and_the_chart_has_the_numbers_of_the_table(
    results: dict[str, Result],
) -> None:
    result = results["radii"]
    (table,), (chart,) = result.tables, result.charts
    assert isinstance(chart, Plot)
    numbers = [[cell.mean for cell in row.cells if cell] for row in table.rows]
    assert len(numbers) == len(FACTORS)
    for static, transferred, through, worst, gap in numbers:
        assert worst <= min(transferred, through)
        assert gap == pytest.approx(worst - static)
    static_column = [row[0] for row in numbers]
    assert static_column == sorted(static_column, reverse=True)
    assert static_column[-1] < static_column[0]
    for k, name in enumerate(table.columns[:-1]):
        assert chart.points[name] == tuple(
            (factor, row[k]) for factor, row in zip(FACTORS, numbers, strict=True)
        )


@pytest.mark.slow
def test_a_second_run_trains_no_network_and_runs_no_attack(
    folder: Path, results: dict[str, Result]
) -> None:
    messages: list[str] = []
    again = EXPERIMENTS["adaptive/table-4"].run(Request(folder, progress=messages.append))
    assert all(message.startswith("fitting") for message in messages)
    assert again.tables == results["table-4"].tables


@pytest.mark.slow
def test_the_hedge_table_has_one_value_per_repeated_evaluation(results: dict[str, Result]) -> None:
    table = results["table-3"].tables[0]
    draws = SETTINGS["tiny"].draws
    counts = [len(cell.values) for row in table.rows for cell in row.cells[1:5] if cell]
    assert counts == [draws] * 12


@pytest.mark.slow
def test_the_hedge_table_has_the_number_under_clean_copies(results: dict[str, Result]) -> None:
    """B.3: 69.2 % under APGD of the AutoAttack library, on the first network."""
    table = results["table-3"].tables[0]
    papers = [table.cell(row.labels, CLEAN_COPIES).paper for row in table.rows]
    assert papers == [69.2, None, None]


@pytest.mark.slow
def test_networks_trained_on_the_same_data_are_surrogates(results: dict[str, Result]) -> None:
    table = results["table-1"].tables[0]
    measured = {
        row.labels[0]: row.cells[table.columns.index(SURROGATE)] is not None for row in table.rows
    }
    assert all(measured.values())


@pytest.mark.slow
def test_the_contrastive_table_has_the_five_numbers_of_the_paper(
    results: dict[str, Result],
) -> None:
    """Sec. 3.6; B.8 gives no number for hidden negatives."""
    table, hidden = results["contrastive"].tables
    papers = [cell.paper for row in table.rows for cell in row.cells if cell]
    assert papers == [None, 59.4, 67.0, 63.9, 58.4, 56.4]
    assert [row.labels[0] for row in hidden.rows] == ["batch", "hidden"]


@pytest.mark.slow
def test_the_purifier_table_shows_how_well_the_discriminator_detects(
    results: dict[str, Result],
) -> None:
    table = results["table-4"].tables[0]
    rates = [table.cell(row.labels, DETECTION).mean for row in table.rows]
    assert len(rates) == 2
    assert all(0 <= rate <= 100 for rate in rates)


def test_the_longer_attack_has_ten_restarts_of_a_thousand_steps() -> None:
    """B.7: divided between cross-entropy and targeted DLR."""
    attack = on_aid_longer(AttackBudgets())
    assert isinstance(attack, Cascade)
    restarts, targeted = attack.adversaries
    assert isinstance(restarts, Restarts)
    assert isinstance(targeted, MultiTarget)
    assert targeted.targets == 5
    directs = [part for part in parts(attack) if isinstance(part, Direct)]
    assert {part.attack.steps for part in directs} == {1000}


@pytest.mark.slow
def test_missing_datasets_have_rows_without_numbers(
    folder: Path, results: dict[str, Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        AdaptiveExperiment, "has_data", lambda self, base: base == "PGD-AT", raising=True
    )
    again = EXPERIMENTS["adaptive/table-4"].run(Request(folder))
    first, second = again.tables[0].rows
    assert first == results["table-4"].tables[0].rows[0]
    assert all(cell is None for cell in second.cells)
    assert any("not on this machine" in text for text in again.findings)


@pytest.mark.parametrize("scale", TRAINED_SCALES)
def test_reductions_are_named_in_full_and_the_paper_has_none(scale: Scale) -> None:
    texts = {
        name: reductions(name, FITS[scale], SETTINGS[scale].attack_budgets) for name in DEFENSES
    }
    if scale == "paper":
        assert set(texts.values()) == {"none"}
    if scale == "small":
        assert texts["AntiAdversary"] == "RayS queries 500 of 10000"
        assert texts["ClosedLoopControl"] == "none", "its bases are of 5000 images"
        assert "attack steps 30 of 1000" in texts["SOAP"]
        assert "hidden width 256 of 2048" in texts["SODEF"]
        assert "discriminator widening 1 of 5" in texts["ATLD"]
        assert "discriminator layers 2 of 4" in texts["AIDPurifier"]
        assert "discriminator layers switched off 0 of 2" in texts["AIDPurifier"]


def test_a_classifier_that_is_not_trained_is_named() -> None:
    """At scale real ATLD has no latent-distribution training: only its discriminator is fitted."""
    text = reductions("ATLD", real.FIT, real.BUDGETS)
    assert "training epochs of the classifier 0 of 200" in text
    assert "training epochs of the discriminator 8 of 200" in text


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_bases_of_closed_loop_control_are_of_the_papers_5000_images(scale: Scale) -> None:
    """B.2. Fewer images give another defense; some of those at hand are misclassified."""
    fit = FITS[scale]
    assert fit.components.samples == 5000
    assert fit.basis_images is None or fit.basis_images > 5000


def test_the_discriminator_of_svhn_is_less_deep_and_uses_other_layers(net: nn.Module) -> None:
    fit = replace(
        FITS["tiny"], aid_layers=("1", "4"), aid_off=("1",), aid_off_svhn=("4",), aid_width=8
    )
    train = Images(X, torch.arange(5))
    found = {}
    for data in ("cifar10", "svhn"):
        base = StaticModel(net, train, Linf(8 / 255), 0, data, train)
        purifier = DEFENSES["AIDPurifier"].make(base, fit)
        assert isinstance(purifier, AIDPurifier)
        found[data] = purifier.discriminator
    assert (found["cifar10"].off, found["svhn"].off) == (("1",), ("4",))
    assert [len(found[data].encoders[0]) for data in found] == [2, 1]
    assert [len(found[data].decision[0]) for data in found] == [3, 2]


def parts(one: Adversary) -> list[Adversary]:
    """Return an adversary and all adversaries inside it."""
    inner = [getattr(one, name) for name in ("adversary", "direct") if hasattr(one, name)]
    return [
        one,
        *(part for each in (*inner, *getattr(one, "adversaries", ())) for part in parts(each)),
    ]


@pytest.mark.slow
def test_every_attack_is_composed_of_shared_adversaries(
    folder: Path, results: dict[str, Result]
) -> None:
    experiment = AdaptiveExperiment.open(Request(folder))
    budgets = SETTINGS["tiny"].attack_budgets
    shared = (Cascade, CleanCopies, Direct, MultiTarget, Restarts, Transfer)
    rows = results["table-1"].tables[0].rows
    assert set(PAPER_ATTACKS) == set(DEFENSES) == {row.labels[0] for row in rows}
    for name, attack in PAPER_ATTACKS.items():
        defense = experiment.subject(name).defense
        attacks = [attack(defense, budgets), *transfers(defense, budgets)]
        assert all(isinstance(part, shared) for one in attacks for part in parts(one)), name


def test_the_numbers_of_passes_are_those_of_the_papers(net: nn.Module) -> None:
    """Sec. 3.4: 21 forward and 20 backward passes. Sec. 3.5: 5 x 11 x 2 of both.

    Here SOAP needs fewer passes: only five of its eleven radii change the image, and descents
    share their first steps.
    """
    hedge = inference_cost(HedgeDefense(net), X)
    assert (hedge.forward, hedge.backward) == (21, 20)
    anti_adversary = inference_cost(AntiAdversary(net), X)
    assert (anti_adversary.forward, anti_adversary.backward) == (4, 2)
    soap = inference_cost(SOAP(net), X)
    radii = 5  # and radius 0, which changes nothing
    assert soap.forward == soap.backward + (radii + 1) * 2 + 1
    assert soap.backward <= (5 + 4 + 3 + 2 + 1) * 2
    plain = inference_cost(Plain(net), X)
    assert (plain.forward, plain.backward, plain.flops) == (1, 0, 1)


def test_flops_include_backward_passes(net: nn.Module) -> None:
    """A backward pass to the input alone takes as many FLOPs as a forward pass.

    So 4 forward and 2 backward passes take the FLOPs of 6 forward passes.
    """
    assert inference_cost(AntiAdversary(net), X).flops == pytest.approx(6, rel=0.01)


def test_every_pass_through_a_network_is_counted_once(net: nn.Module) -> None:
    x = X.clone().requires_grad_()
    with counted_passes(net) as passes:
        torch.autograd.grad((net(x) + net(x) + net(X)).sum(), x)
    assert (passes.forward, passes.backward) == (15, 10)
    net(x)
    assert passes.forward == 15, "the hook is removed"


def test_a_difference_is_claimed_only_if_the_interval_excludes_zero() -> None:
    ones = torch.ones(40, dtype=torch.float64)
    half = (torch.arange(40) % 2).double()
    above = difference_cell(ones, half)
    below = difference_cell(half, ones, 3.0)
    assert above.mean == 50
    assert "more robust than" in compared_with_static("it", above)
    assert "less robust than" in compared_with_static("it", below)
    assert "the paper: +3.0" in compared_with_static("it", below)
    assert "not distinguishable from" in compared_with_static("it", difference_cell(half, half))


def test_step_sizes_and_radii_of_defenses_are_the_papers_at_its_radius(net: nn.Module) -> None:
    """On CIFAR-10 at 8/255: steps of 4/255 in 8/255, radii to 40/255, steps of 2/255 in 16/255."""
    train = Images(X, torch.arange(5))
    base = StaticModel(net, train, Linf(8 / 255), 0, "cifar10", train)
    hedge = DEFENSES["HedgeDefense"].make(base, FITS["paper"])
    assert isinstance(hedge, HedgeDefense)
    assert (hedge.radius, hedge.ascent.step_size, hedge.steps) == (8 / 255, 4 / 255, 20)
    anti_adversary = DEFENSES["AntiAdversary"].make(base, FITS["paper"])
    assert isinstance(anti_adversary, AntiAdversary)
    assert (anti_adversary.ascent.step_size, anti_adversary.steps) == (0.15, 2)


@pytest.mark.parametrize(("data", "radii"), [("cifar10", 1), ("cifar100", 2), ("svhn", 1)])
def test_the_purifier_has_the_released_radius_and_step_size(
    net: nn.Module, data: str, radii: int
) -> None:
    """0.031 and 0.062 at the attacker's radius 8/255, 0.047 at 12/255.

    The step size is a quarter of the purifier's radius.
    """
    fit = replace(FITS["tiny"], aid_layers=("1",), aid_width=8)
    train = Images(X, torch.arange(5))
    base = StaticModel(net, train, Linf(8 / 255), 0, data, train)
    purifier = DEFENSES["AIDPurifier"].make(base, fit)
    assert isinstance(purifier, AIDPurifier)
    assert purifier.space.radius == radii * 8 / 255
    assert purifier.ascent.step_size == radii * 2 / 255


def test_the_paper_scale_has_all_datasets_of_table_4() -> None:
    known = recipes("paper")
    datasets = [known[name].data for name in ("PGD-AT", *further("paper"))]
    assert datasets == ["cifar10", "cifar100", "svhn"]
    with torch.device("meta"):
        assert initial(known["PGD-AT cifar100"], 0)(torch.zeros(1, 3, 32, 32)).shape == (1, 100)


@pytest.mark.parametrize("scale", TRAINED_SCALES)
def test_layers_used_by_defenses_exist_at_every_scale(scale: Scale) -> None:
    known = recipes(scale)
    for recipe, layers in (
        (known["ResNet-20"], FITS[scale].controlled_layers),
        (known["PGD-AT"], FITS[scale].aid_layers),
    ):
        with torch.device("meta"):
            check_known_layers(initial(recipe, 0), layers)


def test_the_default_budgets_are_those_of_the_paper() -> None:
    text = str(AttackBudgets())
    assert "AutoAttack with 100 steps, 9 targets and 5000 queries" in text
    assert "RayS 10000 queries" in text
    assert SETTINGS["paper"].attack_budgets == AttackBudgets()


def test_a_difference_cell_has_the_sign_of_the_difference() -> None:
    found = difference_cell(torch.zeros(4), torch.ones(4))
    assert found == Cell((-100.0,), None, (-100.0, -100.0))
