"""Probes whether gradients point where the margin increases."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from saddlepoint.audits.probes.gradient_check import (
    SCALES,
    Check,
    check_gradients,
    coupled,
    rounding_error,
    several,
    wrong_gradients,
)
from saddlepoint.audits.probes.gradient_probe import GradientProbe
from saddlepoint.audits.probes.sites import function_sites, layer_sites, named_sites
from saddlepoint.audits.probes.traits import Trait, TraitName, absent, unmeasured
from saddlepoint.gradients import BPDA, Checkpointed, Rule
from saddlepoint.phrases import cosine, count, count_of, names, number

# Mean agreement of gradients and differences: 1 if they are equal, 0.8 if one is twice the other.
_AGREES = 0.5
_AGREES_FAR = 0.25  # over larger steps, where no gradient is exact
# Exact gradients agree by 0.95 or more over the smallest step. Those of a fine quantizer with a
# surrogate agree over larger steps. Hard thresholds of many units with a surrogate, such as spikes,
# agree partly at every length, and other surrogates break other images.
_EXACT = 0.8
_SURROGATE = 0.9
_MOST_LAYERS = 32  # layers that are tried, from the input on


def gradient_direction(
    probe: GradientProbe, grad: Tensor, usable: Tensor, *, has_sites: bool
) -> Trait:
    """Whether gradients differ from finite differences of the margin, and where BPDA is better.

    Args:
        probe: target and points.
        grad: gradients at these points, [n, ...]; zero where they are not finite.
        usable: [n] bool: the gradient is finite and not zero.
        has_sites: the target names sites, where other rules are tried anyway.
    """
    name = TraitName.WRONG_GRADIENTS
    if not usable.any():
        return unmeasured(name, "no image has a usable gradient")
    agreement = _agreement_by_scale(probe, grad, usable)
    if not agreement:
        return unmeasured(name, "all differences are below the rounding error")
    steps = [
        f"{cosine(value)} over {number(2 * s * probe.radius)}" for s, value in agreement.items()
    ]
    evidence = f"gradients and differences agree by {names(steps)}"
    best = max(agreement.values())
    far = max([value for s, value in agreement.items() if s > min(SCALES)], default=1.0)
    at_images = torch.zeros(len(grad), dtype=torch.bool, device=grad.device)
    at_nearby = at_images
    if not has_sites:
        at_images = _wrong(probe) & usable
        at_nearby = _wrong(probe.nearby)
    elif _wrong_with_all_rules(probe):
        at_images = torch.ones_like(at_images)
        evidence += "; along random directions they differ with every rule at the named sites"
    if not has_sites and (at_images | at_nearby).any():
        evidence += (
            "; along random directions they differ on "
            f"{count_of(int(at_images.sum()), len(grad), 'image')} and at "
            f"{count(int(at_nearby.sum()), 'point')} near them"
        )
    # A gradient that is right over small steps and wrong over large ones follows a ripple, along
    # which no attack makes progress.
    partly = agreement.get(min(SCALES), 1.0) < _EXACT and best < _SURROGATE
    # The gradient of a row of a coupled batch is that of all rows, and need not agree with its own.
    partly = partly and not coupled(probe.value, probe.x, grad.sign() * probe.radius / 2)
    disagree = best < _AGREES or far < _AGREES_FAR or partly
    wrong = disagree or several(at_images) or several(at_nearby)
    place = probe
    rows = at_images
    if at_nearby.sum() > at_images.sum():
        place = probe.nearby
        rows = at_nearby
    if not several(rows):
        rows = torch.ones_like(rows)
    better = _better_bypassed(place, rows, try_layers=wrong)
    if not wrong and not better:
        return absent(name, 2 * int(usable.sum()), evidence, amount=best)
    if better:
        evidence += f"; the identity as backward pass of {names(better)} is a better direction"
    confidence = min(1.0, 1 - min(best, far) / 2)
    return Trait(name, True, evidence, confidence, None, better, best)


def _agreement_by_scale(probe: GradientProbe, grad: Tensor, usable: Tensor) -> dict[float, float]:
    """Agreement by step length, without steps whose differences are below the rounding error."""
    found = {}
    for scale in SCALES:
        agreement = _agreement(probe, grad, scale, usable)
        if not math.isnan(agreement):
            found[scale] = agreement
    return found


def _agreement(probe: GradientProbe, grad: Tensor, scale: float, usable: Tensor) -> float:
    """The mean agreement over rows, along the signs of the gradient and along random signs.

    The agreement of a difference m and a product p with the gradient is 2 m p / (m^2 + p^2): 1 if
    they are equal, -1 if they are opposite. NaN if all are below the rounding error.
    """
    x = probe.x
    step = scale * probe.radius
    parts = []
    random_signs = probe.target.keys(7).signs(tuple(x.shape[1:]), x.dtype)
    directions = (grad.sign(), random_signs)
    values = probe.values([x + s * step * d for d in directions for s in (1, -1)])
    for direction, up, down in zip(directions, values[::2], values[1::2], strict=True):
        measured = (up - down).double()
        predicted = 2 * step * (grad * direction).flatten(1).sum(1).double()
        larger = torch.maximum(measured.abs(), predicted.abs())
        significant = usable & (larger > rounding_error(up, down, x.dtype))
        both = measured.square() + predicted.square()
        smallest = torch.finfo(torch.float64).tiny
        parts.append((2 * measured * predicted / both.clamp(min=smallest))[significant])
    agreement = torch.cat(parts)
    return float(agreement.mean()) if len(agreement) else math.nan


def _wrong(probe: GradientProbe) -> Tensor:  # [n] bool
    keys = probe.target.keys(7)
    return wrong_gradients(
        probe.value, probe.x, probe.weighted_gradient, probe.radius, keys, probe.values
    )


def _wrong_with_all_rules(probe: GradientProbe) -> bool:
    """Whether gradients are wrong with each of the rules at sites that attacks use."""
    _, ctx = probe.target.trace()
    named: dict[str, Rule] = dict.fromkeys(ctx.sites - set(ctx.solve_info), BPDA())
    solves: dict[str, Rule] = dict.fromkeys(ctx.solve_info, Checkpointed())
    every: list[dict[str, Rule]] = [{}, named, solves, {**named, **solves}]
    different = [rules for k, rules in enumerate(every) if rules not in every[:k]]
    return all(_state(replace(probe, rules=rules)) is Check.WRONG for rules in different)


def gradient_state(probe: GradientProbe) -> Check:
    """How gradients compare with differences, at the images and at points near them."""
    at_images = _state(probe)
    return at_images if at_images is Check.WRONG else max(at_images, _state(probe.nearby))


def _state(probe: GradientProbe) -> Check:
    keys = probe.target.keys(7)
    return check_gradients(probe.value, probe.x, probe.weighted_gradient, probe.radius, keys)


def _better_bypassed(probe: GradientProbe, rows: Tensor, *, try_layers: bool) -> tuple[str, ...]:
    """Sites where BPDA gives a better gradient than the exact one.

    Of a defense: all such named sites. Of a net: the best layer or function, if `try_layers`.
    """
    target = probe.target
    if not target.opaque:
        exact = probe.margin_increase(probe.gradient())
        sites = [site.name for site in named_sites(target) if site.keeps_shape]
        return tuple(site for site in sites if _gain(probe, site, exact, rows) > 0)
    if not try_layers:
        return ()
    exact = probe.margin_increase(probe.gradient())
    layers = [site.name for site in layer_sites(target) if site.keeps_shape][:_MOST_LAYERS]
    gains = {}
    for site in (*layers, *function_sites(target)):
        instrumented = replace(probe, target=target.instrumented(site))
        gains[site] = _gain(instrumented, site, exact, rows)
    best = max(gains, key=lambda site: gains[site], default=None)
    return (best,) if best is not None and gains[best] > 0 else ()


def _gain(probe: GradientProbe, site: str, exact: Tensor, rows: Tensor) -> float:
    """How much more a step along the gradient with BPDA at a site increases the margin.

    0 if the gain is below two standard errors, or if there is no gradient: code written for no_grad
    may do what no graph can record, such as modifying parameters in place.

    Args:
        probe: target and points.
        site: the site.
        exact: [n] the increase along the exact gradient.
        rows: [n] bool: the images over which the gain is averaged.
    """
    try:
        grad = replace(probe, rules={site: BPDA()}).gradient()
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except (ValueError, RuntimeError):
        return 0.0
    gain = (probe.margin_increase(grad) - exact).double()[rows]
    error = float(gain.std()) / math.sqrt(len(gain)) if len(gain) > 1 else 0.0
    mean = float(gain.mean())
    return mean if mean > 2 * error else 0.0
