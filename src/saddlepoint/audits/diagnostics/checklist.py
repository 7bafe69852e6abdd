"""The checklist of an evaluation, executed: the six steps of Croce et al. 2022 (Sec. 4) and the signs of Carlini et al. 2019.

An item passes, fails, was not run, or does not apply; which is told by what was sent and by small trials, and the evidence is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from saddlepoint.audits.diagnostics.trials import Trials
from saddlepoint.audits.planning.properties import ANTICIPATING, APPROXIMATE, AVERAGING, Sent
from saddlepoint.audits.statistics import mcnemar
from saddlepoint.audits.verdict import DEARER, WEAKER, Item, State

_SHARE = 0.1  # of the images: more are not a few odd ones
_TELLING = 5  # images on which the static net falls: had the defense held all of them, McNemar's p would be 1 / 32
_NOISE = 0.1  # cosine below which two averaged gradients have nothing in common

TRANSFER = "transfer from the static net"
BLACK_BOX = "black-box attacks"
WHITE_BOX = "white-box attacks on the full defense"
BACKWARD = "approximate backward passes"
RANDOMNESS = "randomness averaged or fixed"
ADAPTIVE = "adaptive attacks are the stronger ones"
SINGLE = "many steps beat one"
CONVERGED = "more steps and restarts change nothing"
UNBOUNDED = "an unbounded attack succeeds"
MASKED = "black-box attacks find nothing more"
CLEAN = "no attack raises the accuracy"


def checklist(trials: Trials) -> tuple[Item, ...]:
    """All items, in the order in which an evaluation takes the steps."""
    return tuple(item(trials) for item in ITEMS)


def transfer(t: Trials) -> Item:
    """Step 1: points of highest loss from the static net; a clean copy in place of a failure would flatter the defense."""
    if t.static is None:
        return Item(TRANSFER, "does not apply", "there is no static net inside.")
    sent = [one for one in t.sent if one.from_static(t.job.defense)]
    if not sent:
        return Item(
            TRANSFER,
            "not run",
            "no attack on the static net was handed over. Send Transfer(adversary, Plain(net)).",
        )
    copied = sum(t.rows[one.index - 1].copies for one in sent)
    if copied or any(one.copies for one in sent):
        told = f"{_names(sent)} handed over {copied} clean images: where it failed, the points of highest loss are due."
        return Item(TRANSFER, "fail", told)
    return Item(TRANSFER, "pass", f"points of highest loss were handed over; {_leave(t, sent)}.")


def black_box(t: Trials) -> Item:
    """Step 2: on the defense and on its static net alike; the defense should be the one that withstands them."""
    sent = [one for one in t.sent if one.black_box]
    if not sent:
        return Item(
            BLACK_BOX,
            "not run",
            "no attack without gradients was sent. Take a larger budget, or send Square or RayS.",
        )
    if t.queried is None:
        return Item(BLACK_BOX, "pass", f"{_leave(t, sent)}.")
    ours, bare = t.queried
    told = f"on {len(ours)} images {_names(sent)}: the defense holds {_percent(ours)}, its static net {_percent(bare)}"
    weaker = mcnemar(ours, bare)
    if weaker.second_better:
        return Item(
            BLACK_BOX,
            "fail",
            f"{told}: without the defense the net withstands them better (p = {weaker.p:.2g}{_as_if(t)}).",
        )
    return Item(BLACK_BOX, "pass", f"{told}.")


def white_box(t: Trials) -> Item:
    """Step 3: gradients of the whole defense, and not zeros."""
    if not t.open:
        return Item(
            WHITE_BOX, "does not apply", f"the threat grants {t.job.threat.access} access only."
        )
    sent = [one for one in t.sent if one.white_box]
    if not sent:
        reason = (
            "the target has no gradients to give"
            if not t.graded
            else "no attack with gradients was sent"
        )
        return Item(WHITE_BOX, "not run", f"{reason}, though the threat grants them.")
    told = _leave(t, sent)
    if t.seen is not None and (blind := _share_of_blind(t)) > _SHARE:
        which = t.strongest[0].name if t.strongest else ""
        return Item(
            WHITE_BOX,
            "fail",
            f"{told}, but the gradients of the strongest, {which}, are zero on {100 * blind:.0f} % of images.",
        )
    return Item(WHITE_BOX, "pass", f"{told}.")


def backward(t: Trials) -> Item:
    """Step 4: where gradients fail, other backward passes; they must find at least what attacks without gradients find."""
    if not t.open or t.opaque:
        return Item(
            BACKWARD,
            "does not apply",
            "there is no backward pass to replace." if t.open else "gradients are not granted.",
        )
    if t.failing <= _SHARE:
        return Item(
            BACKWARD,
            "does not apply",
            f"plain gradients fail on {100 * t.failing:.0f} % of the images.",
        )
    fails = f"plain gradients fail on {100 * t.failing:.0f} % of the images"
    sent = [one for one in t.sent if one.kinds & APPROXIMATE]
    if not sent:
        return Item(
            BACKWARD,
            "not run",
            f"{fails}, and no backward pass was replaced. Give the site that kills them a rule: BPDA().",
        )
    blind = [one for one in t.sent if one.black_box]
    left = t.left(sent)
    if blind and _less(t.left(blind), left):
        told = f"{fails}; {_leave(t, sent)}, but {_names(blind)} {_percent(t.left(blind))}: try other rules."
        return Item(BACKWARD, "fail", told)
    return Item(BACKWARD, "pass", f"{fails}; {_leave(t, sent)}.")


def keys(t: Trials) -> Item:
    """Step 5: average gradients over coins, or fix them; an average over too few points nowhere."""
    if not t.job.defense.random or not t.open:
        return Item(
            RANDOMNESS,
            "does not apply",
            "the defense tosses no coins." if t.open else "gradients are not granted.",
        )
    sent = [one for one in t.sent if one.white_box and one.kinds & AVERAGING]
    if not sent and t.job.threat.randomness != "fixed":
        return Item(
            RANDOMNESS,
            "not run",
            "the defense tosses coins, and no attack averages over them or fixes them. Use EoT.",
        )
    if t.agreement is not None and t.agreement < _NOISE:
        told = f"two of its gradients at the same image have a cosine of {t.agreement:.2f}: they are noise. Average over more draws."
        return Item(RANDOMNESS, "fail", told)
    told = (
        f"two gradients at the same image have a cosine of {t.agreement:.2f}"
        if t.agreement is not None
        else "the coins are fixed"
    )
    return Item(RANDOMNESS, "pass", f"{told}.")


def adaptive(t: Trials) -> Item:
    """Step 6: attacks made for the defense must do better than attacks made for a static net."""
    fails = t.failing > _SHARE
    made = [one for one in t.sent if one.adaptive(t.job.defense, gradients_fail=fails)]
    other = [one for one in t.sent if not one.black_box and one not in made]
    if t.static is None and t.job.defense.memory == "none" and not other:
        return Item(
            ADAPTIVE,
            "does not apply",
            "every attack that was sent looks at the whole of the target.",
        )
    if not made:
        return Item(
            ADAPTIVE,
            "not run",
            f"no attack was made for what the defense does at test time{_how(t, fails)}.",
        )
    if not other:
        return Item(ADAPTIVE, "pass", f"{_leave(t, made)}; nothing else was sent.")
    ours = t.left(made)
    theirs = t.left(other)
    told = f"{_leave(t, made)}, attacks of the static kind ({_names(other)}) {_percent(theirs)}"
    state: State = "fail" if _less(theirs, ours) else "pass"
    return Item(ADAPTIVE, state, f"{told}.")


def single(t: Trials) -> Item:
    """A step that does more harm than many says that the many lost their way (Carlini et al. 2019)."""
    if not t.open:
        return Item(SINGLE, "does not apply", "gradients are not granted.")
    if t.single is None:
        return Item(SINGLE, "not run", "no attack that climbs step by step was sent.")
    one, many = t.single
    told = f"on {len(one)} images one step leaves {_percent(one)}, many leave {_percent(many)}."
    return Item(SINGLE, "fail" if _less(one, many) else "pass", told)


def converged(t: Trials) -> Item:
    """What stands must also stand after twice the steps from other starts."""
    if not t.open:
        return Item(CONVERGED, "does not apply", "gradients are not granted.")
    if t.further is None:
        return Item(CONVERGED, "not run", "no attack that climbs step by step was sent.")
    before, after = t.further
    if not len(before):
        return Item(CONVERGED, "pass", "no image stands.")
    taken = f"{100 * _drop(before, after):.1f} %"
    told = f"of {len(before)} images that stand, twice the steps of {t.climber} from two other starts take {taken}."
    return Item(CONVERGED, "fail" if _less(after, before) else "pass", told)


def unbounded(t: Trials) -> Item:
    """With a radius that allows a gray image nothing may stand (Carlini et al. 2019)."""
    if not t.graded:
        return Item(
            UNBOUNDED,
            "not run" if t.open else "does not apply",
            "there are no gradients to follow.",
        )
    if t.unbounded is None:
        return Item(UNBOUNDED, "does not apply", "the threat allows any image already.")
    radius, accuracy = t.unbounded
    told = f"with radius {radius:.3g}, which allows a gray image, {100 * accuracy:.0f} % stand."
    return Item(UNBOUNDED, "fail" if accuracy > _SHARE else "pass", told)


def masked(t: Trials) -> Item:
    """Attacks that see less must not find more (Carlini et al. 2019)."""
    if not t.open:
        return Item(MASKED, "does not apply", "gradients are not granted.")
    seeing = [one for one in t.sent if not one.black_box]
    blind = [one for one in t.sent if one.black_box]
    if not blind or not seeing:
        return Item(
            MASKED,
            "not run",
            f"only attacks {'with' if seeing else 'without'} gradients were sent.",
        )
    all_ = t.left([*seeing, *blind])
    gradients = t.left(seeing)
    told = f"of what attacks with gradients left, {_names(blind)} took {100 * _drop(gradients, all_):.1f} points."
    return Item(MASKED, "fail" if _less(all_, gradients) else "pass", told)


def clean(t: Trials) -> Item:
    """An accuracy above that on clean images is no robustness but an attack that helps."""
    slack = (
        2 * (0.5 / (len(t.clean) * t.job.threat.draws)) ** 0.5 if t.job.defense.random else 0.0
    )  # two errors of a difference
    best = max(t.rows, key=lambda row: row.robust_accuracy)
    told = f"clean images {_percent(t.clean)}, the weakest attack, {best.name}, {100 * best.robust_accuracy:.1f} %."
    return Item(
        CLEAN,
        "fail" if best.robust_accuracy > float(t.clean.mean()) + slack + 1e-9 else "pass",
        told,
    )


def static(t: Trials) -> Item:
    """A finding, not an error: a defense may be weaker than the net it is built on. Paired, by McNemar's exact test."""
    if t.static is None:
        return Item(WEAKER, "does not apply", "there is no static net inside.")
    if t.static_left is None:
        return Item(WEAKER, "not run", "the static net was not attacked.")
    found = mcnemar(t.judged, t.static_left)
    told = (
        f"the defense holds {_percent(t.judged)}, its static net {_percent(t.static_left)}; {found.only_first} images stand only "
        f"with the defense, {found.only_second} only without it (McNemar, p = {found.p:.2g}{_as_if(t)})."
    )
    return Item(WEAKER, "fail" if found.second_better else "pass", told)


