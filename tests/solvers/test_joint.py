"""JointEquilibrium on problems with a known worst input. Everything is float64."""

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
def test_joint_equilibrium_finds_the_worst_input_of_an_affine_model(space: Ball) -> None:
    """With two classes the margin of H (I - A)^-1 (U x + b) is linear in x.

    Its maximum over the set is a support function.
    """
    model = Affine.contractive(0)
    defense = Equilibrium(model, classes=2, method=Broyden(steps=60, tolerance=1e-12))
    inner = torch.linalg.inv(model.eye - model.a)
    linear = Linear(defense.head @ inner @ model.u, defense.head @ inner @ model.b)
    found = point(replace(JOINT, step_size=space.radius), defense, space)
    torch.testing.assert_close(
        margin(linear(found), Y), linear.worst_margin(X, Y, space), rtol=1e-6, atol=1e-6
    )


def test_joint_equilibrium_reaches_the_margins_of_pgd_with_a_quarter_of_the_evaluations() -> None:
    defense = Equilibrium(
        Curved.contractive(3, states=40, norm=0.97), method=Broyden(steps=60, tolerance=1e-8)
    )
    with torch.no_grad():
        y = defense.respond(X, Context.seeded(0, N)).argmax(1)
    values = {}
    inner = {}
    for adversary in (JOINT, Direct("pgd", PGD(50), keep=FINAL)):
        context = AttackContext.open(Threat(Linf(0.1)), torch.arange(N), 0)
        found = adversary.move(context, defense, X, y).point
        with torch.no_grad():
            values[adversary.name] = margin(defense.respond(found, Context.seeded(0, N)), y)
        inner[adversary.name] = context.meter.inner.sum()
    torch.testing.assert_close(values["joint"], values["pgd"], rtol=0.05, atol=0.05)
    assert 4 * inner["joint"] < inner["pgd"]


def test_the_result_of_a_row_does_not_depend_on_its_batch() -> None:
    defense = Equilibrium(Curved.contractive(3))
    together = point(JOINT, defense, Linf(0.1))
    for row in (0, 3, 7):
        alone = point(JOINT, defense, Linf(0.1), torch.tensor([row]))
        torch.testing.assert_close(alone[0], together[row], rtol=0, atol=1e-12)


def test_passes_are_counted() -> None:
    """One evaluation of the start, at most steps + 1 iterations, and two end points."""
    context = AttackContext.open(Threat(Linf(0.1)), torch.arange(N), 0)
    replace(JOINT, method=Picard(steps=20, tolerance=0)).move(
        context, Equilibrium(Curved.contractive(3)), X, Y
    )
    assert (context.meter.forward == 1 + 21 + 2).all()
    assert (context.meter.backward == 21).all()


def test_unsupported_settings_raise_errors() -> None:
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
