"""The experiments of the transductive paper at the tiny scale, and their arithmetic."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.problems import Affine, keys, normal, uniform
from torch import Tensor

from saddlepoint.attacks.ensemble import AverageLoss, LossWeighting, MinLoss
from saddlepoint.attacks.losses import cross_entropy, margin
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Context, Defense, Plain
from saddlepoint.evaluation import (
    AttackContext,
    Direct,
    FixedPoints,
    GreedyModelSpace,
    Threat,
    Transfer,
)
from saddlepoint.evaluation.referee import play
from saddlepoint.gradients import Backprop
from saddlepoint.papers import EXPERIMENTS, Request
from saddlepoint.papers.charts import draw_svg
from saddlepoint.papers.markdown import result_markdown
from saddlepoint.papers.registry import Scale
from saddlepoint.papers.result import Cell, Plot, Result, Row, Table, read
from saddlepoint.papers.runner import Images
from saddlepoint.papers.transductive import EXPERIMENTS as OURS
from saddlepoint.papers.transductive import published
from saddlepoint.papers.transductive.adapt_in_forward import AdaptInForward
from saddlepoint.papers.transductive.comparisons import REJECTED
from saddlepoint.papers.transductive.comparisons import figure_1 as figure_1_comparison
from saddlepoint.papers.transductive.comparisons import table_1 as table_1_comparison
from saddlepoint.papers.transductive.dent import MAX_LOSS_POINTS, ON_MODULE, DENTResult, gains
from saddlepoint.papers.transductive.experiment import Base, TransductiveExperiment
from saddlepoint.papers.transductive.figure_1 import (
    error_at_rejection,
    log_odds_thresholds,
    rejection_at_error,
)
from saddlepoint.papers.transductive.nets import HighPass, recipes
from saddlepoint.papers.transductive.pretrained_model_space import PretrainedModelSpace
from saddlepoint.papers.transductive.reductions import dann_settings, tadv_settings
from saddlepoint.papers.transductive.scales import SETTINGS
from saddlepoint.papers.transductive.table_1 import COLUMNS, findings
from saddlepoint.papers.write import reproduce
from saddlepoint.zoo.transductive import DENT, RejectionCurve

# Trained for a few steps, a DANN stays at chance and warns of it.
pytestmark = pytest.mark.filterwarnings(
    "ignore::saddlepoint.zoo.transductive.ChanceAccuracyWarning"
)

ROWS = {
    "table-1": 2,
    "table-2": 2,
    "table-3": 1,
    "table-4": 1,
    "table-5": 2,
    "table-6": 2,
    "figure-1": 6,
}
UNITS = {
    "table-1": "(2 images in one stream of 2 single images)",
    "table-2": "(32 images in 2 batches of 16)",
    "table-3": "(24 images in one batch of one round)",
    "table-4": "(24 images in one batch of one round, scored on 2 final networks)",
    "table-5": "(32 images in 2 batches of 16)",
    "table-6": "(4 images in 2 streams of 2 single images)",
    "figure-1": "(120 images in one batch)",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder shared by all experiments, which reuse the networks and episodes stored in it."""
    return tmp_path_factory.mktemp("transductive")


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_every_experiment_runs_fills_its_tables_and_prints_its_units(
    name: str, folder: Path
) -> None:
    result, record = reproduce(EXPERIMENTS[f"transductive/{name}"], Request(folder))
    assert len(result.tables[0].rows) == ROWS[name]
    assert read(record.read_text(), str(record)).text() == result.text()
    assert UNITS[name] in record.with_suffix(".md").read_text()
    assert all((record.parent / f"{chart.name}.svg").is_file() for chart in result.charts)
    assert result.findings
    assert result.forward > 0
    assert any("state of the defender" in note for note in result.notes)
    for table in result.tables:
        if not table.title.startswith("Points"):
            assert all(
                0 <= value <= 100
                for row in table.rows
                for cell in row.cells
                if cell
                for value in cell.values
            ), table.title


@pytest.mark.slow
def test_a_second_run_trains_and_plays_nothing_and_returns_the_same_result(folder: Path) -> None:
    for name in ("table-1", "table-5"):
        first = EXPERIMENTS[f"transductive/{name}"].run(Request(folder))
        messages = list[str]()
        again = EXPERIMENTS[f"transductive/{name}"].run(Request(folder, progress=messages.append))
        assert messages == []
        assert again == first


def test_repeats_draw_different_images_and_the_first_equals_the_single_run(
    folder: Path,
) -> None:
    one, many = (
        EXPERIMENTS[f"transductive/table-{k}"].run(Request(folder)).tables[0] for k in (1, 6)
    )
    for row in many.rows:
        assert many.cell(row.labels, "GMSA-MIN").values[0] == one.cell(row.labels, "GMSA-MIN").mean
        assert len(many.cell(row.labels, "GMSA-MIN").values) == 2
    experiment = TransductiveExperiment.open(Request(folder))
    assert not torch.equal(
        experiment.draw_images("digits", 4, 0).x, experiment.draw_images("digits", 4, 1).x
    )


