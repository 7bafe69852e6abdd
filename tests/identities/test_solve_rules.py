"""Gradients of solves: closed forms on affine maps, finite differences on curved ones.

Everything is float64.
"""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from tests.equilibria import (
    INPUTS,
    STATES,
    TIGHT,
    Affine,
    C,
    Curved,
    Equilibrium,
    N,
    X,
    gradient,
    solved,
)
from tests.problems import Static, keys, normal, smooth, uniform
from torch import Tensor

from saddlepoint.attacks.aims import mean_of_losses
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.defenses import Anderson, Broyden, Context, Defense, Picard, Solver, Status, Trace
from saddlepoint.gradients import (
    BPDA,
    Backprop,
    Checkpointed,
    Exact,
    Implicit,
    Phantom,
    Rule,
    SharedInverse,
    SimultaneousAdjoint,
)

RULES: tuple[Rule, ...] = (
    Exact(),
    Checkpointed(),
    Implicit(),
    Phantom(3, 0.5),
    SharedInverse(),
    SharedInverse(refine=3),
    SimultaneousAdjoint(),
    SimultaneousAdjoint(emit="all"),
    SimultaneousAdjoint(emit=2),
    BPDA(surrogate=torch.sin),
)


def name(value: object) -> str:
    return type(value).__name__


def settings(value: object) -> str:
    """The repr without memory addresses, which differ between test processes."""
    return repr(value).split(" of type object")[0]


@pytest.mark.parametrize(
    "backward",
    [TIGHT, Anderson(steps=200, tolerance=1e-13), Picard(steps=300, tolerance=1e-13)],
    ids=name,
)
@pytest.mark.parametrize(
    "forward",
    [TIGHT, Anderson(steps=200, tolerance=1e-13), Picard(steps=300, tolerance=1e-13)],
    ids=name,
)
def test_the_implicit_gradient_is_that_of_the_fixed_point(
    forward: Solver, backward: Solver
) -> None:
    """||u - u*|| <= ||v|| / (1 - 0.6), with ||f(u)|| < 20 and ||U|| < 10: 200 * 1e-13 / 0.4."""
    model = Affine.contractive(0)
    torch.testing.assert_close(
        gradient(model, Implicit(backward), method=forward), model.gradient(C), rtol=0, atol=5e-11
    )


