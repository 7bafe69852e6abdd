"""The experiments of the multi-exit paper at the tiny scale, and their arithmetic."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf, Radii
from saddlepoint.defenses import MultiExit
from saddlepoint.evaluation.outcomes import Outcomes
from saddlepoint.evaluation.referee import play
from saddlepoint.evaluation.threat import Threat
from saddlepoint.games.exit_adversaries import Drawn
from saddlepoint.games.exit_attacks import ExitAttack, lafeat
from saddlepoint.games.exit_game import columns_of, exit_game
from saddlepoint.games.payoffs import ExitGame
from saddlepoint.papers import EXPERIMENTS, Request
from saddlepoint.papers.multi_exit import latent_features, published
from saddlepoint.papers.multi_exit.architectures import NETWORKS as FURTHER_NETWORKS
from saddlepoint.papers.multi_exit.experiment import MultiExitExperiment, aimer_attack
from saddlepoint.papers.multi_exit.figure_3 import remark
from saddlepoint.papers.multi_exit.figure_6 import dirichlet, lower_bound
from saddlepoint.papers.multi_exit.nets import recipes
from saddlepoint.papers.multi_exit.out_of_sample import ATTACKERS, differences
from saddlepoint.papers.multi_exit.scales import SETTINGS, EoTPGD, LafeatBudget, PartialPGD
from saddlepoint.papers.multi_exit.table_1 import findings
from saddlepoint.papers.registry import TRAINED_SCALES, Scale
from saddlepoint.papers.result import Cell, Row, Table, read
from saddlepoint.papers.write import reproduce
from saddlepoint.training import FAT, LearnedWeights, OverExits

ROWS = {
    "table-1": 20,
    "table-2": 8,
    "table-3": 10,
    "table-4": 8,
    "figure-3": 10,
    "figure-6": 5,
    "out-of-sample": 5,
    "latent-features": 4,
    "architectures": 16,
    "seven-exits": 5,
    "five-exits": 5,
}
SLOW = {"architectures", "five-exits", "seven-exits", "table-1", "table-3"}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder shared by all experiments, which reuse the networks and episodes stored in it."""
    return tmp_path_factory.mktemp("reproduced")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in ROWS],
)
def test_every_experiment_runs_writes_its_record_and_fills_its_tables(
    name: str, folder: Path
) -> None:
    result, record = reproduce(EXPERIMENTS[f"multi-exit/{name}"], Request(folder))
    assert len(result.tables[0].rows) == ROWS[name]
    assert read(record.read_text(), str(record)).tables[0].labels == result.tables[0].labels
    assert result.experiment in record.with_suffix(".md").read_text()
    assert all((record.parent / f"{chart.name}.svg").is_file() for chart in result.charts)
    assert result.forward > 0
    assert "come from 12 images" in result.findings[0]
    for table in result.tables:
        if "%" in table.title:
            assert all(
                0 <= value <= 100
                for row in table.rows
                for cell in row.cells
                if cell
                for value in cell.values
            ), table.title


def test_a_second_run_plays_no_episode_and_returns_the_same_result(folder: Path) -> None:
    first = EXPERIMENTS["multi-exit/figure-3"].run(Request(folder))
    messages = list[str]()
    again = EXPERIMENTS["multi-exit/figure-3"].run(Request(folder, progress=messages.append))
    assert messages == []
    assert again == first


def test_an_interrupted_run_resumes_and_returns_the_numbers_of_an_uninterrupted_one(
    folder: Path, tmp_path: Path
) -> None:
    messages = list[str]()

    def interrupt_after_three_episodes(message: str) -> None:
        messages.append(message)
        if sum("batch" in one for one in messages) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        EXPERIMENTS["multi-exit/figure-3"].run(
            Request(tmp_path, progress=interrupt_after_three_episodes)
        )
    messages.clear()
    resumed = EXPERIMENTS["multi-exit/figure-3"].run(Request(tmp_path, progress=messages.append))
    assert sum("batch" in one for one in messages) == 1 + 15 - 3, (
        "the clean images and fifteen sets of four exits, three of which were finished before"
    )
    assert not any("training" in one for one in messages)
    assert resumed.tables == EXPERIMENTS["multi-exit/figure-3"].run(Request(folder)).tables


def test_findings_name_every_column_in_which_aimer_is_not_the_lowest() -> None:
    means = zip(published.EVALUATIONS, (50.0, 40.0, 44.0, 42.5), strict=True)
    rows = tuple(
        Row(("Static", "net", "digits", name), (Cell((mean,)), Cell((10.0,))))
        for name, mean in means
    )
    first, *others = findings(
        Table("T", ("defense", "network", "data", "evaluation"), ("FGSM", "PGD-20"), rows, 4)
    )
    assert "in 1 of 2 columns" in first
    assert others == [
        "Contrary to the paper, AIMER is not the lowest: Static on net, FGSM: 2.50 points above "
        "the average attack."
    ]


