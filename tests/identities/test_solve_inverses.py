"""Rules that use the solver's inverse: simultaneous adjoint and shared inverse.

Everything is float64.
"""

from __future__ import annotations

import pytest
import torch
from tests.equilibria import STATES, TIGHT, Affine, C, N, X, gradient, solved
from tests.problems import keys, normal
from torch import Tensor

from saddlepoint.defenses import Anderson, Broyden, Context, Picard, Status
from saddlepoint.gradients import Exact, Implicit, SharedInverse, SimultaneousAdjoint


def test_the_transposed_inverse_reaches_the_adjoint_fixed_point_earlier() -> None:
    """With d = 12, Broyden's inverse is exact after 2 d steps (Gay 1979).

    A full adjoint step is then a Newton step.
    """
    model = Affine.contractive(0)
    method = Broyden(steps=24, tolerance=1e-13)
    exact = model.gradient(C)
    transposed = (gradient(model, SimultaneousAdjoint(1.0), method=method) - exact).abs().amax()
    as_written = (
        (gradient(model, SimultaneousAdjoint(1.0, transpose=False), method=method) - exact)
        .abs()
        .amax()
    )
    assert transposed < 1e-10
    assert as_written > 1e-8


@pytest.mark.parametrize("seed", range(4))
def test_on_nonnormal_maps_only_the_transposed_inverse_converges(seed: int) -> None:
    model = Affine.nonnormal(10 * seed)
    method = Broyden(steps=60, tolerance=1e-12)
    with torch.no_grad():
        assert solved(model, Exact(), X, method=method).has_status(Status.CONVERGED).all()
    exact = model.gradient(C)
    scale = exact.abs().amax()
    transposed = (gradient(model, SimultaneousAdjoint(0.5), method=method) - exact).abs().amax()
    as_written = (
        (gradient(model, SimultaneousAdjoint(0.5, transpose=False), method=method) - exact)
        .abs()
        .amax()
    )
    assert transposed < 1e-10 * scale
    assert as_written > 1e-2 * scale


def test_on_a_symmetric_map_both_inverses_reach_the_fixed_point() -> None:
    """Broyden's inverse does not stay symmetric: the iterates differ, but not their limits."""
    model = Affine.contractive(0)
    model = Affine((model.a + model.a.T) / 2, model.u, model.b)
    for transpose in (True, False):
        got = gradient(
            model,
            SimultaneousAdjoint(0.9, transpose=transpose),
            method=Broyden(steps=60, tolerance=1e-13),
        )
        torch.testing.assert_close(got, model.gradient(C), rtol=0, atol=1e-9)


def test_the_first_adjoint_is_beta_times_the_loss_gradient_at_zero() -> None:
    """u_1 = beta dL/dz(0): the surrogate gradient at z_1 is U^T u_1 for L(z_0) = c z_0."""
    model = Affine.contractive(0)
    x = X.clone().requires_grad_()
    solution = solved(
        model, SimultaneousAdjoint(0.7, emit=1), x, method=Broyden(steps=3), keep=[0, 1]
    )
    assert torch.equal(solution.states[1], model.inject(x))
    (got,) = torch.autograd.grad((C * solution.states[0]).sum(), x)
    torch.testing.assert_close(got, 0.7 * C @ model.u, rtol=1e-14, atol=1e-14)


def test_the_surrogate_gradient_at_the_start_is_zero() -> None:
    x = X.clone().requires_grad_()
    solution = solved(
        Affine.contractive(0), SimultaneousAdjoint(emit="all"), x, method=Broyden(steps=3), keep=[0]
    )
    assert (torch.autograd.grad((C * solution.states[0]).sum(), x)[0] == 0).all()


def dense_adjoint(model: Affine, cotangents: list[Tensor], steps: int, beta: float) -> list[Tensor]:
    """Eq. 7-10 of Yang et al. 2022 written out with dense matrices for one row; u_0..u_steps."""
    z = model.start(1)[0]
    u = model.start(1)[0]
    b = -model.eye
    out = [u]
    for n in range(steps):
        g = model.cell(z, model.inject(X[0])) - z
        v = model.a.T @ u + cotangents[n] - u
        u = u - beta * b.T @ v
        new = z - b @ g
        dz = new - z
        dg = model.cell(new, model.inject(X[0])) - new - g
        b = b + torch.outer((dz - b @ dg) / (dz @ b @ dg), dz @ b)
        z = new
        out.append(u)
    return out


