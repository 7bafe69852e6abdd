"""The experiments on equilibrium networks at the tiny scale, and their arithmetic."""

import math
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from tests.problems import keys, normal, uniform
from tests.zoo.released_deq import released

from saddlepoint.attacks.aims import last_value_summed_gradient
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Broyden, Context, Plain
from saddlepoint.evaluation import AttackContext, FixedPoints, Threat
from saddlepoint.gradients import Backprop, Implicit
from saddlepoint.papers import EXPERIMENTS, select_experiments
from saddlepoint.papers.budgets import AutoAttackBudget
from saddlepoint.papers.deq import EXPERIMENTS as OURS
from saddlepoint.papers.deq import published, third_party
from saddlepoint.papers.deq.experiment import DEQExperiment
from saddlepoint.papers.deq.figure_4 import alignment
from saddlepoint.papers.deq.gradients import (
    AtState,
    adjoint_at,
    adjoint_ensemble,
    adjoint_final,
    ready_made,
    unrolled_at,
    unrolled_ensemble,
)
from saddlepoint.papers.deq.grid import LOWEST, WORST, Grid, lowest, robustness
from saddlepoint.papers.deq.grid import OURS as WITHOUT_START
from saddlepoint.papers.deq.memory import peak_bytes
from saddlepoint.papers.deq.nets import exact
from saddlepoint.papers.deq.scales import SETTINGS
from saddlepoint.papers.deq.states import convergence_warnings, end_residuals, residuals
from saddlepoint.papers.deq.subjects import DEQSubject
from saddlepoint.papers.deq.table_1 import masking
from saddlepoint.papers.markdown import result_markdown
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import read
from saddlepoint.papers.runner import Images
from saddlepoint.papers.write import reproduce
from saddlepoint.zoo.deq import ConvDEQNet, EarlyState, Solved
from saddlepoint.zoo.deq.model import SITE, START
from saddlepoint.zoo.deq.solved import digits_deq_exact
from saddlepoint.zoo.nets import mdeq_digits


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Shared output folder: each experiment reuses the networks and attacks of the others."""
    return tmp_path_factory.mktemp("deq")


def run(name, folder, messages=None):
    """Run an experiment and collect its progress messages."""
    progress = (messages if messages is not None else []).append
    return reproduce(EXPERIMENTS[name], Request(folder, progress=progress))[0]


def small(steps=4, scale=1.0):
    """Make an untrained network in double precision.

    With a much larger `scale` of its weights, Broyden's method finds no fixed point.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = ConvDEQNet(channels=3, stride=2, gain=math.inf).double().eval()
        for kernel in net.inner.parameters():
            kernel.data.mul_(scale)
    return Solved(net, method=Broyden(steps=steps, tolerance=1e-12))


def input_gradient(solved, gradient, x, y):
    """Return the gradient in x of one of the paper's columns."""
    objective = AttackObjective(
        [solved.defense], y, cross_entropy, gradient.aim, {SITE: gradient.rule}, gradient.keep
    )
    return Backprop().value_and_grad(objective, x, keys(len(x)))


X = uniform(1, 3, 1, 8, 8)
Y = torch.tensor([1, 2, 3])


@pytest.mark.slow
@pytest.mark.parametrize("name", [one.name for one in OURS])
def test_every_experiment_runs_and_its_record_can_be_read_again(name, folder):
    result = run(name, folder)
    assert read(result.text(), name).text() == result.text()
    assert result.findings
    assert all(
        any("residual" in word for word in (*t.columns, *(row.labels[0] for row in t.rows)))
        for t in result.tables
    )
    assert result_markdown(result).count("|") > 20


@pytest.mark.slow
def test_a_second_run_trains_no_network_and_runs_no_attack(folder):
    first = run("deq/table-2", folder)
    messages = []
    again = run("deq/table-2", folder, messages)
    assert messages == []
    assert again.text() == first.text()


def test_experiments_are_found_by_name_and_their_functions_exist():
    assert len(select_experiments("deq", EXPERIMENTS)) == len(OURS) == 11
    for one in OURS:
        module, _, function = one.function.partition(":")
        assert callable(getattr(import_module(module), function))


