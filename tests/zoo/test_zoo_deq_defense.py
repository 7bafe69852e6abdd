"""The deep equilibrium model as a defense: its views, its answer, its gradients and its memory."""

import math

import pytest
import torch
from tests.equilibria import Affine, Curved
from tests.memory import peak_bytes, saved_bytes
from tests.probing import probe_target
from tests.problems import keys, normal, uniform
from torch import nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Broyden, Context, Picard, view
from saddlepoint.evaluation import AttackContext, Direct, MaxLossPoint, Threat, evaluate
from saddlepoint.gradients import Backprop, Detached, Exact, Implicit, SimultaneousAdjoint
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

N = 5
INPUTS = 7
STATES = 12
X = uniform(0, N, INPUTS)
TIGHT = Broyden(steps=40, tolerance=1e-12)


class Toy:
    """An equilibrium network with a known fixed point."""

    def __init__(self, model, classes=4):
        self.model = model
        self.weight = normal(9, classes, STATES)
        self.heads = 0

    def inject(self, x):
        return self.model.inject(x.flatten(1))

    def start(self, u):
        return torch.zeros_like(u)

    def cell(self, z, u):
        return self.model.cell(z, u)

    def head(self, z):
        self.heads += 1
        return z @ self.weight.T


def toy(**kinds):
    return Toy(Curved.contractive(3, states=STATES, inputs=INPUTS, **kinds))


def affine():
    return Toy(Affine.contractive(3, states=STATES, inputs=INPUTS))


def traced(defense, x=X, **options):
    return defense.trace(x, Context(keys(len(x)), **options))


def views_by_name(defense, x=X):
    return {view.name: view.logits for view in traced(defense, x).views}


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


def test_the_implicit_gradient_is_that_of_the_fixed_point_for_any_number_of_later_steps():
    """U^T (I - A^T)^-1 W^T c for logits W z*."""
    net = affine()
    cotangent = normal(11, N, 4)
    expected = net.model.gradient(cotangent @ net.weight)
    for after in (Unrolled(), Unrolled(6), Unrolled(3, damping=1.0)):
        x = X.clone().requires_grad_()
        defense = DEQ(net, method=TIGHT, after=after)
        trace = defense.trace(
            x, Context(keys(N), {"solve": Implicit(TIGHT)}, keep=frozenset({"final"}))
        )
        (found,) = torch.autograd.grad(trace.last, x, cotangent)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def lowest_residual_state(f, start, steps):
    """Broyden's good method for one example, written out with a dense inverse: z <- z - B g(z).

    g(z) = f(z) - z and B_0 = -I. It returns the state with the lowest relative residual.
    """
    z = start
    inverse = -torch.eye(len(z), dtype=z.dtype)
    g = f(z) - z
    best = z
    least = torch.inf
    for _ in range(steps):
        step = -inverse @ g
        z = z + step
        image = f(z)
        change = image - z - g
        g = image - z
        residual = float(g.norm() / image.norm())
        if residual < least:
            least = residual
            best = z
        left = step @ inverse
        inverse = inverse + torch.outer(step - inverse @ change, left) / (left @ change)
    return best


def released_gradient(net, x, cotangent, forward, backward):
    """The exact gradient of the released code of Yang et al. 2022, for one example.

    The final state is f(z) of the best state z. A hook replaces the cotangent c of the final state
    by the solution of y = (df/dz)^T y + c, which passes through f once.
    """
    x = x[None].clone().requires_grad_()
    u = net.inject(x)
    start = torch.zeros(STATES, dtype=x.dtype)
    with torch.no_grad():
        z = lowest_residual_state(lambda z: net.cell(z[None], u)[0], start, forward)
    z = z.requires_grad_()
    final = net.cell(z[None], u)[0]
    c = cotangent @ net.weight

    def backward_map(y):
        return torch.autograd.grad(final, z, y, retain_graph=True)[0] + c

    y = lowest_residual_state(backward_map, start, backward)
    return torch.autograd.grad(final, x, y)[0][0]


