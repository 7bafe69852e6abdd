"""The claims of the paper that our records decide."""

from __future__ import annotations

from dataclasses import replace

from saddlepoint.papers.budgets import AutoAttackBudget
from saddlepoint.papers.claims import CellReference, Claim, Premise
from saddlepoint.papers.deq.cifar10 import PLAN
from saddlepoint.papers.deq.figure_4 import NEXT
from saddlepoint.papers.deq.grid import LOWEST
from saddlepoint.papers.deq.third_party import LARGE, OTHER, SPACE
from saddlepoint.papers.deq.three_ways import (
    ACCUMULATION,
    EARLY_BROKEN,
    ENSEMBLE,
    MASKED,
    MASKED_SQUARE,
    PER_IMAGE,
    WITHOUT_START,
)

_SHORT = "exact-short (8/7)"
_LONG = "exact-long (50/50)"
_UNROLLED = "unrolled (8+6)"
_NETWORK = f"{LARGE.partition('/')[2]}, not adversarially trained, {SPACE}"
_OTHER_NETWORK = f"{OTHER.partition('/')[2]}, not adversarially trained, {SPACE}"
_STATES = 1  # index of the table of the states of the first network
_DIFFERENCES = -1  # index of the table of differences
_DIFFERENCES_HERE = 2  # the same for the networks that are trained here
_MIDDLE = "exact-long (18/20)"
_SHORTEST = "exact-shortest (2/1)"
_VANILLA = "vanilla (18/20)"
_RESIDUAL = "residual, final"
_DIVERGED = 0.75  # Sec. 6.1: all relative errors of the paper's network of Table 1 are larger
_QUERIES = r"Square with [^;,]*queries"
_BUDGET = f"AutoAttack's Square has {AutoAttackBudget().queries} queries"
_OTHER_DATA = Premise("the paper's network is one of CIFAR-10, its radius 8/255")
_READY_MADE = "ready-made PGD-10, %"
_NO_ACCUMULATION = (
    "Without adversarial training, the early state is as robust to the ready-made PGD-10 as "
    "the final state (Sec. 6.5), "
)
_LAST = CellReference(0, ("z8",), _READY_MADE)  # the paper's final state, with its number


def _claim(
    text: str,
    record: str,
    network: str,
    difference: str,
    *,
    base: CellReference | None = None,
    ours: bool = False,
) -> Claim:
    """Make a claim about a difference on third-party networks."""
    return Claim(
        text,
        f"deq/{record}",
        CellReference(_DIFFERENCES, (network, difference), "points"),
        _NETWORK,
        "mnist",
        base=base or CellReference(_STATES, ("final",), "clean, %"),
        ours=ours,
    )


def _trained_here(text: str, network: str, difference: str, *, ours: bool = False) -> Claim:
    """Make a claim about a difference on the networks that are trained here."""
    return Claim(
        text,
        "deq/cifar10-real",
        CellReference(_DIFFERENCES_HERE, (network, difference), "points"),
        f"convolutional network trained here, {PLAN.space}",
        PLAN.data,
        base=CellReference(0, (network,), "clean"),
        ours=ours,
    )


def _if_diverged(claim: Claim) -> Claim:
    """The claim under the premise of Table 1: the solver does not converge."""
    residual = replace(claim.first, column=_RESIDUAL)
    unmet = (
        "the solver converges to a relative error of {:.2g} of the final state; in the paper all "
        f"errors are above {_DIVERGED}"
    )
    return replace(claim, premise=Premise(unmet, residual, _DIVERGED))


def _no_accumulation(text: str, network: str) -> Claim:
    """The claim that a network without adversarial training has no robustness accumulation."""
    claim = _claim(_NO_ACCUMULATION + text, "figure-2-real", network, ACCUMULATION)
    return replace(claim, expected="zero", comparable=False)


def _vanilla(text: str, record: str, first: CellReference) -> Claim:
    """Make a claim about cells of the second network."""
    base = CellReference(0, (_VANILLA, "Final"), "clean")
    if record == "table-5-real":
        base = CellReference(0, ("final",), "clean, %")
    return Claim(text, f"deq/{record}", first, _OTHER_NETWORK, "mnist", base=base)


