"""Finds operations that lose gradients, and chooses surrogates for them by measured progress."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from saddlepoint.audits.probes.gradient_check import Check
from saddlepoint.audits.probes.gradient_direction import gradient_state
from saddlepoint.audits.probes.gradient_probe import GradientProbe
from saddlepoint.audits.probes.probe_target import ProbeTarget
from saddlepoint.audits.probes.traits import TraitName, Traits
from saddlepoint.audits.target.instrument import FUNCTIONS, SCORES
from saddlepoint.audits.target.operations import CUTS, PERIODIC, STEPS, Operation
from saddlepoint.audits.target.surrogates import Calls, Recording, SurrogateOperations, record
from saddlepoint.defenses import Context
from saddlepoint.gradients import BPDA, Rule

_BROKEN = (
    TraitName.NO_GRADIENT,
    TraitName.NON_FINITE_GRADIENTS,
    TraitName.ZERO_GRADIENTS,
    TraitName.WRONG_GRADIENTS,
)
# Outputs with gradients differ from those without, so that they cannot be compared.
_OTHER_OUTPUTS = (TraitName.GRAD_MODE, TraitName.REQUIRES_GRAD)
_WIDTH = 2.0  # of a smooth step, in units of how far a random perturbation moves its argument
_TEMPERATURE = 0.3  # of a softmax, in standard deviations of the scores
_FACTORS = (0.25, 4.0)  # other widths that are tried
_MOST_TRIALS = 24
_MOST_OPERATIONS = 64  # beyond these, surrogates are not tried one by one


@dataclass(frozen=True)
class Replaced:
    """Operations whose backward pass is replaced, and what is still missing.

    Code may cut a part of a gradient on purpose, while the rest agrees with differences. Some
    attacks then use the whole gradient, beside those that use the rest.
    """

    operations: tuple[Operation, ...] = ()
    bypassed: tuple[str, ...] = ()  # sites where BPDA is used, with these operations
    lost: tuple[Operation, ...] = ()  # operations through which no gradient passes
    cuts: tuple[str, ...] = ()  # operations that cut a part of the gradient
    check: Check = Check.UNKNOWN


@dataclass(frozen=True)
class _Trial:
    """Surrogates, and what a step along their gradient gains."""

    operations: tuple[Operation, ...]
    probe: GradientProbe
    increase: Tensor  # [n] of the margin

    @property
    def check(self) -> Check:
        """Whether gradients agree with differences, at the images and at points near them."""
        return gradient_state(self.probe)

    def better(self, other: _Trial) -> bool:
        """Whether it gains more than another one, beyond two standard errors."""
        gain = (self.increase - other.increase).double()
        error = float(gain.std()) / math.sqrt(len(gain)) if len(gain) > 1 else 0.0
        return float(gain.mean()) > 2 * error


def replace_operations(target: ProbeTarget, traits: Traits, bypassed: tuple[str, ...]) -> Replaced:
    """Operations to replace if gradients are missing, zero, non-finite or wrong.

    Args:
        target: the target.
        traits: its traits.
        bypassed: named sites, layers or functions where BPDA was found to help.
    """
    broken = any(name in traits for name in _BROKEN)
    if any(name in traits for name in _OTHER_OUTPUTS):
        return Replaced(bypassed=bypassed)
    if not broken:
        return Replaced(bypassed=bypassed) if target.stateful(traits) else _cuts(target, bypassed)
    if target.stateful(traits):
        target = target.stateless()
    before = _before(target, bypassed)
    check = before.check
    found, lost = recorded_operations(target)
    if not found:
        return Replaced(bypassed=bypassed, lost=lost, check=check)
    # Named sites of a defense are kept. Layers and functions of a net are replaced as well, except
    # for layers that are the output of the net.
    kept = bypassed
    if target.opaque:
        kept = tuple(site for site in bypassed if site.startswith(SCORES))
        target = target.instrumented(*kept) if kept else target
    best = _choose(target, kept, found)
    best_check = best.check
    improves = best_check < check or (best_check == check and best.better(before))
    # A line of code says more than the name of a function, if both are equally good.
    only_functions = bool(bypassed) and all(site in FUNCTIONS for site in bypassed)
    as_good = only_functions and best_check == check and not before.better(best)
    if not improves and not as_good:
        return Replaced(bypassed=bypassed, lost=lost, check=check)
    needed = _needed(target, kept, best)
    names = tuple(str(operation) for operation in needed)
    return Replaced(needed, (*kept, *names), lost, check=best_check)


def _cuts(target: ProbeTarget, bypassed: tuple[str, ...]) -> Replaced:
    """Code of a net that cuts a part of a gradient, and a whole gradient that is another one."""
    found: tuple[Operation, ...] = ()
    if target.opaque and target.defense.grants == "gradient" and not target.adapts:
        found = recorded_operations(target)[0]
    cuts = tuple(operation for operation in found if operation.function in CUTS)
    if not cuts or len(cuts) > _MOST_OPERATIONS:
        return Replaced(bypassed=bypassed)
    whole = _trial_gradient(target, bypassed, cuts)
    if not whole.isfinite().all() or torch.equal(whole, _trial_gradient(target, bypassed, ())):
        return Replaced(bypassed=bypassed)
    return Replaced(cuts, bypassed, cuts=tuple(map(str, cuts)))


def recorded_operations(
    target: ProbeTarget,
) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
    """Operations with results that depend on the images: with a surrogate, and without one."""
    probe = GradientProbe(target)
    signs = target.keys(17).signs(tuple(target.x.shape[1:]), target.x.dtype)
    try:
        first = _record(target, probe.x)
        moved = _record(target, probe.x + probe.radius / 2 * signs)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception:
        return (), ()  # code that cannot run with recorded gradients
    found = []
    for key, calls in first.calls.items():
        if key in first.lost:
            continue
        reach = _reach(calls, moved.calls.get(key))
        if reach is None:
            continue
        operation = calls.operation
        width = _WIDTH * reach if operation.function in STEPS else _TEMPERATURE
        passes = operation.function not in PERIODIC
        found.append(replace(operation, width=width, passes=passes))
    return tuple(found), tuple(first.lost.values())


def _record(target: ProbeTarget, x: Tensor) -> Recording:
    return record(target.attacked, x, Context(target.keys()))


def _reach(calls: Calls, moved: Calls | None) -> float | None:
    """How far the perturbation moves the arguments; None if it changes nothing."""
    if not calls.values:
        return 0.0  # gradients are disabled: all that follows may depend on the images
    if moved is None or [v.shape for v in calls.values] != [v.shape for v in moved.values]:
        return 1.0
    pairs = zip(calls.arguments, moved.arguments, strict=True)
    total = 0.0
    count = 0
    for before, after in pairs:
        total += float((after - before).abs().double().sum())
        count += before.numel()
    reach = total / max(count, 1)
    return reach if reach > 0 else None


def _before(target: ProbeTarget, bypassed: tuple[str, ...]) -> _Trial:
    """The gradient with BPDA at the sites that were found before."""
    if bypassed and target.opaque:
        target = target.instrumented(*bypassed)
    probe = GradientProbe(target, dict.fromkeys(bypassed, BPDA()))
    return _Trial((), probe, probe.margin_increase(probe.gradient_or_zero()))


def _trial(target: ProbeTarget, kept: tuple[str, ...], operations: tuple[Operation, ...]) -> _Trial:
    defense = SurrogateOperations(target.defense, operations)
    names = (*kept, *(str(operation) for operation in operations))
    rules: dict[str, Rule] = dict.fromkeys(names, BPDA())
    probe = GradientProbe(replace(target, defense=defense), rules)
    return _Trial(operations, probe, probe.margin_increase(probe.gradient_or_zero()))


def _choose(target: ProbeTarget, kept: tuple[str, ...], found: tuple[Operation, ...]) -> _Trial:
    """The surrogates with the largest gain: all defaults, then alternatives one by one."""
    best = _trial(target, kept, found)
    trials = 0
    for factor in _FACTORS:
        scaled = tuple(_scaled(operation, factor) for operation in found)
        other = _trial(target, kept, scaled) if scaled != found else best
        best = other if other.better(best) else best
    for operation in found if len(found) <= _MOST_OPERATIONS else ():
        current = next(o for o in best.operations if o.key == operation.key)
        for alternative in _alternatives(current):
            trials += 1
            if trials > _MOST_TRIALS:
                return best
            changed = tuple(alternative if o.key == alternative.key else o for o in best.operations)
            other = _trial(target, kept, changed)
            best = other if other.better(best) else best
    return best


def _alternatives(operation: Operation) -> Iterator[Operation]:
    yield replace(operation, passes=not operation.passes)
    if operation.has_width:
        for factor in _FACTORS:
            yield _scaled(operation, factor)


def _scaled(operation: Operation, factor: float) -> Operation:
    return replace(operation, width=factor * operation.width) if operation.has_width else operation


def _needed(target: ProbeTarget, kept: tuple[str, ...], best: _Trial) -> tuple[Operation, ...]:
    """The operations without those that do not change the gradient."""
    grad = best.probe.gradient_or_zero()
    operations = best.operations
    if len(operations) > _MOST_OPERATIONS:
        return operations
    for operation in best.operations:
        rest = tuple(o for o in operations if o != operation)
        if torch.equal(_trial_gradient(target, kept, rest), grad):
            operations = rest
    return operations


def _trial_gradient(
    target: ProbeTarget, kept: tuple[str, ...], operations: tuple[Operation, ...]
) -> Tensor:
    return _trial(target, kept, operations).probe.gradient_or_zero()