def test_the_minimum_column_is_the_minimum_of_six_and_robustness_its_maximum(folder):
    result = run("deq/table-2", folder)
    table = result.tables[0]
    for row in table.rows:
        attacks = [table.cell(row.labels, column) for column in published.ATTACKS]
        least = table.cell(row.labels, LOWEST)
        worst = table.cell(row.labels, WORST)
        assert least.mean == min(cell.mean for cell in attacks)
        assert least.paper == min(cell.paper for cell in attacks)
        assert worst.mean <= least.mean
        assert least.interval[0] <= least.mean <= least.interval[1]
    for start in (0, 3):
        network = table.rows[start].labels[0]
        best = max(table.cell(row.labels, LOWEST).mean for row in table.rows[start : start + 3])
        assert any(
            f"{network}, PGD-10" in text and f"is {best:.1f} % (" in text
            for text in result.findings
        )


def test_the_papers_columns_use_the_loss_of_z_0_and_the_columns_beside_them_do_not(folder):
    grid = Grid.of(DEQExperiment.open(Request(folder)), "unrolled")
    pairs = zip(("adjoint Intermediate", "adjoint Ensemble"), WITHOUT_START, strict=True)
    for paper, ours in pairs:
        assert START in grid.gradients[paper].keep
        assert grid.ours[ours].keep == grid.gradients[paper].keep - {START}
        assert grid.ours[ours].rule == grid.gradients[paper].rule
    table = run("deq/table-2", folder).tables[0]
    assert table.columns[-2:] == WITHOUT_START
    assert all(
        table.cell(row.labels, name).paper is None for name in WITHOUT_START for row in table.rows
    )


def test_robustness_is_the_max_over_defenses_of_the_min_over_attacks():
    """Two attacks, two defenses, four images.

    The first defense has accuracies of 2/4 and 1/4, the second of 3/4 and 2/4.
    """
    correct = torch.tensor([[[1, 1, 0, 0], [1, 1, 1, 0]], [[0, 0, 1, 0], [0, 1, 0, 1]]]).double()
    assert robustness(correct).value == 0.5
    assert [lowest(correct[:, d]).value for d in (0, 1)] == [0.25, 0.5]
    assert published.robustness("unrolled") == 47.12
    assert published.robustness("exact-long") == 39.18
    assert published.robustness("vanilla") == 1.31


def test_the_network_without_adversarial_training_has_numbers_of_such_a_network() -> None:
    assert third_party.note(["vanilla"]).endswith("network trained without an adversary")
    assert third_party.note(["unrolled", "exact-long"]).endswith("trained CIFAR-10 networks")


@pytest.mark.parametrize("name", ["deq/table-1", "deq/table-5", "deq/figure-2"])
def test_experiments_with_an_early_state_report_on_robustness_accumulation(name, folder):
    assert any("robustness accumulation" in text for text in run(name, folder).findings)


def test_masking_is_reported_if_another_attack_is_stronger_on_the_same_images():
    """The exact gradient and Square break none of 40 images, the unrolled gradient breaks half."""
    half = (torch.arange(40) % 2).double()
    everything = torch.ones(40, dtype=torch.float64)
    names = ("PGD-10, exact", "PGD-1000, exact", "PGD-10, unrolled", "PGD-1000, unrolled", "Square")
    correct = (everything, everything, half, half, everything)
    texts = masking(dict(zip(names, correct, strict=True)))
    assert "50.0 % under PGD-10, unrolled" in texts[0]
    assert ["is masked" in text for text in texts] == [True, True, False]


def test_the_aim_has_the_value_of_the_last_loss_and_the_gradient_of_all_losses():
    logits = normal(0, 3, 2, 4).requires_grad_()
    y = torch.tensor([0, 3])
    value = last_value_summed_gradient(cross_entropy, logits, y)
    assert torch.equal(value, cross_entropy(logits, y)[-1])
    (found,) = torch.autograd.grad(value.sum(), logits)
    (expected,) = torch.autograd.grad(cross_entropy(logits, y).sum(), logits)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-15)


def loss_gradient(solved, z):
    """dL/dz of the cross-entropy of head(z)."""
    z = z.detach().requires_grad_()
    return torch.autograd.grad(cross_entropy(solved.net.head(z), Y).sum(), z)[0]


