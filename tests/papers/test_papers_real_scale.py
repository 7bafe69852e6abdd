"""Scale real on stand-ins: a folder with a seven-exit network, monotone networks, and images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from saddlepoint.papers import EXPERIMENTS, Request
from saddlepoint.papers.cost_estimate import CostEstimate
from saddlepoint.papers.deq import third_party as monotone_networks
from saddlepoint.papers.deq import training_costs
from saddlepoint.papers.deq.nets import exact
from saddlepoint.papers.multi_exit import scales as exit_scales
from saddlepoint.papers.multi_exit import scored_game
from saddlepoint.papers.multi_exit.third_party import NETWORK
from saddlepoint.papers.result import Result, read
from saddlepoint.papers.runner import Images
from saddlepoint.training import Recipe
from saddlepoint.zoo.deq import EquilibriumTraining

LOADER = """
import torch
from pathlib import Path
from torch import nn

class Exits(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU())
        self.pool = nn.AdaptiveAvgPool2d(4)
        self.heads = nn.ModuleList(nn.Linear(64, 10) for _ in range(7))

    def forward(self, x):
        h = self.pool(self.stem(x)).flatten(1)
        return [head(h) for head in self.heads]

def load(name):
    net = Exits()
    net.load_state_dict(torch.load(Path(__file__).parent / f"{name}.pt", weights_only=True))
    return net.eval()
