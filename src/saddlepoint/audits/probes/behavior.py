"""Is the answer to an image a function of the image: of nothing that is tossed, of no neighbor, of no past?"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from saddlepoint.audits.probes.probe_target import ProbeTarget, alike, gap
from saddlepoint.audits.probes.traits import Trait, TraitName, absent, observed, present, unmeasured
from saddlepoint.audits.target.admission import asking
from saddlepoint.defenses import BlackBox, Context, Plain
from saddlepoint.evaluation.mutation import fingerprint


def randomness(subject: ProbeTarget) -> Iterator[Trait]:
    """Other coins, other answers? And is the noise tossed for each row, or once for the batch?

    Whatever a module draws from global generators follows the coins; where two copies that were never asked differ under the same
    coins, it draws from somewhere else.
    """
    defense = subject.defense
    n = len(subject)
    first = subject.answer
    other = subject.otherwise
    declared = defense.random if subject.declares else None
    again = first if subject.declares else subject.fresh().query()
    ungoverned = not alike(first, again)
    random = ungoverned or not alike(first, other)
    here = f"two calls on the same images: {gap(first, again if ungoverned else other)}"
    if ungoverned:
        here += "; not even under the same seeds are they equal"
    yield observed(
        TraitName.RANDOM,
        random,
        n,
        here,
        f"{n} images are answered alike with other coins",
        declared=declared,
    )
    if not random or subject.learns:
        why = (
            "no randomness was seen"
            if not random
            else "each answer is learned anew; its noise is not taken apart"
        )
        yield from (
            absent(name, n, why) if not random else unmeasured(name, why)
            for name in (TraitName.NOISE_PER_ROW, TraitName.NOISE_PER_BATCH)
        )
        return
    # Of the image whose answer moves most: one about which all votes agree shows no noise.
    last = again if ungoverned else other
    moved = int((first - last).abs().amax(1).argmax()) if first.shape == last.shape else 0
    copies = subject.x[moved : moved + 1].expand_as(subject.x).clone()
    out = subject.fresh().query(copies)
    apart = not alike(out, out[:1].expand_as(out).clone())
    if not apart and alike(out, subject.fresh().query(copies, seed=1)):
        yield from (
            unmeasured(name, "the image that moved most does not move again")
            for name in (TraitName.NOISE_PER_ROW, TraitName.NOISE_PER_BATCH)
        )
        return
    spread = (out - out[:1]).abs().amax().item()
    yield observed(
        TraitName.NOISE_PER_ROW, apart, n, f"{n} copies of one image in one batch are answered up to {spread:.2g} apart",
        f"{n} copies of one image in one batch are answered alike",
    )  # fmt: skip
    yield observed(
        TraitName.NOISE_PER_BATCH, not apart, n, f"{n} copies of one image in one batch are answered alike, and otherwise in another call",
        "rows of one batch meet different noise",
    )  # fmt: skip


def neighbors(subject: ProbeTarget) -> Iterator[Trait]:
    """Does a row's answer depend on who else is in the batch, on the order of rows, on how many there are?"""
    n = len(subject)
    names = (TraitName.COUPLED, TraitName.ROW_ORDER, TraitName.BATCH_SIZE)
    declared = subject.defense.unit != "example" if subject.declares else None
    if subject.learns or n < 2:
        why = (
            "the batch is learned from, as declared"
            if subject.learns
            else "one image has no neighbors"
        )
        yield from (unmeasured(name, why, declared=declared) for name in names)
        return
    first = subject.answer
    among = subject.other
    heads = (subject.x[:1], among[1:])
    tails = (among[:-1], subject.x[-1:])
    head, tail = (subject.fresh().query(torch.cat(rows)) for rows in (heads, tails))
    mates = not (alike(first[:1], head[:1]) and alike(first[-1:], tail[-1:]))
    here = f"the first image with other neighbors: {gap(first[:1], head[:1])}; the last: {gap(first[-1:], tail[-1:])}"
    noisy = isinstance(subject.defense, Plain | BlackBox) and not alike(first, subject.otherwise)
    alone = subject.fresh().query(subject.x[:1])
    if (
        not noisy and not mates
    ):  # what others decide together may not notice that one of them is another
        mates = not alike(first[:1], alone)
        here = f"the first image without neighbors: {gap(first[:1], alone)}"
    yield observed(
        TraitName.COUPLED,
        mates,
        2,
        here,
        "an image among others is answered as before, and alone",
        declared=declared,
    )

    back = torch.arange(n - 1, -1, -1, device=subject.x.device)
    turned = subject.fresh().query(subject.x[back], ids=back)[back]
    if noisy:
        yield from (
            unmeasured(name, "the noise inside the model belongs to the place in the batch")
            for name in names[1:]
        )
        return
    yield observed(
        TraitName.ROW_ORDER, not alike(first, turned), n, f"the same batch from last to first: {gap(first, turned)}",
        "the same batch from last to first is answered alike", declared=declared,
    )  # fmt: skip
    copies = subject.fresh().query(subject.x[:1].expand_as(subject.x).clone(), ids=_same(subject))[
        :1
    ]
    yield observed(
        TraitName.BATCH_SIZE, not alike(alone, copies), 1, f"an image alone, and {n} times in one batch: {gap(alone, copies)}",
        f"an image alone is answered as it is {n} times in one batch", declared=declared,
    )  # fmt: skip


