"""Fixed-point solvers on maps with known fixed points. Everything is float64."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.memory import peak_bytes
from tests.problems import normal
from torch import Tensor

from saddlepoint.solvers import Anderson, Broyden, FixedPointMap, Inverse, Picard, Solver, Status

METHODS = (
    Picard(steps=300),
    Picard(steps=300, damping=0.5),
    Anderson(steps=300),
    Broyden(steps=300),
    Broyden(steps=300, memory=4),
)
IDS = ("picard", "damped picard", "anderson", "broyden", "broyden with short memory")


def zeros(n: int, *shape: int) -> Tensor:
    return torch.zeros(n, *shape, dtype=torch.float64)


def contraction(seed: int, d: int, norm: float = 0.6) -> Tensor:
    a = normal(seed, d, d)
    return norm * a / torch.linalg.matrix_norm(a, 2)


def affine(a: Tensor, b: Tensor) -> FixedPointMap:
    """f(z) = A z + b_i on row i."""
    return lambda z, rows: z @ a.T + b[rows]


def fixed_point(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.solve(torch.eye(len(a)).to(a) - a, b.T).T


def curved(a: Tensor, b: Tensor) -> FixedPointMap:
    return lambda z, rows: (z @ a.T + b[rows]).tanh()


@pytest.mark.parametrize("method", METHODS, ids=IDS)
def test_every_method_finds_the_fixed_point_of_a_contraction(method: Solver) -> None:
    """||z - z*|| <= ||f(z) - z|| / (1 - 0.6), and ||f(z)|| < 20 here."""
    a = contraction(0, 12)
    b = normal(1, 5, 12)
    solution = replace(method, tolerance=1e-12)(affine(a, b), zeros(5, 12))
    torch.testing.assert_close(solution.best, fixed_point(a, b), rtol=0, atol=20 * 1e-12 / 0.4)
    assert solution.has_status(Status.CONVERGED).all()
    assert (solution.residual < 1e-12).all()


@pytest.mark.parametrize("method", METHODS, ids=IDS)
def test_states_may_have_any_shape(method: Solver) -> None:
    a = contraction(0, 12)
    b = normal(1, 5, 12)
    flat = method(affine(a, b), zeros(5, 12), keep=range(4))
    f = affine(a, b)
    shaped = method(
        lambda z, rows: f(z.flatten(1), rows).view(-1, 3, 2, 2), zeros(5, 3, 2, 2), keep=range(4)
    )
    assert torch.equal(shaped.best, flat.best.view(5, 3, 2, 2))
    assert [tuple(z.shape) for z in shaped.states.values()] == 4 * [(5, 3, 2, 2)]


@pytest.mark.parametrize("method", METHODS, ids=IDS)
@pytest.mark.parametrize("relative", [True, False], ids=["relative", "absolute"])
def test_the_solution_of_a_row_does_not_depend_on_its_batch(method: Solver, relative: bool) -> None:
    """Scales from 1e-2 to 1e2 move tanh from its linear to its saturated range."""
    a = contraction(2, 10, 0.9)
    b = normal(3, 6, 10) * 10.0 ** torch.tensor([-2, -1, 0, 1, 2, 0])[:, None]
    method = replace(method, tolerance=1e-6, relative=relative)
    f = curved(a, b)
    together = method(f, zeros(6, 10), keep=range(1, 9), weights=[1 / method.steps] * method.steps)
    assert together.evaluations.unique().numel() > 2  # rows stop at different steps
    for row in range(6):
        alone = method(
            lambda z, rows, row=row: f(z, rows + row),
            zeros(1, 10),
            keep=range(1, 9),
            weights=[1 / 300] * 300,
        )
        torch.testing.assert_close(alone.best[0], together.best[row], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(
            alone.residuals[:, 0], together.residuals[:, row], rtol=1e-6, atol=1e-13
        )
        torch.testing.assert_close(alone.blend[0], together.blend[row], rtol=1e-12, atol=1e-12)
        assert alone.evaluations[0] == together.evaluations[row]
        assert alone.status[0] == together.status[row]
        for n in range(1, 9):
            torch.testing.assert_close(
                alone.states[n][0], together.states[n][row], rtol=1e-12, atol=1e-12
            )


def test_a_batch_coupled_solution_depends_on_the_batch() -> None:
    a = contraction(2, 10, 0.9)
    b = normal(3, 6, 10) * 10.0 ** torch.tensor([-2, -1, 0, 1, 2, 0])[:, None]
    f = curved(a, b)
    method = Broyden(steps=100, batch_coupled=True)
    together = method(f, zeros(6, 10))
    assert together.evaluations.unique().numel() == 1
    assert together.residuals.unique(dim=1).shape[1] == 1
    alone = method(lambda z, rows: f(z, rows + 5), zeros(1, 10))
    assert (alone.best[0] - together.best[5]).abs().amax() > 1e-5


def test_a_converged_row_is_not_evaluated_again() -> None:
    """f counts its own evaluations. Row 1 starts at its fixed point, row 0 does not."""
    a = contraction(0, 12)
    b = normal(1, 2, 12)
    start = torch.stack([torch.zeros(12, dtype=torch.float64), fixed_point(a, b)[1]])
    f = affine(a, b)
    counts = torch.zeros(2, dtype=torch.long)

    def counted(z: Tensor, rows: Tensor) -> Tensor:
        counts[rows] += 1
        return f(z, rows)

    solution = Broyden(tolerance=1e-8)(counted, start)
    assert torch.equal(counts, solution.evaluations)
    assert counts[1] == 1 < counts[0]
    assert torch.equal(solution.best[1], start[1])


def test_residuals_are_the_relative_residuals_of_the_states() -> None:
    """||f(z) - z|| / ||f(z)|| of every returned state."""
    a = contraction(0, 12)
    b = normal(1, 5, 12)
    solution = Broyden(steps=8, tolerance=0)(affine(a, b), zeros(5, 12), keep=range(1, 9))
    for n, z in solution.states.items():
        f = z @ a.T + b
        torch.testing.assert_close(
            solution.residuals[n - 1], (f - z).norm(dim=1) / f.norm(dim=1), rtol=1e-12, atol=0
        )


@pytest.mark.parametrize(
    "method", [Picard(), Anderson(), Broyden()], ids=["picard", "anderson", "broyden"]
)
def test_a_constant_map_is_solved_in_one_step(method: Solver) -> None:
    b = normal(1, 5, 12)
    solution = method(lambda z, rows: b[rows], zeros(5, 12), keep=[1, method.steps])
    assert torch.equal(solution.steps_taken, torch.ones(5, dtype=torch.long))
    assert torch.equal(solution.best, b)
    assert torch.equal(solution.states[method.steps], solution.states[1])
    assert solution.residuals.shape == (method.steps, 5)
    assert (solution.residuals == 0).all()


@pytest.mark.parametrize(
    "method", [Picard(), Anderson(), Broyden()], ids=["picard", "anderson", "broyden"]
)
def test_the_first_state_is_f_of_zero_bit_for_bit(method: Solver) -> None:
    a = contraction(4, 7)
    b = normal(5, 3, 7)
    assert torch.equal(method(curved(a, b), zeros(3, 7), keep=[1]).states[1], b.tanh())


def test_the_best_state_has_the_lowest_residual_and_is_neither_start_nor_last() -> None:
    """On f(z) = b - 1.2 z the residual of Picard grows with every step, so z_1 is best.

    z_0 = 0 is excluded: it would be the same for all rows.
    """
    b = normal(1, 4, 3)
    solution = Picard(steps=20, relative=False, divergence=1e9)(
        lambda z, rows: b[rows] - 1.2 * z, zeros(4, 3), keep=[1, 20]
    )
    assert torch.equal(solution.best, solution.states[1])
    torch.testing.assert_close(solution.residuals[-1], 1.2**20 * b.norm(dim=1), rtol=1e-12, atol=0)
    assert solution.has_status(Status.OUT_OF_STEPS).all()


def test_rows_that_diverge_or_overflow_have_a_status_and_a_finite_state() -> None:
    """Row 0 contracts, row 1 triples per step, row 2 overflows at once, row 3 is NaN."""
    slope = torch.tensor([0.5, 3.0, 1e308, math.nan], dtype=torch.float64)[:, None]
    b = 100 * normal(1, 4, 6)
    solution = Picard(steps=100, tolerance=1e-6)(
        lambda z, rows: slope[rows] * z + b[rows], zeros(4, 6), keep=range(101)
    )
    assert solution.status.tolist() == [
        Status.CONVERGED,
        Status.DIVERGED,
        Status.NON_FINITE,
        Status.NON_FINITE,
    ]
    assert solution.best.isfinite().all()
    assert all(z.isfinite().all() for z in solution.states.values())
    assert solution.evaluations[1] <= 2 + math.ceil(math.log(1e3, 3))
    assert torch.equal(solution.best[3], torch.zeros(6, dtype=torch.float64))
    assert solution.residual.isfinite().tolist() == [True, True, True, False]
    torch.testing.assert_close(solution.best[0], b[0] / 0.5, rtol=1e-5, atol=0)


def test_a_warm_start_needs_fewer_evaluations() -> None:
    """The start is the fixed point of a nearby problem, with the inverse built there."""
    a = contraction(6, 30, 0.95)
    b = normal(7, 4, 30)
    method = Broyden(steps=100, tolerance=1e-10)
    first = method(affine(a, b), zeros(4, 30), return_inverse=True)
    moved = b + 0.01 * normal(8, 4, 30)
    cold = method(affine(a, moved), zeros(4, 30))
    warm = method(affine(a, moved), first.best, inverse=first.inverse)
    torch.testing.assert_close(warm.best, cold.best, rtol=0, atol=1e-7)
    assert (warm.evaluations < 0.6 * cold.evaluations).all()


def test_the_low_rank_inverse_is_its_dense_matrix_and_obeys_the_secant_equation() -> None:
    inverse = Inverse.initial(zeros(3, 8))
    assert torch.equal(inverse.dense(), -torch.eye(8, dtype=torch.float64).expand(3, 8, 8))
    for k in range(6):
        dz = normal(10 + k, 3, 8)
        dg = normal(20 + k, 3, 8)
        g = normal(30 + k, 3, 8)
        inverse = inverse.updated(dz, dg)
        dense = inverse.dense()
        scale = dense.abs().amax().item()  # random pairs make large inverses
        torch.testing.assert_close(inverse.matvec(dg), dz, rtol=0, atol=1e-12 * scale)
        torch.testing.assert_close(
            inverse.matvec(g), torch.einsum("nij,nj->ni", dense, g), rtol=0, atol=1e-12 * scale
        )
        torch.testing.assert_close(
            inverse.rmatvec(g), torch.einsum("nji,nj->ni", dense, g), rtol=0, atol=1e-12 * scale
        )
        torch.testing.assert_close(inverse.transposed.matvec(g), inverse.rmatvec(g), rtol=0, atol=0)
    assert inverse.rank == 6


def test_a_zero_secant_pair_does_not_change_the_inverse() -> None:
    inverse = Inverse.initial(zeros(2, 5)).updated(normal(0, 2, 5), normal(1, 2, 5))
    dz = normal(2, 2, 5)
    dg = normal(3, 2, 5)
    dz = torch.stack([torch.zeros(5, dtype=torch.float64), dz[1]])
    updated = inverse.updated(dz, dg)
    assert torch.equal(updated.dense()[0], inverse.dense()[0])
    assert not torch.equal(updated.dense()[1], inverse.dense()[1])


def test_broyden_returns_the_inverse_of_each_row_also_if_it_stopped_early() -> None:
    """B maps the last change of the residual to the last step; B = -I for an unmoved row."""
    a = contraction(0, 6)
    b = normal(1, 4, 6)
    start = torch.cat([zeros(3, 6), fixed_point(a, b)[3:]])
    solution = Broyden(steps=40, tolerance=1e-6)(
        affine(a, b), start, return_inverse=True, keep=range(41)
    )
    assert solution.inverse is not None
    assert torch.equal(solution.inverse.dense()[3], -torch.eye(6, dtype=torch.float64))
    steps = int(solution.steps_taken[0])
    dz = solution.states[steps][0] - solution.states[steps - 1][0]
    dg = a @ dz - dz
    torch.testing.assert_close(
        solution.inverse.dense()[0] @ dg, dz, rtol=0, atol=1e-10 * dz.norm().item()
    )


def test_the_blend_is_the_weighted_sum_of_the_states_without_keeping_them() -> None:
    a = contraction(0, 12)
    b = normal(1, 5, 12)
    weights = [0.5, 0.25, 0.0, 1.0, 0.1, 0.2, 0.3, 0.4]
    method = Broyden(steps=8, tolerance=1e-2)
    kept = method(affine(a, b), zeros(5, 12), keep=range(1, 9))
    solution = method(affine(a, b), zeros(5, 12), weights=weights)
    assert not solution.states
    assert int(kept.steps_taken.amin()) < 8  # some rows repeat their state
    expected = sum(w * z for w, z in zip(weights, kept.states.values(), strict=True))
    torch.testing.assert_close(solution.blend, expected, rtol=1e-14, atol=1e-15)


def test_a_short_memory_bounds_the_memory_of_broyden_and_a_long_one_changes_nothing() -> None:
    a = contraction(0, 500, norm=0.99)
    b = normal(1, 2, 500)

    def used_bytes(steps: int, memory: int | None) -> int:
        method = Broyden(steps=steps, tolerance=0.0, memory=memory)
        return peak_bytes(lambda: method(affine(a, b), zeros(2, 500)))

    assert used_bytes(64, 6) < 1.05 * used_bytes(
        16, 6
    )  # residuals of more steps, and where it happens a second state
    assert used_bytes(64, None) > 3 * used_bytes(16, None)
    whole, long = (Broyden(steps=20, memory=m)(affine(a, b), zeros(2, 500)) for m in (None, 20))
    assert torch.equal(whole.best, long.best)
    with pytest.raises(
        ValueError, match=r"Broyden.*cannot return its inverse, because `memory` drops early terms"
    ):
        Broyden(steps=20, memory=3)(affine(a, b), zeros(2, 500), return_inverse=True)
    with pytest.raises(ValueError, match="memory >= 1 or None, got memory=0"):
        Broyden(memory=0)


def test_an_empty_batch_can_be_solved() -> None:
    solution = Broyden(steps=3)(lambda z, rows: z, zeros(0, 4), keep=[2])
    assert solution.best.shape == solution.states[2].shape == (0, 4)


@pytest.mark.parametrize(
    "method",
    [Picard(steps=25), Anderson(steps=25), Broyden(steps=25)],
    ids=["picard", "anderson", "broyden"],
)
def test_a_solve_can_be_differentiated_by_autograd(method: Solver) -> None:
    """The derivative of the output, with rows that stop early, equals finite differences.

    The error of central differences at a step of 1e-6 is 3e-8.
    """
    a = contraction(2, 8, 0.7)
    b = normal(3, 4, 8)
    c = normal(4, 4, 8)
    direction = normal(5, 4, 8)
    method = replace(method, tolerance=1e-4)

    def output(b: Tensor) -> Tensor:
        solution = method(curved(a, b), zeros(4, 8), keep=[2])
        return (c * (solution.best + solution.states[2])).sum()

    b = b.requires_grad_()
    (grad,) = torch.autograd.grad(output(b), b)
    with torch.no_grad():
        slope = (output(b + 1e-6 * direction) - output(b - 1e-6 * direction)) / 2e-6
    torch.testing.assert_close((grad * direction).sum(), slope, rtol=1e-7, atol=1e-7)


def test_invalid_arguments_raise_errors() -> None:
    with pytest.raises(ValueError, match=r"z has shape \(2, 3\) .* f\(z\) has shape \(2, 4\)"):
        Picard()(lambda z, rows: torch.cat([z, z[:, :1]], 1), zeros(2, 3))
    with pytest.raises(
        ValueError, match=r"type torch.float64, f\(z\) has shape \(2, 3\) and type torch.float32"
    ):
        Picard()(lambda z, rows: z.float(), zeros(2, 3))
    with pytest.raises(ValueError, match="finite state"):
        Picard()(lambda z, rows: z, zeros(2, 3) * math.nan)
    with pytest.raises(ValueError, match=r"got torch.int64 of shape \(2, 3\)"):
        Picard()(lambda z, rows: z, zeros(2, 3).long())
    with pytest.raises(ValueError, match=r"states 0..5 can be kept, but keep=\[6\]"):
        Picard(steps=5)(lambda z, rows: z, zeros(2, 3), keep=[6])
    with pytest.raises(ValueError, match=r"z_1..z_5, got 2"):
        Picard(steps=5)(lambda z, rows: z, zeros(2, 3), weights=[1, 2])
    with pytest.raises(ValueError, match="steps >= 1"):
        Broyden(steps=0)