@pytest.mark.parametrize(("forward", "backward"), [(2, 2), (3, 2), (6, 3)])
def test_the_gradient_at_the_following_state_is_that_of_the_released_code(forward, backward):
    net = toy()
    cotangent = normal(11, N, 4)
    defense = DEQ(net, method=Broyden(steps=forward, tolerance=0.0))
    found = {}
    for at in ("best", "following"):
        x = X.clone().requires_grad_()
        rule = Implicit(Broyden(steps=backward, tolerance=0.0), at=at)
        trace = traced(defense, x, rules={"solve": rule}, keep=frozenset({"final"}))
        (found[at],) = torch.autograd.grad(trace.last, x, cotangent)
    expected = torch.stack(
        [released_gradient(net, X[n], cotangent[n], forward, backward) for n in range(N)]
    )
    torch.testing.assert_close(found["following"], expected, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(found["best"], expected, rtol=1e-4)


def test_where_both_solves_converge_the_gradient_is_the_same_at_both_states():
    net = affine()
    cotangent = normal(11, N, 4)
    expected = net.model.gradient(cotangent @ net.weight)
    for after in (Unrolled(), Unrolled(6)):
        x = X.clone().requires_grad_()
        rule = Implicit(TIGHT, at="following")
        defense = DEQ(net, method=TIGHT, after=after)
        trace = traced(defense, x, rules={"solve": rule}, keep=frozenset({"final"}))
        (found,) = torch.autograd.grad(trace.last, x, cotangent)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_detached_states_give_the_phantom_gradient_of_the_later_steps():
    """One undamped step and m damped ones: U^T [damping sum_{s<m} (M^T)^s + (M^T)^m] c.

    M = damping A + (1 - damping) I.
    """
    net = affine()
    m = 5
    damping = 0.5
    cotangent = normal(11, N, 4)
    c = (cotangent @ net.weight).T
    transposed = damping * net.model.a.T + (1 - damping) * net.model.eye
    power = net.model.eye
    total = torch.zeros_like(net.model.eye)
    for _ in range(m):
        total = total + damping * power
        power = transposed @ power
    x = X.clone().requires_grad_()
    defense = DEQ(net, method=TIGHT, after=Unrolled(m + 1, damping))
    trace = defense.trace(x, Context(keys(N), {"solve": Detached()}, keep=frozenset({"final"})))
    (found,) = torch.autograd.grad(trace.last, x, cotangent)
    torch.testing.assert_close(found, ((total + power) @ c).T @ net.model.u, rtol=0, atol=1e-12)
    x = X.clone().requires_grad_()
    assert (
        not defense.trace(x, Context(keys(N), {"solve": Detached()})).views[0].logits.requires_grad
    )


def test_an_early_state_is_differentiated_exactly_through_the_solver():
    net = toy()
    defense = DEQ(net, state=EarlyState(3))
    y = torch.arange(N) % 4
    objective = AttackObjective([defense], y, cross_entropy, rules={"solve": Exact()})
    result = Backprop().value_and_grad(objective, X, keys(N))
    direction = normal(12, N, INPUTS)
    step = 1e-6
    ahead, behind = (
        Backprop().evaluate(objective, X + s * direction, keys(N)).value for s in (step, -step)
    )
    torch.testing.assert_close(
        (result.grad * direction).sum(1), (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-8
    )


@pytest.mark.parametrize("state", [EarlyState(3), MeanState()], ids=lambda s: s.name)
def test_early_and_mean_answers_need_no_more_memory_than_the_final_one(state):
    """Per row the final answer stores Broyden's terms, about 30 states.

    The others add a running sum or one stored state.
    """
    net = wide()
    x = uniform(1, 4, INPUTS)

    def peak(defense):
        with torch.no_grad():
            return peak_bytes(lambda: traced(defense, x, keep=defense.reads))

    plain = peak(DEQ(net, method=Broyden(steps=8, tolerance=0.0)))
    assert peak(DEQ(net, method=Broyden(steps=8, tolerance=0.0), state=state)) <= 1.2 * plain


def wide():
    """A network with a large state, so that the memory of weights and logits is negligible."""

    class Wide(Toy):
        def cell(self, z, u):
            return 0.9 * z.cos() + u.repeat(1, 100)[:, : z.shape[1]]

        def start(self, u):
            return u.new_zeros(len(u), 1000)

        def head(self, z):
            return z[:, :4]

    return Wide(Affine.contractive(3, states=STATES, inputs=INPUTS))


@pytest.mark.parametrize("method", [Picard, Broyden], ids=lambda m: m.__name__)
def test_the_memory_of_the_implicit_gradient_does_not_depend_on_the_solver_steps(method):
    net = wide()

    def saved(steps, rule):
        x = X.clone().requires_grad_()
        defense = DEQ(net, method=method(steps=steps, tolerance=0.0))
        context = Context(keys(N), {"solve": rule}, keep=frozenset({"final"}))
        return saved_bytes(lambda: defense.trace(x, context).last.sum().backward())

    rule = Implicit(Picard(steps=20))
    assert saved(64, rule) == saved(8, rule)
    assert saved(64, Exact()) > 3 * saved(8, Exact())  # differentiating the steps needs more


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