"""


@pytest.fixture(scope="module")
def request_real(tmp_path_factory: pytest.TempPathFactory) -> Request:
    """A request with stand-ins for the folder of models and for CIFAR-10."""
    tmp_path = tmp_path_factory.mktemp("real")
    models = tmp_path / "models"
    (models / NETWORK).parent.mkdir(parents=True)
    (models / "modules.py").write_text(LOADER)
    scope: dict[str, object] = {"__file__": str(models / "modules.py")}
    exec(LOADER, scope)
    torch.manual_seed(0)
    torch.save(scope["Exits"]().state_dict(), models / f"{NETWORK}.pt")  # type: ignore[operator]
    data = tmp_path / "data" / "cifar-10-batches-bin"
    data.mkdir(parents=True)
    rows = torch.zeros(10_000, 3073, dtype=torch.uint8)  # the size of the file is checked
    rows[:24] = torch.randint(256, (24, 3073), dtype=torch.uint8)
    rows[:, 0] %= 10
    (data / "test_batch.bin").write_bytes(rows.numpy().tobytes())
    return Request(tmp_path / "out", "real", models=models, data=data.parent)


@pytest.fixture(scope="module")
def few_images() -> Iterator[None]:
    setting = exit_scales.SETTINGS["real"]
    few = replace(setting, game_images=10, test_images=12, reduced_images=8, batch=12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(exit_scales.SETTINGS, "real", few)  # type: ignore[arg-type]
        yield


@pytest.fixture(scope="module")
def played(request_real: Request, few_images: None) -> Result:
    return EXPERIMENTS["multi-exit/seven-exits"].run(request_real)


def test_the_third_party_game_is_scored_on_other_images_with_intervals(played: Result) -> None:
    assert played.scale == "real"
    assert played.title == "The game on seven exits: 127 attacks x 127 sets (ours)"
    assert list(played.weights) == [NETWORK]
    assert "127 attacks, one on every set of exits, x 127 sets" in " ".join(played.notes)
    assert "game on 10 test images that are not scored" in played.notes[0]
    effects = played.tables[-1]
    assert (effects.title, effects.n) == (scored_game.EFFECTS, 12)
    assert all(row.cells[0] and row.cells[0].interval for row in effects.rows)
    assert read(played.text(), "here").weights == played.weights
    (chart,) = played.charts
    assert chart.name == "triple-wins-payoffs"


def test_no_attacker_of_one_row_is_stronger_than_the_attacker_per_image(played: Result) -> None:
    strategies = played.tables[2]
    for row in strategies.rows:
        one, per_image = row.cells[3], row.cells[4]
        assert one
        assert per_image
        assert per_image.mean <= one.mean + 1e-9
    evaluations = played.tables[1]
    last = evaluations.cell(("Last exit",), "Single attack")
    assert last == played.tables[0].cell(("7",), "matched attack"), "both attack the last exit"


@pytest.mark.slow
@pytest.mark.usefixtures("played")
def test_tables_of_the_paper_use_the_exits_of_the_third_party_network(
    request_real: Request, few_images: None
) -> None:
    found = {
        name: EXPERIMENTS[f"multi-exit/{name}"].run(request_real)
        for name in ("table-1", "table-2", "table-4", "figure-3", "figure-6")
    }
    table = found["table-1"].tables[0]
    assert (table.columns, table.n) == (("FGSM", "PGD-20"), 8)
    assert [row.labels[0] for row in table.rows[::4]] == [
        "Static (3rd exit)",
        "Random (3rd or 5th)",
        "Dynamic, entropy [16]",
        "Dynamic, confidence (a guess of [3])",
    ]
    assert {row.labels[1] for row in table.rows} == {"triple-wins"}
    assert [row.labels[2] for row in found["table-2"].tables[0].rows] == [
        "Multi-exit (static)",
        "Multi-exit (dynamic)",
        "Multi-exit (NEED)",
    ]
    passes = found["table-4"].tables[0].rows[1].cells
    assert passes[2]
    assert passes[3]
    assert passes[2].mean > 6 * passes[3].mean, "seven attacks in place of one"
    figure, remarks = found["figure-3"].tables
    assert len(figure.rows) == len(figure.columns) == 28
    assert sum(row.cells[0].mean for row in remarks.rows if row.cells[0]) == 127 * 126
    attackers = [row.labels[0] for row in found["figure-6"].tables[0].rows]
    assert attackers == [
        "Random",
        "Single attack",
        "Average attack",
        "Max-average attack",
        "AIMER",
    ]


class Loaded(torch.nn.Module):
    """A monotone network as loaders of others return it: tensors in a dictionary."""

    def __init__(self, size: int, m: float, alpha: float) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64) / size**0.5

        self.sd = {"A": draw(3, size), "B": draw(size, size), "U": draw(size, 16)}
        self.sd |= {"u": draw(size), "C": draw(4, size), "c": draw(4)}
        A, B = self.sd["A"], self.sd["B"]
        self.W = (1 - m) * torch.eye(size, dtype=torch.float64) - A.T @ A + B - B.T
        self.alpha = alpha
        self.register_buffer("mean", torch.full((1, 1, 1, 1), 0.5))
        self.register_buffer("std", torch.full((1, 1, 1, 1), 0.25))


@pytest.mark.parametrize("splitting", [False, True])
def test_a_loaded_monotone_network_keeps_its_equilibrium(splitting: bool) -> None:
    loaded = Loaded(size=6, m=0.8 if not splitting else 8.0, alpha=0.05)
    net = monotone_networks.monotone(loaded, splitting=splitting)
    assert torch.allclose(net.weight, loaded.W, atol=1e-12)
    x = torch.rand(5, 1, 4, 4, dtype=torch.float64)
    b = ((x - 0.5) / 0.25).flatten(1) @ loaded.sd["U"].T + loaded.sd["u"]
    z = torch.zeros_like(b)
    for _ in range(5000):  # the forward-backward splitting of the loader
        z = (0.95 * z + 0.05 * (z @ loaded.W.T + b)).relu()
    wanted = z @ loaded.sd["C"].T + loaded.sd["c"]
    found = exact(lambda: net, 200, 20)(x)
    assert torch.allclose(found, wanted, atol=5e-3)
    if splitting:
        assert not torch.allclose(net.cell(z + 1, b), (z + 1) @ loaded.W.T + b)
        assert torch.allclose(net.cell(z, b), z, atol=1e-9)


def test_every_network_of_the_paper_has_a_third_party_network_with_its_solver_steps() -> None:
    short, long = (
        monotone_networks.CHOICES[f"exact-{name}"].solved(
            lambda: monotone_networks.monotone(Loaded(4, 1.0, 0.1), splitting=False)
        )
        for name in ("short", "long")
    )
    assert (short.method.steps, long.method.steps) == (8, 50)
    assert set(monotone_networks.CHOICES) >= {"unrolled", "unrolled-xl", "vanilla"}


def test_costs_of_training_are_those_of_steps_with_an_adversary(monkeypatch) -> None:
    measured = []

    def training_cost(recipe: Recipe, images: Images, **other: object) -> CostEstimate:
        measured.append(recipe)
        return CostEstimate(recipe.name, 1.0, len(images.x), 1)

    monkeypatch.setattr(training_costs, "training_cost", training_cost)
    costs = training_costs.small_costs(Images(torch.zeros(2, 3, 32, 32), torch.zeros(2).long()))
    assert len(costs) == len(measured) == 3
    for recipe in measured:
        assert isinstance(recipe.method, EquilibriumTraining)
        assert recipe.method.warmup == 0, "steps of the warm-up have no adversary"
        assert recipe.method.attack is not None