CLAIMS = (
    _no_accumulation("with exact gradients and 8/7 solver steps.", _SHORT),
    _no_accumulation("with unrolled gradients and 8 solver steps.", _UNROLLED),
    replace(
        _vanilla(
            f"{_NO_ACCUMULATION}with 18/20 steps: the first state against the eighth (Table 5).",
            "table-5-real",
            CellReference(0, ("z1",), _READY_MADE),
        ),
        second=_LAST,
        expected="zero",
    ),
    _if_diverged(
        _claim(
            "With 8/7 solver steps exact gradients are obfuscated: PGD-10 with unrolled gradients "
            "finds a lower accuracy (Table 1).",
            "table-1-real",
            _SHORT,
            MASKED,
        )
    ),
    replace(
        _if_diverged(
            _claim(
                "With 8/7 solver steps Square, without gradients, finds a lower accuracy than "
                f"PGD-10 with exact gradients (Table 1; {_BUDGET}).",
                "table-1-real",
                _SHORT,
                MASKED_SQUARE,
            )
        ),
        quotes=(_QUERIES,),
    ),
    _claim(
        "The adjoint attack with u_(n+1) is stronger on the state z_n than that with u_n, in the "
        "mean over n (Figure 4).",
        "figure-4-real",
        _UNROLLED,
        NEXT,
        base=CellReference(2, ("final",), "clean, %"),
    ),
    _claim(
        "Gradients at intermediate states break the early state more than gradients at the final "
        "state: its robustness to the ready-made attack is an illusion (Table 2).",
        "table-2-real",
        _LONG,
        EARLY_BROKEN,
    ),
    _claim(
        "The ensemble of states is more robust than the final state under the strongest of six "
        "gradients (Table 2).",
        "table-2-real",
        _UNROLLED,
        ENSEMBLE,
    ),
    _claim(
        "The ensemble of states is less robust if the attacker chooses one of the six gradients "
        "per image instead of one for all.",
        "table-2-real",
        _UNROLLED,
        PER_IMAGE,
        ours=True,
    ),
    _claim(
        "The adjoint process without the loss of z_0 breaks the early state more than the paper's.",
        "table-2-real",
        _UNROLLED,
        WITHOUT_START,
        ours=True,
    ),
    replace(
        _vanilla(
            "PGD-10 lowers the accuracy of the eighth state of a network without adversarial "
            "training (Table 5).",
            "table-5-real",
            replace(_LAST, column="clean, %"),
        ),
        second=_LAST,
    ),
    replace(
        _vanilla(
            "PGD-10 leaves no image correct at the eighth state of a network without adversarial "
            "training (Table 5).",
            "table-5-real",
            _LAST,
        ),
        expected="published",
        premise=_OTHER_DATA,
    ),
    replace(
        _vanilla(
            "The strongest of six gradients breaks the ensemble of states of a network without "
            "adversarial training (Table 6).",
            "table-6-real",
            CellReference(0, (_VANILLA, "Ensemble"), LOWEST),
        ),
        expected="at most",
        premise=_OTHER_DATA,
    ),
    _trained_here(
        "Adversarially trained with exact gradients and 8/7 solver steps, an intermediate state is "
        "more robust to the ready-made PGD-10 than the final state (robustness accumulation, "
        "Sec. 6.2).",
        _SHORT,
        ACCUMULATION,
    ),
    _trained_here(
        "Adversarially trained with unrolled gradients and 8 solver steps, an intermediate state "
        "is more robust to the ready-made PGD-10 than the final state (robustness accumulation, "
        "Sec. 6.2).",
        _UNROLLED,
        ACCUMULATION,
    ),
    _trained_here(
        "Adversarially trained with exact gradients and 18/20 solver steps, an intermediate state "
        "is more robust to the ready-made PGD-10 than the final state (robustness accumulation, "
        "Sec. 6.2).",
        _MIDDLE,
        ACCUMULATION,
    ),
    _if_diverged(
        _trained_here(
            "Adversarially trained with exact gradients and 8/7 solver steps, exact gradients are "
            "obfuscated: PGD-10 with unrolled gradients finds a lower accuracy (Table 1).",
            _SHORT,
            MASKED,
        )
    ),
    replace(
        _if_diverged(
            _trained_here(
                "Adversarially trained with exact gradients and 8/7 solver steps, Square finds a "
                f"lower accuracy than PGD-10 with exact gradients (Table 1; {_BUDGET}).",
                _SHORT,
                MASKED_SQUARE,
            )
        ),
        quotes=(_QUERIES,),
    ),
    _trained_here(
        "Adversarially trained with unrolled gradients, gradients at intermediate states break the "
        "early state more than gradients at the final state (Table 2).",
        _UNROLLED,
        EARLY_BROKEN,
    ),
    _trained_here(
        "Adversarially trained with exact gradients and 18/20 solver steps, gradients at "
        "intermediate states break the early state more than gradients at the final state (Table "
        "2; there 50/50 steps).",
        _MIDDLE,
        EARLY_BROKEN,
    ),
    _trained_here(
        "Adversarially trained with unrolled gradients, the ensemble of states is more robust than "
        "the final state under the strongest of six gradients (Table 2).",
        _UNROLLED,
        ENSEMBLE,
    ),
    _trained_here(
        "A solver that is cut off after 2/1 steps in training and inference has obfuscated exact "
        "gradients: PGD-10 with unrolled gradients finds a lower accuracy.",
        _SHORTEST,
        MASKED,
        ours=True,
    ),
    _trained_here(
        "Solved to convergence, a network that was trained with 8/7 steps has an early state that "
        "is more robust to the ready-made PGD-10 than its equilibrium (stated after this result "
        "was seen).",
        "exact-short converged (50/50)",
        ACCUMULATION,
        ours=True,
    ),
    _trained_here(
        "Solved to convergence, a network that was trained with 2/1 steps has an early state that "
        "is more robust to the ready-made PGD-10 than its equilibrium: the early state is close to "
        "the one that it was trained to answer with (stated after this result was seen).",
        "exact-shortest converged (50/50)",
        ACCUMULATION,
        ours=True,
    ),
)
