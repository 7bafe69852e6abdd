"""Audits from end to end, on problems with a known robust accuracy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import saddlepoint as sp
from saddlepoint.attacks import losses
from saddlepoint.audits.verdict import Level, SymptomName, Verdict
from saddlepoint.evaluation import rand_suite
from saddlepoint.evaluation.suites import dlr_or_margin, targeted_dlr_or_margin

LINF = sp.Linf(0.01)


class Linear(nn.Module):
    """Two classes separated by w . (x - 1/2): a Linf radius r moves the score by r ||w||_1."""

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
Y_NOISY = torch.where(torch.arange(len(Y)) % 10 == 0, 1 - Y, Y)  # every tenth label is wrong


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """A quick audit of the linear net, saved to disk."""
    folder = tmp_path_factory.mktemp("audits") / "run"
    return sp.audit(NET, X, Y, threat=LINF, budget="quick", out=folder)


@pytest.fixture(scope="module")
def audits():
    """Audits of the linear net with some wrong labels, by budget."""
    return {
        budget: sp.audit(NET, X, Y_NOISY, threat=LINF, budget=budget)
        for budget in ("quick", "standard")
    }


@pytest.mark.parametrize(
    ("budget", "verdict"), [("quick", Verdict.INCONCLUSIVE), ("standard", Verdict.CREDIBLE)]
)
def test_the_audit_of_a_linear_net_finds_the_closed_form(audits, budget, verdict):
    """The quick budget has no queries, so its checklist is incomplete."""
    result = audits[budget]
    truth = true_robust_accuracy(NET, X, Y_NOISY, 0.01)
    assert 0.2 < truth < 0.9
    assert result.robust_accuracy == pytest.approx(truth, abs=1e-12)
    assert result.clean_accuracy == pytest.approx(0.9, abs=1e-12)
    assert result.interval.low < truth < result.interval.high
    assert result.verdict is verdict


def test_gains_sum_to_the_difference_of_clean_and_robust_accuracy(audits):
    result = audits["standard"]
    difference = result.clean_accuracy - result.robust_accuracy
    assert sum(row.gain for row in result.rows) == pytest.approx(difference, abs=1e-12)
    assert result.rows[-1].running == pytest.approx(result.robust_accuracy, abs=1e-12)
    assert all(row.running <= row.robust_accuracy for row in result.rows)


def test_images_that_are_misclassified_without_an_attack_are_not_attacked(audits):
    assert {row.attacked for row in audits["standard"].rows} == {round(0.9 * len(X))}


def test_the_worst_points_are_in_the_set_and_have_the_reported_accuracy(audits):
    points = audits["quick"].worst_points
    assert LINF.contains(points, X).all()
    evaluated = (NET(points).argmax(1) == Y_NOISY).double()
    assert torch.equal(evaluated, audits["quick"].correct)


def test_an_audit_is_a_function_of_its_seed(quick):
    again = sp.audit(NET, X, Y, threat=LINF, budget="quick")
    assert torch.equal(quick.worst_points, again.worst_points)


def test_a_saved_audit_equals_the_original_and_has_a_report(quick):
    folder = Path(quick.folder)
    loaded = sp.Audit.load(folder)
    text = (folder / "audit.json").read_text()
    assert loaded.record() == quick.record() == json.loads(text)
    assert torch.equal(loaded.worst_points, quick.worst_points)
    assert (folder / "report.html").is_file()


def test_an_unbroken_image_has_the_point_of_highest_loss_not_a_clean_copy(quick):
    copies = (quick.worst_points == X).flatten(1).all(1)
    unbroken = quick.correct == 1
    assert unbroken.any()
    assert not copies.any()
    # On a linear net the worst point moves the score by the radius times ||w||_1; the margin is
    # twice the score.
    score = ((X - 0.5) @ NET.w.detach()) * (1 - 2 * Y)
    worst = -2 * (score - 0.01 * NET.w.detach().abs().sum())
    margin = quick.examples.margin
    torch.testing.assert_close(margin[unbroken], worst[unbroken], rtol=1e-3, atol=1e-4)


def test_an_unknown_budget_is_rejected_with_the_known_ones():
    with pytest.raises(ValueError, match="quick, standard, thorough"):
        sp.audit(NET, X, Y, budget="huge")


def test_inputs_need_not_be_images():
    x = X[:60]
    y = Y[:60]
    result = sp.audit(NET, x.view(60, 2, 8), y, threat=LINF, budget="standard")
    assert result.rows[-1].name == "square"
    truth = true_robust_accuracy(NET, x, y, 0.01)
    assert result.robust_accuracy == pytest.approx(truth, abs=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_an_audit_on_a_gpu_finds_the_closed_form():
    net = Linear().eval()
    result = sp.audit(net, X, Y_NOISY, threat=LINF, budget="standard", device="cuda")
    truth = true_robust_accuracy(NET, X, Y_NOISY, 0.01)
    assert result.robust_accuracy == pytest.approx(truth, abs=1e-12)


class Noisy(nn.Module):
    """Adds input noise from torch's global generator."""

    def __init__(self, net, sigma):
        super().__init__()
        self.net = net
        self.sigma = sigma

    def forward(self, x):
        return self.net(x + self.sigma * torch.randn_like(x))


