"""Measures the traits of a target: functional tests of its behavior, beside what it declares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from saddlepoint.audits.probes.behavior import (
    probe_coupling,
    probe_input_changes,
    probe_randomness,
    probe_state,
)
from saddlepoint.audits.probes.gradient_mode import probe_gradient_mode
from saddlepoint.audits.probes.gradients import probe_gradients
from saddlepoint.audits.probes.internals import probe_internals
from saddlepoint.audits.probes.outputs import probe_outputs
from saddlepoint.audits.probes.probe_target import ProbeTarget
from saddlepoint.audits.probes.traits import COUPLING, Trait, TraitName, Traits
from saddlepoint.audits.probes.unused import probe_unused

Probe = Callable[[ProbeTarget], Iterator[Trait]]
# Is the output a function of the image alone?
BEHAVIOR: tuple[Probe, ...] = (probe_input_changes, probe_randomness, probe_coupling, probe_state)
# Which function, and which gradients does it have?
FUNCTION: tuple[Probe, ...] = (
    probe_gradient_mode,
    probe_gradients,
    probe_outputs,
    probe_internals,
    probe_unused,
)


def measure_traits(target: ProbeTarget) -> Traits:
    """Run all probes. Once a target is known to keep state, each call uses a fresh copy."""
    found = [trait for probe in BEHAVIOR for trait in probe(target)]
    stateful = (TraitName.STATE, TraitName.CHANGES_ITSELF)
    if any(trait.present and trait.name in stateful for trait in found):
        target = target.stateless()
    if any(trait.present and trait.name in COUPLING for trait in found):
        target = replace(target, pure=False)  # points of several probes do not share a batch
    return Traits((*found, *(trait for probe in FUNCTION for trait in probe(target))))
