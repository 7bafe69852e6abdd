"""The deep equilibrium model as a defense: its views, its answer, its gradients and its memory."""

import math

import pytest
import torch
from tests.equilibria import Affine, Curved
from tests.probing import probe_target
from tests.problems import keys, uniform
from tests.zoo.toy_deq import INPUTS, STATES, TIGHT, N, Toy, X, toy, traced, views_by_name
from torch import nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Broyden, Context, Picard, view
from saddlepoint.evaluation import AttackContext, Direct, MaxLossPoint, Threat, evaluate
from saddlepoint.gradients import SimultaneousAdjoint
from saddlepoint.solvers import Status
from saddlepoint.zoo.deq import (
    DEQ,
    MDEQ,
    EarlyState,
    FinalState,
    MeanState,
    MonotoneDEQ,
    MonotoneNet,
    Unrolled,
    early_state,
)


def test_every_state_of_the_solver_is_a_view():
    net = toy()
    u = net.inject(X)
    states = [torch.zeros(N, STATES, dtype=torch.float64)]
    for _ in range(6):
        states.append(net.cell(states[-1], u))
    views = views_by_name(DEQ(net, method=Picard(steps=6, tolerance=0.0)))
    assert list(views) == [*(f"solve/{n}" for n in range(1, 7)), "mean", "final"]
    for n in range(1, 7):
        torch.testing.assert_close(views[f"solve/{n}"], net.head(states[n]), rtol=0, atol=1e-14)


def test_the_first_state_of_broyden_is_the_cell_at_zero():
    net = toy()
    u = net.inject(X)
    torch.testing.assert_close(
        views_by_name(DEQ(net))["solve/1"], net.head(net.cell(net.start(u), u)), rtol=0, atol=1e-14
    )


def test_the_final_view_is_one_step_after_the_best_state():
    net = toy()
    method = Broyden(steps=3, tolerance=0.0)
    u = net.inject(X)
    best = method(lambda z, rows: net.cell(z, u[rows]), net.start(u)).best
    torch.testing.assert_close(
        traced(DEQ(net, method=method)).last, net.head(net.cell(best, u)), rtol=0, atol=1e-14
    )
    z = net.cell(best, u)
    for _ in range(5):
        z = 0.5 * z + 0.5 * net.cell(z, u)
    unrolled = DEQ(net, method=method, after=Unrolled(steps=6))
    torch.testing.assert_close(traced(unrolled).last, net.head(z), rtol=0, atol=1e-14)


def test_the_mean_view_is_the_head_on_the_mean_of_all_states_and_the_final_one():
    """The head is linear here, so this is the mean of the heads, over nine states and not eight."""
    views = views_by_name(DEQ(toy(), method=Broyden(steps=8, tolerance=0.0)))
    nine = torch.stack([*(views[f"solve/{n}"] for n in range(1, 9)), views["final"]])
    torch.testing.assert_close(views["mean"], nine.mean(0), rtol=0, atol=1e-13)


def test_the_mean_is_taken_of_states_not_of_logits():
    class Squared(Toy):
        def head(self, z):
            return super().head(z).square()

    net = Squared(Curved.contractive(3, states=STATES, inputs=INPUTS))
    views = views_by_name(DEQ(net, method=Broyden(steps=4, tolerance=0.0)))
    logits = torch.stack([*(views[f"solve/{n}"] for n in range(1, 5)), views["final"]]).mean(0)
    assert (views["mean"] - logits).abs().amax() > 1e-3


@pytest.mark.parametrize("state", [FinalState(), EarlyState(2), MeanState()], ids=lambda s: s.name)
def test_the_answer_is_the_last_view_and_the_only_one_if_no_other_is_read(state):
    net = toy()
    defense = DEQ(net, state=state)
    whole = traced(defense)
    assert whole.names[-1] == state.name
    assert sorted(whole.names) == sorted(DEQ(net).names)
    net.heads = 0
    alone = traced(defense, keep=defense.reads)
    assert alone.names == (state.name,)
    assert net.heads == 1
    assert torch.equal(alone.last, whole.last)
    assert torch.equal(defense.respond(X, Context(keys(N))), whole.last)


def test_heads_are_run_only_for_views_that_are_read():
    net = toy()
    trace = traced(DEQ(net), keep=frozenset({"solve/3", "mean"}))
    assert trace.names == ("solve/3", "mean", "final")  # the answer is always included
    assert net.heads == 3


def test_rows_are_independent_unless_the_solver_couples_them():
    """With norms over the whole batch rows depend on each other, and the defense declares it."""
    net = toy(norm=0.97)
    x = torch.cat([X, 100 * X[:1]])
    for coupled in (False, True):
        defense = DEQ(net, method=Broyden(steps=8, tolerance=1e-2, batch_coupled=coupled))
        together = traced(defense, x).last[:1]
        alone = traced(defense, x[:1]).last
        assert defense.coupled is coupled
        assert ((together - alone).abs().amax().item() > 1e-6) is coupled
    assert DEQ(net).unit == "example"


def test_settled_reports_the_relative_residual_and_the_status_of_each_solve():
    net = toy()
    info = DEQ(net, method=TIGHT).convergence(X)
    assert (info.residual < 1e-11).all()
    assert info.status.tolist() == [int(Status.CONVERGED)] * N
    rough = DEQ(net, method=Picard(steps=1, tolerance=0.0, relative=False)).convergence(X)
    u = net.inject(X)
    z = net.cell(net.start(u), u)
    f = net.cell(z, u)
    torch.testing.assert_close(
        rough.residual, (f - z).norm(dim=1) / f.norm(dim=1), rtol=1e-12, atol=0
    )


