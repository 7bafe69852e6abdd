"""What is this target, really? Functional tests of its behavior, beside what it declares."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from saddlepoint.attacks.spaces import Ball
from saddlepoint.audits.probes.behavior import input_changed, neighbors, past, randomness
from saddlepoint.audits.probes.gradient_mode import watched
from saddlepoint.audits.probes.gradients import slopes
from saddlepoint.audits.probes.internals import inside
from saddlepoint.audits.probes.outputs import outputs
from saddlepoint.audits.probes.probe_target import ProbeTarget
from saddlepoint.audits.probes.traits import Trait, TraitName, Traits
from saddlepoint.audits.target.admission import Target
from saddlepoint.evaluation import Threat

Family = Callable[[ProbeTarget], Iterator[Trait]]
FUNCTION: tuple[Family, ...] = (input_changed, randomness, neighbors, past)  # is it one?
NATURE: tuple[Family, ...] = (watched, slopes, outputs, inside)  # and of which kind?


def probe(target: Target, x: Tensor, y: Tensor, *, threat: Threat | Ball) -> Traits:
    """What the target is like, measured on the first few of the images; nothing is attacked, and the target stays as it is.

    `target` is what `audit` takes: an nn.Module, a `Defense` or a callable on batches. The threat says how large steps are.
    """
    return measure_traits(
        ProbeTarget.of(target, x, y, threat.space if isinstance(threat, Threat) else threat)
    )


def measure_traits(subject: ProbeTarget) -> Traits:
    """All families in turn. A target that remembers is asked each time as it was handed over, once that is known."""
    found = [trait for family in FUNCTION for trait in family(subject)]
    if any(
        trait.present and trait.name in (TraitName.STATE, TraitName.CHANGES_ITSELF)
        for trait in found
    ):
        subject = subject.renewed()
    return Traits((*found, *(trait for family in NATURE for trait in family(subject))))
