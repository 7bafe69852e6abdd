"""The equilibrium paper again: every experiment at the tiny scale, and the arithmetic of its columns on known numbers."""

import math
from importlib import import_module

import pytest
import torch
from tests.problems import keys, normal, uniform

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Broyden, Context, Plain
from saddlepoint.evaluation import AttackContext, FixedPoints, Threat
from saddlepoint.gradients import Backprop
from saddlepoint.papers import EXPERIMENTS, chosen
from saddlepoint.papers.deq import EXPERIMENTS as OURS
from saddlepoint.papers.deq import published
from saddlepoint.papers.deq.experiment import Lab, Subject
from saddlepoint.papers.deq.figure_4 import aligned
from saddlepoint.papers.deq.gradients import (
    AtState,
    adjoint_at,
    adjoint_ensemble,
    adjoint_final,
    ready_made,
    unrolled_at,
    unrolled_ensemble,
    walked,
)
from saddlepoint.papers.deq.grid import LOWEST, WORST, lowest, robustness
from saddlepoint.papers.deq.memory import most_bytes
from saddlepoint.papers.deq.scales import Budget
from saddlepoint.papers.deq.states import ended, residuals, unsettled
from saddlepoint.papers.deq.table_1 import masking
from saddlepoint.papers.markdown import of_result
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import read
from saddlepoint.papers.runner import Images
from saddlepoint.papers.write import reproduce
from saddlepoint.zoo.deq import ConvDEQNet, EarlyState, Solved
from saddlepoint.zoo.deq.model import SITE


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Networks and episodes of all experiments: what one has played, the next finds."""
    return tmp_path_factory.mktemp("deq")


def tried(name, folder, told=None):
    return reproduce(
        EXPERIMENTS[name], Request(folder, say=(told if told is not None else []).append)
    )[0]


def small(steps=4, scale=1.0):
    """An untrained network in double precision; far larger weights have no fixed point that Broyden finds."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = ConvDEQNet(channels=3, stride=2, gain=math.inf).double().eval()
        for kernel in net.inner.parameters():
            kernel.data.mul_(scale)
    return Solved(net, method=Broyden(steps=steps, tolerance=1e-12))


def slope(solved, gradient, x, y):
    """The gradient in x of one of the paper's columns."""
    objective = AttackObjective(
        [solved.defense], y, cross_entropy, gradient.aim, {SITE: gradient.rule}, gradient.keep
    )
    return Backprop().slope(objective, x, keys(len(x)))


X = uniform(1, 3, 1, 8, 8)
Y = torch.tensor([1, 2, 3])


@pytest.mark.parametrize("name", [one.name for one in OURS])
def test_every_experiment_runs_and_its_record_can_be_read_again(name, folder):
    result = tried(name, folder)
    assert read(result.text(), name).text() == result.text()
    assert result.findings
    assert all(
        any("residual" in word for word in (*t.columns, *(row.labels[0] for row in t.rows)))
        for t in result.tables
    )
    assert of_result(result).count("|") > 20


def test_nothing_is_trained_or_played_again(folder):
    first = tried("deq/table-2", folder)
    told = []
    again = tried("deq/table-2", folder, told)
    assert told == []
    assert again.text() == first.text()


def test_experiments_are_found_by_name_and_their_code_is_there():
    assert len(chosen("deq", EXPERIMENTS)) == len(OURS) == 10
    for one in OURS:
        module, _, function = one.home.partition(":")
        assert callable(getattr(import_module(module), function))


def test_the_lowest_column_is_the_least_of_six_and_robustness_the_largest_of_these(folder):
    result = tried("deq/table-2", folder)
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
            f"{network}, PGD-10" in told and f"is {best:.1f} % (" in told
            for told in result.findings
        )


def test_robustness_is_the_max_over_defenses_of_the_min_over_attacks():
    """Two attacks, two defenses, four images: the first defense keeps 2/4 and 1/4, the second 3/4 and 2/4."""
    correct = torch.tensor([[[1, 1, 0, 0], [1, 1, 1, 0]], [[0, 0, 1, 0], [0, 1, 0, 1]]]).double()
    assert robustness(correct).value == 0.5
    assert [lowest(correct[:, d]).value for d in (0, 1)] == [0.25, 0.5]
    assert published.robustness("unrolled") == 47.12
    assert published.robustness("exact-long") == 39.18
    assert published.robustness("vanilla") == 1.31


def test_accumulation_is_said_only_where_the_interval_says_so(folder):
    """The sentence is one of three, and every experiment with an early state has it."""
    for name in ("deq/table-1", "deq/table-5", "deq/figure-2"):
        assert any("robustness accumul" in told for told in tried(name, folder).findings)


def test_masking_is_said_where_another_attack_finds_more_on_the_same_images():
    """All of 40 images withstand the exact gradient; half of them the unrolled one; Square changes nothing."""
    half = (torch.arange(40) % 2).double()
    everything = torch.ones(40, dtype=torch.float64)
    names = ("PGD-10, exact", "PGD-1000, exact", "PGD-10, unrolled", "PGD-1000, unrolled", "Square")
    told = masking(dict(zip(names, (everything, everything, half, half, everything), strict=True)))
    assert "PGD-10, unrolled leaves 50.0 %" in told[0]
    assert ["is masked" in line for line in told] == [True, True, False]