def cost(t: Trials) -> Item:
    """Robustness is to be held against what it costs; a dearer answer that stands no better was bought for nothing."""
    if t.static is None or t.cost is None:
        return Item(DEARER, "does not apply", "there is no static net inside.")
    spent = t.cost
    told = f"an answer takes {spent.times:.1f} times as long as one of the static net"
    told += f" and asks it {spent.calls:.1f} times" + (
        f", {spent.graded:.1f} of them for gradients" if spent.graded else ""
    )
    if (
        spent.dearer
        and t.static_left is not None
        and float(t.judged.mean()) <= float(t.static_left.mean())
    ):
        fallen = int((t.static_left < 0.5).sum())
        if fallen < _TELLING:
            return Item(
                DEARER,
                "not run",
                f"{told}; the static net falls on {fallen} images, too few to tell whether it helps.",
            )
        return Item(
            DEARER,
            "fail",
            f"{told}, yet stands no better: {_percent(t.judged)} against {_percent(t.static_left)}.",
        )
    return Item(DEARER, "pass", f"{told}.")


ITEMS: tuple[Callable[[Trials], Item], ...] = (
    transfer, black_box, white_box, backward, keys, adaptive, single, converged, unbounded, masked, clean, static, cost,
)  # fmt: skip


def _share_of_blind(t: Trials) -> float:
    """Of the watched images, those on which the strongest attack met a gradient of zero at every step."""
    assert t.seen is not None, "asked for only where an attack was watched"
    slope = t.seen.slope.nan_to_num(nan=0.0)
    return float((slope == 0).all(0).double().mean())


