"""Splitting methods find the monotone equilibrium at the guaranteed rate; its gradient is exact."""

import math

import pytest
import torch
from tests.problems import normal, uniform

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Ball
from saddlepoint.defenses import Context
from saddlepoint.evaluation import Direct, Threat
from saddlepoint.evaluation.referee import play
from saddlepoint.gradients import BPDA
from saddlepoint.zoo.deq import (
    ForwardBackward,
    MonotoneDEQ,
    PeacemanRachford,
    adjoint,
    equilibrium,
    solve_monotone,
)
from saddlepoint.zoo.deq.splitting import iterates

D = 10
N = 5
M = 1.0
IDENTITY = torch.eye(D, dtype=torch.float64)


def monotone(seed=0, scale=0.6):
    a = scale * normal(seed, 4, D)
    b = scale * normal(seed + 1, D, D)
    return (1 - M) * IDENTITY - a.T @ a + b - b.T


WEIGHT = monotone()
LENGTH = torch.linalg.matrix_norm(IDENTITY - WEIGHT, 2).item()
BIAS = normal(9, N, D)
FINE = {
    "forward-backward": ForwardBackward(step=M / LENGTH, steps=200_000, tolerance=1e-14),
    "peaceman-rachford": PeacemanRachford(tolerance=1e-14, steps=20_000),
}


def reference(weight, bias):
    """Find the equilibrium by its definition: try all sets of active units."""
    for code in range(2 ** len(weight)):
        active = torch.tensor([code >> k & 1 for k in range(len(weight))], dtype=torch.bool)
        z = torch.zeros_like(bias)
        z[active] = torch.linalg.solve(
            (torch.eye(len(weight)).to(weight) - weight)[active][:, active], bias[active]
        )
        if (z >= 0).all() and ((weight @ z + bias)[~active] <= 0).all():
            return z
    raise AssertionError("a monotone problem has an equilibrium")


@pytest.fixture(params=FINE)
def method(request):
    return FINE[request.param]


def test_plain_iteration_diverges_on_this_problem():
    assert LENGTH > 4
    z = torch.zeros_like(BIAS)
    for _ in range(50):
        z = torch.relu(z @ WEIGHT.T + BIAS)
    assert z.norm() > 1e6


def test_every_method_finds_the_equilibrium(method):
    """The distance to the equilibrium is at most 2 L / m times the residual."""
    expected = torch.stack([reference(WEIGHT, bias) for bias in BIAS])
    found = solve_monotone(method, WEIGHT, BIAS)
    assert (found.residual <= 1e-14).all()
    torch.testing.assert_close(found.state, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("method", "rate"),
    [
        (
            ForwardBackward(step=M / LENGTH, steps=60, tolerance=1e-30),
            math.sqrt(1 - (M / LENGTH) ** 2),
        ),
        (
            PeacemanRachford(step=1.0, steps=60, tolerance=1e-30),
            math.sqrt((LENGTH - M) / (LENGTH + M)),
        ),
    ],
)
def test_the_distance_decreases_at_the_guaranteed_rate(method, rate):
    """The rate holds for v, the variable of the recursion: v* = z* + a (W z* + b - z*).

    z = P(v) is at most as far from z* as v is from v*.
    """
    end = solve_monotone(FINE["peaceman-rachford"], WEIGHT, BIAS).state
    fixed = end + method.step / LENGTH * (end @ WEIGHT.T + BIAS - end)
    start = fixed.norm(dim=1)  # from v_0 = 0
    distances = [(iterate.state - end).norm(dim=1) for iterate in iterates(method, WEIGHT, BIAS)]
    assert len(distances) == 61
    for n, distance in enumerate(distances):
        assert (distance <= rate**n * start + 1e-12).all()


def test_the_residual_bounds_the_distance_to_the_equilibrium():
    end = solve_monotone(FINE["peaceman-rachford"], WEIGHT, BIAS).state
    for iterate in iterates(PeacemanRachford(steps=40), WEIGHT, BIAS):
        z = iterate.state
        p = torch.relu(z + (z @ WEIGHT.T + BIAS - z) / LENGTH)
        gap = (p - z).norm(dim=1)
        torch.testing.assert_close(iterate.residual, gap / p.norm(dim=1), rtol=1e-9, atol=1e-12)
        assert ((z - end).norm(dim=1) <= 2 * LENGTH / M * gap + 1e-12).all()


