"""Splitting methods find the one monotone equilibrium at their promised rate, and its gradient is exact."""

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


def exactly(weight, bias):
    """The equilibrium from its definition: among all sets of active units the one whose solution is consistent."""
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


def test_the_problem_is_not_one_that_plain_iteration_solves():
    assert LENGTH > 4
    z = torch.zeros_like(BIAS)
    for _ in range(50):
        z = torch.relu(z @ WEIGHT.T + BIAS)
    assert z.norm() > 1e6


def test_every_method_finds_the_equilibrium_that_the_definition_gives(method):
    """The state is within 2 L / m times the residual of it."""
    expected = torch.stack([exactly(WEIGHT, bias) for bias in BIAS])
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
def test_the_distance_shrinks_at_the_promised_rate(method, rate):
    """In v, the variable of the recursion: v* = z* + a (W z* + b - z*), and z = P(v) is no further from z* than v from v*."""
    end = solve_monotone(FINE["peaceman-rachford"], WEIGHT, BIAS).state
    fixed = end + method.step / LENGTH * (end @ WEIGHT.T + BIAS - end)
    start = fixed.norm(dim=1)  # from v_0 = 0
    distances = [(here.state - end).norm(dim=1) for here in iterates(method, WEIGHT, BIAS)]
    assert len(distances) == 61
    for n, distance in enumerate(distances):
        assert (distance <= rate**n * start + 1e-12).all()


def test_the_residual_bounds_the_distance_to_the_equilibrium():
    end = solve_monotone(FINE["peaceman-rachford"], WEIGHT, BIAS).state
    for here in iterates(PeacemanRachford(steps=40), WEIGHT, BIAS):
        gap = WEIGHT @ here.state.T + BIAS.T - here.state.T
        p = torch.relu(here.state + gap.T / LENGTH)
        torch.testing.assert_close(
            here.residual, (p - here.state).norm(dim=1) / p.norm(dim=1), rtol=1e-9, atol=1e-12
        )
        assert (
            (here.state - end).norm(dim=1) <= 2 * LENGTH / M * (p - here.state).norm(dim=1) + 1e-12
        ).all()


def test_a_row_does_not_depend_on_its_neighbors():
    """Each row stops by itself: its steps are the same alone, and its state up to the order of additions."""
    method = PeacemanRachford(tolerance=1e-8)
    together = solve_monotone(method, WEIGHT, BIAS)
    assert len(together.steps.unique()) > 1
    for k in range(N):
        alone = solve_monotone(method, WEIGHT, BIAS[k : k + 1])
        assert alone.steps[0] == together.steps[k]
        torch.testing.assert_close(alone.state[0], together.state[k], rtol=0, atol=1e-12)


def test_a_row_that_has_settled_stays():
    method = PeacemanRachford(tolerance=1e-8)
    seen = list(iterates(method, WEIGHT, BIAS))
    first = int(seen[-1].steps.argmin())
    at = int(seen[-1].steps[first])
    assert torch.equal(seen[at].state[first], seen[-1].state[first])
    assert not torch.equal(seen[at - 1].state[first], seen[-1].state[first])


def test_what_has_not_settled_says_so():
    """Three steps are too few; steps too long diverge until their squares overflow: neither is below the tolerance."""
    few = solve_monotone(PeacemanRachford(steps=3), WEIGHT, BIAS)
    assert (few.residual > 1e-5).all()
    assert (few.steps == 3).all()
    wild = solve_monotone(ForwardBackward(step=20.0, steps=1000), WEIGHT, BIAS)
    assert (~(wild.residual <= 1e-5)).all()
    assert (wild.steps == 1000).all()


def test_zero_is_an_equilibrium_where_nothing_is_active():
    found = solve_monotone(PeacemanRachford(), WEIGHT, torch.full((1, D), -1.0, dtype=torch.float64))
    assert (found.steps == 0).all()
    assert (found.residual == 0).all()
    assert (found.state == 0).all()


def test_the_gradient_is_that_of_the_implicit_equation(method):
    """dz/db = (I - J W)^-1 J, dz_i/dW = dz/db applied to rows of z: for <c, z*>, y = J (I - W^T J)^-1 c and y z^T."""
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