def test_a_cell_without_equilibrium_has_a_large_residual():
    class Flipping(Toy):
        def cell(self, z, u):
            return 1.0 - z + 0 * u

    residual = (
        DEQ(Flipping(Affine.contractive(3, states=STATES, inputs=INPUTS)), method=Picard(steps=9))
        .convergence(X)
        .residual
    )
    assert (residual > 0.1).all()


def test_the_payoff_of_all_adjoint_attacks_against_all_states_is_one_matrix():
    """Fig. 4: rows are adjoint states, columns are intermediate states."""
    net = toy(norm=0.97)
    steps = 4
    defense = DEQ(net, method=Broyden(steps=steps, tolerance=0.0))
    y = traced(defense).last.argmax(1)
    rows = [
        MaxLossPoint(
            Direct(
                f"u_{n}",
                PGD(5),
                loss=cross_entropy,
                keep=frozenset({f"solve/{n}"}),
                rules={"solve": SimultaneousAdjoint(emit=n)},
            )
        )
        for n in range(1, steps + 1)
    ]
    answers = {name: view(name) for name in defense.names}
    outcomes = evaluate(defense, rows, X, y, threat=Linf(0.3), answers=answers)
    assert outcomes.payoff().shape == (steps, steps + 2)
    assert outcomes.payoff().amax() > 0


def test_a_warm_started_attack_on_the_answer_needs_no_list_of_views():
    net = toy(norm=0.97)
    defense = DEQ(net, method=Broyden(steps=40, tolerance=1e-8))
    y = torch.arange(N) % 4
    context = AttackContext.open(Threat(Linf(0.1)), torch.arange(N), 0)
    move = Direct("warm", PGD(3), warm=3).move(context, defense, X, y)
    assert move.point.shape == X.shape


def test_the_early_state_has_the_highest_accuracy_on_the_given_data():
    """The radius is too small for an attack, so the labels decide.

    The images are those on which z_4 and z_3, or z_1 and z_4, differ; the first gives the labels.
    """
    defense = DEQ(toy(norm=0.97), method=Broyden(steps=5, tolerance=0.0))
    x = uniform(20, 200, INPUTS)
    predicted = {name: logits.argmax(1) for name, logits in views_by_name(defense, x).items()}
    for n, other in ((4, 3), (1, 4)):
        rows = predicted[f"solve/{n}"] != predicted[f"solve/{other}"]
        y = predicted[f"solve/{n}"][rows]
        choice = early_state(defense, x[rows], y, Linf(1e-9))
        assert choice.state == EarlyState(n)
        expected = [
            (predicted[f"solve/{m}"][rows] == y).double().mean().item() for m in range(1, 6)
        ]
        assert choice.accuracy == pytest.approx(expected)
        assert choice == early_state(defense, x[rows], y, Linf(1e-9))


def test_the_early_state_is_chosen_under_an_attack_on_the_final_state():
    """All five states are correct without an attack, and not all are at a large radius."""
    defense = DEQ(toy(norm=0.97), method=Broyden(steps=5, tolerance=0.0))
    x = uniform(20, 200, INPUTS)
    predicted = torch.stack([logits.argmax(1) for logits in views_by_name(defense, x).values()])
    rows = (predicted == predicted[0]).all(0)
    choice = early_state(defense, x[rows], predicted[0, rows], Linf(0.3))
    assert 0 < min(choice.accuracy) < max(choice.accuracy) < 1
    assert choice.accuracy[choice.state.n - 1] == max(choice.accuracy)


@pytest.mark.slow
def test_audits_accept_the_declarations_of_the_defense():
    for state in (FinalState(), EarlyState(2), MeanState()):
        for coupled in (False, True):
            defense = DEQ(toy(), method=Broyden(steps=8, batch_coupled=coupled), state=state)
            probe_target(defense, X, torch.arange(N) % 4, Linf(0.1))


def test_an_answer_that_reads_undeclared_views_raises():
    class Greedy(DEQ):
        def answer(self, trace, ctx):
            return trace.logits.mean(0)

    with pytest.raises(ValueError, match=r"declares that its answer reads only \['final'\]"):
        probe_target(Greedy(toy()), X, torch.arange(N) % 4, Linf(0.1))


def test_the_monotone_defense_has_only_the_final_view_if_no_other_is_read():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        defense = MonotoneDEQ(MonotoneNet(image=(1, 1, INPUTS), size=6).double())
    x = X.view(N, 1, 1, INPUTS)
    assert traced(defense, x, keep=defense.reads).names == ("final",)
    probe_target(defense, x, torch.arange(N), Linf(0.1))


def test_the_multiscale_model_is_a_defense():
    defense = MDEQ("digits", method=Broyden(steps=3))
    x = uniform(5, 2, 1, 8, 8).float()
    assert traced(defense, x).logits.shape == (5, 2, 10)
    assert not defense.net.training
    assert math.isfinite(float(defense.convergence(x).residual.sum()))


def test_invalid_arguments_raise():
    with pytest.raises(
        TypeError, match="Linear has no inject and no start and no cell and no head"
    ):
        DEQ(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="has states 1 to 8, but the answer is state 9"):
        DEQ(toy(), state=EarlyState(9))
    with pytest.raises(ValueError, match="sizes large, xl, cifar, mnist, digits, got 'huge'"):
        MDEQ("huge")
    with pytest.raises(ValueError, match="Unrolled needs steps >= 1"):
        Unrolled(steps=0)
