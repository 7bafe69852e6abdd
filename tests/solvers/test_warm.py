"""Solves that go on where the last ones ended: the same attack for a fraction of the evaluations. Everything is float64."""

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


def answered() -> Tensor:
    """Labels that the defense gives by a small margin, or not at all: an attack has something to do."""
    with torch.no_grad():
        return DEFENSE.respond(X, Context(keys(N))).argmax(1)


Y = answered()


def moved(direct: Direct, rows: Tensor) -> tuple[Tensor, Tensor]:
    """What is proposed for these examples, and what it cost them inside the defense."""
    turn = AttackContext.open(THREAT, rows, 0)
    found = direct.move(turn, DEFENSE, X[rows], Y[rows])
    return found.point, turn.meter.inner


@pytest.mark.parametrize("attack", [PGD(50), APGD(50)], ids=["pgd", "apgd"])
def test_fifty_warm_steps_cost_a_third_and_break_as_many(attack: PGD) -> None:
    right = {}
    inner = {}
    for direct in (COLD, WARM):
        points, cost = moved(replace(direct, attack=attack), torch.arange(N))
        with torch.no_grad():
            right[direct.name] = int(
                (DEFENSE.respond(points, Context(keys(N))).argmax(1) == Y).sum()
            )
        inner[direct.name] = cost.sum()
    assert 0 < right["cold"] < N
    assert abs(right["warm"] - right["cold"]) <= 1
    assert 3 * inner["warm"] <= inner["cold"]


def test_a_warm_row_is_attacked_alike_alone_and_in_a_batch() -> None:
    """Rows alone and in a batch differ by rounding, which 50 sign steps may amplify only where a gradient is about zero."""
    together, cost = moved(WARM, torch.arange(N))
    for row in range(0, N, 6):
        alone, own = moved(WARM, torch.tensor([row]))
        torch.testing.assert_close(alone[0], together[row], rtol=0, atol=1e-12)
        assert (
            own[0] <= cost[row]
        )  # a backward solve of a batch computes all its rows until half of them have finished


def test_every_attack_starts_cold() -> None:
    first, cost = moved(WARM, torch.arange(N))
    again, same = moved(WARM, torch.arange(N))
    assert torch.equal(first, again)
    assert torch.equal(cost, same)


def test_rows_that_have_won_leave_the_others_their_notes() -> None:
    early = replace(WARM, stop_at_success=True)
    points, cost = moved(early, torch.arange(N))
    for row in range(0, N, 8):
        torch.testing.assert_close(
            moved(early, torch.tensor([row]))[0][0], points[row], rtol=0, atol=1e-12
        )
    assert cost.sum() < moved(WARM, torch.arange(N))[1].sum()


def test_a_warm_solve_follows_the_fixed_point() -> None:
    """x moves by at most s per query; after many queries of three steps the state is the fixed point of the last x to O(s)."""
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


def test_a_row_whose_solve_broke_starts_afresh() -> None:
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


def test_states_on_the_way_cannot_be_shown_to_an_attacker_who_skips_the_way() -> None:
    with pytest.raises(
        ValueError,
        match=r"starts the solve 'solve' where its last one ended.* `Direct\(keep=...\)`",
    ):
        replace(WARM, keep=None).move(AttackContext.open(THREAT, torch.arange(N), 0), DEFENSE, X, Y)


def test_a_pool_of_defenses_keeps_its_notes_apart() -> None:
    """Two equilibria at sites of the same name: each goes on from its own fixed point, and a second look costs one evaluation."""
    pool = [
        Equilibrium(Curved.contractive(seed), method=Broyden(steps=60, tolerance=1e-8))
        for seed in (3, 30)
    ]
    stats = SolverStats.of(N, warm=3)
    objective = AttackObjective(pool, Y, rules=RULES, keep=FINAL, stats=stats)
    Backprop().evaluate(objective, X, keys(N))
    before = stats.evaluations
    Backprop().evaluate(objective, X, keys(N))
    assert torch.equal(stats.evaluations - before, torch.full((N,), 2))


def test_the_meter_counts_what_happens_inside() -> None:
    """One cold gradient: the forward solve, f once more with a graph, and the products of the backward solve."""
    turn = AttackContext.open(THREAT, torch.arange(N), 0)
    replace(COLD, attack=PGD(1, random_start=False)).move(turn, DEFENSE, X, Y)
    with torch.no_grad():
        ctx = Context(keys(N))
        DEFENSE.trace(X, ctx)
    ending = ctx.solve_info["solve"][0]
    assert (turn.meter.inner > 2 * ending.evaluations + 1).all()
    assert (turn.meter.inner < 5 * ending.evaluations).all()