def test_a_row_does_not_depend_on_other_rows():
    """Alone, a row takes the same steps; its state is equal up to the order of additions."""
    method = PeacemanRachford(tolerance=1e-8)
    together = solve_monotone(method, WEIGHT, BIAS)
    assert len(together.steps.unique()) > 1
    for k in range(N):
        alone = solve_monotone(method, WEIGHT, BIAS[k : k + 1])
        assert alone.steps[0] == together.steps[k]
        torch.testing.assert_close(alone.state[0], together.state[k], rtol=0, atol=1e-12)


def test_a_row_that_has_converged_does_not_change():
    method = PeacemanRachford(tolerance=1e-8)
    history = list(iterates(method, WEIGHT, BIAS))
    first = int(history[-1].steps.argmin())
    steps = int(history[-1].steps[first])
    assert torch.equal(history[steps].state[first], history[-1].state[first])
    assert not torch.equal(history[steps - 1].state[first], history[-1].state[first])


def test_rows_that_have_not_converged_have_a_large_residual():
    """Three steps are too few; steps that are too long diverge until their squares overflow."""
    few = solve_monotone(PeacemanRachford(steps=3), WEIGHT, BIAS)
    assert (few.residual > 1e-5).all()
    assert (few.steps == 3).all()
    diverged = solve_monotone(ForwardBackward(step=20.0, steps=1000), WEIGHT, BIAS)
    assert (~(diverged.residual <= 1e-5)).all()
    assert (diverged.steps == 1000).all()


def test_zero_is_the_equilibrium_if_no_unit_is_active():
    found = solve_monotone(
        PeacemanRachford(), WEIGHT, torch.full((1, D), -1.0, dtype=torch.float64)
    )
    assert (found.steps == 0).all()
    assert (found.residual == 0).all()
    assert (found.state == 0).all()


def test_the_gradient_is_that_of_the_implicit_equation(method):
    """dz/db = (I - J W)^-1 J, and dz_i/dW is dz/db applied to rows of z.

    For <c, z*> the gradients are y = J (I - W^T J)^-1 c and y z^T.
    """
    weight = WEIGHT.clone().requires_grad_()
    bias = BIAS.clone().requires_grad_()
    c = normal(3, N, D)
    z = equilibrium(method, weight, bias)
    (c * z).sum().backward()
    end = z.detach()
    jacobian = torch.diag_embed((end > 0).double())
    y = (jacobian @ torch.linalg.solve(IDENTITY - WEIGHT.T @ jacobian, c[..., None]))[..., 0]
    torch.testing.assert_close(bias.grad, y, rtol=0, atol=1e-11)
    torch.testing.assert_close(weight.grad, y.T @ end, rtol=0, atol=1e-10)


def test_the_gradient_matches_finite_differences():
    """Central differences of a piecewise linear function are exact up to rounding, 1e-13 / h.

    No unit changes its activity within h.
    """
    method = FINE["peaceman-rachford"]
    c = normal(3, N, D)
    h = 1e-5
    bias = BIAS.clone().requires_grad_()
    (c * equilibrium(method, WEIGHT, bias)).sum().backward()
    smallest = (solve_monotone(method, WEIGHT, BIAS).state @ WEIGHT.T + BIAS).abs().amin()
    assert smallest > 100 * h
    for k in range(D):
        up, down = (
            solve_monotone(method, WEIGHT, BIAS + s * h * IDENTITY[k]).state for s in (1, -1)
        )
        torch.testing.assert_close(
            (c * (up - down)).sum(1) / (2 * h), bias.grad[:, k], rtol=0, atol=1e-7
        )


def test_the_gradient_of_a_tiny_cotangent_does_not_underflow():
    """The square of 1e-30 is zero in single precision; the gradient is linear in the cotangent."""
    weight = WEIGHT.float()
    active = BIAS > 0
    c = normal(3, N, D).float()
    plain, tiny = (adjoint(PeacemanRachford(), weight, active, s * c).state for s in (1.0, 1e-30))
    torch.testing.assert_close(tiny * 1e30, plain, rtol=1e-5, atol=1e-6)
    assert (adjoint(PeacemanRachford(), weight, active, 0 * c).state == 0).all()


def test_invalid_settings_raise():
    with pytest.raises(
        ValueError,
        match=r"needs step > 0, steps >= 1 and tolerance > 0, got ForwardBackward\(step=0",
    ):
        ForwardBackward(step=0.0)
    with pytest.raises(ValueError, match="tolerance=0"):
        PeacemanRachford(tolerance=0.0)
    with pytest.raises(ValueError, match="early_views=-1"):
        toy(early_views=-1)