class Mean(nn.Module):
    def forward(self, x):
        score = (x - 0.5).mean(1)
        return torch.stack([score, -score], 1)


def test_at_a_vanishing_radius_a_noisy_net_keeps_its_clean_accuracy():
    # 100 pixels of +-amplitude under noise of sigma = 1: the mean score has noise 0.1, and
    # amplitudes from 0 to 0.4 are misclassified in about every eighth draw. If single draws
    # counted, an attack that can do nothing would seem to succeed (AutoAttack's `rand` loses 10
    # points on such a net). With new draws, clean and robust accuracy are means over the same
    # distribution. 200 images x 8 draws: the standard error of each is below 0.0125, and the
    # interval has a half-width of 0.05.
    amplitude = torch.linspace(0, 0.4, 200)
    y = torch.arange(200) % 2
    x = (0.5 + amplitude * (1 - 2 * y))[:, None].expand(200, 100).contiguous()
    result = sp.audit(Noisy(Mean(), 1.0).eval(), x, y, threat=sp.Linf(1e-6), budget="quick")
    assert 0.8 < result.clean_accuracy < 0.95
    assert result.interval.low <= result.clean_accuracy <= result.interval.high
    assert abs(result.clean_accuracy - result.robust_accuracy) < 0.04
    assert SymptomName.RANDOM_OUTPUTS in symptoms_of(result)


def symptoms_of(result):
    return {symptom.name for symptom in result.symptoms}


class Centered(nn.Module):
    def forward(self, x):
        return NET(x - x.mean(0) + 0.5)


CENTERED = Centered().eval()
Y_CENTERED = CENTERED(X).argmax(1)


def test_a_coupled_net_is_evaluated_on_whole_batches():
    threat = sp.Linf(0.02)
    result = sp.audit(CENTERED, X, Y_CENTERED, threat=threat, budget="quick", batch_size=len(X))
    evaluated = (CENTERED(result.worst_points).argmax(1) == Y_CENTERED).double()
    assert torch.equal(evaluated, result.correct)
    # A mix of rows from two batches was never evaluated.
    assert len(set(result.examples.winner)) == 1


def test_coupled_rows_are_attacked_with_scores_but_not_with_labels():
    def threat(access):
        return sp.Threat(sp.Linf(0.02), access=access)

    result = sp.audit(CENTERED, X, Y_CENTERED, threat=threat("score"), budget="quick")
    assert [row.name for row in result.rows] == ["square"]
    with pytest.raises(ValueError, match="Give score access"):
        sp.audit(CENTERED, X, Y_CENTERED, threat=threat("decision"))


class Rounded(nn.Module):
    def forward(self, x):
        return NET((x * 255).round() / 255)


class RoundedOutsideTorch(nn.Module):
    """Rounds with numpy, in another shape, where a backward pass cannot be replaced."""

    def forward(self, x):
        transposed = np.ascontiguousarray(x.numpy(force=True).T)
        return NET(torch.from_numpy((transposed * 255).round() / 255).T) + 0 * NET(x)


ROUNDED = Rounded().eval()


@pytest.mark.slow
def test_masked_gradients_are_not_mistaken_for_robustness():
    target = RoundedOutsideTorch().eval()
    result = sp.audit(target, X[:60], Y[:60], threat=LINF, budget="standard")
    assert result.verdict is Verdict.INCONCLUSIVE
    expected = {SymptomName.ZERO_GRADIENTS, SymptomName.UNAVAILABLE_GRADIENTS}
    assert expected <= symptoms_of(result)
    assert "inconclusive" in result.summary()


@pytest.mark.slow
def test_rounding_is_bypassed_and_the_audit_finds_the_closed_form():
    """The worst case of a linear score of rounded pixels is the lowest or highest level of each."""
    x = X[:100]
    y = Y[:100]
    result = sp.audit(ROUNDED, x, y, threat=LINF, budget="standard")
    w = NET.w.detach()
    low = ((x - 0.01) * 255).round() / 255
    high = ((x + 0.01) * 255).round() / 255
    worst = torch.where((w * (1 - 2 * y)[:, None]) > 0, low, high)
    truth = (((worst - 0.5) @ w) * (1 - 2 * y) > 0).double().mean().item()
    assert 0.1 < truth < 0.9
    assert result.robust_accuracy == pytest.approx(truth, abs=1e-12)
    assert [s for s in result.symptoms if s.level is Level.SERIOUS] == []


@pytest.mark.parametrize("square_first", [True, False])
def test_masking_is_reported_whatever_the_order_of_attacks(square_first):
    square = sp.Direct("my square", sp.Square(300))
    apgd = sp.Direct("my apgd", sp.APGD(20))
    order = [square, apgd] if square_first else [apgd, square]
    sound = sp.audit(NET, X, Y, threat=LINF, adversaries=order)
    assert SymptomName.BLACK_BOX_STRONGER not in symptoms_of(sound)
    masked = sp.audit(ROUNDED, X, Y, threat=LINF, adversaries=order)
    assert SymptomName.BLACK_BOX_STRONGER in symptoms_of(masked)


