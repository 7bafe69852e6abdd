"""Symptoms in outcomes and diagnostics: `verdict.SymptomName` lists all of them with advice."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from saddlepoint import phrases
from saddlepoint.audits.diagnostics.indicators import (
    break_point_angle,
    decreasing_share,
    equal_neighbors,
    late_increase,
    overshot,
    relative_change,
    silent_success,
    zero_gradient_share,
)
from saddlepoint.audits.diagnostics.values import SolverResiduals
from saddlepoint.audits.evidence import Evidence
from saddlepoint.audits.statistics import TOLERANCE, at_least_images, significantly_lower
from saddlepoint.audits.verdict import Level, Symptom, SymptomName
from saddlepoint.phrases import (
    agree,
    count,
    count_of,
    mean_count,
    names,
    number,
    percent,
    points,
    points_more,
    radius,
    relative,
    whole,
)

_FEW = 0.1  # fraction of images
_HALF = 0.5  # fraction of images
_INCOMPLETE = 0.05  # of the loss increase in the last quarter of the steps
_STRAIGHT = 135.0  # degrees, half way between a bend and a line
_OSCILLATING = 0.6  # of the later steps
_NOISE = 0.1  # cosine
_SURVIVING = 0.1  # of the images under an unbounded attack
_STEEP = 0.5  # of the mean slope; see `LossCurve.final_slope`
_FAR = 0.1  # a relative residual that no tolerance explains


def symptoms(evidence: Evidence) -> Iterator[Symptom]:
    """All symptoms that the evidence shows."""
    for detect in DETECTORS:
        yield from detect(evidence)


def _black_box_stronger(e: Evidence) -> Iterator[Symptom]:
    n = len(e.clean)
    gradients = e.not_black_box
    by_gradients = e.remaining(gradients)
    by_all = e.remaining(e.own)
    if gradients and significantly_lower(by_all, by_gradients):
        broken = float((by_gradients - by_all).mean())
        yield Symptom(
            SymptomName.BLACK_BOX_STRONGER,
            Level.SERIOUS,
            f"attacks without gradients broke {points_more(broken)} than gradient "
            "attacks: gradients are masked.",
        )
    last = e.rows[-1]
    enough = max(2, 0.01 * n)
    if gradients and not e.black_box and at_least_images(last.gain, 0.0, n, enough):
        yield Symptom(
            SymptomName.NOT_CONVERGED,
            Level.WARNING,
            f"the last attack, {last.name}, still broke {points(last.gain)}.",
        )


def _external_stronger(e: Evidence) -> Iterator[Symptom]:
    """Points from elsewhere break an image that the attacks of the audit leave correct.

    One image is enough, since its point is a fact. With randomness two are needed: the worst case
    over more attacks is lower by chance.
    """
    external = [run for run in e.runs if run.properties.external]
    if not external or not e.own:
        return
    by_own = e.remaining(e.own)
    by_all = e.remaining(e.runs)
    broken = float((by_own - by_all).sum())
    enough = significantly_lower(by_all, by_own) if e.defense.random else broken >= 1 - TOLERANCE
    if enough:
        yield Symptom(
            SymptomName.EXTERNAL_STRONGER,
            Level.SERIOUS,
            f"{names([run.name for run in external])} broke {mean_count(broken, 'image')} that the "
            "attacks of the audit did not: robust accuracy includes them, and may be lower still.",
        )


def _loss_increasing(e: Evidence) -> Iterator[Symptom]:
    """The loss of the strongest attack was still increasing when it ended.

    If several attacks are strongest, all must show it. Minimum-norm attacks do not maximize a loss.
    An attack that broke every image ended because it succeeded.
    """
    least = min(row.robust_accuracy for row in e.rows)
    strongest = [run for run in e.runs if e.row(run).robust_accuracy == least]
    maximizing = [run for run in strongest if not run.minimum_norm]
    slopes = [e.row(run).loss_curve.final_slope or 0.0 for run in maximizing]
    if least > 0 and len(slopes) == len(strongest) and min(slopes) >= _STEEP:
        yield Symptom(
            SymptomName.LOSS_INCREASING,
            Level.WARNING,
            f"the loss of the strongest attack, {strongest[0].name}, was still increasing when it "
            f"ended: its last quarter was {relative(slopes[0])} as steep as the whole curve.",
        )


def _of_proposals(e: Evidence) -> Iterator[Symptom]:
    # Points from elsewhere may be copies: AutoAttack saves the clean image where it fails.
    copies = sum(e.row(run).copies for run in e.own)
    if copies:
        yield Symptom(
            SymptomName.CLEAN_COPIES,
            Level.WARNING,
            f"for {count(copies, 'image')} the attack returned the clean image: "
            f"{agree(copies, 'it was', 'these were')} not attacked.",
        )
    if e.defense.rejects:
        yield Symptom(SymptomName.REJECTIONS, Level.WARNING, _rejections(e))
    if e.defense.unit == "example":
        size = e.plan.job.batch_size
        batches = [one.batch.bincount() for g in e.groups for one in g.outcomes.episodes]
        # The last batch of a cell may be small; the first one is small only if memory ran out.
        parts = [math.ceil(min(size, int(one.sum())) / int(one[0])) for one in batches]
        if max(parts) > 1:
            yield Symptom(
                SymptomName.OUT_OF_MEMORY,
                Level.NOTE,
                f"memory ran out: batches of {count(size, 'image')} were attacked "
                f"in up to {count(max(parts), 'part')}.",
            )
    claimed = torch.cat([g.outcomes.worst_case_per_example()[0] for g in e.groups])
    changed = int((claimed != e.robust).sum())
    if changed and not e.defense.random:
        yield Symptom(
            SymptomName.RESCORING_DISAGREES,
            Level.SERIOUS,
            f"{count_of(changed, len(e.clean), 'output')} changed when the same points were "
            "evaluated again: the target keeps state or has hidden randomness.",
        )


def _rejections(e: Evidence) -> str:
    """What an accuracy that counts rejections as correct consists of."""
    attacked = torch.cat([g.verdict.rejected[0, 0] for g in e.groups])
    adapted = torch.cat([g.verdict.rejected[1, 0] for g in e.groups])
    clean = torch.cat([g.outcomes.episodes[0].rejected[0, 0] for g in e.groups])
    return (
        "a rejection counts as correct. The defense rejects "
        f"{_percent(clean)} of clean images and {_percent(attacked)} of worst points; in the state "
        f"in which it evaluates these, it would reject {_percent(adapted)} of their clean images."
    )


def _unbounded(e: Evidence) -> Iterator[Symptom]:
    """With half the box as radius any image can become gray; surviving that means masking."""
    found = e.diagnoses.unbounded
    if found is not None and found.accuracy > _SURVIVING:
        yield Symptom(
            SymptomName.UNBOUNDED_FAILS,
            Level.SERIOUS,
            f"{percent(found.accuracy, 0)} of images survive an attack with radius "
            f"{radius(found.radius)}, which allows a gray image: gradients do not lead to their "
            "errors.",
        )


def _transfers(e: Evidence) -> Iterator[Symptom]:
    """Whether transferred points break more than white-box attacks, or only the static net."""
    transferred = [run for run in e.runs if run.properties.transfers]
    if not transferred:
        return
    by_gradients = e.remaining(e.white_box)
    by_transfer = e.remaining(transferred)
    if e.white_box and significantly_lower(by_transfer, by_gradients):
        more = float((by_gradients - by_transfer).sum())
        yield Symptom(
            SymptomName.TRANSFER_STRONGER,
            Level.SERIOUS,
            f"transferred points broke {mean_count(more, 'image')} more than gradients of the "
            "defense: these gradients are bad directions.",
        )
    if e.diagnoses.static is None:
        return
    broken = e.diagnoses.static.robust < 0.5
    lost = int((broken & (e.remaining(transferred) >= 0.5)).sum())
    if lost >= 2 and lost >= _HALF * int(broken.sum()):
        yield Symptom(
            SymptomName.TRANSFER_FAILS,
            Level.NOTE,
            f"of {count(int(broken.sum()), 'image')} on which the static net is broken, the "
            f"defense classifies {whole(lost)} correctly at the transferred points (Pintor et al. "
            "2022): its robustness rests on attacks made for it.",
        )


def _eot(e: Evidence) -> Iterator[Symptom]:
    cosine = e.diagnoses.gradient_cosine
    if cosine is not None and cosine < _NOISE:
        yield Symptom(
            SymptomName.EOT_NOT_CONVERGED,
            Level.SERIOUS,
            "two averaged gradients at the same image have a mean cosine of "
            f"{phrases.cosine(cosine)}: attacks follow noise.",
        )


def _watched(e: Evidence) -> Iterator[Symptom]:
    """What the steps of the strongest attack show."""
    seen = e.diagnoses.watched
    if seen is None:
        return
    silent = int(silent_success(seen.success, seen.robust).sum())
    # Where rows influence each other, a row that is misclassified in one batch may not be in the
    # batch with the most errors.
    if silent >= 2 and not e.defense.random and e.defense.unit == "example":
        yield Symptom(
            SymptomName.SILENT_SUCCESS,
            Level.SERIOUS,
            f"{e.strongest_name} evaluated a misclassified point on "
            f"{count_of(silent, len(seen.robust), 'image')} and returned another one.",
        )
    if not seen.robust.any():
        return
    flat = (zero_gradient_share(seen.gradient) > _HALF).double()[seen.robust].mean()
    if float(flat) > _FEW:
        yield Symptom(
            SymptomName.UNAVAILABLE_GRADIENTS,
            Level.SERIOUS,
            f"on {percent(float(flat), 0)} of unbroken images, most gradients of "
            f"{e.strongest_name} are exactly zero.",
        )
        return
    yield from _of_loss_curves(e, seen.value[:, seen.robust])


def _of_loss_curves(e: Evidence, value: Tensor) -> Iterator[Symptom]:
    late = late_increase(value)
    angle = break_point_angle(value)
    incomplete = float((late > _INCOMPLETE).double().mean())
    if incomplete > _HALF and float(angle.median()) > _STRAIGHT:
        yield Symptom(
            SymptomName.INCOMPLETE_OPTIMIZATION,
            Level.WARNING,
            f"{e.strongest_name} made {relative(float(late.median()))} of its progress in its "
            "last quarter (median of unbroken images; the curve bends by "
            f"{float(angle.median()):.0f} degrees, 90 if it had converged).",
        )
    down = float(decreasing_share(value).median())
    if down > _OSCILLATING:
        yield Symptom(
            SymptomName.OSCILLATING_LOSS,
            Level.NOTE,
            f"{percent(down, 0)} of the later steps of {e.strongest_name} decreased the loss "
            "(median): the steps are too long.",
        )


def _landscape(e: Evidence) -> Iterator[Symptom]:
    """The landscape near unbroken images, and on the line to their worst points."""
    found = e.diagnoses.landscape
    if found is None:
        return
    correct = e.robust[found.rows] >= 0.5  # a batch has broken images as well
    near = found.near[:, correct]
    line = found.line[:, correct]
    change = float(relative_change(near, found.center[correct]).median())
    if change > _HALF:
        yield Symptom(
            SymptomName.UNSTABLE_PREDICTIONS,
            Level.WARNING,
            "a random step of a twentieth of the radius changes the margin by "
            f"{percent(change, 0)}{' or more' if change >= 1 else ''} (median): a gradient says "
            "little about nearby points.",
        )
    if len(found.cosine) and float(found.cosine.median()) < _NOISE:
        yield Symptom(
            SymptomName.GRADIENTS_DISAGREE,
            Level.WARNING,
            "gradients at two points a twentieth of the radius apart have a cosine of "
            f"{phrases.cosine(float(found.cosine.median()))} (median).",
        )
    passed = found.line_success[:-1, correct].any(0) & overshot(line)
    over = int(passed.sum())
    if over >= 2 and not e.defense.random:
        yield Symptom(
            SymptomName.OVERSHOOTING,
            Level.SERIOUS,
            f"on {count_of(over, int(correct.sum()), 'unbroken image')}, a point between the image "
            "and its worst point is misclassified: attacks stepped over it.",
        )
    if float(equal_neighbors(line).median()) > _HALF:
        yield Symptom(
            SymptomName.PIECEWISE_CONSTANT,
            Level.WARNING,
            "between an image and its worst point the margin changes in jumps: outputs are "
            "piecewise constant.",
        )


def _residuals(e: Evidence) -> Iterator[Symptom]:
    if e.diagnoses.residuals is not None:
        yield from residual_symptoms(e.diagnoses.residuals)


def residual_symptoms(found: SolverResiduals) -> Iterator[Symptom]:
    """Solvers that stop far from a fixed point, forward or backward."""
    parts = {"clean": found.clean, "attacked": found.attacked}
    far = {name: residual for name, residual in parts.items() if _share(residual)}
    if far:
        texts = [
            f"{percent(_share(r), 0)} of {name} images (median residual {_median(r)})"
            for name, r in far.items()
        ]
        yield Symptom(
            SymptomName.SOLVER_NOT_CONVERGED,
            _level(max(map(_share, far.values()))),
            f"the solver stops with a relative residual above {_FAR:g} on {names(texts)}: "
            "outputs are no equilibria there, and implicit gradients are wrong. Give the solver "
            "more steps, and rely on attacks through its steps (rules Checkpointed and Phantom).",
        )
    share = _share(found.backward)
    if share:
        yield Symptom(
            SymptomName.BACKWARD_NOT_CONVERGED,
            _level(share),
            f"the backward solve stops with a relative residual above {_FAR:g} on "
            f"{count_of(int(_far(found.backward).sum()), len(found.backward), 'image')}: the "
            "implicit gradient is wrong. Give its method more steps, or use another rule.",
        )


def _percent(rejected: Tensor) -> str:
    return percent(float(rejected.double().mean()))


def _median(residual: Tensor) -> str:
    return number(float(residual.median()))


def _share(residual: Tensor) -> float:
    return float(_far(residual).double().mean())


def _far(residual: Tensor) -> Tensor:
    """[N] bool: far from a fixed point. A solve that diverged has a residual of NaN."""
    return ~(residual <= _FAR)


def _level(share: float) -> Level:
    return Level.SERIOUS if share > _FEW else Level.WARNING


DETECTORS: tuple[Callable[[Evidence], Iterator[Symptom]], ...] = (
    _residuals,
    _black_box_stronger,
    _external_stronger,
    _loss_increasing,
    _of_proposals,
    _unbounded,
    _transfers,
    _eot,
    _watched,
    _landscape,
)
