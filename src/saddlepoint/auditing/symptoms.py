"""Signs that a number cannot be trusted, found before or after the attacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from saddlepoint.attack.nearest import MINIMUM_NORM
from saddlepoint.auditing.cell import Group
from saddlepoint.auditing.findings import Symptom
from saddlepoint.auditing.trials import Trials

_STANDING = 0.1  # of the images under an attack that may do anything
_STEEP = 0.5  # of the mean: on the way to a limit a fifth of it is still ahead, see `Ascent.pace`


def signs(t: Trials) -> Iterator[Symptom]:
    """What the attacks themselves give away, and the trials after them."""
    n, job = len(t.job.x), t.job
    seeing, blind = [one for one in t.sent if not one.black_box], [one for one in t.sent if one.black_box]
    taken = float((t.left(seeing) - t.left([*seeing, *blind])).mean())  # in whatever order they were sent
    if seeing and taken * n >= 2 and taken >= 0.01:
        yield Symptom(
            "black box beats white box", "serious",
            f"attacks without gradients took {100 * taken:.1f} points from what gradient attacks had left: gradients are masked.",
            "Find the step that hides them and give it a rule (BPDA), or differentiate from scores (SPSA).", "gradient",
        )  # fmt: skip
    last = t.rows[-1]
    if seeing and not blind and last.gain * n >= 2 and last.gain >= 0.01:
        yield Symptom(
            "not converged", "warning", f"the last attack, {last.name}, still took {100 * last.gain:.1f} points.",
            "Take a larger budget: it would take more.",
        )  # fmt: skip
    yield from _rising(t)
    copies = sum(row.copies for row in t.rows)
    if copies:
        yield Symptom(
            "clean copies", "warning", f"{copies} proposals were the clean image itself: the attack could not move there."
        )
    if job.defense.rejects:
        yield Symptom("rejections", "warning", _rejections(t.groups))
    split = max(int(e.batch.amax()) + 1 for g in t.groups for e in g.outcomes.episodes) if job.defense.unit == "example" else 1
    if split > 1:
        yield Symptom("memory", "note", f"memory ran out: batches of {job.batch_size} were attacked in up to {split} parts.")
    claimed = torch.cat([g.outcomes.worst_case_per_example()[0] for g in t.groups])
    changed = int((claimed != t.judged).sum())
    if changed and not job.defense.random:
        yield Symptom(
            "re-scoring disagrees", "serious",
            f"{changed} of {n} answers changed when the same points were asked about again: the target keeps state or hides "
            "randomness.",
        )  # fmt: skip
    yield from _unbounded(t)


def _rejections(groups: Sequence[Group]) -> str:
    """What stands behind an accuracy in which a refusal counts as right."""
    attacked, beside = (100 * torch.cat([g.verdict.rejected[k, 0] for g in groups]).mean().item() for k in (0, 1))
    clean = 100 * torch.cat([g.outcomes.episodes[0].rejected[0, 0] for g in groups]).mean().item()
    return (
        f"a refusal counts as right, and the defence refuses {clean:.1f} % of clean images. Of the worst points it refuses "
        f"{attacked:.1f} %, and as it is when it meets them it would refuse {beside:.1f} % of the clean images they were made from."
    )


def _rising(t: Trials) -> Iterator[Symptom]:
    """Was the attack that did most harm still climbing when it ended? Of several that did, one that was not is enough.

    An attack that looks for the nearest mistake does not climb, and its last point may be its only one in the set. One that left
    nothing standing ended because it had won.
    """
    most = min(row.robust_accuracy for row in t.rows)
    strongest = [(t.rows[one.index - 1], one) for one in t.sent if t.rows[one.index - 1].robust_accuracy == most]
    paces = [row.ascent.pace or 0.0 for row, one in strongest if not one.kinds & MINIMUM_NORM]
    if most > 0 and len(paces) == len(strongest) and min(paces) >= _STEEP:
        yield Symptom(
            "still rising", "warning",
            f"the strongest attack, {strongest[0][0].name}, was still climbing when it ended: the last quarter of its passes was "
            f"{100 * paces[0]:.0f} % as steep as its whole climb.",
            "Give it more steps or queries, or the audit a larger budget.",
        )  # fmt: skip


def _unbounded(t: Trials) -> Iterator[Symptom]:
    """With half the box as its radius an attack can turn any image grey: a defence that survives that hides its gradients."""
    if t.unbounded is not None and t.unbounded[1] > _STANDING:
        radius, accuracy = t.unbounded
        yield Symptom(
            "unbounded attack fails", "serious",
            f"{100 * accuracy:.0f} % of the images survive an attack with radius {radius:.3g}, which allows a grey image: the "
            "gradients do not lead anywhere.",
            "Find the step that hides them and give it a rule (BPDA), or differentiate from scores (SPSA).", "gradient",
        )  # fmt: skip