def test_a_callable_is_attacked_with_queries_only():
    result = sp.audit(lambda x: NET(x), X[:50], Y[:50], threat=LINF, budget="quick")
    assert [row.name for row in result.rows] == ["square", "rays"]
    assert all(row.backward == 0 for row in result.rows)
    assert result.robust_accuracy < result.clean_accuracy


@pytest.mark.parametrize("access", ["score", "decision"])
def test_a_threat_model_without_gradients_uses_none(access):
    threat = sp.Threat(LINF, access=access)
    result = sp.audit(NET, X[:20], Y[:20], threat=threat, budget="quick")
    assert all(row.backward == 0 for row in result.rows)
    assert result.robust_accuracy < result.clean_accuracy


def test_a_callable_may_return_a_label_that_no_clean_image_has():
    def three_classes(x):
        return torch.where(x.mean(1) > 0.6, 2, NET(x).argmax(1))

    x = X[:20] - 0.15
    y = three_classes(x)
    assert y.amax() == 1
    result = sp.audit(three_classes, x, y, threat=sp.Linf(0.5), budget="quick")
    assert result.robust_accuracy < 1


@pytest.mark.parametrize("queries", [4, 20, 60, 150])
def test_a_composed_audit_respects_the_query_limit(queries):
    result = sp.audit(NET, X, Y, threat=sp.Threat(LINF, queries=queries))
    assert {"apgd-ce", "apgd-dlr", "square"} <= {row.name for row in result.rows}
    assert all(row.forward <= queries for row in result.rows)


@pytest.mark.parametrize("queries", [40, 200, 600, 1500])
def test_a_composed_audit_of_a_randomized_net_respects_the_query_limit(queries):
    threat = sp.Threat(LINF, queries=queries)
    result = sp.audit(Noisy(NET, 0.05).eval(), X[:20], Y[:20], threat=threat)
    assert all(row.forward <= queries for row in result.rows)


def test_a_query_limit_below_one_gradient_step_is_rejected():
    with pytest.raises(ValueError, match="which takes 4"):
        sp.audit(NET, X, Y, threat=sp.Threat(LINF, queries=3))


class Exits(sp.Defense):
    """Answers with a function of its first view; the last view is another net."""

    def __init__(self, answer_with):
        self.answer_with = answer_with

    def trace(self, x, ctx):
        return sp.Trace((sp.View("exit/0", NET(x)), sp.View("exit/1", Linear(seed=9)(x))))

    def answer(self, trace, ctx):
        return self.answer_with(trace.views[0].logits)


def test_attacks_aim_at_the_answer_if_it_is_not_the_last_view():
    result = sp.audit(Exits(lambda z: z), X, Y, threat=LINF, budget="quick")
    truth = true_robust_accuracy(NET, X, Y, 0.01)
    assert result.robust_accuracy == pytest.approx(truth, abs=1e-12)
    assert result.symptoms == ()


def test_a_vote_is_attacked_through_the_mean_of_its_views():
    """The gradient of the mean of two nets is not that of the net that answers, so it need not
    break all images that could be broken."""

    def vote(z):
        return nn.functional.one_hot(z.argmax(1), 2).to(z)

    result = sp.audit(Exits(vote), X, Y, threat=LINF, budget="quick")
    assert {"apgd-ce", "apgd-dlr", "apgd-views", "pgd x5"} == {row.name for row in result.rows}
    assert result.robust_accuracy < 0.9


@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize(
    "suite",
    [sp.autoattack(steps=5, queries=20), rand_suite(steps=5, draws=2)],
    ids=["standard", "rand"],
)
def test_the_suites_of_autoattack_work_for_any_number_of_classes(classes, suite):
    weight = torch.randn(16, classes, generator=torch.Generator().manual_seed(3))

    class Net(nn.Module):
        def forward(self, x):
            return (x - 0.5) @ weight

    x = X[:40]
    y = Net()(x).argmax(1)
    result = sp.audit(Net().eval(), x, y, threat=sp.Linf(0.05), adversaries=suite)
    assert [row.name for row in result.rows] == [adversary.name for adversary in suite]
    assert result.robust_accuracy < 0.9


@pytest.mark.parametrize("classes", [2, 3, 4, 5])
def test_the_loss_is_the_logit_ratio_if_there_are_enough_classes(classes):
    y = torch.tensor([0, 1])
    target = torch.tensor([1, 0])
    generator = torch.Generator().manual_seed(classes)
    logits = torch.randn(2, classes, generator=generator, dtype=torch.float64)
    untargeted = losses.dlr if classes >= 3 else losses.margin
    assert torch.equal(dlr_or_margin(logits, y), untargeted(logits, y))
    targeted = losses.targeted_dlr if classes >= 4 else losses.targeted_margin
    found = targeted_dlr_or_margin(target)(logits, y)
    assert torch.equal(found, targeted(target)(logits, y))


def test_the_targeted_loss_can_be_restricted_to_rows():
    assert isinstance(targeted_dlr_or_margin(torch.tensor([1, 0])), losses.PerRow)
