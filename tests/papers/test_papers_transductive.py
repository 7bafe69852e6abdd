"""The transductive paper again: every experiment at the tiny scale, and the arithmetic of its columns on known numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.problems import Affine, keys, normal, uniform
from torch import Tensor

from saddlepoint.attacks.ensemble import AverageLoss, MinLoss
from saddlepoint.attacks.losses import cross_entropy, margin
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Context, Plain
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
from saddlepoint.papers.charts import drawn
from saddlepoint.papers.markdown import of_result
from saddlepoint.papers.result import Cloud, read
from saddlepoint.papers.transductive import EXPERIMENTS as OURS
from saddlepoint.papers.transductive import published
from saddlepoint.papers.transductive.dent import MOVED, ON_MODULE, Batched, gains
from saddlepoint.papers.transductive.experiment import Base, Lab
from saddlepoint.papers.transductive.figure_1 import cost, slips, spread
from saddlepoint.papers.transductive.fixed_points import Given
from saddlepoint.papers.transductive.module import Module
from saddlepoint.papers.transductive.nets import Residue, recipes
from saddlepoint.papers.transductive.scales import SETTINGS
from saddlepoint.papers.transductive.table_1 import findings
from saddlepoint.papers.write import reproduce
from saddlepoint.zoo.transductive import DENT, RejectionCurve

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
    "table-1": "(2 images in one stream of 2 batches of one)",
    "table-2": "(32 images in 2 batches of 16)",
    "table-3": "(24 images in one batch, one stream of one round)",
    "table-4": "(24 images in one batch of one round, judged by 2 networks drawn afterwards)",
    "table-5": "(32 images in 2 batches of 16)",
    "table-6": "(4 images in 2 streams of 2 batches of one)",
    "figure-1": "(120 images in one batch)",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Networks and episodes of all experiments: what one has played, the next finds."""
    return tmp_path_factory.mktemp("transductive")


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
    assert any("leaking=False" in note for note in result.notes)
    for table in result.tables:
        if not table.title.startswith("Points"):
            assert all(
                0 <= value <= 100
                for row in table.rows
                for cell in row.cells
                if cell
                for value in cell.values
            ), table.title


def test_nothing_is_trained_or_played_again(folder: Path) -> None:
    for name in ("table-1", "table-5"):
        first = EXPERIMENTS[f"transductive/{name}"].run(Request(folder))
        said = list[str]()
        again = EXPERIMENTS[f"transductive/{name}"].run(Request(folder, say=said.append))
        assert said == []
        assert again == first


def test_repeats_are_sequences_of_their_own_and_the_first_is_that_of_the_single_run(
    folder: Path,
) -> None:
    one, many = (
        EXPERIMENTS[f"transductive/table-{k}"].run(Request(folder)).tables[0] for k in (1, 6)
    )
    for row in many.rows:
        assert many.cell(row.labels, "GMSA-MIN").values[0] == one.cell(row.labels, "GMSA-MIN").mean
        assert len(many.cell(row.labels, "GMSA-MIN").values) == 2
    lab = Lab.open(Request(folder))
    assert not torch.equal(lab.drawn("digits", 4, 0).x, lab.drawn("digits", 4, 1).x)


def test_every_scale_names_the_networks_it_uses() -> None:
    for scale, setting in SETTINGS.items():
        known = recipes(scale)
        assert set(setting.dent.bases) < set(known)
        for kind in (*setting.rmc, *setting.dann):
            assert {f"{kind.data} standard", f"{kind.data} madry", f"{kind.data} dann"} <= set(
                known
            )
        assert all(f"{kind.data} tadv" in known for kind in setting.tadv)
        assert known["signs"].data == setting.signs.data
    assert SETTINGS["paper"].repeats == 5
    assert len(SETTINGS["paper"].dent.portfolio.runs) == 14


# ---- adversaries of its own ------------------------------------------------------------------------------------------------------

N = 8
SPACE = Linf(0.15)
X = uniform(3, N, 6)
Y = torch.arange(N) % 4
PGD5 = Direct("pgd", PGD(steps=5, step_size=0.05), cross_entropy)


def model(seed: int) -> Plain:
    return Plain(Affine(normal(seed, 4, 6), normal(seed + 50, 4)))


