"""Does the target answer otherwise when it is attacked: with gradients recorded, with an input that asks for one, in training?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from saddlepoint.audits.probes.probe_target import ProbeTarget, alike, gap
from saddlepoint.audits.probes.traits import Trait, TraitName, observed, unmeasured
from saddlepoint.audits.target.admission import TargetError
from saddlepoint.audits.target.copy import copied

ATTACKED = (TraitName.GRAD_MODE, TraitName.REQUIRES_GRAD)
NAMES = (*ATTACKED, TraitName.TRAINING_FLAG)


def watched(subject: ProbeTarget) -> Iterator[Trait]:
    """A defense is the same function for who attacks and for who asks."""
    n = len(subject)
    names = NAMES
    if subject.defense.grants != "gradient":
        yield from (unmeasured(name, "the target is asked without gradients") for name in names)
        return
    declared = False if subject.declares else None
    with torch.no_grad():
        plain = subject.fresh().look()
    with torch.enable_grad():
        recorded = subject.fresh().look().detach()
        asked = subject.fresh().look(subject.x.clone().requires_grad_()).detach()
    yield observed(
        TraitName.GRAD_MODE, not alike(plain, recorded), n, f"with gradients recorded: {gap(plain, recorded)}",
        "with gradients recorded it answers alike", declared=declared,
    )  # fmt: skip
    yield observed(
        TraitName.REQUIRES_GRAD, not alike(recorded, asked), n, f"about an input that requires a gradient: {gap(recorded, asked)}",
        "about an input that requires a gradient it answers alike", declared=declared,
    )  # fmt: skip
    yield _flagged(subject, plain)


def _flagged(subject: ProbeTarget, plain: Tensor) -> Trait:
    """Layers of torch that learn or drop out in training are left as they are: what remains is code that asks for the flag."""
    name = NAMES[2]
    if subject.module is None or subject.untouched is None:
        return unmeasured(name, "the target is no module, or one that cannot be copied")
    net = copied(subject.untouched)
    assert isinstance(net, nn.Module)
    for module in net.modules():
        module.training = module.training or not type(module).__module__.startswith("torch.nn.")
    try:
        with torch.no_grad():
            out = replace(subject, defense=subject.form(net)).look()
    except (TargetError, TypeError, ValueError) as error:
        return observed(
            name, True, 1, f"in training mode it fails ({str(error).splitlines()[0]})", ""
        )
    return observed(
        name, not alike(plain, out), len(subject),
        f"with its own training flag set, and torch's layers as they are: {gap(plain, out)}",
        "with its own training flag set, and torch's layers as they are, it answers alike",
    )  # fmt: skip
