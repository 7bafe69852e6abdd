"""Signs that a number cannot be trusted, found before or after the attacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from saddlepoint.audits.cells import Group
from saddlepoint.audits.diagnostics.indicators import (
    break_point_angle,
    falls,
    jagged,
    late_rise,
    silent_success,
    steps_only,
    unstable,
    zero_gradients,
)
from saddlepoint.audits.diagnostics.landscape import agreement, along, around
from saddlepoint.audits.diagnostics.trials import FEW, Trials
from saddlepoint.audits.verdict import Symptom

_FEW = 0.1
_HALF = 0.5  # of the images
_INCOMPLETE = 0.05  # of a climb in its last quarter
_STRAIGHT = 135.0  # degrees, half way between a bend and a line
_BOUNCING = 0.6  # of the later steps
_NOISE = 0.1  # cosine
_STANDING = 0.1  # of the images under an attack that may do anything
_STEEP = 0.5  # of the mean: on the way to a limit a fifth of it is still ahead, see `Ascent.pace`


def signs(t: Trials) -> Iterator[Symptom]:
    """What the attacks themselves give away, and the trials after them."""
    n = len(t.job.x)
    job = t.job
    seeing = [one for one in t.sent if not one.black_box]
    blind = [one for one in t.sent if one.black_box]
    taken = float(
        (t.left(seeing) - t.left([*seeing, *blind])).mean()
    )  # in whatever order they were sent
    if seeing and taken * n >= 2 and taken >= 0.01:
        yield Symptom(
            "black box beats white box", "serious",
            f"attacks without gradients took {100 * taken:.1f} points from what gradient attacks had left: gradients are masked.",
            "Find the step that hides them and give it a rule (BPDA), or differentiate from scores (SPSA).", "zero gradients",
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
            "clean copies",
            "warning",
            f"{copies} proposals were the clean image itself: the attack could not move there.",
        )
    if job.defense.rejects:
        yield Symptom("rejections", "warning", _rejections(t.groups))
    split = (
        max(int(e.batch.amax()) + 1 for g in t.groups for e in g.outcomes.episodes)
        if job.defense.unit == "example"
        else 1
    )
    if split > 1:
        yield Symptom(
            "memory",
            "note",
            f"memory ran out: batches of {job.batch_size} were attacked in up to {split} parts.",
        )
    claimed = torch.cat([g.outcomes.worst_case_per_example()[0] for g in t.groups])
    changed = int((claimed != t.judged).sum())
    if changed and not job.defense.random:
        yield Symptom(
            "re-scoring disagrees", "serious",
            f"{changed} of {n} answers changed when the same points were asked about again: the target keeps state or hides "
            "randomness.",
        )  # fmt: skip
    yield from _unbounded(t)
    yield from _transfers(t)
    if t.agreement is not None and t.agreement < _NOISE:
        yield Symptom(
            "EoT has not converged", "serious",
            f"two averaged gradients at the same image have a mean cosine of {t.agreement:.2f}: what is followed is noise.",
            "Average over more draws, or fix the coins.", "noisy gradients",
        )  # fmt: skip
    yield from _watched(t)
    yield from _surface(t)


def _rejections(groups: Sequence[Group]) -> str:
    """What stands behind an accuracy in which a refusal counts as right."""
    attacked, beside = (
        100 * torch.cat([g.verdict.rejected[k, 0] for g in groups]).mean().item() for k in (0, 1)
    )
    clean = 100 * torch.cat([g.outcomes.episodes[0].rejected[0, 0] for g in groups]).mean().item()
    return (
        f"a refusal counts as right, and the defense refuses {clean:.1f} % of clean images. Of the worst points it refuses "
        f"{attacked:.1f} %, and as it is when it meets them it would refuse {beside:.1f} % of the clean images they were made from."
    )


def _rising(t: Trials) -> Iterator[Symptom]:
    """Was the attack that did most harm still climbing when it ended? Of several that did, one that was not is enough.

    An attack that looks for the nearest mistake does not climb, and its last point may be its only one in the set. One that left
    nothing standing ended because it had won.
    """
    most = min(row.robust_accuracy for row in t.rows)
    strongest = [
        (t.rows[one.index - 1], one)
        for one in t.sent
        if t.rows[one.index - 1].robust_accuracy == most
    ]
    paces = [row.loss_curve.pace or 0.0 for row, one in strongest if not one.nearest]
    if most > 0 and len(paces) == len(strongest) and min(paces) >= _STEEP:
        yield Symptom(
            "still rising", "warning",
            f"the strongest attack, {strongest[0][0].name}, was still climbing when it ended: the last quarter of its passes was "
            f"{100 * paces[0]:.0f} % as steep as its whole climb.",
            "Give it more steps or queries, or the audit a larger budget.",
        )  # fmt: skip


def _unbounded(t: Trials) -> Iterator[Symptom]:
    """With half the box as its radius an attack can turn any image gray: a defense that survives that hides its gradients."""
    if t.unbounded is not None and t.unbounded[1] > _STANDING:
        radius, accuracy = t.unbounded
        yield Symptom(
            "unbounded attack fails", "serious",
            f"{100 * accuracy:.0f} % of the images survive an attack with radius {radius:.3g}, which allows a gray image: the "
            "gradients do not lead anywhere.",
            "Find the step that hides them and give it a rule (BPDA), or differentiate from scores (SPSA).", "zero gradients",
        )  # fmt: skip


def _transfers(t: Trials) -> Iterator[Symptom]:
    """Points from elsewhere that do more than the defense's own gradients, or that fool the static net alone."""
    own = [one for one in t.sent if one.white_box]
    handed = [one for one in t.sent if one.transfers]
    if not handed:
        return
    taken = float((t.left(own) - t.left(handed)).sum())
    if own and taken >= 2 and taken >= 0.01 * len(t.clean):
        yield Symptom(
            "transfer beats white box", "serious",
            f"points found on another net took {taken:.0f} images more than the defense's own gradients did: these mislead.",
            "Replace the backward pass of what the defense adds (BPDA with the identity), or aim at its intermediate views.",
            "zero gradients",
        )  # fmt: skip
    if t.static_left is None:
        return
    fell = t.static_left < 0.5
    lost = int((fell & (t.left(handed) >= 0.5)).sum())
    if lost >= 2 and lost >= _HALF * int(fell.sum()):
        yield Symptom(
            "transfer fails", "note",
            f"of {int(fell.sum())} images on which the static net falls, the defense answers {lost} rightly under the points that "
            "were made there (Pintor et al. 2022): it is another function, and its robustness rests on attacks of its own.",
        )  # fmt: skip


