"""Probes what happens inside a call: optimization, solvers, cost and adaptation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from saddlepoint import phrases
from saddlepoint.attacks.losses import margin
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.audits.probes.probe_target import ProbeTarget
from saddlepoint.audits.probes.traits import Trait, TraitName, absent, observed, present, unmeasured
from saddlepoint.audits.target.admission import explain_errors
from saddlepoint.audits.target.hooks import CountDifferentiations, CountOperations
from saddlepoint.audits.target.rounding import alike, difference
from saddlepoint.defenses import Context
from saddlepoint.gradients import Backprop
from saddlepoint.phrases import count, count_of, how_often, number, whole

_EXPENSIVE = 1.5  # times the operations of the static net
_FAR = 0.1  # a relative residual above all usual tolerances


def probe_internals(target: ProbeTarget) -> Iterator[Trait]:
    """Optimization at test time, solver residuals, cost, and adaptation."""
    differentiations = CountDifferentiations()
    operations = CountOperations()
    with torch.no_grad(), operations, differentiations:
        target.fresh_copy().query()
    yield observed(
        TraitName.OPTIMIZES,
        differentiations.count > 0,
        1,
        f"one call computes gradients {how_often(differentiations.count)}",
        "a call computes no gradients",
    )
    yield _solver_residual(target)
    yield _cost(target, operations.total)
    yield _adapts(target)
    yield _adapts_differentiably(target)


def _solver_residual(target: ProbeTarget) -> Trait:
    """How far from a fixed point named solvers stop."""
    name = TraitName.SOLVER_RESIDUAL
    _, ctx = target.trace()
    residuals = [info.residual for solves in ctx.solve_info.values() for info in solves]
    if not residuals:
        return unmeasured(name, "there is no named solver")
    worst = torch.stack(residuals).amax(0)  # [n]
    median = float(worst.median())
    far = int((~(worst <= _FAR)).sum())  # NaN if a solve diverged
    places = tuple(sorted(ctx.solve_info))
    evidence = (
        f"solvers stop at a median relative residual of {number(median)}, on "
        f"{count_of(far, len(worst), 'image')} above {_FAR:g}"
    )
    if far:
        return present(name, evidence, places=places, amount=median)
    return absent(name, len(worst), evidence, places=places, amount=median)


def _cost(target: ProbeTarget, operations: int) -> Trait:
    """Floating-point operations of one call beside one of the static net."""
    name = TraitName.EXPENSIVE
    n = len(target)
    static = target.defense.static
    own = f"{count(round(operations / n), 'operation')} per image"
    if static is None or not target.declares:
        return unmeasured(name, f"{own}; there is no static net to compare with")
    counter = CountOperations()
    with torch.no_grad(), counter:
        static(target.x)
    if not counter.total:
        return unmeasured(name, f"{own}; those of the static net cannot be counted")
    times = operations / counter.total
    evidence = (
        f"one prediction takes {phrases.times(times)} the operations of its static net "
        f"({whole(round(counter.total / n))} per image)"
    )
    if times > _EXPENSIVE:
        return present(name, evidence, amount=times)
    return absent(name, n, evidence, amount=times)


def _adapts(target: ProbeTarget) -> Trait:
    """Whether `adapt` changes the outputs."""
    with torch.no_grad():
        before = target.query_unadapted()
        after = before
        if not target.pure:
            after = target.answer if target.adapts else _adapted_answer(target)
    return observed(
        TraitName.ADAPTS,
        not alike(before, after),
        len(target),
        f"after adapting to the images: {difference(before, after)}",
        "outputs after adapting to the images are equal",
        declared=target.adapts if target.declares else None,
    )


def _adapted_answer(target: ProbeTarget) -> Tensor:
    """The answer after `adapt`, with the same random keys as without it."""
    with explain_errors(target.kind, target.x):
        adapted = target.defense.adapt(target.x.clone(), Context(target.keys()))
    return replace(target, defense=adapted).query_unadapted()


def _adapts_differentiably(target: ProbeTarget) -> Trait:
    """Whether the gradient through `adapt` differs from that of the adapted model."""
    name = TraitName.ADAPTS_DIFFERENTIABLY
    if not target.adapts or target.defense.grants != "gradient":
        return absent(name, 1, "it does not adapt, or has no gradients")
    objective = AttackObjective([target.defense], target.y, margin)
    value_and_grad = Backprop().value_and_grad
    keys = target.keys()
    try:
        through = value_and_grad(replace(objective, respond=True), target.x, keys).grad
    except (ValueError, RuntimeError, TypeError) as error:
        return absent(name, 1, f"no gradient passes through it ({str(error).splitlines()[0]})")
    with torch.no_grad():
        adapted = target.defense.adapt(target.x, Context(keys))
    constant = value_and_grad(replace(objective, defenses=[adapted]), target.x, keys).grad
    same = torch.allclose(through, constant, rtol=1e-4, atol=1e-8)
    return observed(
        name,
        bool(through.isfinite().all()) and not same,
        len(target),
        "the gradient through the adaptation differs from that of the adapted model",
        "the adaptation adds nothing to the gradient",
    )