def test_every_scale_has_recipes_for_the_networks_it_uses() -> None:
    for scale, setting in SETTINGS.items():
        known = recipes(scale)
        assert set(setting.dent.bases) < set(known)
        for one in (*setting.rmc, *setting.dann):
            names = {f"{one.data} {method}" for method in ("standard", "madry", "dann")}
            assert names <= set(known)
        assert all(f"{one.data} tadv" in known for one in setting.tadv)
        assert known["signs"].data == setting.signs.data
    assert SETTINGS["paper"].repeats == 5
    assert len(SETTINGS["paper"].dent.portfolio.runs) == 14


N = 8
SPACE = Linf(0.15)
X = uniform(3, N, 6)
Y = torch.arange(N) % 4
PGD5 = Direct("pgd", PGD(steps=5, step_size=0.05), cross_entropy)


def model(seed: int) -> Plain:
    return Plain(Affine(normal(seed, 4, 6), normal(seed + 50, 4)))


def errors(points: Tensor, defense: Plain) -> int:
    return int((defense.net(points).argmax(1) != Y).sum())


def test_one_round_on_one_pretrained_model_equals_a_transfer_from_it_bit_for_bit() -> None:
    models = (model(1), model(2))
    attacked, transferred = (
        play(model(7), one, X, Y, Threat(SPACE)).points
        for one in (PretrainedModelSpace("g", PGD5, models, ((0,),)), Transfer(PGD5, models[0]))
    )
    assert torch.equal(attacked, transferred)


def test_pretrained_model_space_equals_the_greedy_attack_if_the_defense_adapts_to_its_models() -> (
    None
):
    """The defense does not change when it adapts, so all models of the attack are copies of it."""
    defense = model(1)
    defense.memory = "batch"
    growing = tuple(range(k + 1) for k in range(3))
    for weighting in (AverageLoss(), MinLoss()):
        pretrained = PretrainedModelSpace("g", PGD5, (defense,) * 4, growing, weighting)
        greedy = GreedyModelSpace("g", PGD5, 3, weighting)
        first, second = (
            play(defense, one, X, Y, Threat(SPACE)).points for one in (pretrained, greedy)
        )
        assert torch.equal(first, second)


def test_attack_returns_the_round_with_the_most_errors_of_the_next_model() -> None:
    best_rounds = set()
    for seed in range(4):
        models = tuple(model(4 * seed + k) for k in range(1, 6))
        context = AttackContext.open(Threat(SPACE), torch.arange(N), 0)
        candidates = [
            PGD5.against([models[k]], context.again(k), X, Y).max_loss_point for k in range(4)
        ]
        fpa = PretrainedModelSpace("fpa", PGD5, models, tuple((k,) for k in range(4)))
        returned = play(model(99), fpa, X, Y, Threat(SPACE)).points
        counts = [errors(points, models[k + 1]) for k, points in enumerate(candidates)]
        (best,) = (k for k, points in enumerate(candidates) if torch.equal(points, returned))
        assert counts[best] == max(counts)
        best_rounds.add(best)
    assert len(best_rounds) > 1


@pytest.mark.parametrize("weighting", [AverageLoss(), MinLoss()])
def test_the_cost_of_the_attack_on_pretrained_models_is_the_metered_number_of_passes(
    weighting: LossWeighting,
) -> None:
    models = tuple(model(k) for k in range(1, 5))
    growing = tuple(range(k + 1) for k in range(3))
    attack = PretrainedModelSpace("g", PGD5, models, growing, weighting)
    result = play(model(7), attack, X, Y, Threat(SPACE))
    cost = attack.cost()
    assert set(result.forward.tolist()) == {cost.forward}
    assert set(result.backward.tolist()) == {cost.backward}


def test_simulating_the_defender_needs_one_model_more_than_are_attacked() -> None:
    message = "the model after the last attacked one, number 2, but got only 2 models"
    with pytest.raises(ValueError, match=message):
        PretrainedModelSpace("g", PGD5, (model(1), model(2)), ((0, 1),))


