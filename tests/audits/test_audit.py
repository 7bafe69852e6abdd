"""The audit end to end, on problems whose answer is known."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import saddlepoint as sp
from saddlepoint.attacks import losses as loss
from saddlepoint.attacks.fmn import FMN
from saddlepoint.audits.planning.suite import dlr_or_margin, targeted_dlr_or_margin
from saddlepoint.audits.statistics import wilson
from saddlepoint.evaluation.suites import rand_suite


class Linear(nn.Module):
    """Two classes told apart by w . (x - 1/2): the worst case at Linf radius r moves the score by r ||w||_1."""

    def __init__(self, d=16, seed=0):
        super().__init__()
        self.w = nn.Parameter(torch.randn(d, generator=torch.Generator().manual_seed(seed)))

    def forward(self, x):
        score = (x.flatten(1) - 0.5) @ self.w
        return torch.stack([score, -score], 1)


def images(n=200, d=16, seed=1):
    return 0.3 + 0.4 * torch.rand(n, d, generator=torch.Generator().manual_seed(seed))


def true_robust_accuracy(net, x, y, radius):
    score = ((x - 0.5) @ net.w.detach()) * (1 - 2 * y)
    return (score > radius * net.w.detach().abs().sum()).double().mean().item()


NET = Linear().eval()
X = images()
Y = NET(X).argmax(1)
Y_NOISY = torch.where(
    torch.arange(len(Y)) % 10 == 0, 1 - Y, Y
)  # every tenth label is wrong from the start


@pytest.mark.parametrize("budget", ["quick", "standard"])
def test_the_audit_of_a_linear_net_ends_at_the_closed_form(budget):
    result = sp.audit(NET, X, Y_NOISY, threat=sp.Linf(0.01), budget=budget)
    truth = true_robust_accuracy(NET, X, Y_NOISY, 0.01)
    assert 0.2 < truth < 0.9
    assert result.robust_accuracy == pytest.approx(truth, abs=1e-12)
    assert result.clean_accuracy == pytest.approx(0.9, abs=1e-12)
    assert result.interval.low < truth < result.interval.high
    assert result.verdict == (
        "holds so far" if budget == "standard" else "cannot be told"
    )  # quick sends no queries


def test_gains_add_up_from_clean_to_robust_and_rows_that_are_wrong_anyway_are_not_attacked():
    result = sp.audit(NET, X, Y_NOISY, threat=sp.Linf(0.01), budget="standard")
    assert sum(row.gain for row in result.rows) == pytest.approx(
        result.clean_accuracy - result.robust_accuracy, abs=1e-12
    )
    assert {row.attacked for row in result.rows} == {round(0.9 * len(X))}
    assert result.rows[-1].running == pytest.approx(result.robust_accuracy, abs=1e-12)
    assert all(row.running <= row.robust_accuracy for row in result.rows)


def test_the_worst_points_are_legal_and_show_the_accuracy_that_is_claimed():
    threat = sp.Linf(0.01)
    result = sp.audit(NET, X, Y_NOISY, threat=threat, budget="quick")
    assert threat.contains(result.worst_points, X).all()
    rescored = (NET(result.worst_points).argmax(1) == Y_NOISY).double()
    assert torch.equal(rescored, result.correct)


def test_the_audit_is_a_function_of_its_seed():
    first, again = (sp.audit(NET, X, Y, threat=sp.Linf(0.01), budget="quick") for _ in range(2))
    assert torch.equal(first.worst_points, again.worst_points)


def test_an_audit_survives_the_disk(tmp_path):
    result = sp.audit(NET, X, Y, threat=sp.Linf(0.01), budget="quick", out=tmp_path / "run")
    loaded = sp.Audit.load(tmp_path / "run")
    assert (
        loaded.record()
        == result.record()
        == json.loads((tmp_path / "run" / "audit.json").read_text())
    )
    assert torch.equal(loaded.worst_points, result.worst_points)
    assert (tmp_path / "run" / "report.html").is_file()


class Noisy(nn.Module):
    """Input noise from torch's global generator, as users write it."""

    def __init__(self, net, sigma):
        super().__init__()
        self.net = net
        self.sigma = sigma

    def forward(self, x):
        return self.net(x + self.sigma * torch.randn_like(x))