@pytest.mark.parametrize("start", [True, False])
def test_the_first_adjoint_is_beta_times_the_loss_gradient_at_the_start(start):
    """Eq. 9-10 with u_0 = 0 and B_0 = -I: u_1 = 0.9 dL(z_0)/dz; without z_0, that of z_1."""
    solved = small()
    x = X.clone().requires_grad_()
    u = solved.net.inject(x)
    z0 = solved.net.start(u)
    z1 = solved.net.cell(z0, u).detach()
    cotangent = 0.9 * loss_gradient(solved, z0 if start else z1)
    (expected,) = torch.autograd.grad(solved.net.cell(z1, u), x, cotangent)
    found = input_gradient(solved, adjoint_at(1, start=start), X, Y).grad
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-15)


def test_the_start_is_a_view_only_if_it_is_named():
    solved = small()
    names = [view.name for view in solved.defense.trace(X, Context(keys(3))).views]
    assert START not in names
    named = solved.defense.trace(X, Context(keys(3), keep=frozenset({START, "final"})))
    assert [view.name for view in named.views] == [START, "final"]
    head = solved.net.head(solved.net.start(solved.net.inject(X)))
    torch.testing.assert_close(named.views[0].logits, head)


@pytest.mark.parametrize("estimator", ["adjoint", "unrolled"])
def test_the_ensemble_gradient_is_the_unweighted_sum_over_states(estimator):
    """Eq. 17: the gradient of the sum of losses equals sum_n g_n up to rounding.

    With the weights 4, 3, 2, 1 of the released code the gradient differs.
    """
    solved = small()
    if estimator == "adjoint":
        whole = adjoint_ensemble(solved)
        parts = [adjoint_at(n) for n in range(1, 5)]
    else:
        whole = unrolled_ensemble(solved, 2, 0.5)
        parts = [unrolled_at(n, 2, 0.5) for n in range(1, 5)]
    total = len(whole.keep) * input_gradient(solved, whole, X, Y).grad
    each = torch.stack([input_gradient(solved, one, X, Y).grad for one in parts])
    torch.testing.assert_close(each.sum(0), total, rtol=1e-9, atol=1e-15)
    released = torch.einsum("k,k...->...", torch.tensor([4.0, 3.0, 2.0, 1.0]).double(), each)
    assert (released / released.norm() - total / total.norm()).abs().max() > 1e-4


def test_the_final_adjoint_is_the_exact_gradient_if_the_solver_converges():
    """24 steps solve the 48 unknowns of a cell with small weights to 1e-12.

    The adjoint u then has the error that beta = 0.9 leaves, which is 0.1^steps of it.
    """
    solved = small(steps=24)
    found = input_gradient(solved, adjoint_final(), X, Y).grad
    exact = input_gradient(solved, ready_made(solved), X, Y).grad
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-7 * exact.abs().max().item())


def test_residuals_equal_those_of_the_solver_and_of_the_mean_state():
    solved = small()
    found = residuals(solved.defense, X, batch=2)
    u = solved.net.inject(X)
    solution = solved.method(
        lambda z, rows: solved.net.cell(z, u[rows]), solved.net.start(u), keep=range(1, 5)
    )
    for n in range(1, 5):
        torch.testing.assert_close(
            found[EarlyState(n).name], solution.residuals[n - 1], rtol=1e-9, atol=1e-15
        )
    best = solution.best
    mean = (sum(solution.states[n] for n in range(1, 5)) + solved.net.cell(best, u)) / 5
    f = solved.net.cell(mean, u)
    torch.testing.assert_close(
        found["mean"], (f - mean).norm(dim=1) / f.norm(dim=1), rtol=1e-9, atol=1e-15
    )
    torch.testing.assert_close(
        end_residuals(solved.defense, X, batch=2), solution.residual, rtol=1e-9, atol=1e-15
    )


def test_a_page_warns_above_the_numbers_if_the_solver_does_not_converge(tmp_path):
    experiment = DEQExperiment.open(Request(tmp_path))
    images = Images(X, Y)

    def measure(name, net):
        return experiment.states(DEQSubject(name, net, Linf(0.1), "toy", images, images))

    def page(states):
        return result_markdown(experiment.result("table-5", [states.table()], states=[states]))

    diverging = measure("diverging", small(scale=8.0))
    converging = measure("converging", small())
    assert converging.symptoms == ()
    warning = "diverging (4/50): no fixed point on 100 % of the clean images"
    assert warning in diverging.symptoms[0]
    assert page(diverging).index("Warning") < page(diverging).index("| state |")
    assert "Warning" not in page(converging)