def _watched(t: Trials) -> Iterator[Symptom]:
    """What the strongest attack gives away when it is watched step by step."""
    if t.seen is None:
        return
    seen = t.seen
    stands = t.seen.stands
    silent = int(silent_success(seen.success, stands).sum())
    if silent >= 2 and not t.job.defense.random:
        yield Symptom(
            "silent success", "serious",
            f"{t.climber} met a point that fools on its way on {silent} of {len(stands)} images and handed over another one.",
            "Keep the best point of an attack, not its last; if it does, the target keeps state.", "state",
        )  # fmt: skip
    if not stands.any():
        return
    flat = float((zero_gradients(seen.slope) > _HALF).double()[stands].mean())
    if flat > _FEW:
        yield Symptom(
            "unavailable gradients", "serious",
            f"on {100 * flat:.0f} % of the images that stand, most gradients that {t.climber} followed are exactly zero.",
            "Find the step that kills them and give it a rule (BPDA), or use another loss where logits saturate.", "zero gradients",
        )  # fmt: skip
        return
    rising = late_rise(seen.value)[stands]
    angle = break_point_angle(seen.value)[stands]
    if float((rising > _INCOMPLETE).double().mean()) > _HALF and float(angle.median()) > _STRAIGHT:
        yield Symptom(
            "incomplete optimization", "warning",
            f"{t.climber} gained {100 * float(rising.median()):.0f} % of its climb in its last quarter (median of images that "
            f"stand; the bend has {float(angle.median()):.0f} degrees, 90 if it had arrived).",
            "Give it more steps.",
        )  # fmt: skip
    falling = float(falls(seen.value)[stands].median())
    if falling > _BOUNCING:
        yield Symptom(
            "falling objective", "note",
            f"{100 * falling:.0f} % of the later steps of {t.climber} went down (median): they are too long for this landscape.",
            "Use APGD, or a smaller step_size.",
        )  # fmt: skip


def _surface(t: Trials) -> Iterator[Symptom]:
    """The landscape near images that stand, and on the way to their worst points."""
    rows = t.some(FEW, t.judged >= 0.5)
    if not len(rows) or t.job.defense.memory != "none" or t.job.defense.grants == "decision":
        return  # nothing stands, it would have to learn anew at every point, or labels are all there is
    change = float(unstable(*around(t.job, rows)).median())
    if change > _HALF:
        yield Symptom(
            "unstable predictions", "warning",
            f"a random step of a twentieth of the radius changes the margin by {100 * change:.0f} % (median): gradients at a point "
            "say little about its neighborhood.",
            "Average gradients over such steps, or over more coins (EoT).", "noisy gradients",
        )  # fmt: skip
    cosine = agreement(t.job, rows)
    if cosine is not None and float(cosine.median()) < _NOISE:
        yield Symptom(
            "gradients disagree", "warning",
            f"two starts a twentieth of the radius apart see gradients with a cosine of {float(cosine.median()):.2f} (median).",
            "Smooth them: average over neighbors, as VMI does, or over coins (EoT).", "noisy gradients",
        )  # fmt: skip
    yield from _line(t, rows)


def _line(t: Trials, rows: Tensor) -> Iterator[Symptom]:
    points = torch.cat([g.points for g in t.groups])[rows.cpu()]
    value, fools = along(t.job, rows, points)
    passed = int((fools[:-1].any(0) & jagged(value) & (t.judged[rows.cpu()] >= 0.5)).sum())
    if passed >= 2 and not t.job.defense.random:
        yield Symptom(
            "overshot", "serious",
            f"on the way to the worst points of {passed} of {len(rows)} images that stand lies one that fools: it was jumped over.",
            "Use smaller steps, or an attack that looks for the nearest mistake (FAB, FMN).",
        )  # fmt: skip
    if float(steps_only(value).median()) > _HALF:
        yield Symptom(
            "staircase", "warning",
            "between an image and its worst point the margin changes in steps: the target is piecewise constant.",
            "Give the step that quantizes a rule (BPDA), or trust attacks without gradients.", "quantized",
        )  # fmt: skip
