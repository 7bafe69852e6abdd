"""The claims of the paper that our records decide."""

from __future__ import annotations

from saddlepoint.papers.claims import CellReference, Claim
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


CLAIMS = (
    _claim(
        "Intermediate states are more robust to the ready-made PGD-10 than the final state "
        "(robustness accumulation, Sec. 6.1), solver with 8 steps.",
        "figure-2-real",
        _SHORT,
        ACCUMULATION,
    ),
    _claim("The same with unrolled gradients.", "figure-2-real", _UNROLLED, ACCUMULATION),
    _claim(
        "With 8/7 solver steps exact gradients are obfuscated: PGD-10 with unrolled gradients "
        "finds a lower accuracy (Table 1; the paper's solver does not converge, this one does).",
        "table-1-real",
        _SHORT,
        MASKED,
    ),
    _claim(
        "With 8/7 solver steps Square, without gradients, finds a lower accuracy than PGD-10 with "
        "exact gradients (Table 1; the paper's solver does not converge, this one does).",
        "table-1-real",
        _SHORT,
        MASKED_SQUARE,
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
    Claim(
        "PGD-10 breaks the final state of a network without adversarial training: its accuracy is "
        "far below the clean one (Table 5).",
        "deq/table-5-real",
        CellReference(0, ("final",), "clean, %"),
        _OTHER_NETWORK,
        "mnist",
        second=CellReference(0, ("final",), "ready-made PGD-10, %"),
        base=CellReference(0, ("final",), "clean, %"),
    ),
    Claim(
        "PGD-10 leaves no image correct at the eighth state of such a network (Table 5; there on "
        "CIFAR-10 with radius 8/255).",
        "deq/table-5-real",
        CellReference(0, ("z8",), "ready-made PGD-10, %"),
        _OTHER_NETWORK,
        "mnist",
        expected="published",
        base=CellReference(0, ("final",), "clean, %"),
    ),
    Claim(
        "The strongest of six gradients breaks the ensemble of states of such a network (Table 6; "
        "there on CIFAR-10 with radius 8/255).",
        "deq/table-6-real",
        CellReference(0, (_VANILLA, "Ensemble"), LOWEST),
        _OTHER_NETWORK,
        "mnist",
        expected="at most",
        base=CellReference(0, (_VANILLA, "Ensemble"), "clean"),
    ),
    _trained_here(
        "Adversarially trained with exact gradients and 8/7 solver steps, an intermediate state is "
        "more robust to the ready-made PGD-10 than the final state (robustness accumulation).",
        _SHORT,
        ACCUMULATION,
    ),
    _trained_here("The same with unrolled gradients.", _UNROLLED, ACCUMULATION),
    _trained_here("The same with exact gradients and 18/20 steps.", _MIDDLE, ACCUMULATION),
    _trained_here(
        "Adversarially trained with exact gradients and 8/7 solver steps, exact gradients are "
        "obfuscated: PGD-10 with unrolled gradients finds a lower accuracy (Table 1; the paper's "
        "solver does not converge, this one does).",
        _SHORT,
        MASKED,
    ),
    _trained_here(
        "Adversarially trained with exact gradients and 8/7 solver steps, Square finds a lower "
        "accuracy than PGD-10 with exact gradients (Table 1; the paper's solver does not converge, "
        "this one does).",
        _SHORT,
        MASKED_SQUARE,
    ),
    _trained_here(
        "Adversarially trained with unrolled gradients, gradients at intermediate states break the "
        "early state more than gradients at the final state (Table 2).",
        _UNROLLED,
        EARLY_BROKEN,
    ),
    _trained_here("The same with exact gradients and 18/20 steps.", _MIDDLE, EARLY_BROKEN),
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
        "The same if it was trained with 2/1 steps: the early state is close to the one that it "
        "was trained to answer with (stated after this result was seen).",
        "exact-shortest converged (50/50)",
        ACCUMULATION,
        ours=True,
    ),
)