def test_strategies_are_uniform_over_the_simplex() -> None:
    """Dirichlet(1, ..., 1) has means 1 / A and variances (A - 1) / (A^2 (A + 1)).

    The tolerance of the means is 4 standard errors of 4000 draws.
    """
    strategies = dirichlet(4000, 5, seed=0)
    assert float((strategies.sum(1) - 1).abs().amax()) < 1e-12
    assert float(strategies.amin()) >= 0
    deviation = (4 / (25 * 6)) ** 0.5
    assert float((strategies.mean(0) - 0.2).abs().amax()) < 4 * deviation / 4000**0.5
    assert float(strategies.std(0).mean()) == pytest.approx(deviation, rel=0.05)
    assert torch.equal(dirichlet(3, 5, seed=0), strategies[:3])


def test_lower_bound_is_the_mean_minus_1_96_standard_errors() -> None:
    """The tolerance covers the randomness of a percentile of 1000 bootstrap draws."""
    generator = torch.Generator().manual_seed(0)
    differences = torch.randn(3, 400, generator=generator, dtype=torch.float64)
    expected = differences.mean(1) - 1.96 * differences.std(1) / 20
    assert float((lower_bound(differences, seed=0) - expected).abs().amax()) < 0.02


def test_every_mismatch_belongs_to_one_of_the_four_remarks_of_the_paper() -> None:
    assert [remark(a, (2, 3)) for a in ((2,), (1, 2, 3), (1, 4), (1, 2))] == [
        "3.1",
        "3.2",
        "3.3",
        "3.4",
    ]


def test_aimer_attacks_the_exits_of_the_best_row_and_draws_one_if_rows_tie() -> None:
    def game(accuracies: list[float]) -> ExitGame:
        correct = torch.tensor(accuracies, dtype=torch.float64)[:, None, None].expand(3, 3, 4)
        outcomes = Outcomes(
            ("a", "b", "c"), ("1", "2", "1+2"), correct, correct, torch.arange(4), "example"
        )
        return ExitGame(((1,), (2,), (1, 2)), ((1,), (2,), (1, 2)), outcomes, 2)

    known = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    exit_attack = SETTINGS["tiny"].attacks["PGD-20"]
    assert aimer_attack(game([1.0, 0.5, 1.0]), known, exit_attack) == exit_attack((2,))
    tied = aimer_attack(game([1.0, 0.5, 0.5]), known, exit_attack)
    assert isinstance(tied, Drawn)
    assert tied.adversaries == (exit_attack((2,)), exit_attack((1, 2)))
    assert tied.probabilities == (0.5, 0.5)


@pytest.mark.parametrize("scale", TRAINED_SCALES)
def test_every_scale_has_every_network_and_attack(scale) -> None:
    assert list(SETTINGS[scale].attacks) == list(published.ATTACKS)
    names = {"resnet-18", "resnet-18 single", "vgg-16", "vgg-16 single", "msdnet", "vit", "seven"}
    names |= {"wrn-34-10", "ranet", "l2w-den", "resnet-18-tiny-imagenet"}
    names |= {
        f"vgg-16 {method}{suffix}"
        for method in published.TABLE_3
        if method != "PGD-AT"
        for suffix in ("", " single")
    }
    assert set(recipes(scale)) == names


def test_networks_and_data_of_the_paper_scale_are_those_of_the_paper() -> None:
    found = recipes("paper")
    assert found["resnet-18-tiny-imagenet"].data == "tiny-imagenet"
    assert found["vgg-16 FAT"].method == OverExits(FAT(attack=PGD(10, Radii(1 / 4))))
    assert isinstance(found["l2w-den"].method, LearnedWeights)


def test_eot_pgd_of_aimer_attacks_the_expected_loss_of_the_defenders_strategy() -> None:
    """A defender draws one of two exits. The expected loss is lower at the attack on one exit."""

    class TwoExits(nn.Module):
        def forward(self, x: Tensor) -> list[Tensor]:
            z = x.flatten(1)  # [N, 2]
            return [torch.stack([z[:, k], 0.5 - z[:, k]], 1) for k in (0, 1)]

    x = torch.full((4, 1, 1, 2), 0.5, dtype=torch.float64)
    y = torch.zeros(4, dtype=torch.int64)
    base = MultiExit(TwoExits())
    pgd = PGD(20, Radii(1 / 4))
    game = exit_game(base, x, y, threat=Linf(0.1), attack=pgd)
    known = (game.one_hot((1,)) + game.one_hot((2,))) / 2
    eot = aimer_attack(game, known, EoTPGD(pgd))
    (single,) = (PartialPGD(pgd)((1,)),)
    points = [
        play(base, attack, x, y, Threat(Linf(0.1)), answers=columns_of(game.subsets)).points
        for attack in (eot, single)
    ]
    assert_close(points[0], x - 0.1)  # both pixels, one per exit
    assert_close(points[1][..., 0], x[..., 0] - 0.1)
    assert not torch.allclose(points[1][..., 1], x[..., 1] - 0.1)
    assert EoTPGD(pgd)((1, 2)) == PartialPGD(pgd)((1, 2)), "fixed exits: the mean of losses"