def _how(t: Trials, fails: bool) -> str:
    """What an attack would need that is made for this defense."""
    needs = [
        *(["a rule where gradients fail (BPDA)"] if fails else []),
        *(["averaging over coins (EoT)"] if t.job.defense.random else []),
        *(
            [f"anticipation of what it learns ({', '.join(sorted(ANTICIPATING)[:2])})"]
            if t.job.defense.memory != "none"
            else []
        ),
    ]
    return f": it takes {' and '.join(needs)}" if needs else ""


def _as_if(t: Trials) -> str:
    """A paired test takes images for independent; answered together they are not, and chance does more."""
    return "" if t.job.defense.unit == "example" else ", as if each image were answered alone"


def _less(fewer: Tensor, more: Tensor) -> bool:
    """Fewer right answers by at least two images and one in a hundred: one image, or a lucky draw, is no sign."""
    return float((more - fewer).sum()) >= 2 - 1e-9 and _drop(more, fewer) >= 0.01


def _drop(before: Tensor, after: Tensor) -> float:
    return float((before - after).double().mean())


def _percent(right: Tensor) -> str:
    return f"{100 * float(right.double().mean()):.1f} %"


def _leave(t: Trials, sent: Sequence[Sent]) -> str:
    return f"{_names(sent)} {'leaves' if len(sent) == 1 else 'leave'} {_percent(t.left(sent))}"


def _names(sent: Sequence[Sent]) -> str:
    return ", ".join(dict.fromkeys(one.name for one in sent))
