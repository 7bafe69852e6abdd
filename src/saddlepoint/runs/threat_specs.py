"""From the words of a specification to a threat model."""

from __future__ import annotations

from saddlepoint.attacks.spaces import Ball
from saddlepoint.evaluation import BatchControl, NaturalOrder, SortedByLabel, Threat, WorstCaseOrder
from saddlepoint.evaluation.orders import Order
from saddlepoint.runs.spec import NORMS, SpecError, ThreatSpec, radius

_WINDOW = 256  # two batches of 128, as in App. A.7 of Chen et al. 2022


def threat(spec: ThreatSpec) -> Threat:
    """The threat model that a section describes; one that contradicts itself is refused with what to change."""
    return Threat(
        Ball(NORMS[spec.norm], radius(spec.eps)),
        access=spec.access,
        queries=spec.queries,
        randomness=spec.randomness,
        draws=spec.draws or 1,
        rounds=spec.rounds,
        state_visible=spec.state_visible,
        order=_order(spec),
        batch_control=BatchControl(spec.controlled_fraction, spec.victims),
        online_queries=spec.online_queries,
    )


def _order(spec: ThreatSpec) -> Order:
    if spec.order == "natural":
        if spec.window is not None:
            raise SpecError(
                f"a window of {spec.window} examples is for an order that the attacker chooses. Give order = 'by-label' or "
                "'searched' too, or leave the window out."
            )
        return NaturalOrder()
    window = spec.window or _WINDOW
    return SortedByLabel(window) if spec.order == "by-label" else WorstCaseOrder(window)