def test_noise_at_a_vanishing_radius_takes_nothing_from_the_clean_accuracy():
    # 100 pixels of +-amplitude under noise of sigma = 1: the mean score has noise 0.1, and amplitudes from 0 to 0.4 make about
    # every eighth draw err. Judged by single draws, an attack that can do nothing would seem to win (AutoAttack's `rand` loses 10
    # points on such a net); judged afresh, clean and robust accuracy are means over the same distribution. 200 images x 8 draws:
    # the standard error is below 0.0125 for each, the interval has a half-width of 0.05.
    class Mean(nn.Module):
        def forward(self, x):
            score = (x - 0.5).mean(1)
            return torch.stack([score, -score], 1)

    amplitude = torch.linspace(0, 0.4, 200)
    y = torch.arange(200) % 2
    x = (0.5 + amplitude * (1 - 2 * y))[:, None].expand(200, 100).contiguous()
    result = sp.audit(Noisy(Mean(), 1.0).eval(), x, y, threat=sp.Linf(1e-6), budget="quick")
    assert 0.8 < result.clean_accuracy < 0.95
    assert result.interval.low <= result.clean_accuracy <= result.interval.high
    assert abs(result.clean_accuracy - result.robust_accuracy) < 0.04
    assert "random answers" in {s.name for s in result.symptoms}


class Rounded(nn.Module):
    def forward(self, x):
        return NET((x * 255).round() / 255)


class Elsewhere(nn.Module):
    """Rounds out of torch's sight: nobody can lead a gradient around that."""

    def forward(self, x):
        return NET(torch.from_numpy((x.numpy(force=True) * 255).round() / 255)) + 0 * NET(x)


def test_masked_gradients_do_not_pass_for_robustness():
    result = sp.audit(Elsewhere().eval(), X, Y, threat=sp.Linf(0.01), budget="standard")
    assert result.verdict == "cannot be told"
    assert {"vanishing gradients", "black box beats white box"} <= {s.name for s in result.symptoms}
    assert "cannot be told" in result.summary()


def test_rounding_is_led_around_and_the_audit_ends_at_the_truth():
    # Of a linear score of rounded pixels the worst case is taken pixel by pixel: the lowest, or highest, level within the radius.
    result = sp.audit(Rounded().eval(), X, Y, threat=sp.Linf(0.01), budget="standard")
    w = NET.w.detach()
    low = ((X - 0.01) * 255).round() / 255
    high = ((X + 0.01) * 255).round() / 255
    away = torch.where((w * (1 - 2 * Y)[:, None]) > 0, low, high)
    truth = (((away - 0.5) @ w) * (1 - 2 * Y) > 0).double().mean().item()
    assert 0.1 < truth < 0.9
    assert result.robust_accuracy == pytest.approx(truth, abs=1e-12)
    assert [s for s in result.symptoms if s.level == "serious"] == []


def test_a_black_box_is_attacked_by_queries_alone():
    result = sp.audit(lambda x: NET(x), X[:50], Y[:50], threat=sp.Linf(0.01), budget="quick")
    assert [row.name for row in result.rows] == ["square", "rays"]
    assert all(row.backward == 0 for row in result.rows)
    assert result.robust_accuracy < result.clean_accuracy


def test_a_coupled_net_is_judged_by_whole_batches():
    class Centerd(nn.Module):
        def forward(self, x):
            return NET(x - x.mean(0) + 0.5)

    net = Centerd().eval()
    y = net(X).argmax(1)
    result = sp.audit(net, X, y, threat=sp.Linf(0.02), budget="quick", batch_size=len(X))
    assert torch.equal((net(result.worst_points).argmax(1) == y).double(), result.correct)
    assert (
        len(set(result.examples.winner)) == 1
    )  # a mosaic of rows from two batches was never answered


