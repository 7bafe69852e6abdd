"""Gradients of equilibrium defenses: exact, implicit, detached, and their memory."""

import pytest
import torch
from tests.equilibria import Affine
from tests.memory import peak_bytes, saved_bytes
from tests.problems import keys, normal, uniform
from tests.zoo.toy_deq import INPUTS, STATES, TIGHT, N, Toy, X, affine, toy, traced

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.defenses import Broyden, Context, Picard
from saddlepoint.gradients import Backprop, Detached, Exact, Implicit
from saddlepoint.zoo.deq import (
    DEQ,
    EarlyState,
    MeanState,
    Unrolled,
)


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
