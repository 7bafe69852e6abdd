"""A convolutional equilibrium network that is trained in three ways, on random images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf, Radii
from saddlepoint.data.record import Data
from saddlepoint.papers import EXPERIMENTS, Request
from saddlepoint.papers import experiment as base_experiment
from saddlepoint.papers.deq import cifar10
from saddlepoint.papers.deq.conv_cell import ConvCellNet
from saddlepoint.papers.deq.nets import exact, unrolled
from saddlepoint.papers.deq.scales import SETTINGS
from saddlepoint.papers.deq.three_ways import ACCUMULATION, ENSEMBLE, MASKED, MASKED_SQUARE
from saddlepoint.papers.deq.trained_here import TrainingPlan
from saddlepoint.papers.result import Result
from saddlepoint.training import initial
from saddlepoint.zoo.deq import Stack

PLAN = TrainingPlan(
    image=(3, 8, 8),
    widths=(4, 8),
    space=Linf(0.1),
    start_images=100,
    start_epochs=1,
    images=96,
    epochs=1,
    attack=PGD(1, Radii(1)),
    layers=2,
    solvers={
        "exact-short": partial(exact, forward=2, backward=2),
        "unrolled": partial(unrolled, forward=2),
        "exact-long": partial(exact, forward=3, backward=3),
    },
)
TWINS = (
    cifar10.Twin("exact-short", "converged", 4, 4, selected_on=4, test_images=4),
    cifar10.Twin("unrolled", "converged", 4, 4, selected_on=4, test_images=4),
)


@pytest.fixture(scope="module")
def request_real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Request]:
    """A request with a short training on random images; all tests share its folder."""

    def load(name: str, *, split: str, n: int, root: Path | None) -> Data:
        x = torch.rand(n, 3, 8, 8, generator=torch.Generator().manual_seed(len(split)))
        return Data(name, x, torch.arange(n) % 10, tuple("abcdefghij"))

    few = replace(SETTINGS["tiny"], test_images=6, selected_on=5, reduced_images=4, states=2)
    folder = tmp_path_factory.mktemp("cifar10")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base_experiment, "load_data", load)
        patch.setattr(cifar10, "PLAN", PLAN)
        patch.setattr(cifar10, "TWINS", TWINS)
        patch.setattr(cifar10, "SETTING", few)
        yield Request(folder, "real", models=folder)


@pytest.fixture(scope="module")
def result(request_real: Request) -> Result:
    """The result of the whole experiment."""
    return EXPERIMENTS["deq/cifar10"].run(request_real)


def test_the_cell_is_a_pure_function_and_does_not_mix_images() -> None:
    torch.manual_seed(0)
    net = ConvCellNet(image=(3, 8, 8), widths=(4, 8, 16)).eval()
    assert net.shape == (16, 2, 2)
    x = torch.rand(3, 3, 8, 8)
    u = net.inject(x)
    z = net.cell(net.start(u), u)
    assert z.shape == u.shape == (3, 64)
    assert net.head(z).shape == (3, 10)
    assert torch.equal(net.cell(z, u), net.cell(z, u))
    assert torch.allclose(net.cell(z[:1], u[:1]), net.cell(z, u)[:1], atol=1e-6)


def test_the_state_needs_whole_groups_of_channels() -> None:
    with pytest.raises(ValueError, match="multiple of 8 channels, got 12"):
        ConvCellNet(widths=(4, 12))


def test_every_network_starts_with_the_weights_of_the_stack() -> None:
    start = initial(PLAN.start(), 0)
    assert isinstance(start, Stack)
    weights = start.net.state_dict()  # type: ignore[attr-defined]
    for name in PLAN.solvers:
        solved = initial(PLAN.recipe(name, start), 1)
        found = {key.removeprefix("net."): one for key, one in solved.state_dict().items()}
        assert all(torch.equal(found[key], one) for key, one in weights.items())


def test_networks_are_trained_and_compared_with_twins(result: Result) -> None:
    states, attacks, differences, defenses, *every_state = result.tables
    titles = ["exact-short (2/2)", "unrolled (2+6)", "exact-long (3/3)"]
    twins = ["exact-short converged (4/4)", "unrolled converged (4/4)"]
    assert [row.labels for row in states.rows] == [
        *((title, "6") for title in titles),
        *((twin, "4") for twin in twins),
    ]
    assert [row.labels[:2] for row in attacks.rows[:2]] == [
        (titles[0], "exact"),
        (titles[0], "unrolled"),
    ]
    measured = {row.labels[:2] for row in differences.rows}
    assert {(title, ACCUMULATION) for title in (*titles, *twins)} < measured
    assert {(title, MASKED) for title in (*titles, *twins)} < measured
    assert {(titles[0], MASKED_SQUARE), (titles[1], ENSEMBLE)} < measured
    assert defenses.n == 4
    assert [len(table.rows) for table in every_state] == [4, 4, 5]
    assert PLAN.note in result.notes
    assert sum("SHA-256" in note for note in result.notes) == len(titles)
    assert not result.weights, "no third-party network was used"


def test_numbers_of_a_network_with_other_solver_steps_are_not_shown(result: Result) -> None:
    """The paper's Table 2 has an exact network with 50/50 steps alone."""
    _, _, differences, defenses, *_ = result.tables
    reported = {
        row.labels[0]
        for table in (differences, defenses)
        for row in table.rows
        if any(cell is not None and cell.paper is not None for cell in row.cells)
    }
    assert reported == {"exact-short (2/2)", "unrolled (2+6)"}
    assert not any("exact-long" in text and "the paper's" in text for text in result.findings)


def test_the_difference_of_gradients_is_that_of_the_cells(result: Result) -> None:
    _, attacks, differences, *_ = result.tables
    title = "exact-short (2/2)"
    exact_cell = attacks.cell((title, "exact", "4"), "PGD-10")
    unrolled_cell = attacks.cell((title, "unrolled", "4"), "PGD-10")
    found = differences.cell((title, MASKED, "4"), "points")
    assert found.mean == pytest.approx(exact_cell.mean - unrolled_cell.mean)


def test_a_second_run_trains_and_attacks_nothing(request_real: Request, result: Result) -> None:
    messages = list[str]()
    again = EXPERIMENTS["deq/cifar10"].run(replace(request_real, progress=messages.append))
    assert messages == []
    assert again.tables == result.tables