def past(subject: ProbeTarget) -> Iterator[Trait]:
    """Do earlier calls change later answers? Does a call change its input, or the target?"""
    n = len(subject)
    used = subject.fresh()
    before = _held(used)
    first = subject.answer if subject.declares else used.query()
    again = used.query()
    after = _held(used)
    changed = tuple(place for place, value in before.items() if after.get(place) != value)
    declared = False if subject.declares else None
    if not alike(subject.answer, first):
        yield unmeasured(
            TraitName.STATE, "it draws from where no seed reaches, which hides what it remembers"
        )
    elif subject.learns:
        yield observed(TraitName.STATE, not alike(first, again), n, f"asked twice with the same coins: {gap(first, again)}",
                   "asked twice with the same coins it answers alike", declared=declared)  # fmt: skip
    else:
        yield _remembered(subject, used, first, again, declared)
    yield observed(
        TraitName.CHANGES_ITSELF, bool(changed), 1, f"a call changes {', '.join(changed[:3])}{', ...' if len(changed) > 3 else ''}",
        "all that it holds is the same after a call", declared=declared,
    )  # fmt: skip


def _remembered(
    subject: ProbeTarget,
    used: ProbeTarget,
    first: torch.Tensor,
    again: torch.Tensor,
    declared: bool | None,
) -> Trait:
    used.query(subject.other)
    third = used.query()
    if not (alike(first, again) and alike(first, third)):
        later = again if not alike(first, again) else third
        between = "asked again" if later is again else "asked again after other images"
        return present(
            TraitName.STATE,
            f"{between}, with the same coins: {gap(first, later)}",
            declared=declared,
        )
    # An answer that is kept and given to whatever comes near shows itself only beside a target that has never seen the image.
    step = min(subject.space.radius or 1 / 255, 0.1) / 2
    near = (
        subject.x + step * subject.keys(5).signs(tuple(subject.x.shape[1:]), subject.x.dtype)
    ).clamp(*subject.space.box)
    known = used.query(near)
    new = subject.fresh().query(near)
    return observed(
        TraitName.STATE, not alike(known, new), len(subject), f"after the images themselves, points near them: {gap(new, known)}",
        "asked again, after other images and beside a new copy, it answers alike", declared=declared,
    )  # fmt: skip


def input_changed(subject: ProbeTarget) -> Iterator[Trait]:
    """Is the tensor that it is given the same afterwards?"""
    given = subject.x.clone()
    with torch.no_grad(), asking(subject.kind, given):
        subject.defense.trace(given, Context(subject.keys()))
    apart = (given - subject.x).abs().amax().item()
    yield observed(
        TraitName.CHANGES_INPUT, not torch.equal(given, subject.x), len(subject), f"pixels it was given move by up to {apart:.2g}",
        "the images it was given are as they were", declared=False if subject.declares else None,
    )  # fmt: skip


def _held(subject: ProbeTarget) -> dict[str, object]:
    """What the target holds; of a module also what its layers keep beside parameters and buffers."""
    held = fingerprint(subject.defense)
    net = subject.defense.net if isinstance(subject.defense, Plain) else None
    for place, module in net.named_modules() if net is not None else ():
        for name, value in vars(module).items():
            if isinstance(value, bool | int | float | str | list | tuple | dict | set):
                held[f"{place}.{name}".strip(".")] = (
                    len(value) if isinstance(value, list | tuple | dict | set) else value
                )
    return held


def _same(subject: ProbeTarget) -> torch.Tensor:
    return torch.zeros(len(subject), dtype=torch.long, device=subject.x.device)
