"""What several messages of the checklist say in the same words."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from saddlepoint.audits.diagnostics.values import Compared
from saddlepoint.audits.evidence import AttackRun, Evidence
from saddlepoint.audits.verdict import Cost
from saddlepoint.phrases import agree, count, count_of, how_often, names, percent


def broken_images(compared: Compared) -> str:
    """The part of correctly classified images that an attack broke.

    For a randomized defense other draws may be better, so the part may be negative: it broke none.
    """
    broken = max(float((compared.first - compared.second).sum()), 0.0)
    return count_of(broken, len(compared.first), "correctly classified image")


def clean_transfers(runs: Sequence[AttackRun], copied: int) -> str:
    """Transfer attacks that propose clean images, and how many they proposed."""
    if copied:
        return f"{names_of(runs)} transferred {count(copied, 'clean image')}"
    verb = agree(len({run.name for run in runs}), "transfers", "transfer")
    return f"{names_of(runs)} {verb} clean images where there is no success (here on no image)"


def calls_of(cost: Cost) -> str:
    """How often a defense calls its static net."""
    if not cost.calls:
        return "does not call it"
    message = f"calls it {how_often(cost.calls)}"
    if not cost.graded:
        return message
    if cost.graded == cost.calls:
        return f"{message}, {agree(cost.calls, 'with', 'each time with')} gradients"
    return f"{message}, {how_often(cost.graded)} with gradients"


def percent_of(correct: Tensor) -> str:
    """The mean correctness of images [N], at least one."""
    return percent(float(correct.double().mean()))


def leave(e: Evidence, runs: Sequence[AttackRun]) -> str:
    """The accuracy that these attacks leave."""
    verb = agree(len({run.name for run in runs}), "leaves", "leave")
    return f"{names_of(runs)} {verb} {percent_of(e.remaining(runs))}"


def names_of(runs: Sequence[AttackRun]) -> str:
    """The different names of attacks."""
    return names(run.name for run in runs)