def wrong(points: Tensor, of: Plain) -> int:
    return int((of.net(points).argmax(1) != Y).sum())


def test_one_round_on_one_given_model_is_a_transfer_from_it_bit_for_bit() -> None:
    models = (model(1), model(2))
    asked = model(7)
    given, transfer = (
        play(asked, one, X, Y, Threat(SPACE)).points
        for one in (Given("g", PGD5, models, ((0,),)), Transfer(PGD5, models[0]))
    )
    assert torch.equal(given, transfer)


def test_given_models_are_what_the_greedy_attack_meets_on_a_defense_that_turns_into_them() -> None:
    """A defense that is itself whatever it is asked: rounds on copies of it are the rounds of the greedy attack."""
    asked = model(1)
    asked.memory = "batch"
    growing = tuple(range(k + 1) for k in range(3))
    for over in (AverageLoss(), MinLoss()):
        both = Given("g", PGD5, (asked,) * 4, growing, over), GreedyModelSpace("g", PGD5, 3, over)
        assert torch.equal(*(play(asked, one, X, Y, Threat(SPACE)).points for one in both))


def test_the_round_is_sent_that_fools_the_next_model_most() -> None:
    chosen = set()
    for seed in range(4):
        models = tuple(model(4 * seed + k) for k in range(1, 6))
        seat = AttackContext.open(Threat(SPACE), torch.arange(N), 0)
        offered = [PGD5.against([models[k]], seat.again(k), X, Y).max_loss_point for k in range(4)]
        sent = play(
            model(99),
            Given("fpa", PGD5, models, tuple((k,) for k in range(4))),
            X,
            Y,
            Threat(SPACE),
        ).points
        fooled = [wrong(points, models[k + 1]) for k, points in enumerate(offered)]
        (best,) = (k for k, points in enumerate(offered) if torch.equal(points, sent))
        assert fooled[best] == max(fooled)
        chosen.add(best)
    assert len(chosen) > 1


def test_a_rehearsal_needs_one_model_more_than_are_attacked() -> None:
    with pytest.raises(
        ValueError,
        match="rehearses with the model after the last it attacks, number 2, and was given 2",
    ):
        Given("g", PGD5, (model(1), model(2)), ((0, 1),))


def test_taken_for_a_module_a_defense_lets_no_gradient_through_its_adaptation() -> None:
    """The gradient is that of the adapted network held still, and not that of the whole response."""
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
    module = Module(dent)
    ctx = Context(keys(N))
    held = dent.adapt(x, ctx)
    assert not module.coupled
    torch.testing.assert_close(module.respond(x, ctx), dent.respond(x, ctx), rtol=0, atol=0)
    slopes = [
        Backprop().slope(AttackObjective([defense], Y, margin, respond=respond), x, keys(N)).grad
        for defense, respond in ((module, False), (held, False), (dent, True))
    ]
    torch.testing.assert_close(slopes[0], slopes[1], rtol=0, atol=0)
    assert (slopes[0] - slopes[2]).abs().max() > 1e-6


def test_stock_points_are_clean_where_the_attack_did_not_succeed_and_the_others_moved_everywhere() -> (
    None
):
    asked = model(1)
    y = asked.net(X).argmax(1)
    clean, attacked = (play(asked, one, X, y, Threat(Linf(0.1))) for one in (FixedPoints(), PGD5))
    handed = Base(
        "net", asked.net, SimpleNamespace(x=X, y=y), SPACE, clean, attacked, attacked
    ).handed  # type: ignore[arg-type]
    fell = attacked.correct[0] == 0
    assert 0 < int(fell.sum()) < N
    assert torch.equal(handed["AA"].points, torch.where(fell[:, None], attacked.points, X))
    assert torch.equal(handed[MOVED].points, attacked.points)


# ---- arithmetic ------------------------------------------------------------------------------------------------------------------

CURVE = RejectionCurve(
    thresholds=(0.0, 0.5, 0.8, 1.0),
    rejected=(1.0, 0.6, 0.2, 0.0),
    rejected_normal=(1.0, 0.3, 0.05, 0.0),
    error=(0.0, 0.1, 0.25, 0.5),
    error_of_all=(0.0, 0.04, 0.2, 0.5),
)


