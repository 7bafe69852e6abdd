"""What several messages of the checklist say in the same words."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from saddlepoint.audits.diagnostics.values import Compared
from saddlepoint.audits.evidence import AttackRun, Evidence
from saddlepoint.audits.probes.traits import TraitName
from saddlepoint.audits.verdict import Cost
from saddlepoint.phrases import agree, count, count_of, how_often, names, percent


def broken_images(compared: Compared) -> str:
    """The part of correctly classified images that an attack broke.

    Rows of a batch that were misclassified before are in the comparison and not counted.
    For a randomized defense other draws may be better, so the part may be negative: it broke none.
    """
    broken = max(float((compared.first - compared.second).sum()), 0.0)
    certain = bool(((compared.first == 0) | (compared.first == 1)).all())
    correct = int(compared.first.sum())
    if not certain or not correct:
        return count_of(broken, len(compared.first), "image")
    return count_of(broken, correct, "correctly classified image")


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


def without_static(e: Evidence) -> str:
    """Why nothing is compared with a static net, and how to declare one that is inside."""
    if TraitName.OPTIMIZES in e.plan.traits:
        return (
            "the target declares no static net, although it optimizes at test time. If it changes "
            "the image for a network inside, wrap it in a Defense with `static` set to this "
            "network: attacks on it are then transferred, and both are compared "
            "(docs/defenses/purifier.md)."
        )
    return "there is no static net inside."


def percent_of(correct: Tensor) -> str:
    """The mean correctness of images [N], at least one."""
    return percent(float(correct.double().mean()))


def leave(e: Evidence, runs: Sequence[AttackRun]) -> str:
    """The accuracy that these attacks leave.

    Remedies run only on images that earlier attacks left, so they are shown with their number. The
    accuracy under remedies alone would count images that they did not attack.
    """
    further = [run for run in runs if run.remedy]
    if further and len(further) == len(runs):
        return _broke_of_rest(e, further)
    first = [run for run in runs if not run.remedy]
    verb = agree(len({run.name for run in first}), "leaves", "leave")
    message = f"{names_of(first)} {verb} {percent_of(e.remaining(first))}"
    if not further:
        return message
    images = count(_attacked(e, further), "remaining image")
    return f"{message}, with {names_of(further)} on {images} {percent_of(e.remaining(runs))}"


def _broke_of_rest(e: Evidence, remedies: Sequence[AttackRun]) -> str:
    """How many of the images that earlier attacks left remedies broke."""
    earlier = e.runs[: min(run.index for run in remedies) - 1]
    broken = float((e.remaining(earlier) - e.remaining([*earlier, *remedies])).sum())
    attacked = _attacked(e, remedies)
    found = count_of(min(max(broken, 0.0), attacked), attacked, "image")
    return f"{names_of(remedies)} broke {found} that earlier attacks had left"


def _attacked(e: Evidence, runs: Sequence[AttackRun]) -> int:
    return max(e.row(run).attacked for run in runs)


def needs_of(e: Evidence, *, gradients_fail: bool) -> str:
    """What an attack made for this defense needs."""
    needs = []
    if gradients_fail:
        needs.append("a rule where gradients fail (BPDA)")
    if e.defense.random:
        needs.append("averaging over draws (EoT)")
    if e.defense.memory != "none":
        needs.append("anticipation of the adapted model (FixedPoint, GreedyModelSpace)")
    return f": it needs {names(needs)}" if needs else ""


def names_of(runs: Sequence[AttackRun]) -> str:
    """The different names of attacks."""
    return names(run.name for run in runs)