def toy(**changes):
    tensors = (
        normal(0, 4, D),
        normal(1, D, D),
        normal(2, D, 9),
        normal(3, D),
        normal(4, 3, D),
        normal(5, 3),
    )
    return MonotoneDEQ.from_tensors(*tensors, m=M, **changes)


X = uniform(6, N, 1, 3, 3)


def logits_of(defense, x):
    return defense.respond(x, Context.seeded(0, len(x)))


def test_the_defense_predicts_from_the_equilibrium():
    defense = toy(method=FINE["peaceman-rachford"])
    bias = X.flatten(1) @ normal(2, D, 9).T + normal(3, D)
    expected = solve_monotone(FINE["forward-backward"], defense.net.weight, bias).state @ normal(
        4, 3, D
    ).T + normal(5, 3)
    torch.testing.assert_close(logits_of(defense, X), expected, rtol=0, atol=1e-10)
    assert (defense.coupled, defense.random, defense.memory, defense.unit) == (
        False,
        False,
        "none",
        "example",
    )


def test_the_views_of_the_defense_are_the_first_states_of_its_solver():
    defense = toy(early_views=4)
    trace = defense.trace(X, Context.seeded(0, N))
    assert trace.names == ("solve/1", "solve/2", "solve/3", "solve/4", "final")
    history = iterates(defense.method, defense.net.weight, defense.net.inject(X))
    states = [iterate.state for iterate in history]
    for n in (1, 4):
        assert torch.equal(trace.views[n - 1].logits, defense.net.head(states[n]))
    kept = defense.trace(X, Context(Context.seeded(0, N).keys, keep=frozenset({"solve/3"})))
    assert kept.names == (
        "solve/3",
        "final",
    )  # the final view is the answer, so it is always included
    assert torch.equal(kept.views[0].logits, trace.views[2].logits)


def test_a_solver_that_stops_early_repeats_its_last_state():
    """Every batch has the same views, however early its rows converge."""
    defense = toy(method=PeacemanRachford(tolerance=0.5), early_views=30)
    trace = defense.trace(X, Context.seeded(0, N))
    steps = int(defense.convergence(X).steps.amax())
    assert len(trace.views) == 31
    assert steps < 30
    assert torch.equal(trace.views[steps - 1].logits, trace.views[29].logits)
    assert torch.equal(trace.views[29].logits, trace.last)


@pytest.mark.parametrize("name", ["final", "solve/1", "solve/5"])
def test_the_gradient_of_every_view_matches_finite_differences(name):
    """The logit of the first class is piecewise linear, so only rounding errors remain.

    Rows are independent, so their sum can be differentiated.
    """
    defense = toy(method=FINE["peaceman-rachford"])
    h = 1e-6

    def value(x):
        return defense.trace(x, Context.seeded(0, N)).select([name]).last[:, 0]

    x = X.clone().requires_grad_()
    (grad,) = torch.autograd.grad(value(x).sum(), x)
    with torch.no_grad():
        for k in range(9):
            step = h * torch.eye(9, dtype=torch.float64)[k].view(1, 1, 3, 3)
            torch.testing.assert_close(
                (value(X + step) - value(X - step)) / (2 * h),
                grad.flatten(1)[:, k],
                rtol=0,
                atol=1e-6,
            )


def test_an_attacker_may_replace_the_backward_pass_of_the_solver():
    defense = toy()
    x = X.clone().requires_grad_()
    ctx = Context(Context.seeded(0, N).keys, rules={"solve": BPDA()})
    trace = defense.trace(x, ctx)
    assert torch.equal(trace.last, logits_of(defense, X))
    (grad,) = torch.autograd.grad(trace.last[:, 0].sum(), x)
    expected = (normal(4, 3, D)[:1] @ normal(2, D, 9)).expand(N, -1)  # as if the state were U x + u
    torch.testing.assert_close(grad.flatten(1), expected, rtol=0, atol=1e-6)


def test_the_defense_reports_which_examples_have_not_converged():
    assert (toy().convergence(X).residual <= 1e-5).all()
    unconverged = toy(method=PeacemanRachford(steps=2)).convergence(X)
    assert (unconverged.residual > 1e-5).all()


def test_pgd_breaks_the_defense_at_a_large_radius():
    """The labels are the predictions of a random network; PGD at radius 0.4 must change most."""
    defense = toy()
    y = logits_of(defense, X).argmax(1)
    threat = Threat(Ball(math.inf, 0.4))
    episode = play(defense, Direct("pgd", PGD(steps=20), loss=cross_entropy), X, y, threat)
    assert episode.correct.mean() <= 0.4
