"""Warm starts: the same attack with a fraction of the evaluations. Everything is float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.equilibria import Curved, Equilibrium
from tests.problems import keys, normal, uniform
from torch import Tensor

from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Broyden, Context
from saddlepoint.evaluation import AttackContext, Direct, Threat
from saddlepoint.gradients import Backprop, Implicit
from saddlepoint.solvers import SolverStats

FINAL = frozenset({"final"})
N = 16
INPUTS = 7
X = uniform(0, N, INPUTS)
DEFENSE = Equilibrium(
    Curved.contractive(3, states=40, norm=0.97), method=Broyden(steps=60, tolerance=1e-8)
)
RULES = {"solve": Implicit(Broyden(steps=60, tolerance=1e-8))}
THREAT = Threat(Linf(0.08))
COLD = Direct("cold", PGD(50), rules=RULES, keep=FINAL)
WARM = replace(COLD, name="warm", warm=3)


def clean_predictions() -> Tensor:
    """The labels that the defense predicts, so that the clean accuracy is 100 %."""
    with torch.no_grad():
        return DEFENSE.respond(X, Context(keys(N))).argmax(1)


Y = clean_predictions()


def run(direct: Direct, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The proposed points of these examples, and the cost of their inner solves."""
    context = AttackContext.open(THREAT, rows, 0)
    found = direct.move(context, DEFENSE, X[rows], Y[rows])
    return found.point, context.meter.inner


@pytest.mark.parametrize("attack", [PGD(50), APGD(50)], ids=["pgd", "apgd"])
def test_warm_starts_cost_a_third_and_leave_the_same_robust_accuracy(attack: PGD) -> None:
    correct = {}
    inner = {}
    for direct in (COLD, WARM):
        points, cost = run(replace(direct, attack=attack), torch.arange(N))
        with torch.no_grad():
            correct[direct.name] = int(
                (DEFENSE.respond(points, Context(keys(N))).argmax(1) == Y).sum()
            )
        inner[direct.name] = cost.sum()
    assert 0 < correct["cold"] < N
    assert abs(correct["warm"] - correct["cold"]) <= 1
    assert 3 * inner["warm"] <= inner["cold"]


def test_the_result_of_a_warm_row_does_not_depend_on_its_batch() -> None:
    """Rows alone and in a batch differ by rounding only.

    50 sign steps amplify it only where a gradient is close to zero.
    """
    together, cost = run(WARM, torch.arange(N))
    for row in range(0, N, 6):
        alone, own = run(WARM, torch.tensor([row]))
        torch.testing.assert_close(alone[0], together[row], rtol=0, atol=1e-12)
        # A backward solve of a batch computes all rows until half of them have converged.
        assert own[0] <= cost[row]


def test_every_attack_starts_cold() -> None:
    first, cost = run(WARM, torch.arange(N))
    again, same = run(WARM, torch.arange(N))
    assert torch.equal(first, again)
    assert torch.equal(cost, same)


def test_misclassified_rows_do_not_change_the_warm_starts_of_others() -> None:
    early = replace(WARM, stop_at_success=True)
    points, cost = run(early, torch.arange(N))
    for row in range(0, N, 8):
        torch.testing.assert_close(
            run(early, torch.tensor([row]))[0][0], points[row], rtol=0, atol=1e-12
        )
    assert cost.sum() < run(WARM, torch.arange(N))[1].sum()


def test_warm_solves_track_the_fixed_point() -> None:
    """x moves by at most s = 0.01 per query.

    After many queries of three steps the state is the fixed point of the last x up to O(s).
    """
    model = DEFENSE.model
    stats = SolverStats.of(N, warm=3)
    tight = Broyden(steps=200, tolerance=1e-12)

    def solved(x: Tensor, stats: SolverStats | None) -> Tensor:
        ctx = Context(keys(N), solver_stats=stats)
        return ctx.solve("solve", model.cell, model.start(N), model.inject(x), method=tight).best

    errors = []
    with torch.no_grad():
        for k in range(30):
            x = X + 0.01 * k * normal(5, N, INPUTS).sign()
            errors.append((solved(x, stats) - solved(x, None)).abs().amax().item())
    assert errors[0] == 0
    assert max(errors) < 0.05
    assert (stats.evaluations <= 201 + 29 * 4).all()
    assert (stats.failures <= 29).all()