@pytest.mark.parametrize("emit", [1, 3, 5, "last", "all"])
def test_the_adjoint_states_match_a_dense_implementation_of_the_paper(emit: int) -> None:
    """With a loss at every state 0..5, against dense matrices; the best state takes no part."""
    model = Affine.contractive(0)
    x = X[:1].clone().requires_grad_()
    c = [normal(50 + n, STATES) for n in range(6)]
    solution = solved(
        model,
        SimultaneousAdjoint(0.8, emit=emit),
        x,
        method=Broyden(steps=5, tolerance=0),
        keep=range(6),
    )
    loss = sum((v * z[0]).sum() for v, z in zip(c, solution.states.values(), strict=True))
    (got,) = torch.autograd.grad(loss, x)
    u = dense_adjoint(model, c, 5, 0.8)
    expected = {"all": sum(u), "last": u[-1]}.get(emit)
    expected = u[emit] if expected is None else expected
    torch.testing.assert_close(got[0], expected @ model.u, rtol=1e-10, atol=1e-10)


def test_a_state_without_a_loss_uses_the_next_cotangent() -> None:
    model = Affine.contractive(0)
    x = X[:1].clone().requires_grad_()
    solution = solved(
        model, SimultaneousAdjoint(0.8), x, method=Broyden(steps=5, tolerance=0), keep=range(6)
    )
    c = [C[0], C[0], C[0], C[1], C[1], C[1]]
    (got,) = torch.autograd.grad(
        (C[0] * solution.states[2]).sum() + (C[1] * solution.states[5]).sum(), x
    )
    torch.testing.assert_close(
        got[0], dense_adjoint(model, c, 5, 0.8)[-1] @ model.u, rtol=1e-10, atol=1e-10
    )


def test_without_an_inverse_the_adjoint_is_a_picard_iteration() -> None:
    """u_n = sum of the first n terms of Neumann's series: U^T (I - (A^T)^n) u*."""
    model = Affine.contractive(0)
    got = gradient(model, SimultaneousAdjoint(1.0), method=Picard(steps=6, tolerance=0), state=6)
    factor = model.eye - torch.linalg.matrix_power(model.a.T, 6)
    torch.testing.assert_close(got, model.adjoint(C) @ factor.T @ model.u, rtol=1e-12, atol=1e-12)


def test_the_shared_inverse_is_minus_b_transposed() -> None:
    model = Affine.contractive(0)
    method = Broyden(steps=6, tolerance=0)
    with torch.no_grad():
        built = method(
            lambda z, rows: model.cell(z, model.inject(X)[rows]),
            model.start(N),
            return_inverse=True,
        ).inverse
    assert built is not None
    for state, inverse in ((None, built), (3, built.first_terms(3))):
        expected = -torch.einsum("nji,nj->ni", inverse.dense(), C) @ model.u
        torch.testing.assert_close(
            gradient(model, SharedInverse(1e9), method=method, state=state),
            expected,
            rtol=1e-11,
            atol=1e-11,
        )


def test_rows_with_a_too_long_adjoint_use_the_cotangent() -> None:
    model = Affine.contractive(0)
    shared = gradient(model, SharedInverse(1e9), method=Broyden(steps=6))
    one_step = C @ model.u
    length = {
        limit: gradient(model, SharedInverse(limit), method=Broyden(steps=6))
        for limit in (1e-9, 1.0, 1e9)
    }
    torch.testing.assert_close(length[1e-9], one_step, rtol=1e-13, atol=1e-13)
    replaced = torch.isclose(length[1.0], one_step, rtol=1e-12).all(1)
    assert torch.equal(length[1.0][~replaced], shared[~replaced])


def test_the_refined_shared_inverse_is_the_implicit_gradient_with_fewer_products() -> None:
    """Both backward solves stop at a relative residual of 1e-6; ||U|| < 10 and ||u*|| < 20."""
    model = Affine.contractive(0)
    products = {}
    for rule in (Implicit(), SharedInverse(refine=50)):
        x = X.clone().requires_grad_()
        ctx = Context(keys(N), {"solve": rule})
        (got,) = torch.autograd.grad(
            (C * solved(model, rule, x, method=TIGHT, ctx=ctx).best).sum(), x
        )
        torch.testing.assert_close(got, model.gradient(C), rtol=0, atol=10 * 20 * 1e-6 / 0.4)
        products[type(rule)] = int(ctx.stats.products.amax())
    assert products[SharedInverse] < 0.7 * products[Implicit]


def test_a_solver_without_an_inverse_raises_an_error() -> None:
    with pytest.raises(ValueError, match=r"this site is solved by Anderson. Use Implicit"):
        gradient(Affine.contractive(0), SharedInverse(), method=Anderson())
