"""State, adjoint and input found together, where the best input is known. Everything is float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.equilibria import Affine, Curved, Equilibrium
from tests.problems import Affine as Linear
from tests.problems import Centring, smooth, uniform
from torch import Tensor

from saddlepoint.attacks.losses import margin
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import L2, Ball, Linf
from saddlepoint.defenses import Broyden, Context, Picard
from saddlepoint.evaluation import AttackContext, Direct, JointEquilibrium, Threat

N = 8
INPUTS = 7
X = uniform(0, N, INPUTS)
Y = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])
FINAL = frozenset({"final"})
JOINT = JointEquilibrium("joint", keep=FINAL)


def point(
    joint: JointEquilibrium, defense: Equilibrium, space: Ball, rows: Tensor | None = None
) -> Tensor:
    rows = torch.arange(N) if rows is None else rows
    return joint.move(AttackContext.open(Threat(space), rows, 0), defense, X[rows], Y[rows]).point


@pytest.mark.parametrize("space", [Linf(0.1), L2(0.2)], ids=["linf", "l2"])
def test_on_an_affine_equilibrium_it_finds_the_worst_input(space: Ball) -> None:
    """Two classes: the margin of H (I - A)^-1 (U x + b) is linear in x, and its maximum over the set a support function."""
    model = Affine.contractive(0)
    defense = Equilibrium(model, classes=2, method=Broyden(steps=60, tolerance=1e-12))
    inner = torch.linalg.inv(model.eye - model.a)
    linear = Linear(defense.head @ inner @ model.u, defense.head @ inner @ model.b)
    found = point(replace(JOINT, step_size=space.radius), defense, space)
    torch.testing.assert_close(
        margin(linear(found), Y), linear.worst_margin(X, Y, space), rtol=1e-6, atol=1e-6
    )


def test_it_breaks_what_pgd_breaks_for_a_quarter_of_the_evaluations() -> None:
    defense = Equilibrium(
        Curved.contractive(3, states=40, norm=0.97), method=Broyden(steps=60, tolerance=1e-8)
    )
    with torch.no_grad():
        y = defense.respond(X, Context.seeded(0, N)).argmax(1)
    values = {}
    inner = {}
    for adversary in (JOINT, Direct("pgd", PGD(50), keep=FINAL)):
        turn = AttackContext.open(Threat(Linf(0.1)), torch.arange(N), 0)
        found = adversary.move(turn, defense, X, y).point
        with torch.no_grad():
            values[adversary.name] = margin(defense.respond(found, Context.seeded(0, N)), y)
        inner[adversary.name] = turn.meter.inner.sum()
    torch.testing.assert_close(values["joint"], values["pgd"], rtol=0.05, atol=0.05)
    assert 4 * inner["joint"] < inner["pgd"]


def test_rows_are_attacked_alike_alone_and_in_a_batch() -> None:
    defense = Equilibrium(Curved.contractive(3))
    together = point(JOINT, defense, Linf(0.1))
    for row in (0, 3, 7):
        alone = point(JOINT, defense, Linf(0.1), torch.tensor([row]))
        torch.testing.assert_close(alone[0], together[row], rtol=0, atol=1e-12)


def test_its_passes_are_charged_and_its_budget_binds() -> None:
    """An opening, then at most steps + 1 iterations, then the two ends."""
    turn = AttackContext.open(Threat(Linf(0.1)), torch.arange(N), 0)
    replace(JOINT, method=Picard(steps=20, tolerance=0)).move(
        turn, Equilibrium(Curved.contractive(3)), X, Y
    )
    assert (turn.meter.forward == 1 + 21 + 2).all()
    assert (turn.meter.backward == 21).all()


def test_what_it_cannot_do_is_refused() -> None:
    defense = Equilibrium(Curved.contractive(3))
    with pytest.raises(ValueError, match="Name the views of its final state"):
        point(replace(JOINT, keep=None), defense, Linf(0.1))
    with pytest.raises(ValueError, match=r"rules were given for \['other'\]"):
        point(replace(JOINT, site="other"), defense, Linf(0.1))
    with pytest.raises(ValueError, match="depend on each other"):
        JOINT.move(
            AttackContext.open(Threat(Linf(0.1)), torch.arange(N), 0), Centring(smooth(0)), X, Y
        )
    with pytest.raises(PermissionError, match="gradient access, but only score access"):
        JOINT.move(
            AttackContext.open(Threat(Linf(0.1), access="score"), torch.arange(N), 0), defense, X, Y
        )
