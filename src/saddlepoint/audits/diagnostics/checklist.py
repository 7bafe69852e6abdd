"""The checklist of an evaluation: `verdict.ItemName` lists all items and where they are from."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from saddlepoint import phrases
from saddlepoint.audits.diagnostics.values import Compared
from saddlepoint.audits.diagnostics.wording import (
    broken_images,
    calls_of,
    clean_transfers,
    leave,
    names_of,
    needs_of,
    percent_of,
    without_static,
)
from saddlepoint.audits.evidence import Evidence
from saddlepoint.audits.statistics import fewer_images, mcnemar, significantly_lower
from saddlepoint.audits.verdict import Item, ItemName, State, enough_tested
from saddlepoint.evaluation import RowSearch
from saddlepoint.phrases import (
    agree,
    count,
    percent,
    points_more,
    radius,
    times,
)

_SHARE = 0.1  # of the images: more is not a few outliers
# Images. If the defense classified all of them correctly, a one-sided McNemar test would give 1/32.
_ENOUGH_BROKEN = 5
_MOST_MISSED = 0.01  # accuracy
_NOISE = 0.1  # cosine below which two averaged gradients are unrelated


def checklist(evidence: Evidence) -> tuple[Item, ...]:
    """All items, in the order of the steps of an evaluation."""
    return tuple(check(evidence) for check in CHECKS)


def _tested(e: Evidence) -> Item:
    return enough_tested(
        len(e.clean), float(e.clean.double().mean()), e.plan.job.threat.space.radius
    )


def _transfer(e: Evidence) -> Item:
    if e.static is None:
        return Item(ItemName.TRANSFER, State.NOT_APPLICABLE, without_static(e))
    runs = [run for run in e.runs if run.transfers_from(e.defense.static)]
    if not runs:
        return Item(
            ItemName.TRANSFER,
            State.NOT_RUN,
            "no points were transferred from the static net. Run Transfer(adversary, Plain(net)).",
        )
    copied = sum(e.row(run).copies for run in runs)
    if copied or any(run.properties.clean_fallback for run in runs):
        return Item(
            ItemName.TRANSFER,
            State.FAIL,
            f"{clean_transfers(runs, copied)}. Where an attack fails, its points of highest loss "
            "must be transferred.",
        )
    return Item(
        ItemName.TRANSFER,
        State.PASS,
        f"points of highest loss were transferred; {leave(e, runs)}.",
    )


def _black_box(e: Evidence) -> Item:
    runs = e.black_box
    if not runs:
        return Item(
            ItemName.BLACK_BOX,
            State.NOT_RUN,
            "no attack without gradients was run. Use a larger budget, or run Square or RayS.",
        )
    compared = e.diagnoses.static_queries
    if compared is None:
        return Item(ItemName.BLACK_BOX, State.PASS, f"{leave(e, runs)}.")
    message = (
        f"on {count(len(compared.first), 'image')} under {names_of(runs)}: defense "
        f"{percent_of(compared.first)}, static net {percent_of(compared.second)}"
    )
    test = mcnemar(compared.first, compared.second)
    if test.second_better:
        return Item(
            ItemName.BLACK_BOX,
            State.FAIL,
            f"{message}: the static net is more robust without the defense "
            f"(p = {test.p:.2g}{_as_if_independent(e)}).",
        )
    return Item(ItemName.BLACK_BOX, State.PASS, f"{message}.")


def _white_box(e: Evidence) -> Item:
    if not e.gradients_granted:
        access = e.plan.job.threat.access
        return Item(
            ItemName.WHITE_BOX,
            State.NOT_APPLICABLE,
            f"the threat model grants {access} access only.",
        )
    runs = e.white_box
    if not runs:
        reason = "no attack with gradients was run"
        if not e.gradients_available:
            reason = "the target has no gradients"
        return Item(
            ItemName.WHITE_BOX, State.NOT_RUN, f"{reason}, though the threat model grants them."
        )
    message = leave(e, runs)
    zero = _zero_gradient_share(e)
    if zero > _SHARE:
        return Item(
            ItemName.WHITE_BOX,
            State.FAIL,
            f"{message}, but the gradients of the strongest attack, {e.strongest_name}, are zero "
            f"on {percent(zero, 0)} of images.",
        )
    return Item(ItemName.WHITE_BOX, State.PASS, f"{message}.")


def _backward(e: Evidence) -> Item:
    if not e.gradients_granted:
        return Item(ItemName.BACKWARD, State.NOT_APPLICABLE, "gradients are not granted.")
    if e.callable_target:
        return Item(
            ItemName.BACKWARD, State.NOT_APPLICABLE, "there is no backward pass to replace."
        )
    share = e.diagnoses.gradient_failure
    message = f"plain gradients fail on {percent(share, 0)} of images"
    if share <= _SHARE:
        return Item(ItemName.BACKWARD, State.NOT_APPLICABLE, f"{message}.")
    runs = [run for run in e.runs if run.properties.approximate_backward]
    if not runs:
        return Item(
            ItemName.BACKWARD,
            State.NOT_RUN,
            f"{message}, and no backward pass was replaced. Set a rule at the site where the "
            "gradient is lost: BPDA().",
        )
    if e.black_box and significantly_lower(e.remaining(e.black_box), e.remaining(runs)):
        return Item(
            ItemName.BACKWARD,
            State.FAIL,
            f"{message}; {leave(e, runs)}, but {leave(e, e.black_box)}: try other rules"
            f"{', on all images' if all(run.remedy for run in runs) else ''}.",
        )
    return Item(ItemName.BACKWARD, State.PASS, f"{message}; {leave(e, runs)}.")


def _randomness(e: Evidence) -> Item:
    if not e.gradients_granted:
        return Item(ItemName.RANDOMNESS, State.NOT_APPLICABLE, "gradients are not granted.")
    if not e.defense.random:
        return Item(ItemName.RANDOMNESS, State.NOT_APPLICABLE, "the defense is deterministic.")
    runs = [run for run in e.white_box if run.properties.handles_randomness]
    if not runs and e.plan.job.threat.randomness != "fixed":
        return Item(
            ItemName.RANDOMNESS,
            State.NOT_RUN,
            "the defense is randomized, and no attack averages over draws or fixes them. Use EoT.",
        )
    cosine = e.diagnoses.gradient_cosine
    if cosine is None:
        return Item(ItemName.RANDOMNESS, State.PASS, "the randomness is fixed.")
    message = f"two gradients at the same image have a mean cosine of {phrases.cosine(cosine)}"
    if cosine < _NOISE:
        return Item(
            ItemName.RANDOMNESS,
            State.FAIL,
            f"{message}: they are noise. Average over more draws.",
        )
    return Item(ItemName.RANDOMNESS, State.PASS, f"{message}.")


def _adaptive(e: Evidence) -> Item:
    fails = e.diagnoses.gradient_failure > _SHARE
    adaptive = [run for run in e.runs if run.adaptive(e.defense, gradients_fail=fails)]
    other = [run for run in e.not_black_box if run not in adaptive]
    if e.static is None and e.defense.memory == "none" and not other:
        return Item(ItemName.ADAPTIVE, State.NOT_APPLICABLE, "every attack used the whole target.")
    if not adaptive:
        return Item(
            ItemName.ADAPTIVE,
            State.NOT_RUN,
            f"no attack was made for what the defense does at test "
            f"time{needs_of(e, gradients_fail=fails)}.",
        )
    if not other:
        return Item(
            ItemName.ADAPTIVE, State.PASS, f"{leave(e, adaptive)}; no other attack was run."
        )
    ours = e.remaining(adaptive)
    theirs = e.remaining(other)
    weaker = significantly_lower(theirs, ours)
    static = f"attacks made for a static net ({names_of(other)}) leave {percent_of(theirs)}"
    if all(run.remedy for run in other):  # on images that others had not broken
        static = f"of attacks made for a static net, {leave(e, other)}"
    if all(run.remedy for run in adaptive):  # they did not attack what others had broken
        return Item(
            ItemName.ADAPTIVE,
            State.NOT_RUN if weaker else State.PASS,
            f"{static}; {leave(e, adaptive)}, and did not run on the others.",
        )
    chance = ", which may be chance" if not weaker and theirs.sum() < ours.sum() else ""
    state = State.FAIL if weaker else State.PASS
    return Item(ItemName.ADAPTIVE, state, f"{leave(e, adaptive)}, {static}{chance}.")


def _single_step(e: Evidence) -> Item:
    if not e.gradients_granted:
        return Item(ItemName.SINGLE_STEP, State.NOT_APPLICABLE, "gradients are not granted.")
    compared = e.diagnoses.one_step
    if compared is None:
        return Item(ItemName.SINGLE_STEP, State.NOT_RUN, "no iterative attack was run.")
    failed = significantly_lower(compared.first, compared.second)
    return Item(
        ItemName.SINGLE_STEP,
        State.FAIL if failed else State.PASS,
        f"on {count(len(compared.first), 'image')} one step leaves {percent_of(compared.first)}, "
        f"many steps leave {percent_of(compared.second)}.",
    )


def _converged(e: Evidence) -> Item:
    if not e.gradients_granted:
        return Item(ItemName.CONVERGED, State.NOT_APPLICABLE, "gradients are not granted.")
    compared = e.diagnoses.longer
    if compared is None:
        return Item(ItemName.CONVERGED, State.NOT_RUN, "no iterative attack was run.")
    if not len(compared.first):
        return Item(ItemName.CONVERGED, State.PASS, "every image is already misclassified.")
    failed = significantly_lower(compared.second, compared.first) or _missed(e, compared)
    search = ""
    if any(isinstance(run.adversary, RowSearch) for run in e.runs):
        search = ", or another search over single rows,"
    return Item(
        ItemName.CONVERGED,
        State.FAIL if failed else State.PASS,
        f"twice the steps of {e.strongest_name} from two other starts{search} break "
        f"{broken_images(compared)}.",
    )


def _missed(e: Evidence, compared: Compared) -> bool:
    """Whether attacks missed more than one point of accuracy, estimated from a sample of images.

    The part of the unbroken images of the sample that was broken, times all unbroken images. An
    image that a deterministic defense misclassifies is broken, not broken by chance.
    """
    if e.defense.random:
        return False
    share = float((compared.first - compared.second).sum() / compared.first.sum())
    return share * float((e.robust >= 0.5).double().mean()) > _MOST_MISSED


def _unbounded(e: Evidence) -> Item:
    if not e.gradients_available:
        state = State.NOT_RUN if e.gradients_granted else State.NOT_APPLICABLE
        return Item(ItemName.UNBOUNDED, state, "there are no gradients to follow.")
    found = e.diagnoses.unbounded
    if found is None:
        return Item(
            ItemName.UNBOUNDED, State.NOT_APPLICABLE, "the threat model allows any image already."
        )
    return Item(
        ItemName.UNBOUNDED,
        State.FAIL if found.accuracy > _SHARE else State.PASS,
        f"with radius {radius(found.radius)}, which allows a gray image, "
        f"{percent(found.accuracy, 0)} of images are still classified correctly.",
    )


def _masked(e: Evidence) -> Item:
    if not e.gradients_granted:
        return Item(ItemName.MASKED, State.NOT_APPLICABLE, "gradients are not granted.")
    if not e.black_box or not e.not_black_box:
        kind = "with" if e.not_black_box else "without"
        return Item(ItemName.MASKED, State.NOT_RUN, f"only attacks {kind} gradients were run.")
    every = e.remaining(e.own)
    gradients = e.remaining(e.not_black_box)
    failed = significantly_lower(every, gradients)
    return Item(
        ItemName.MASKED,
        State.FAIL if failed else State.PASS,
        f"{names_of(e.black_box)} broke {points_more(_drop(gradients, every))} than attacks with "
        "gradients.",
    )


def _clean(e: Evidence) -> Item:
    slack = 0.0
    if e.defense.random:  # two standard errors of a difference
        slack = 2 * (0.5 / (len(e.clean) * e.plan.job.threat.draws)) ** 0.5
    weakest = max(e.rows, key=lambda row: row.robust_accuracy)
    failed = fewer_images(float(e.clean.mean()) + slack, weakest.robust_accuracy, len(e.clean))
    return Item(
        ItemName.CLEAN,
        State.FAIL if failed else State.PASS,
        f"clean accuracy {percent_of(e.clean)}; under the weakest attack, {weakest.name}, "
        f"{percent(weakest.robust_accuracy)}.",
    )


def _not_weaker(e: Evidence) -> Item:
    if e.static is None:
        return Item(ItemName.NOT_WEAKER, State.NOT_APPLICABLE, without_static(e))
    static = e.diagnoses.static
    if static is None:
        return Item(ItemName.NOT_WEAKER, State.NOT_RUN, "the static net was not attacked.")
    test = mcnemar(e.robust, static.robust)
    return Item(
        ItemName.NOT_WEAKER,
        State.FAIL if test.second_better else State.PASS,
        f"robust accuracy {percent_of(e.robust)} with the defense, {percent_of(static.robust)} for "
        f"its static net; {count(test.only_first, 'image')} {agree(test.only_first, 'is', 'are')} "
        f"correct only with the defense, {test.only_second} only without it (McNemar, p = "
        f"{test.p:.2g}{_as_if_independent(e)}).",
    )


def _cost(e: Evidence) -> Item:
    cost = e.diagnoses.cost
    if e.static is None or cost is None:
        return Item(ItemName.COST, State.NOT_APPLICABLE, without_static(e))
    message = (
        f"a prediction takes {times(cost.times)} as long as one of the static net and "
        f"{calls_of(cost)}"
    )
    static = e.diagnoses.static
    if cost.expensive and static is not None and not _more_robust(e.robust, static.robust):
        broken = int((static.robust < 0.5).sum())
        if broken < _ENOUGH_BROKEN:
            few = f"only {count(broken, 'image')}" if broken else "no image"
            return Item(
                ItemName.COST,
                State.NOT_RUN,
                f"{message}; attacks break {few} of the static net, too few to decide whether the "
                "defense helps.",
            )
        return Item(
            ItemName.COST,
            State.FAIL,
            f"{message}, yet it is not more robust: {percent_of(e.robust)} against "
            f"{percent_of(static.robust)}.",
        )
    return Item(ItemName.COST, State.PASS, f"{message}.")


CHECKS: tuple[Callable[[Evidence], Item], ...] = (
    _tested,
    _transfer,
    _black_box,
    _white_box,
    _backward,
    _randomness,
    _adaptive,
    _single_step,
    _converged,
    _unbounded,
    _masked,
    _clean,
    _not_weaker,
    _cost,
)


def _zero_gradient_share(e: Evidence) -> float:
    """Images on which the strongest attack had a zero gradient at every step."""
    if e.diagnoses.watched is None:
        return 0.0
    gradient = e.diagnoses.watched.gradient.nan_to_num(nan=0.0)
    return float((gradient == 0).all(0).double().mean())


def _more_robust(defense: Tensor, static: Tensor) -> bool:
    return fewer_images(float(static.mean()), float(defense.mean()), len(defense))


def _as_if_independent(e: Evidence) -> str:
    """A paired test assumes independent images; coupled images vary more by chance."""
    return "" if e.defense.unit == "example" else ", as if images were independent"


def _drop(before: Tensor, after: Tensor) -> float:
    return float((before - after).double().mean())