def test_what_slips_through_is_read_at_the_strictest_threshold_that_may_be_used() -> None:
    assert [slips(CURVE, share) for share in (0.0, 0.05, 0.2, 0.3, 1.0)] == [
        0.5,
        0.25,
        0.25,
        0.1,
        0.0,
    ]
    assert [cost(CURVE, error) for error in (0.0, 0.1, 0.3, 0.5)] == [1.0, 0.3, 0.05, 0.0]


def test_thresholds_reach_from_refusing_all_to_refusing_nothing() -> None:
    found = spread(20)
    assert found == sorted(found)
    assert (found[0], found[-1], len(found)) == (0.0, 1.0, 20)
    assert found[1] + found[-2] == pytest.approx(1.0)


def told(share: float, count: int = 8) -> SimpleNamespace:
    """An episode that answers this share of the images rightly, the first ones."""
    return SimpleNamespace(correct=(torch.arange(count) < share * count)[None].double())


def test_a_ramp_has_no_grain_and_a_chessboard_little_else() -> None:
    down, right = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
    ramp = (down + 2 * right).double()
    board = (1 - 2 * ((down + right) % 2)).double()
    assert (
        Residue()(ramp[None, None])[..., 1:-1, 1:-1].abs().amax() < 1e-12
    )  # a sum of nine numbers below 22
    torch.testing.assert_close(
        Residue()(board[None, None])[0, 0, 1:-1, 1:-1],
        (80 / 9 * board)[1:-1, 1:-1],
        rtol=1e-14,
        atol=0,
    )


def test_gains_stand_beside_the_mean_of_the_papers_seven() -> None:
    """Static AA 50 %, DENT-AA 75 %, AA 62.5 %: 25 and 12.5 points; the paper's 20.8 to 27.3 have the mean 24.757."""
    static = SimpleNamespace(auto=told(0.5))
    one = Batched(static, {ON_MODULE: told(0.75), "AA": told(0.625)})  # type: ignore[arg-type]
    lab = SimpleNamespace(setting=SETTINGS["tiny"])
    papers = {name: row[2:] for name, row in published.TABLE_2.items()}
    table = gains(lab, {"net": one}, (ON_MODULE, "AA"), papers)  # type: ignore[arg-type]
    assert table.cell(("net",), ON_MODULE).mean == 25
    assert table.cell(("mean",), "AA").mean == 12.5
    assert table.cell(("mean",), ON_MODULE).paper == pytest.approx(
        (20.8 + 22.8 + 21.6 + 22.3 + 25.4 + 27.3 + 23.1) / 7
    )


@pytest.mark.parametrize(
    ("left", "verdict"),
    [(0.25, "adds nothing to its base, as in the paper"), (0.75, "against the paper")],
)
def test_a_defense_that_is_left_with_more_than_its_base_is_said_to_contradict_the_paper(
    left: float, verdict: str
) -> None:
    names = {
        "AA": 1.0,
        MOVED: 0.875,
        "PGD": 1.0,
        "FPA": 0.875,
        "GMSA-AVG": left,
        "GMSA-MIN": left + 0.125,
    }
    found = SimpleNamespace(
        base=SimpleNamespace(auto=told(0.5)),
        episodes={name: told(share) for name, share in names.items()},
    )
    strongest, beside = findings("digits Madry", found)  # type: ignore[arg-type]
    assert f"over it AA overrates RMC by {100 * (1 - left):+.1f} points" in strongest
    assert f"is {100 * (left - 0.5):+.1f} points" in beside
    assert verdict in beside


def test_a_curve_is_drawn_joined_and_a_cloud_is_not() -> None:
    chart = Cloud("c", "C", "across", "up", {"one": ((0.0, 0.0), (1.0, 2.0), (2.0, 1.0))})
    assert "polyline" not in drawn(chart)
    assert drawn(replace(chart, joined=True)).count("polyline") == 2  # opened and closed


def test_experiments_are_told_apart_by_their_titles(folder: Path) -> None:
    assert len({one.title for one in OURS}) == len(OURS) == 7
    assert "GMSA" in of_result(EXPERIMENTS["transductive/table-1"].run(Request(folder)))
