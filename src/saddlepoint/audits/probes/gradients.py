"""Probes gradients: are they missing, non-finite, zero, wrong, noisy or lost to saturation?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from saddlepoint.attacks.losses import cross_entropy, margin, merge_rejection
from saddlepoint.audits.probes.gradient_direction import gradient_direction
from saddlepoint.audits.probes.gradient_probe import GradientProbe
from saddlepoint.audits.probes.probe_target import UNCONTROLLED, ProbeTarget
from saddlepoint.audits.probes.sites import named_sites, sites_to_bypass
from saddlepoint.audits.probes.traits import Trait, TraitName, absent, observed, present, unmeasured
from saddlepoint.phrases import count, count_of, number, percent, relative

_OF_GRADIENTS = (
    TraitName.NON_FINITE_GRADIENTS,
    TraitName.ZERO_GRADIENTS,
    TraitName.WRONG_GRADIENTS,
    TraitName.NOISY_GRADIENTS,
    TraitName.SATURATED_LOGITS,
)
_HALF = 0.5  # fraction of images
_DRAWS = 4  # gradients of a randomized target that are compared
_MOST_DRAWS = 64


def probe_gradients(target: ProbeTarget) -> Iterator[Trait]:
    """Missing, non-finite, zero, wrong or noisy gradients, saturated logits, and named sites."""
    n = len(target)
    if target.defense.grants != "gradient":
        for name in (TraitName.SITES, TraitName.NO_GRADIENT, *_OF_GRADIENTS):
            yield unmeasured(name, "the target has no gradients")
        return
    probe = GradientProbe(target)
    sites = _sites(target)
    yield sites
    try:
        grad = probe.gradient()
    except (ValueError, RuntimeError) as error:
        yield _no_gradient(target, error)
        for name in _OF_GRADIENTS:
            yield unmeasured(name, "there is no gradient")
        return
    yield absent(TraitName.NO_GRADIENT, n, "a gradient reaches the input")
    non_finite = ~grad.isfinite().flatten(1).all(1)
    zero = (grad == 0).flatten(1).all(1)
    places = sites_to_bypass(target) if bool((non_finite | zero).any()) else ()
    yield _on_some_images(
        TraitName.NON_FINITE_GRADIENTS, non_finite, ("NaN or infinite", "finite"), places
    )
    yield _on_some_images(TraitName.ZERO_GRADIENTS, zero, ("exactly zero", "non-zero"), places)
    finite = torch.where(grad.isfinite(), grad, 0.0)
    usable = ~(non_finite | zero)
    if target.uncontrolled:
        yield unmeasured(TraitName.WRONG_GRADIENTS, UNCONTROLLED)
    else:
        yield gradient_direction(probe, finite, usable, has_sites=bool(sites.present))
    yield _noisy(probe, grad)
    yield _saturated(probe, grad)


def _sites(target: ProbeTarget) -> Trait:
    """Named sites where the identity can replace the backward pass."""
    sites = tuple(site.name for site in named_sites(target) if site.keeps_shape)
    if not sites:
        evidence = "no named step has an output with the shape of its input"
        return absent(TraitName.SITES, 1, evidence)
    evidence = (
        f"the backward pass of {count(len(sites), 'named step')} can be replaced by the identity"
    )
    return present(TraitName.SITES, evidence, places=sites)


def _on_some_images(
    name: TraitName, rows: Tensor, texts: tuple[str, str], places: tuple[str, ...]
) -> Trait:
    """A trait of the gradients of some images, [n] bool, with the fraction of images as amount."""
    n = len(rows)
    affected = int(rows.sum())
    if_present, if_absent = texts
    if not affected:
        return absent(name, n, f"{if_absent} on {count(n, 'image')}", amount=0.0)
    evidence = f"{if_present} on {count_of(affected, n, 'image')}"
    return present(name, evidence, places=places, amount=affected / n)


def _no_gradient(target: ProbeTarget, error: Exception) -> Trait:
    evidence = "no gradient reaches the input"
    first_line = str(error).splitlines()[0]
    if not first_line.startswith(evidence):
        evidence += f" ({first_line})"
    return present(TraitName.NO_GRADIENT, evidence, places=sites_to_bypass(target))


def _noisy(probe: GradientProbe, grad: Tensor) -> Trait:
    """How many gradients must be averaged until their mean has more signal than noise.

    |E g|^2 is estimated by the mean of <g_j, g_k> over j != k. The rest of |g|^2 is noise, which
    the mean of n draws divides by n.

    Args:
        probe: target and points.
        grad: the gradients of the first draw, [n, ...].
    """
    name = TraitName.NOISY_GRADIENTS
    draws = [grad.nan_to_num(0.0, 0.0, 0.0)]
    try:
        draws.append(probe.gradient(1).nan_to_num(0.0, 0.0, 0.0))
        if torch.equal(*draws):
            return absent(name, 2, "gradients are the same with another seed", amount=1.0)
        for seed in range(2, _DRAWS):
            draws.append(probe.gradient(seed).nan_to_num(0.0, 0.0, 0.0))
    except (ValueError, RuntimeError):
        return unmeasured(name, "a gradient reaches the input in some calls only")
    grads = torch.stack(draws).flatten(2).double()  # [K, n, d]
    power = grads.square().sum(2).mean(0)  # [n]
    products = (grads.sum(0).square().sum(1) - _DRAWS * power) / (_DRAWS * (_DRAWS - 1))
    total = float(power.sum())
    signal = float(products.sum())
    needed = _MOST_DRAWS
    if signal > total / (_MOST_DRAWS + 1):
        needed = max(1, math.ceil((total - signal) / signal))
    share = max(signal, 0.0) / max(total, torch.finfo(torch.float64).tiny)
    evidence = (
        f"{relative(share)} of one gradient is signal: {_mean_of(needed)} has more signal than "
        "noise"
    )
    return Trait(name, True, evidence, _DRAWS / (_DRAWS + 1), None, (), float(needed))


def _mean_of(draws: int) -> str:
    return "one draw" if draws == 1 else f"the mean of {count(draws, 'draw')}"


def _saturated(probe: GradientProbe, grad: Tensor) -> Trait:
    """Whether the cross-entropy rounds to zero and its gradient is a bad direction.

    It is no problem if a step along its gradient increases the margin at least half as much as a
    step along the gradient of the margin.

    Args:
        probe: target and points.
        grad: the gradients of the margin, [n, ...].
    """
    name = TraitName.SATURATED_LOGITS
    target = probe.target
    with torch.no_grad():
        logits = merge_rejection(target.query_unadapted(), target.y, target.defense.rejects)
    correct = margin(logits, target.y) < 0
    if not correct.any():
        return unmeasured(name, "no image is classified correctly")
    zero = (cross_entropy(logits, target.y) == 0) & correct
    share = float(zero.double().sum() / correct.double().sum())
    evidence = (
        f"the cross-entropy is exactly 0 on {percent(share, 0)} of correctly classified images"
    )
    if share <= _HALF:
        return absent(name, int(correct.sum()), evidence)
    increase = [
        probe.margin_increase(direction)[correct].mean().item()
        for direction in (replace(probe, loss=cross_entropy).gradient(), grad)
    ]
    evidence += (
        f"; a step along its gradient increases the margin by {number(increase[0])}, a step along "
        f"the gradient of the margin by {number(increase[1])}"
    )
    saturated = increase[0] < increase[1] / 2
    return observed(name, saturated, int(correct.sum()), evidence, evidence)
