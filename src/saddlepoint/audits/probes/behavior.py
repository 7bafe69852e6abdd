"""Probes whether the output for an image depends on the image alone.

It may also depend on random draws, on other images of the batch, or on earlier calls.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from saddlepoint.audits.probes.probe_target import UNCONTROLLED, ProbeTarget
from saddlepoint.audits.probes.traits import (
    COUPLING,
    Trait,
    TraitName,
    absent,
    observed,
    present,
    unmeasured,
)
from saddlepoint.audits.target.admission import TargetError, explain_errors
from saddlepoint.audits.target.rounding import alike, difference
from saddlepoint.defenses import BlackBox, Context, Plain
from saddlepoint.evaluation.mutation import fingerprint
from saddlepoint.phrases import count, how_often, number

_NOISE = (TraitName.NOISE_PER_ROW, TraitName.NOISE_PER_BATCH)
_REDRAWS = 20


def probe_input_changes(target: ProbeTarget) -> Iterator[Trait]:
    """Whether a call modifies its input tensor."""
    x = target.x.clone()
    with torch.no_grad(), explain_errors(target.kind, x):
        target.defense.trace(x, Context(target.keys()))
    largest = (x - target.x).abs().amax().item()
    yield observed(
        TraitName.CHANGES_INPUT,
        not torch.equal(x, target.x),
        len(target),
        f"pixels of the input tensor change by up to {number(largest)}",
        "the input tensor is unchanged",
        declared=False if target.declares else None,
    )


def probe_randomness(target: ProbeTarget) -> Iterator[Trait]:
    """Whether outputs change with the random seed, and whether noise is drawn per row or per batch.

    Everything that a module draws from global generators, from its own ones, or from random bytes
    of the operating system follows the seed. Where two unused copies differ under the same seed,
    the target draws from another source, such as a clock.
    """
    n = len(target)
    first = target.answer
    unseeded = target.uncontrolled
    other = target.redrawn_answer
    if unseeded and alike(first, other):
        other = target.fresh_copy().query()
    random = target.randomized
    evidence = f"two calls on the same images: {difference(first, other)}"
    yield observed(
        TraitName.RANDOM,
        random,
        n,
        evidence,
        f"outputs for {count(n, 'image')} are the same with another seed",
        declared=target.defense.random if target.declares else None,
    )
    yield observed(
        TraitName.UNSEEDED,
        unseeded,
        n,
        "fresh copies called on the same images with the same seed: outputs differ",
        "the seed determines all outputs",
    )
    if not random:
        for name in _NOISE:
            yield absent(name, n, "no randomness was observed")
    elif target.adapts:
        for name in _NOISE:
            yield unmeasured(name, "the target adapts in each call, which hides where noise enters")
    else:
        yield from _noise(target, first, other)


def _noise(target: ProbeTarget, first: Tensor, other: Tensor) -> Iterator[Trait]:
    """Whether copies of one image in a batch get the same noise."""
    n = len(target)
    # The image with the largest change: where all votes agree there is no visible noise.
    most = int((first - other).abs().amax(1).argmax()) if first.shape == other.shape else 0
    copies = target.x[most : most + 1].expand_as(target.x).clone()
    out = target.fresh_copy().query(copies)
    per_row = not alike(out, out[:1].expand_as(out).clone())
    # A choice between few branches is often the same for two seeds.
    redrawn = (target.fresh_copy().query(copies, seed=seed) for seed in range(1, _REDRAWS + 1))
    if not per_row and all(alike(out, again) for again in redrawn):
        for name in _NOISE:
            yield unmeasured(name, "the image with the largest change did not change again")
        return
    spread = (out - out[:1]).abs().amax().item()
    yield observed(
        TraitName.NOISE_PER_ROW,
        per_row,
        n,
        f"outputs for {count(n, 'copy')} of one image in one batch differ by up to "
        f"{number(spread)}",
        f"outputs for {count(n, 'copy')} of one image in one batch are equal",
    )
    yield observed(
        TraitName.NOISE_PER_BATCH,
        not per_row,
        n,
        f"outputs for {count(n, 'copy')} of one image in one batch are equal, and change with the "
        "seed",
        "rows of one batch get different noise",
    )


def probe_coupling(target: ProbeTarget) -> Iterator[Trait]:
    """Whether outputs depend on other rows of the batch, on their order, or on their number."""
    n = len(target)
    declared = target.defense.unit != "example" if target.declares else None
    if target.adapts or n < 2 or target.uncontrolled:
        reason = "there is only one image"
        if target.adapts:
            reason = "the target adapts to the batch, as declared"
        elif target.uncontrolled:
            reason = UNCONTROLLED
        for name in COUPLING:
            yield unmeasured(name, reason, declared=declared)
        return
    first = target.answer
    try:
        alone = target.fresh_copy().query(target.x[:1])
    except TargetError as error:  # statistics of a batch of one image are not defined
        evidence = f"a batch of one image has no output ({str(error).splitlines()[0]})"
        yield present(TraitName.COUPLED, evidence, declared=declared)
        for name in COUPLING[1:]:
            yield unmeasured(name, "a batch of one image has no output", declared=declared)
        return
    random_net = isinstance(target.defense, Plain | BlackBox)
    noisy = random_net and target.randomized
    yield _coupled(target, alone, noisy=noisy, declared=declared)
    if noisy:
        for name in COUPLING[1:]:
            yield unmeasured(name, "the noise inside the model depends on the row number")
        return
    backward = torch.arange(n - 1, -1, -1, device=target.x.device)
    reversed_batch = target.fresh_copy().query(target.x[backward], ids=backward)[backward]
    yield observed(
        TraitName.ROW_ORDER,
        not alike(first, reversed_batch),
        n,
        f"the same batch in reverse order: {difference(first, reversed_batch)}",
        "outputs for the same batch in reverse order are equal",
        declared=declared,
    )
    same_ids = torch.zeros(n, dtype=torch.long, device=target.x.device)
    copies = target.x[:1].expand_as(target.x).clone()
    repeated = target.fresh_copy().query(copies, ids=same_ids)[:1]
    yield observed(
        TraitName.BATCH_SIZE,
        not alike(alone, repeated),
        1,
        f"an image alone, and {how_often(n)} in one batch: {difference(alone, repeated)}",
        f"outputs for an image alone, and {how_often(n)} in one batch, are equal",
        declared=declared,
    )


def _coupled(target: ProbeTarget, alone: Tensor, *, noisy: bool, declared: bool | None) -> Trait:
    """Whether the first and the last image have other outputs among other images."""
    first = target.answer
    others = target.other_images
    head = target.fresh_copy().query(torch.cat([target.x[:1], others[1:]]))
    tail = target.fresh_copy().query(torch.cat([others[:-1], target.x[-1:]]))
    coupled = not (alike(first[:1], head[:1]) and alike(first[-1:], tail[-1:]))
    evidence = (
        f"the first image among other images: {difference(first[:1], head[:1])}; "
        f"the last one: {difference(first[-1:], tail[-1:])}"
    )
    # A majority over the batch may stay the same when one image changes.
    if not noisy and not coupled:
        coupled = not alike(first[:1], alone)
        evidence = f"the first image without other images: {difference(first[:1], alone)}"
    return observed(
        TraitName.COUPLED,
        coupled,
        2,
        evidence,
        "outputs for an image among other images, and alone, are equal",
        declared=declared,
    )


def probe_state(target: ProbeTarget) -> Iterator[Trait]:
    """Whether earlier calls change later outputs, and whether a call changes the target."""
    if target.pure:
        for name in (TraitName.STATE, TraitName.CHANGES_ITSELF):
            yield absent(name, len(target), "a call changes nothing that its code can reach")
        return
    used = target.fresh_copy()
    before = _values_inside(used)
    first = target.answer if target.declares else used.query()
    again = used.query()
    after = _values_inside(used)
    changed = tuple(place for place, value in before.items() if after.get(place) != value)
    declared = False if target.declares else None
    if target.uncontrolled:
        yield unmeasured(TraitName.STATE, UNCONTROLLED)
    elif target.adapts:
        yield observed(
            TraitName.STATE,
            not alike(first, again),
            len(target),
            f"two calls with the same seed: {difference(first, again)}",
            "two calls with the same seed give equal outputs",
            declared=declared,
        )
    else:
        yield _state(target, used, first, again, declared)
    places = ", ".join(changed[:3])
    more = ", ..." if len(changed) > 3 else ""
    yield observed(
        TraitName.CHANGES_ITSELF,
        bool(changed),
        1,
        f"a call changes {places}{more}",
        "a call changes nothing inside the target",
        declared=declared,
    )


def _state(
    target: ProbeTarget, used: ProbeTarget, first: Tensor, again: Tensor, declared: bool | None
) -> Trait:
    """Compare later calls with the first one, and with those of a copy that was never called."""
    used.query(target.other_images)
    third = used.query()
    for between, later in (("", again), (" after other images", third)):
        if not alike(first, later):
            evidence = f"a second call{between} with the same seed: {difference(first, later)}"
            return present(TraitName.STATE, evidence, declared=declared)
    # A cache that returns old outputs for nearby images shows only beside an unused copy.
    step = min(target.space.radius or 1 / 255, 0.1) / 2
    signs = target.keys(5).signs(tuple(target.x.shape[1:]), target.x.dtype)
    near = (target.x + step * signs).clamp(*target.space.box)
    known = used.query(near)
    new = target.fresh_copy().query(near)
    return observed(
        TraitName.STATE,
        not alike(known, new),
        len(target),
        f"points near images, after these images and without them: {difference(new, known)}",
        "outputs are equal in a second call, after other images, and beside an unused copy",
        declared=declared,
    )


def _values_inside(target: ProbeTarget) -> dict[str, object]:
    """What identifies the state of a target; for a net also plain attributes of its layers."""
    values = fingerprint(target.defense)
    if not isinstance(target.defense, Plain):
        return values
    for place, module in target.defense.net.named_modules():
        for name, value in vars(module).items():
            key = f"{place}.{name}".strip(".")
            if isinstance(value, list | tuple | dict | set):
                values[key] = len(value)
            elif isinstance(value, bool | int | float | str):
                values[key] = value
    return values