@pytest.mark.parametrize("scale", TRAINED_SCALES)
def test_eot_pgd_of_every_scale_is_not_pgd(scale: Scale) -> None:
    attacks = SETTINGS[scale].attacks
    assert isinstance(attacks["EoT-PGD-20"], EoTPGD)
    assert isinstance(attacks["PGD-20"], PartialPGD)
    assert attacks["EoT-PGD-20"].attack == attacks["PGD-20"].attack


def test_lafeat_has_all_other_exits_as_latent_heads() -> None:
    budget = LafeatBudget(2, (0.5,), 0)
    assert budget.on(3)((1,)) == lafeat((1,), 3, steps=2, betas=(0.5,), targets=0)


def test_the_columns_of_latent_features_are_pgd_and_lafeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The experiment without its game: an accuracy says which attack its column has."""

    def names(subject: object, game: object, defender: object, attack: ExitAttack) -> object:
        return {name: attack((3,)) for name in published.EVALUATIONS}

    experiment = SimpleNamespace(
        subject=lambda _: SimpleNamespace(name="net", exits=4),
        game=lambda _: None,
        defender=lambda *_: SimpleNamespace(
            correct=lambda attack: torch.tensor([float("lafeat" in attack.name)])
        ),
        reduced_images=lambda _: SimpleNamespace(x=torch.zeros(1)),
        play=lambda _, attacks, *__, **___: attacks,
        setting=SETTINGS["tiny"],
        seeds=(0,),
        result=lambda _, tables, **__: tables,
    )
    experiment.accuracies = partial(MultiExitExperiment.accuracies, experiment)
    monkeypatch.setattr(MultiExitExperiment, "open", lambda _: experiment)
    monkeypatch.setattr(latent_features, "attackers", names)
    (table,) = latent_features.run(Request(tmp_path))  # type: ignore[misc]
    for row in table.rows:
        assert [cell.mean for cell in row.cells] == [0, 100]


def test_the_further_networks_are_those_that_the_paper_names() -> None:
    assert FURTHER_NETWORKS == ("wrn-34-10", "ranet", "l2w-den", "resnet-18-tiny-imagenet")
    assert all(set(FURTHER_NETWORKS) <= set(recipes(scale)) for scale in TRAINED_SCALES)


@pytest.mark.parametrize(("first", "direction"), [(0.75, -1), (0.25, 1)])
def test_eot_pgd_of_aimer_weights_each_exit_by_its_probability(
    first: float, direction: int
) -> None:
    """What harms one exit helps the other, so the attack follows the exit that is likelier."""

    class Opposed(nn.Module):
        def forward(self, x: Tensor) -> list[Tensor]:
            z = x.flatten(1) - 0.5  # [N, 1]
            return [torch.cat([sign * z, -sign * z], 1) for sign in (1, -1)]

    x = torch.full((2, 1, 1, 1), 0.5, dtype=torch.float64)
    y = torch.zeros(2, dtype=torch.int64)
    subsets = ((1,), (2,), (1, 2))
    mix = torch.tensor([first, 1 - first, 0.0], dtype=torch.float64)
    eot = EoTPGD(PGD(20, Radii(1 / 4))).on_strategy(subsets, mix)
    episode = play(MultiExit(Opposed()), eot, x, y, Threat(Linf(0.1)), answers=columns_of(subsets))
    assert_close(episode.points, x + 0.1 * direction)


def test_a_strategy_that_equals_need_is_named_and_not_compared() -> None:
    one = torch.tensor([1.0, 0.0], dtype=torch.float64)
    mixes = {"NEED": one, "best fixed exit set": one.clone(), "last exit": 1 - one}
    accuracy = {name: torch.tensor([k % 2, 1.0, 0.0]).double() for k, name in enumerate(mixes)}
    accuracy["best fixed exit set"] = accuracy["NEED"]
    correct = {name: dict.fromkeys(ATTACKERS[1:], accuracy[name]) for name in mixes}
    sentences = differences("net", mixes, correct)
    assert sentences[0] == "net: NEED and best fixed exit set are the same strategy."
    assert len(sentences) == 1 + 3
    assert not any("minus best fixed exit set" in sentence for sentence in sentences)