def test_the_gradient_is_that_of_finite_differences():
    """Central differences of a piecewise linear function: exact up to rounding, 1e-13 / h, where no unit changes sides within h."""
    method = FINE["peaceman-rachford"]
    c = normal(3, N, D)
    h = 1e-5
    bias = BIAS.clone().requires_grad_()
    (c * equilibrium(method, WEIGHT, bias)).sum().backward()
    away = (solve_monotone(method, WEIGHT, BIAS).state @ WEIGHT.T + BIAS).abs().amin()
    assert away > 100 * h
    for k in range(D):
        up, down = (solve_monotone(method, WEIGHT, BIAS + s * h * IDENTITY[k]).state for s in (1, -1))
        torch.testing.assert_close(
            (c * (up - down)).sum(1) / (2 * h), bias.grad[:, k], rtol=0, atol=1e-7
        )


def test_a_vanishing_cotangent_gives_its_gradient_all_the_same():
    """The square of 1e-30 is zero in single precision; the gradient is linear in the cotangent."""
    weight = WEIGHT.float()
    active = BIAS > 0
    c = normal(3, N, D).float()
    plain, tiny = (adjoint(PeacemanRachford(), weight, active, s * c).state for s in (1.0, 1e-30))
    torch.testing.assert_close(tiny * 1e30, plain, rtol=1e-5, atol=1e-6)
    assert (adjoint(PeacemanRachford(), weight, active, 0 * c).state == 0).all()


def test_wrong_settings_are_refused():
    with pytest.raises(
        ValueError,
        match=r"needs step > 0, steps >= 1 and tolerance > 0, got ForwardBackward\(step=0",
    ):
        ForwardBackward(step=0.0)
    with pytest.raises(ValueError, match="tolerance=0"):
        PeacemanRachford(tolerance=0.0)
    with pytest.raises(ValueError, match="early_views=-1"):
        toy(early_views=-1)


# ---- the defense -------------------------------------------------------------------------------------------------------------


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


def test_the_defense_answers_at_the_equilibrium():
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


def test_its_views_are_the_first_states_of_its_solver():
    defense = toy(early_views=4)
    trace = defense.trace(X, Context.seeded(0, N))
    assert trace.names == ("solve/1", "solve/2", "solve/3", "solve/4", "final")
    states = [
        here.state for here in iterates(defense.method, defense.net.weight, defense.net.inject(X))
    ]
    for n in (1, 4):
        assert torch.equal(trace.views[n - 1].logits, defense.net.head(states[n]))
    kept = defense.trace(X, Context(Context.seeded(0, N).keys, keep=frozenset({"solve/3"})))
    assert kept.names == ("solve/3", "final")  # the final view is the answer, so it is always shown
    assert torch.equal(kept.views[0].logits, trace.views[2].logits)


def test_a_solver_that_stops_early_repeats_its_last_state():
    """Every batch shows the same views, however soon its rows settle."""
    defense = toy(method=PeacemanRachford(tolerance=0.5), early_views=30)
    trace = defense.trace(X, Context.seeded(0, N))
    steps = int(defense.settled(X).steps.amax())
    assert len(trace.views) == 31
    assert steps < 30
    assert torch.equal(trace.views[steps - 1].logits, trace.views[29].logits)
    assert torch.equal(trace.views[29].logits, trace.last)


@pytest.mark.parametrize("name", ["final", "solve/1", "solve/5"])
def test_every_view_has_the_gradient_of_its_finite_differences(name):
    """Of the first class, summed over rows, which are independent; piecewise linear, so only rounding is left."""
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


def test_the_defense_says_which_examples_have_not_settled():
    assert (toy().settled(X).residual <= 1e-5).all()
    unsettled = toy(method=PeacemanRachford(steps=2)).settled(X)
    assert (unsettled.residual > 1e-5).all()


def test_an_attack_on_the_defense_does_what_it_does_on_any_other():
    """PGD at radius 0.4 of [0, 1] must fool most rows of a random net that answers its own labels."""
    defense = toy()
    y = logits_of(defense, X).argmax(1)
    threat = Threat(Ball(math.inf, 0.4))
    episode = play(defense, Direct("pgd", PGD(steps=20), loss=cross_entropy), X, y, threat)
    assert episode.correct.mean() <= 0.4