def test_adaptation_inside_the_forward_pass_has_no_gradient() -> None:
    """The gradient equals that of the fixed adapted network, not that through the adaptation."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Conv2d(1, 3, 3),
            torch.nn.BatchNorm2d(3),
            torch.nn.Flatten(),
            torch.nn.Linear(12, 4),
        )
    dent = DENT(net.double().eval())
    x = uniform(5, N, 1, 4, 4)
    wrapped = AdaptInForward(dent)
    ctx = Context(keys(N))
    adapted = dent.adapt(x, ctx)
    assert not wrapped.coupled
    torch.testing.assert_close(wrapped.respond(x, ctx), dent.respond(x, ctx), rtol=0, atol=0)

    def gradient(defense: Defense, *, respond: bool = False) -> Tensor:
        objective = AttackObjective([defense], Y, margin, respond=respond)
        return Backprop().value_and_grad(objective, x, keys(N)).grad

    in_forward = gradient(wrapped)
    fixed = gradient(adapted)
    end_to_end = gradient(dent, respond=True)
    torch.testing.assert_close(in_forward, fixed, rtol=0, atol=0)
    assert (in_forward - end_to_end).abs().max() > 1e-6


def test_transferred_autoattack_points_are_clean_copies_where_the_attack_fails() -> None:
    defense = model(1)
    y = defense.net(X).argmax(1)
    clean, attacked = (play(defense, one, X, y, Threat(Linf(0.1))) for one in (FixedPoints(), PGD5))
    images = Images(X, y)
    transferred = Base(
        "net", defense.net, images, SPACE, clean, attacked, attacked
    ).transferred_points
    broken = attacked.correct[0] == 0
    assert 0 < int(broken.sum()) < N
    assert torch.equal(transferred["AA"].points, torch.where(broken[:, None], attacked.points, X))
    assert torch.equal(transferred[MAX_LOSS_POINTS].points, attacked.points)


CURVE = RejectionCurve(
    thresholds=(0.0, 0.5, 0.8, 1.0),
    rejected=(1.0, 0.6, 0.2, 0.0),
    rejected_normal=(1.0, 0.3, 0.05, 0.0),
    error=(0.0, 0.1, 0.25, 0.5),
    error_of_all=(0.0, 0.04, 0.2, 0.5),
)


def test_error_among_accepted_is_read_at_the_strictest_allowed_threshold() -> None:
    shares = (0.0, 0.05, 0.2, 0.3, 1.0)
    assert [error_at_rejection(CURVE, share) for share in shares] == [0.5, 0.25, 0.25, 0.1, 0.0]
    allowed = (0.0, 0.1, 0.3, 0.5)
    assert [rejection_at_error(CURVE, error) for error in allowed] == [1.0, 0.3, 0.05, 0.0]


def test_thresholds_range_from_rejecting_all_images_to_rejecting_none() -> None:
    thresholds = log_odds_thresholds(20)
    assert thresholds == sorted(thresholds)
    assert (thresholds[0], thresholds[-1], len(thresholds)) == (0.0, 1.0, 20)
    assert thresholds[1] + thresholds[-2] == pytest.approx(1.0)


def episode(share: float, count: int = 8) -> SimpleNamespace:
    """An episode in which the first `share` of the images is classified correctly."""
    return SimpleNamespace(correct=(torch.arange(count) < share * count)[None].double())


def test_high_pass_filter_removes_a_ramp_and_amplifies_a_chessboard() -> None:
    """The tolerance of the ramp covers the rounding of a sum of nine numbers below 22."""
    down, right = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
    ramp = (down + 2 * right).double()
    board = (1 - 2 * ((down + right) % 2)).double()
    assert HighPass()(ramp[None, None])[..., 1:-1, 1:-1].abs().amax() < 1e-12
    torch.testing.assert_close(
        HighPass()(board[None, None])[0, 0, 1:-1, 1:-1],
        (80 / 9 * board)[1:-1, 1:-1],
        rtol=1e-14,
        atol=0,
    )


def test_gains_are_shown_with_the_mean_gain_of_the_papers_seven_networks() -> None:
    """Static AA 50 %, DENT-AA 75 % and AA 62.5 % give gains of 25 and 12.5 points."""
    static = SimpleNamespace(auto=episode(0.5))
    episodes = {ON_MODULE: episode(0.75), "AA": episode(0.625)}
    one = DENTResult(static, episodes)  # type: ignore[arg-type]
    experiment = SimpleNamespace(setting=SETTINGS["tiny"])
    papers = {name: row[2:] for name, row in published.TABLE_2.items()}
    table = gains(experiment, {"net": one}, (ON_MODULE, "AA"), papers)  # type: ignore[arg-type]
    assert table.cell(("net",), ON_MODULE).mean == 25
    assert table.cell(("mean",), "AA").mean == 12.5
    assert table.cell(("mean",), ON_MODULE).paper == pytest.approx(
        (20.8 + 22.8 + 21.6 + 22.3 + 25.4 + 27.3 + 23.1) / 7
    )


@pytest.mark.parametrize(
    ("robust", "verdict"),
    [(0.25, "RMC adds no robustness to its base."), (0.75, "RMC is more robust than its base.")],
)
def test_findings_say_whether_rmc_is_more_robust_than_its_base(robust: float, verdict: str) -> None:
    names = {
        "AA": 1.0,
        MAX_LOSS_POINTS: 0.875,
        "PGD": 1.0,
        "FPA": 0.875,
        "GMSA-AVG": robust,
        "GMSA-MIN": robust + 0.125,
    }
    found = SimpleNamespace(
        base=SimpleNamespace(auto=episode(0.5)),
        episodes={name: episode(share) for name, share in names.items()},
    )
    attacks, comparison = findings("digits Madry", found)  # type: ignore[arg-type]
    excess = f"AA overestimates the accuracy of RMC by {100 * (1 - robust):+.1f} points"
    assert f"compared with it, {excess}" in attacks
    assert f"is {100 * (robust - 0.5):+.1f} points" in comparison
    assert verdict in comparison


def test_points_of_a_curve_are_connected_and_points_of_a_scatter_plot_are_not() -> None:
    chart = Plot("c", "C", "across", "up", {"one": ((0.0, 0.0), (1.0, 2.0), (2.0, 1.0))})
    assert "polyline" not in draw_svg(chart)
    assert draw_svg(replace(chart, joined=True)).count("polyline") == 2  # opening and closing tag


def test_experiments_have_distinct_titles(folder: Path) -> None:
    assert len({one.title for one in OURS}) == len(OURS) == 7
    assert "GMSA" in result_markdown(EXPERIMENTS["transductive/table-1"].run(Request(folder)))


def committed(name: str) -> Result:
    """A committed record with the numbers of the small scale."""
    file = Path(__file__).parents[2] / "benchmarks" / "records" / "transductive" / f"{name}.json"
    return read(file.read_text(), str(file))


def test_the_reversed_order_of_attacks_on_dent_is_against_the_paper() -> None:
    """In the paper AutoAttack overestimates DENT most; here PGD leaves more than AutoAttack."""
    result = committed("table-2")
    comparison = EXPERIMENTS[result.experiment].compare(result)
    assert comparison is not None
    (order,) = (text for text in comparison.findings if "order of the attacks" in text)
    assert "is reversed for" in order
    assert "PGD" in order
    assert order.endswith("against the paper.")


def test_effects_that_are_absent_are_against_the_paper_and_distant_bases_are_marked() -> None:
    """A table with the numbers that RMC had with K = 64: no effect of transferred points."""
    papers = published.TABLE_1["mnist", "Standard"]
    ours = (100.0, 80.0, 0.0, 20.0, 20.0, 0.0, 0.0, 0.0)
    columns = [name for name in COLUMNS if name != MAX_LOSS_POINTS]
    cells = tuple(Cell((value,), paper) for value, paper in zip(ours, papers, strict=True))
    row = Row(("mnist", "Standard"), cells)
    table = Table("Accuracy", ("data", "base"), tuple(columns), (row,), 10)
    found = table_1_comparison(replace(committed("table-1"), tables=(table,)))
    effect = found.findings[0]
    assert effect.startswith("mnist Standard: PGD minus GMSA-AVG is +20.0 points")
    assert effect.endswith("in the paper +97.8: against the paper in size.")
    assert [warning.partition(":")[0] for warning in found.warnings] == [
        "mnist Standard, RMC, clean"
    ]


@pytest.mark.parametrize(
    ("rejected", "end"),
    [
        (4.0, "in the paper 100.0 %, 96.0 points below: against the paper; of clean images"),
        (99.0, "as in the paper; of clean images"),
    ],
)
def test_brighter_images_that_are_accepted_are_against_the_paper(rejected: float, end: str) -> None:
    """The paper says of Figure 1(c) that URejectron rejects all of them."""
    stored = committed("figure-1")
    table = Table(
        "Rejections",
        ("test batch",),
        (REJECTED,),
        (Row(("(a) clean",), (Cell((3.0,)),)), Row(("(c) brighter",), (Cell((rejected,)),))),
        768,
    )
    (finding,) = figure_1_comparison(replace(stored, tables=(stored.tables[0], table))).findings
    assert finding.startswith("(c) brighter: ")
    assert finding.endswith(f"{end} 3.0 % are rejected.")


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_settings_that_differ_from_the_papers_are_named_with_both_values(scale: Scale) -> None:
    setting = SETTINGS[scale]
    texts = [
        *(dann_settings(one) for one in setting.dann),
        *(tadv_settings(one, recipes(scale)[f"{one.data} tadv"]) for one in setting.tadv),
    ]
    if scale == "paper":
        assert not any(" of " in text.partition(": ")[2].partition(": ")[2] for text in texts)
        return
    dann, tadv = texts
    for part in ("labeled images 2000 of all", "channels 8 of 64", "rounds 3 of 10"):
        assert part in dann
    for part in ("sources 3 of 10", "epochs 6 of 100", "PGD steps 15 of 200"):
        assert part in tadv