def test_the_walk_is_valued_by_its_last_loss_and_pulled_by_all():
    logits = normal(0, 3, 2, 4).requires_grad_()
    y = torch.tensor([0, 3])
    value = walked(cross_entropy, logits, y)
    assert torch.equal(value, cross_entropy(logits, y)[-1])
    (found,) = torch.autograd.grad(value.sum(), logits)
    (wanted,) = torch.autograd.grad(cross_entropy(logits, y).sum(), logits)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-15)


@pytest.mark.parametrize("way", ["adjoint", "unrolled"])
def test_the_ensemble_gradient_is_the_plain_sum_over_states(way):
    """Eq. 17: T times the gradient of the mean loss is sum_n g_n, to rounding; with the weights 4, 3, 2, 1 it is another one."""
    solved = small()
    whole = adjoint_ensemble(solved) if way == "adjoint" else unrolled_ensemble(solved, 2, 0.5)
    parts = [adjoint_at(n) if way == "adjoint" else unrolled_at(n, 2, 0.5) for n in range(1, 5)]
    total = 4 * slope(solved, whole, X, Y).grad
    each = torch.stack([slope(solved, one, X, Y).grad for one in parts])
    torch.testing.assert_close(each.sum(0), total, rtol=1e-9, atol=1e-15)
    released = torch.einsum("k,k...->...", torch.tensor([4.0, 3.0, 2.0, 1.0]).double(), each)
    assert (released / released.norm() - total / total.norm()).abs().max() > 1e-4


def test_the_adjoint_at_the_end_is_the_exact_gradient_where_the_solver_converged():
    """24 steps solve 48 unknowns of a weak cell to 1e-12; u follows to the error that beta = 0.9 leaves, 0.1^steps of it."""
    solved = small(steps=24)
    found, exact = (slope(solved, one, X, Y).grad for one in (adjoint_final(), ready_made(solved)))
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-7 * exact.abs().max().item())


def test_residuals_are_those_of_the_solver_and_the_mean_has_its_own():
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
        ended(solved.defense, X, batch=2), solution.residual, rtol=1e-9, atol=1e-15
    )


def test_a_network_that_does_not_converge_is_a_symptom_above_the_numbers(tmp_path):
    lab = Lab.open(Request(tmp_path))
    images = Images(X, Y)
    nets = {"wild": small(scale=8.0), "calm": small()}
    states = {
        name: lab.states(Subject(name, net, Linf(0.1), "toy", images, images))
        for name, net in nets.items()
    }
    assert states["calm"].symptoms == ()
    assert "wild (4/50): no fixed point on 100 % of the clean images" in states["wild"].symptoms[0]
    page = of_result(lab.result(OURS[4], [states["wild"].table()], states=[states["wild"]]))
    assert page.index("Symptom") < page.index("| state |")
    assert "Symptom" not in of_result(
        lab.result(OURS[4], [states["calm"].table()], states=[states["calm"]])
    )


def test_a_residual_at_the_limit_is_no_symptom_and_one_beyond_is():
    assert unsettled("net", {"clean": torch.tensor([0.1, 0.0])}) == []
    (told,) = unsettled("net", {"clean": torch.tensor([0.11, 0.0]), "attacked": torch.zeros(2)})
    assert "50 % of the clean images" in told


def test_alignment_counts_the_states_that_the_next_adjoint_state_hurts_most():
    """u_2 is the strongest on z_1, u_1 on z_2 by 5 points over u_3."""
    left = torch.tensor([[60.0, 30.0], [50.0, 40.0], [70.0, 35.0]])
    (told,) = aligned(left)
    assert "for 1 of 2 states, u_n for 0" in told
    assert "5.0 points off" in told


def test_stock_points_are_clean_where_the_attacked_state_did_not_fall():
    """A budget of nothing much cannot fool a state within a radius of 1e-9: the stock code hands back the image, ours does not."""
    solved = small()
    y = solved.defense.trace(X, Context(keys(3))).select([EarlyState(2).name]).last.argmax(1)
    sent = [adjoint_at(2).auto(Budget(1, 1, 1), copies=copies) for copies in (False, True)]
    ours, stock = (
        one.move(
            AttackContext.open(Threat(Linf(1e-9)), torch.arange(3), 0), solved.defense, X, y
        ).point
        for one in sent
    )
    assert torch.equal(stock, X)
    assert not (ours == X).flatten(1).all(1).any()


def test_states_of_a_network_without_solver_cannot_be_attacked():
    with pytest.raises(TypeError, match="needs a DEQ; got Plain"):
        AtState(FixedPoints(), EarlyState(1)).move(
            AttackContext.open(Threat(Linf(0.1)), torch.arange(3), 0),
            Plain(torch.nn.Flatten()),
            X,
            Y,
        )


def test_memory_is_what_is_alive_at_once():
    """1000 floats and their successor are 8000 bytes; a chain of ten holds two at a time."""

    def chain(length):
        z = torch.ones(1000)
        for _ in range(length):
            z = z + 1
        return z

    assert most_bytes(lambda: chain(1)) == most_bytes(lambda: chain(10)) == 8000