@pytest.mark.parametrize(("share", "n"), [(0.0, 10), (0.5, 1), (1.0, 500), (0.37, 200)])
def test_wilson_solves_its_equation(share, n):
    interval = wilson(share, n)
    z = 1.959963984540054
    for p in interval[:2]:
        assert abs(share - p) == pytest.approx(z * (p * (1 - p) / n) ** 0.5, abs=1e-9)


def test_an_unknown_budget_is_named():
    with pytest.raises(ValueError, match="quick, standard, thorough"):
        sp.audit(NET, X, Y, budget="huge")


def test_what_survives_is_kept_with_the_point_that_tried_it_hardest_not_with_a_clean_copy():
    result = sp.audit(NET, X, Y, threat=sp.Linf(0.01), budget="quick")
    copies = (result.worst_points == X).flatten(1).all(1)
    stands = result.correct == 1
    assert stands.any()
    assert not copies.any()
    # On a linear net the hardest try moves every score by the whole radius times ||w||_1; margins are twice the score.
    score = ((X - 0.5) @ NET.w.detach()) * (1 - 2 * Y)
    worst = -2 * (score - 0.01 * NET.w.detach().abs().sum())
    torch.testing.assert_close(result.examples.margin[stands], worst[stands], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("access", ["score", "decision"])
def test_a_net_behind_an_interface_is_audited_without_its_gradients(access):
    result = sp.audit(
        NET, X[:20], Y[:20], threat=sp.Threat(sp.Linf(0.01), access=access), budget="quick"
    )
    assert all(row.backward == 0 for row in result.rows)
    assert result.robust_accuracy < result.clean_accuracy


class Centerd(nn.Module):
    def forward(self, x):
        return NET(x - x.mean(0) + 0.5)


def test_coupled_rows_are_attacked_by_scores_together_and_refused_where_only_labels_are_given():
    net = Centerd().eval()
    y = Centerd()(X).argmax(1)
    result = sp.audit(net, X, y, threat=sp.Threat(sp.Linf(0.02), access="score"), budget="quick")
    assert [row.name for row in result.rows] == ["square"]
    with pytest.raises(ValueError, match="Give score access"):
        sp.audit(net, X, y, threat=sp.Threat(sp.Linf(0.02), access="decision"))


def test_a_callable_may_answer_with_a_label_that_no_clean_image_has():
    def three(x):
        return torch.where(x.mean(1) > 0.6, 2, NET(x).argmax(1))

    x = X[:20] - 0.15
    y = three(X[:20] - 0.15)
    assert y.amax() == 1
    assert sp.audit(three, x, y, threat=sp.Linf(0.5), budget="quick").robust_accuracy < 1


def test_inputs_need_not_be_images():
    result = sp.audit(NET, X.view(len(X), 2, 8), Y, threat=sp.Linf(0.01), budget="standard")
    assert result.rows[-1].name == "square"
    assert result.robust_accuracy == pytest.approx(true_robust_accuracy(NET, X, Y, 0.01), abs=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_an_audit_on_a_gpu_ends_at_the_closed_form():
    result = sp.audit(
        Linear().eval(), X, Y_NOISY, threat=sp.Linf(0.01), budget="standard", device="cuda"
    )
    assert result.robust_accuracy == pytest.approx(
        true_robust_accuracy(NET, X, Y_NOISY, 0.01), abs=1e-12
    )


def test_an_attack_without_gradients_is_not_accused_of_winning_because_it_came_first():
    square = sp.Direct("my square", sp.Square(300))
    apgd = sp.Direct("my apgd", sp.APGD(20))
    for order in ([square, apgd], [apgd, square]):
        result = sp.audit(NET, X, Y, threat=sp.Linf(0.01), adversaries=order)
        assert "black box beats white box" not in {s.name for s in result.symptoms}
        masked = sp.audit(Rounded().eval(), X, Y, threat=sp.Linf(0.01), adversaries=order)
        assert "black box beats white box" in {s.name for s in masked.symptoms}


class Exits(sp.Defense):
    """Answers with its first view, or votes; the last view is another net altogether."""

    def __init__(self, answering):
        self.answering = answering

    def trace(self, x, ctx):
        return sp.Trace((sp.View("exit/0", NET(x)), sp.View("exit/1", Linear(seed=9)(x))))

    def answer(self, trace, ctx):
        return self.answering(trace.views[0].logits)


def test_attacks_aim_at_the_answer_where_it_is_not_the_last_view():
    result = sp.audit(Exits(lambda z: z), X, Y, threat=sp.Linf(0.01), budget="quick")
    assert result.robust_accuracy == pytest.approx(true_robust_accuracy(NET, X, Y, 0.01), abs=1e-12)
    assert result.symptoms == ()


def test_a_vote_is_attacked_through_the_mean_of_its_views():
    """The gradient of the mean of two nets is not that of the one which answers: it must find more than nothing, not all."""
    result = sp.audit(
        Exits(lambda z: nn.functional.one_hot(z.argmax(1), 2).to(z)),
        X,
        Y,
        threat=sp.Linf(0.01),
        budget="quick",
    )
    assert {"apgd-ce", "apgd-dlr", "apgd-views", "pgd x5"} == {row.name for row in result.rows}
    assert result.robust_accuracy < 0.9


@pytest.mark.parametrize("queries", [4, 20, 60, 150])
def test_a_composed_audit_stays_within_the_queries_of_the_threat_model(queries):
    result = sp.audit(NET, X, Y, threat=sp.Threat(sp.Linf(0.01), queries=queries))
    assert {"apgd-ce", "apgd-dlr", "square"} <= {row.name for row in result.rows}
    assert all(row.forward <= queries for row in result.rows)
    noisy = sp.audit(
        Noisy(NET, 0.05).eval(),
        X[:20],
        Y[:20],
        threat=sp.Threat(sp.Linf(0.01), queries=10 * queries),
    )
    assert all(row.forward <= 10 * queries for row in noisy.rows)


def test_queries_that_pay_for_no_step_are_refused_before_anything_runs():
    with pytest.raises(ValueError, match="which takes 4"):
        sp.audit(NET, X, Y, threat=sp.Threat(sp.Linf(0.01), queries=3))


@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize(
    "suite",
    [sp.autoattack(steps=5, queries=20), rand_suite(steps=5, draws=2)],
    ids=["standard", "rand"],
)
def test_the_suites_of_autoattack_need_not_be_told_how_many_classes_there_are(classes, suite):
    weight = torch.randn(16, classes, generator=torch.Generator().manual_seed(3))

    class Net(nn.Module):
        def forward(self, x):
            return (x - 0.5) @ weight

    y = Net()(X[:40]).argmax(1)
    result = sp.audit(Net().eval(), X[:40], y, threat=sp.Linf(0.05), adversaries=suite)
    assert [row.name for row in result.rows] == [adversary.name for adversary in suite]
    assert result.robust_accuracy < 0.9


def test_the_loss_of_a_composed_suite_is_the_ratio_where_there_are_classes_enough_for_it():
    y = torch.tensor([0, 1])
    target = torch.tensor([1, 0])
    for classes in (2, 3, 4, 5):
        logits = torch.randn(
            2, classes, generator=torch.Generator().manual_seed(classes), dtype=torch.float64
        )
        ratio = dlr_or_margin(logits, y)
        toward = targeted_dlr_or_margin(target)(logits, y)
        assert torch.equal(ratio, (loss.dlr if classes >= 3 else loss.margin)(logits, y))
        assert torch.equal(
            toward, (loss.targeted_dlr if classes >= 4 else loss.targeted_margin)(target)(logits, y)
        )
    assert isinstance(targeted_dlr_or_margin(target), loss.PerRow)  # rows that fall can leave


class Curved(nn.Module):
    """Two classes told apart by a sum whose slope turns as the image moves: short steps climb on and on."""

    def forward(self, x):
        score = (x.flatten(1) - 0.5) @ NET.w + 0.05 * torch.sin(40 * x).flatten(1).sum(1)
        return torch.stack([score, -score], 1)


def test_an_attack_that_was_stopped_on_its_way_is_told_and_one_that_arrived_is_not():
    net = Curved().eval()
    names = {}
    y = net(X).argmax(1)
    for steps in (8, 200):
        attack = sp.Direct("pgd", sp.PGD(steps, step_size=0.0005, random_start=False))
        result = sp.audit(net, X, y, threat=sp.Linf(0.02), adversaries=[attack])
        names[steps] = {s.name for s in result.symptoms}
        (row,) = result.rows
        assert row.loss_curve.images[-1] == row.attacked
        assert (
            row.loss_curve.passes[-1] == steps + 2
        )  # a look at the clean image, the steps, and the last reading
    assert "still rising" in names[8]
    assert "still rising" not in names[200]


def test_an_attack_that_looks_for_the_nearest_mistake_does_not_climb_and_is_not_accused_of_it():
    result = sp.audit(
        Curved().eval(),
        X,
        Curved()(X).argmax(1),
        threat=sp.Linf(0.01),
        adversaries=[sp.Direct("fmn", FMN(20))],
    )
    assert result.rows[0].loss_curve.pace > 0.5  # its last point is projected into the set
    assert "still rising" not in {s.name for s in result.symptoms}


def test_an_attack_that_ended_because_it_had_won_is_not_accused_of_climbing():
    attack = sp.Direct("apgd", sp.APGD(10), stop_at_success=True)
    result = sp.audit(NET, X, Y, threat=sp.Linf(0.2), adversaries=[attack])
    assert result.rows[0].robust_accuracy == 0
    assert result.rows[0].loss_curve.pace > 0.5
    assert "still rising" not in {s.name for s in result.symptoms}


def test_only_the_strongest_attack_must_have_arrived():
    short = sp.Direct("short", sp.PGD(3, step_size=0.0005, random_start=False))
    long = sp.Direct("long", sp.APGD(50))
    net = Curved().eval()
    names = []
    for order in ([short, long], [long, short], [short]):
        result = sp.audit(net, X, net(X).argmax(1), threat=sp.Linf(0.02), adversaries=order)
        names.append("still rising" in {s.name for s in result.symptoms})
    assert names == [False, False, True]


def test_the_trace_of_a_linear_net_ends_at_the_closed_form():
    """The margin is -2 s, the best point of the ball adds 2 r ||w||_1, and APGD's first step, two radii long, ends there."""
    result = sp.audit(NET, X, Y, threat=sp.Linf(0.01), adversaries=[sp.Direct("apgd", sp.APGD(10))])
    loss_curve = result.rows[0].loss_curve
    score = (((X - 0.5) @ NET.w.detach()) * (1 - 2 * Y)).double()
    best = -2 * score.mean() + 2 * 0.01 * NET.w.detach().abs().sum()
    assert loss_curve.passes == tuple(range(1, 13))
    assert loss_curve.value[0] is None  # the look at the clean image is no reading of the attack's
    assert loss_curve.value[-1] == pytest.approx(float(best), abs=1e-5)  # float32 sums of 16 terms
    assert loss_curve.value[2] == pytest.approx(loss_curve.value[-1], abs=1e-5)
    assert loss_curve.misclassified[-1] == pytest.approx(1 - result.robust_accuracy, abs=1e-12)