def test_only_residuals_above_the_limit_cause_a_warning():
    assert convergence_warnings("net", {"clean": torch.tensor([0.1, 0.0])}) == []
    residual = {"clean": torch.tensor([0.11, 0.0]), "attacked": torch.zeros(2)}
    (warning,) = convergence_warnings("net", residual)
    assert "50 % of the clean images" in warning


def test_alignment_counts_the_states_on_which_the_next_adjoint_state_is_strongest():
    """u_2 is the strongest on z_1; u_1 is the strongest on z_2, by 5 points over u_3."""
    accuracy = torch.tensor([[60.0, 30.0], [50.0, 40.0], [70.0, 35.0]])
    (text,) = alignment(accuracy)
    assert "for 1 of 2 states, the attack with u_n for 0" in text
    assert "at most 5.0 points above" in text


def test_with_clean_copies_autoattack_returns_the_clean_image_where_it_fails():
    """A tiny budget cannot break a state within a radius of 1e-9.

    AutoAttack's published code then returns the clean image, ours returns a perturbed one.
    """
    solved = small()
    y = solved.defense.trace(X, Context(keys(3))).select([EarlyState(2).name]).last.argmax(1)
    budget = AutoAttackBudget(1, 1, 1)
    ours, published_code = (
        adjoint_at(2)
        .auto(budget, copies=copies)
        .move(AttackContext.open(Threat(Linf(1e-9)), torch.arange(3), 0), solved.defense, X, y)
        .point
        for copies in (False, True)
    )
    assert torch.equal(published_code, X)
    assert not (ours == X).flatten(1).all(1).any()


@pytest.mark.parametrize("backward", [7, 30])
def test_exact_training_in_the_experiments_has_the_gradient_of_the_released_code(backward):
    """On random weights the solves do not converge, so the order and the stop both matter."""
    torch.manual_seed(0)
    solved = exact(mdeq_digits, 8, backward).double().eval()
    x = uniform(5, 2, 1, 8, 8).requires_grad_()
    cotangent = normal(6, 2, 10)
    (grad,) = torch.autograd.grad(solved(x), x, cotangent)
    pairs = zip(x.detach(), cotangent, strict=True)
    expected = torch.stack([released(solved.net, *pair, 8, backward).grad for pair in pairs])
    assert torch.cosine_similarity(grad.flatten(1), expected.flatten(1)).min() > 0.9999


@pytest.mark.parametrize("solved", [Solved(mdeq_digits()), digits_deq_exact()])
def test_exact_training_has_the_order_of_the_released_code_by_default(solved):
    assert isinstance(solved.rule, Implicit)
    assert solved.rule.at == "following"


def test_attacking_a_state_of_a_network_without_solver_raises_an_error():
    with pytest.raises(TypeError, match="needs a DEQ; got Plain"):
        AtState(FixedPoints(), EarlyState(1)).move(
            AttackContext.open(Threat(Linf(0.1)), torch.arange(3), 0),
            Plain(torch.nn.Flatten()),
            X,
            Y,
        )


def test_peak_memory_counts_the_tensors_that_exist_together():
    """A tensor of 1000 floats and its successor have 8000 bytes.

    A chain of ten additions needs only two tensors at a time.
    """

    def chain(length):
        z = torch.ones(1000)
        for _ in range(length):
            z = z + 1
        return z

    assert peak_bytes(lambda: chain(1)) == peak_bytes(lambda: chain(10)) == 8000


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_the_strongest_unrolled_gradient_of_the_paper_and_of_its_code_are_candidates(scale):
    """Unrolled from z_1 with k = 1 and no damping; the released code takes one step more."""
    setting = SETTINGS[scale]
    experiment = SimpleNamespace(setting=setting)
    candidates = DEQExperiment.candidates(experiment, SimpleNamespace(steps=8))
    found = {gradient.name for group in candidates for gradient in group}
    assert {"unrolled z1 k=1 damping=1", "unrolled z1 k=2 damping=1"} <= found
