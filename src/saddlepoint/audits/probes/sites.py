"""Finds where gradients are lost: at named sites of a defense, or inside a net that names none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attacks.losses import margin
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.audits.probes.probe_target import ProbeTarget
from saddlepoint.audits.target.admission import explain_errors
from saddlepoint.audits.target.hooks import (
    GradientFlow,
    RecordFlow,
    record_detached_images,
    record_flows,
)
from saddlepoint.audits.target.instrument import FUNCTIONS, INPUT
from saddlepoint.defenses import Context, Plain
from saddlepoint.gradients import BPDA, Backprop, Rule

_MOST = 0.5  # fraction of images


@dataclass(frozen=True)
class Site:
    """What happens to gradients at one site or layer."""

    name: str
    keeps_shape: bool  # output and input have one shape, so the identity can replace it
    loses_gradients: bool  # its input gets no gradient, zeros or non-finite values

    @classmethod
    def of(cls, name: str, flows: Sequence[GradientFlow]) -> Site:
        """From the recorded gradients of all its calls."""
        return cls(name, all(flow.keeps_shape for flow in flows), any(flow.lost for flow in flows))


def named_sites(target: ProbeTarget) -> tuple[Site, ...]:
    """All named sites of a defense, except solvers, which have rules of their own."""
    _, ctx = target.trace()
    names = sorted(ctx.sites - set(ctx.solve_info))
    if not names:
        return ()
    flows: dict[str, list[GradientFlow]] = {name: [] for name in names}
    rules: dict[str, Rule] = {name: RecordFlow(calls) for name, calls in flows.items()}
    _gradient(target, rules)
    return tuple(Site.of(name, calls) for name, calls in flows.items() if calls)


def layer_sites(target: ProbeTarget) -> tuple[Site, ...]:
    """All layers of a net that map a tensor to a tensor.

    A layer that contains a layer which loses gradients is left out.
    """
    target = target.fresh_copy()  # the first call of a net that keeps state
    net = _net(target)
    names = {module: name for name, module in net.named_modules() if name}
    with record_flows(names) as flows:
        _gradient(target, {})
    sites = [Site.of(name, calls) for name, calls in flows.items() if calls]
    losing = [site.name for site in sites if site.loses_gradients]
    return tuple(
        site for site in sites if not any(name.startswith(f"{site.name}.") for name in losing)
    )


def function_sites(target: ProbeTarget) -> tuple[str, ...]:
    """Torch functions that a net calls and that may lose gradients.

    Custom backward passes are visible only in a recorded graph, so gradients are enabled.
    """
    instrumented = target.instrumented(*FUNCTIONS)
    x = target.x.clone().requires_grad_()
    ctx = Context(target.keys())
    with torch.enable_grad(), explain_errors(target.kind, x):
        # A clone is no leaf: a net may modify it in place, which another probe reports.
        instrumented.defense.trace(x.clone(), ctx)
    return tuple(sorted(ctx.sites))


def detached_inputs(target: ProbeTarget) -> tuple[str, ...]:
    """Inputs of layers that look like images, depend on them, and have no gradient.

    Layers inside such a layer are left out.
    """
    first = _detached_images(target.fresh_copy(), target.x)
    other = _detached_images(target.fresh_copy(), target.x.flip(0))
    changing = [n for n in first if n in other and not torch.equal(first[n], other[n])]
    outer = [
        name for name in changing if not any(name.startswith(f"{holder}.") for holder in changing)
    ]
    return tuple(f"{INPUT}{name}" for name in outer)


def sites_to_bypass(target: ProbeTarget) -> tuple[str, ...]:
    """Sites where the identity as backward pass lets gradients reach the images.

    Of a defense: named sites that lose gradients. Of a net: the innermost layers that lose
    gradients; else torch functions without a gradient; else both; else the inputs of the first
    layers that get detached images, for instance images computed by numpy.
    """
    if not target.opaque:
        return _replaceable(named_sites(target))
    for sites in _candidates(target):
        bypass = dict.fromkeys(sites, BPDA())
        if sites and _reaches_images(target.instrumented(*sites), bypass):
            return sites
    return ()


def _candidates(target: ProbeTarget) -> Iterator[tuple[str, ...]]:
    layers = _replaceable(layer_sites(target))
    yield layers
    functions = function_sites(target)
    yield functions
    yield (*layers, *functions)
    yield detached_inputs(target)


def _replaceable(sites: Sequence[Site]) -> tuple[str, ...]:
    return tuple(site.name for site in sites if site.loses_gradients and site.keeps_shape)


def _detached_images(target: ProbeTarget, images: Tensor) -> dict[str, Tensor]:
    net = _net(target)
    x = images.clone().requires_grad_()
    with (
        record_detached_images(net, x) as found,
        torch.enable_grad(),
        explain_errors(target.kind, x),
    ):
        target.defense.trace(x.clone(), Context(target.keys()))
    return found


def _reaches_images(target: ProbeTarget, rules: Mapping[str, Rule]) -> bool:
    """Whether most images have a gradient that is finite and not zero."""
    grad = _gradient(target, rules)
    if grad is None:
        return False
    usable = (grad.isfinite() & (grad != 0)).flatten(1).any(1)
    return float(usable.double().mean()) > _MOST


def _gradient(target: ProbeTarget, rules: Mapping[str, Rule]) -> Tensor | None:
    """The gradient of the margin, [n, ...]; None if it does not reach the images."""
    objective = AttackObjective([target.attacked], target.y, margin, rules=rules)
    try:
        return Backprop().value_and_grad(objective, target.x, target.keys()).grad
    except (ValueError, RuntimeError):
        return None  # recorded flows show where it is lost


def _net(target: ProbeTarget) -> torch.nn.Module:
    assert isinstance(target.defense, Plain), "only a net has layers"
    return target.defense.net
