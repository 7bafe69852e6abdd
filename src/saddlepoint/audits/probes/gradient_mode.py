"""Probes whether outputs change under the conditions of an attack.

These are: gradients are enabled, the input requires a gradient, or the training flag is set.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from saddlepoint.audits.probes.probe_target import UNCONTROLLED, ProbeTarget
from saddlepoint.audits.probes.traits import Trait, TraitName, observed, present, unmeasured
from saddlepoint.audits.target.admission import TargetError
from saddlepoint.audits.target.copy import copy_target
from saddlepoint.audits.target.rounding import alike, difference

_NAMES = (TraitName.GRAD_MODE, TraitName.REQUIRES_GRAD, TraitName.TRAINING_FLAG)


def probe_gradient_mode(target: ProbeTarget) -> Iterator[Trait]:
    """Whether a target computes other outputs for an attacker than for a user."""
    n = len(target)
    if target.defense.grants != "gradient":
        for name in _NAMES:
            yield unmeasured(name, "the target has no gradients")
        return
    if target.uncontrolled:
        for name in _NAMES:
            yield unmeasured(name, UNCONTROLLED)
        return
    declared = False if target.declares else None
    with torch.no_grad():
        plain = target.fresh_copy().query_unadapted()
    with torch.enable_grad():
        enabled = target.fresh_copy().query_unadapted().detach()
        x = target.x.clone().requires_grad_()
        required = target.fresh_copy().query_unadapted(x).detach()
    yield observed(
        TraitName.GRAD_MODE,
        not alike(plain, enabled),
        n,
        f"with gradients enabled: {difference(plain, enabled)}",
        "outputs with gradients enabled are equal",
        declared=declared,
    )
    yield observed(
        TraitName.REQUIRES_GRAD,
        not alike(enabled, required),
        n,
        f"for an input that requires a gradient: {difference(enabled, required)}",
        "outputs for an input that requires a gradient are equal",
        declared=declared,
    )
    yield _training_flag(target, plain)


def _training_flag(target: ProbeTarget, plain: Tensor) -> Trait:
    """Whether code of the target reads the training flag.

    Layers of torch stay in evaluation mode, since batch norm and dropout read the flag by design.
    """
    name = TraitName.TRAINING_FLAG
    if target.module is None or target.unused_copy is None:
        return unmeasured(name, "the target is not a module, or cannot be copied")
    net = copy_target(target.unused_copy)
    assert isinstance(net, nn.Module)
    for module in net.modules():
        module.training = module.training or not type(module).__module__.startswith("torch.nn.")
    try:
        with torch.no_grad():
            out = replace(target, defense=target.to_defense(net)).query_unadapted()
    except (TargetError, TypeError, ValueError):
        return present(name, "in training mode it fails, or its outputs are not logits")
    condition = "with the training flag of its own modules set"
    return observed(
        name,
        not alike(plain, out),
        len(target),
        f"{condition}: {difference(plain, out)}",
        f"outputs {condition} are equal",
    )