def test_a_row_starts_cold_after_its_solve_failed() -> None:
    stats = SolverStats.of(2, warm=2)
    method = Broyden(steps=30, tolerance=1e-10)

    def solve(broken: bool) -> Tensor:
        ctx = Context(keys(2), solver_stats=stats)
        u = torch.tensor([[1.0], [torch.nan if broken else 1.0]], dtype=torch.float64)
        return ctx.solve(
            "solve", lambda z, u: (0.9 * z).cos() + u, torch.zeros_like(u), u, method=method
        ).evaluations

    with torch.no_grad():
        cold = solve(False)
        solve(True)
        assert solve(False).tolist() == [1, int(cold[1])]


def test_warm_starts_and_intermediate_views_raise_an_error() -> None:
    with pytest.raises(
        ValueError,
        match=r"starts the solve 'solve' where its last one ended.* `Direct\(keep=...\)`",
    ):
        replace(WARM, keep=None).move(AttackContext.open(THREAT, torch.arange(N), 0), DEFENSE, X, Y)


def test_saved_states_of_several_defenses_are_kept_apart() -> None:
    """Two models have a site of the same name, and each solve starts at its own fixed point.

    A second evaluation of both therefore costs one evaluation of f each.
    """
    models = [
        Equilibrium(Curved.contractive(seed), method=Broyden(steps=60, tolerance=1e-8))
        for seed in (3, 30)
    ]
    stats = SolverStats.of(N, warm=3)
    objective = AttackObjective(models, Y, rules=RULES, keep=FINAL, stats=stats)
    Backprop().evaluate(objective, X, keys(N))
    before = stats.evaluations
    Backprop().evaluate(objective, X, keys(N))
    assert torch.equal(stats.evaluations - before, torch.full((N,), 2))


def test_the_meter_counts_the_work_of_inner_solves() -> None:
    """A cold gradient costs the forward solve, one more f, and products of the backward solve."""
    context = AttackContext.open(THREAT, torch.arange(N), 0)
    replace(COLD, attack=PGD(1, random_start=False)).move(context, DEFENSE, X, Y)
    with torch.no_grad():
        ctx = Context(keys(N))
        DEFENSE.trace(X, ctx)
    info = ctx.solve_info["solve"][0]
    assert (context.meter.inner > 2 * info.evaluations + 1).all()
    assert (context.meter.inner < 5 * info.evaluations).all()


def test_a_warm_pass_takes_no_evaluation_twice_and_keeps_the_gradient() -> None:
    """At a solved state: one evaluation of f and one product, with the exact gradient.

    A defense that predicts from f of the best state takes no more.
    """
    model = DEFENSE.model
    stats = SolverStats.of(N, warm=1)
    tight = Broyden(steps=200, tolerance=1e-12)
    rules = {"solve": Implicit(Broyden(steps=200, tolerance=1e-12))}

    def gradient(stats: SolverStats | None) -> Tensor:
        ctx = Context(keys(N), rules=rules, solver_stats=stats)
        x = X.clone().requires_grad_()
        u = model.inject(x)
        found = ctx.solve(
            "solve", model.cell, model.start(N), u, method=tight, following=True
        ).following
        assert found is not None
        return torch.autograd.grad((found @ DEFENSE.head.T)[:, 0].sum(), x)[0]

    gradient(stats)
    before = stats.evaluations, stats.products
    torch.testing.assert_close(gradient(stats), gradient(None), rtol=1e-8, atol=1e-10)
    assert (stats.evaluations - before[0]).tolist() == [1] * N
    assert (stats.products - before[1]).tolist() == [1] * N