@pytest.mark.parametrize(
    "forward",
    [TIGHT, Anderson(steps=200, tolerance=1e-13), Picard(steps=300, tolerance=1e-13)],
    ids=name,
)
@pytest.mark.parametrize("rule", [Exact(), Checkpointed()], ids=name)
def test_the_steps_of_a_converged_solver_have_the_same_gradient(
    forward: Solver, rule: Rule
) -> None:
    """The derivative converges after the iterates: it has two digits less here."""
    model = Affine.contractive(0)
    torch.testing.assert_close(
        gradient(model, rule, method=forward), model.gradient(C), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("rule", [Exact(), Implicit(TIGHT), SimultaneousAdjoint(1.0)], ids=name)
def test_on_a_curved_map_gradients_are_finite_differences(rule: Rule) -> None:
    """Errors at a step of 1e-5: truncation 1e-10, rounding 1e-11, times curvatures of order 10."""
    model = Curved.contractive(3, norm=0.9)
    direction = normal(5, N, INPUTS)
    method = Broyden(steps=100, tolerance=1e-14)

    def loss(x: Tensor) -> Tensor:
        return (C * solved(model, Exact(), x, method=method).best).sum()

    with torch.no_grad():
        slope = (loss(X + 1e-5 * direction) - loss(X - 1e-5 * direction)) / 2e-5
    got = (gradient(model, rule, method=method) * direction).sum()
    torch.testing.assert_close(got, slope, rtol=1e-8, atol=1e-8)


def test_the_gradient_reaches_the_parameters_of_the_cell() -> None:
    """dL/dA = u* z*^T and dL/dx = U^T u*, as in the training of an equilibrium model."""
    model = Affine.contractive(0)
    weight = model.a.clone().requires_grad_()
    for rule in (
        Exact(),
        Implicit(TIGHT),
        Phantom(200),
        SharedInverse(refine=60),
        SimultaneousAdjoint(1.0),
    ):
        ctx = Context(keys(N), {"solve": rule})
        solution = ctx.solve(
            "solve", lambda z, u: z @ weight.T + u, model.start(N), model.inject(X), method=TIGHT
        )
        (got,) = torch.autograd.grad((C * solution.best).sum(), weight)
        torch.testing.assert_close(
            got, model.adjoint(C).T @ model.fixed_point(X), rtol=0, atol=2e-5
        )


def test_the_default_rule_of_a_solve_is_implicit() -> None:
    x = X.clone().requires_grad_()
    model = Affine.contractive(0)
    solution = Context(keys(N)).solve(
        "solve", model.cell, model.start(N), model.inject(x), method=Broyden(steps=8)
    )
    (got,) = torch.autograd.grad((C * solution.best).sum(), x)
    assert torch.equal(got, gradient(model, Implicit(), method=Broyden(steps=8)))


def test_on_a_linear_map_only_the_exact_gradient_depends_on_where_the_solve_ended() -> None:
    """After one step z_1 = f(0), and the exact gradient is U^T c."""
    model = Affine.contractive(0)
    one_step = Broyden(steps=1)
    torch.testing.assert_close(
        gradient(model, Exact(), method=one_step), C @ model.u, rtol=1e-14, atol=1e-14
    )
    torch.testing.assert_close(
        gradient(model, Implicit(TIGHT), method=one_step), model.gradient(C), rtol=0, atol=5e-11
    )


def test_the_backward_solve_of_a_row_does_not_depend_on_its_batch() -> None:
    """f is linearized again for the rows that converge late, which must not change them."""
    model = Curved.contractive(3, norm=0.95)
    scale = torch.tensor([0.01, 0.1, 1, 3, 10], dtype=torch.float64)[:, None]
    x = scale * X
    method = Broyden(steps=200, tolerance=1e-8)
    ctx = Context(keys(N), {"solve": Implicit(method)})
    together = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(
        (C * solved(model, Implicit(), together, method=method, ctx=ctx).best).sum(), together
    )
    assert ctx.stats.products.unique().numel() > 1
    for row in range(N):
        alone = x[row : row + 1].clone().requires_grad_()
        solution = solved(model, Implicit(method), alone, method=method)
        (got,) = torch.autograd.grad((C[row] * solution.best).sum(), alone)
        torch.testing.assert_close(got[0], grad[row], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("damping", [1.0, 0.5])
@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("state", [None, 1, 3])
@pytest.mark.parametrize("at", ["state", "unrolled"])
def test_the_phantom_gradient_has_a_closed_form_at_every_state(
    damping: float, steps: int, state: int | None, at: str
) -> None:
    """U^T (I - (M^T)^k) (I - A^T)^-1 c with M = damping A + (1 - damping) I."""
    model = Affine.contractive(0)
    m = damping * model.a + (1 - damping) * model.eye
    factor = model.eye - torch.linalg.matrix_power(m.T, steps)
    rule = Phantom(steps, damping, at=at)  # type: ignore[arg-type]
    got = gradient(model, rule, state=state)
    torch.testing.assert_close(got, model.adjoint(C) @ factor.T @ model.u, rtol=1e-13, atol=1e-13)


def test_one_undamped_step_is_the_jacobian_free_gradient() -> None:
    model = Affine.contractive(0)
    torch.testing.assert_close(gradient(model, Phantom(1)), C @ model.u, rtol=1e-14, atol=1e-14)


def test_the_released_variant_makes_its_first_step_undamped() -> None:
    """1 + m steps: U^T [damping sum_{s<m} (M^T)^s + (M^T)^m] c."""
    model = Affine.contractive(0)
    damping = 0.5
    m = 5
    mt = (damping * model.a + (1 - damping) * model.eye).T
    power = [torch.linalg.matrix_power(mt, s) for s in range(m + 1)]
    expected = C @ (damping * sum(power[:m]) + power[m]).T @ model.u
    got = gradient(model, Phantom(1 + m, damping, undamped_first=True))
    torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)


def test_the_phantom_gradient_of_many_steps_is_the_implicit_gradient() -> None:
    """0.6^100 < 1e-22."""
    model = Affine.contractive(0)
    torch.testing.assert_close(
        gradient(model, Phantom(100)), model.gradient(C), rtol=1e-13, atol=1e-13
    )


def test_the_unrolled_state_replaces_the_state_and_costs_its_steps() -> None:
    model = Curved.contractive(3)
    method = Broyden(steps=4, tolerance=0)
    plain = solved(model, Exact(), X, method=method, keep=[2])
    for mode in (torch.no_grad(), torch.enable_grad()):
        ctx = Context(keys(N), {"solve": Phantom(2, 0.5, at="unrolled")})
        with mode:
            shown = solved(model, Exact(), X, method=method, keep=[2], ctx=ctx)
        z = plain.states[2]
        for _ in range(2):
            z = 0.5 * z + 0.5 * model.cell(z, model.inject(X))
        torch.testing.assert_close(shown.states[2], z, rtol=0, atol=1e-15)
        # Two steps from z_2 and two steps from the best state.
        assert torch.equal(ctx.stats.evaluations, plain.evaluations + 2 * 2)


@pytest.mark.parametrize("rule", RULES, ids=settings)
@pytest.mark.parametrize("tolerance", [0.0, 1e-2], ids=["all steps", "rows stop"])
def test_every_rule_keeps_every_state_bit_for_bit(rule: Rule, tolerance: float) -> None:
    model = Curved.contractive(3, inputs=STATES)
    method = Broyden(steps=6, tolerance=tolerance)
    x = normal(7, N, STATES)
    weights = [0.5, 0.0, 0.1, 0.1, 0.1, 0.2]
    with torch.no_grad():
        plain = solved(model, Exact(), x, method=method, keep=range(7), weights=weights)
        without_grad = solved(model, rule, x, method=method, keep=range(7), weights=weights)
    ruled = solved(
        model, rule, x.clone().requires_grad_(), method=method, keep=range(7), weights=weights
    )
    for got in (without_grad, ruled):
        assert torch.equal(got.best, plain.best)
        assert torch.equal(got.blend, plain.blend)
        assert list(got.states) == list(range(7))
        assert all(torch.equal(got.states[n], plain.states[n]) for n in range(7))
        assert torch.equal(got.status, plain.status)
    assert ruled.best.requires_grad
    assert ruled.blend.requires_grad


@pytest.mark.parametrize(
    "rule", [r for r in RULES if not isinstance(r, SimultaneousAdjoint)], ids=settings
)
def test_the_gradient_of_the_blend_is_the_blend_of_the_gradients(rule: Rule) -> None:
    model = Curved.contractive(3, inputs=STATES)
    method = Broyden(steps=4, tolerance=1e-2)
    weights = [0.5, 0.0, 0.2, 0.3]

    def grad(weigh: bool) -> Tensor:
        x = normal(7, N, STATES).requires_grad_()
        solution = solved(
            model, rule, x, method=method, keep=range(1, 5), weights=weights if weigh else ()
        )
        states = sum(w * z for w, z in zip(weights, solution.states.values(), strict=True))
        return torch.autograd.grad((C * (solution.blend if weigh else states)).sum(), x)[0]

    torch.testing.assert_close(grad(True), grad(False), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "rule", [Implicit(), Phantom(1), Phantom(2, 0.5), SharedInverse()], ids=settings
)
def test_the_mean_of_losses_over_states_is_the_mean_of_their_gradients(rule: Rule) -> None:
    """Eq. 17: every state counts once.

    If gradients were accumulated without being cleared, states would count 8, 7, .., 1 times.
    """
    defense = Equilibrium(Curved.contractive(3))
    y = torch.tensor([0, 1, 2, 3, 0])
    steps = range(1, 9)

    def grad(*steps: int) -> Tensor:
        keep = frozenset(f"solve/{n}" for n in steps)
        objective = AttackObjective(
            [defense], y, cross_entropy, mean_of_losses, {"solve": rule}, keep
        )
        return Backprop().value_and_grad(objective, X, keys(N)).grad

    each = torch.stack([grad(n) for n in steps])
    torch.testing.assert_close(grad(*steps), each.mean(0), rtol=1e-9, atol=1e-11)
    accumulated = (each * torch.arange(8, 0, -1)[:, None, None]).sum(0) / 36
    assert (grad(*steps) - accumulated).abs().amax() > 1e-3


def test_the_memory_of_the_implicit_gradient_does_not_grow_with_the_steps() -> None:
    """Numbers saved for the backward pass.

    The exact gradient saves every step, the implicit one a single evaluation of f.
    """
    model = Curved.contractive(3, norm=0.95)
    saved = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal saved
        saved += tensor.numel()
        return tensor

    def saved_numbers(rule: Rule, steps: int) -> int:
        nonlocal saved
        saved = 0
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            solution = solved(
                model, rule, X.clone().requires_grad_(), method=Picard(steps=steps, tolerance=0)
            )
            (C * solution.best).sum()
        return saved

    assert saved_numbers(Implicit(), 10) == saved_numbers(Implicit(), 80)
    assert saved_numbers(Exact(), 80) > 6 * saved_numbers(Exact(), 10)
    assert saved_numbers(Checkpointed(), 80) < saved_numbers(Exact(), 80)


@pytest.mark.parametrize("rule", RULES, ids=settings)
def test_the_graph_has_no_reference_cycles(rule: Rule) -> None:
    """A cycle would keep the states of every attack step in memory until garbage collection."""
    model = Curved.contractive(3, inputs=STATES)
    x = normal(7, N, STATES).requires_grad_()
    gc.collect()
    gc.disable()
    try:
        ctx = Context(keys(N), {"solve": rule})
        solution = solved(model, rule, x, method=Broyden(steps=5, tolerance=0), ctx=ctx, keep=[2])
        torch.autograd.grad((C * (solution.best + solution.states[2])).sum(), x)
        reference = weakref.ref(ctx)  # every evaluation of f draws from it
        del solution, ctx
        assert reference() is None
    finally:
        gc.enable()


def test_random_numbers_in_the_cell_are_drawn_once_per_row() -> None:
    """f draws a random shift per row.

    It is the same in all evaluations, in a batch or alone, forward or backward.
    """
    model = Curved.contractive(3, norm=0.95)
    method = Broyden(steps=100, tolerance=1e-10)

    def solve(ids: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
        ctx = Context(keys(N)[ids], {"solve": rule})
        x = (X * torch.tensor([0.01, 0.1, 1, 3, 10], dtype=torch.float64)[:, None])[
            ids
        ].requires_grad_()

        def cell(z: Tensor, u: Tensor) -> Tensor:
            return model.cell(z, u) + 0.1 * ctx.randn_like(z)

        solution = ctx.solve("solve", cell, model.start(len(ids)), model.inject(x), method=method)
        return solution.best.detach(), torch.autograd.grad((C[ids] * solution.best).sum(), x)[0]

    for rule in (Exact(), Implicit(TIGHT), Checkpointed()):
        together, grads = solve(torch.arange(N), rule)
        for row in range(N):
            alone, grad = solve(torch.tensor([row]), rule)
            torch.testing.assert_close(alone[0], together[row], rtol=1e-11, atol=1e-12)
            torch.testing.assert_close(grad[0], grads[row], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    "rule", [Implicit(), Phantom(), SharedInverse(), SimultaneousAdjoint()], ids=name
)
def test_a_rule_for_solves_rejects_a_plain_site(rule: Rule) -> None:
    class Site(Defense):
        def trace(self, x: Tensor, ctx: Context) -> Trace:
            return Static(smooth(0)).trace(ctx.through("site", torch.sin, x), ctx)

    with pytest.raises(TypeError, match=f"{type(rule).__name__} differentiates a solve"):
        Site().trace(uniform(0, 3, 6), Context(keys(3), {"site": rule}))


def test_a_rule_without_attach_rejects_a_solve() -> None:
    class Own(Rule):
        def apply(self, fn, x):  # type: ignore[no-untyped-def]
            return fn(x)

    with pytest.raises(TypeError, match=r"Own cannot differentiate a solve. Use Implicit"):
        gradient(Affine.contractive(0), Own())


def test_invalid_settings_of_rules_raise_errors() -> None:
    for wrong in (
        lambda: Phantom(0),
        lambda: Phantom(1, 0.0),
        lambda: Phantom(1, at="loss"),
        lambda: SharedInverse(0),
    ):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"Phantom|SharedInverse"):
            wrong()
    for wrong in (
        lambda: SimultaneousAdjoint(0),
        lambda: SimultaneousAdjoint(emit=0),
        lambda: SimultaneousAdjoint(emit="best"),
    ):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"beta|emit"):
            wrong()
    with pytest.raises(ValueError, match="emits state 9, but the solve has 4 steps"):
        gradient(Affine.contractive(0), SimultaneousAdjoint(emit=9), method=Broyden(steps=4))


def test_a_solve_rejects_states_and_inputs_of_another_batch_size() -> None:
    model = Affine.contractive(0)
    with pytest.raises(ValueError, match="each of 5 rows, got 4 states and 5 inputs"):
        Context(keys(N)).solve("solve", model.cell, model.start(4), model.inject(X), method=TIGHT)


def test_the_context_reports_how_solves_ended() -> None:
    model = Affine.contractive(0)
    ctx = Context(keys(N))
    with torch.no_grad():
        for steps in (2, 60):
            ctx.solve(
                "solve",
                model.cell,
                model.start(N),
                model.inject(X),
                method=Broyden(steps=steps, tolerance=1e-9),
            )
    early, late = ctx.solve_info["solve"]
    assert (early.status == Status.OUT_OF_STEPS).all()
    assert (late.status == Status.CONVERGED).all()
    assert torch.equal(ctx.stats.evaluations, early.evaluations + late.evaluations)
    assert ctx.sites == {"solve"}
