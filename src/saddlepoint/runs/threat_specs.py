"""Builds the threat model that a specification describes."""

from __future__ import annotations

from saddlepoint.attacks.spaces import Ball
from saddlepoint.evaluation import BatchControl, NaturalOrder, SortedByLabel, Threat, WorstCaseOrder
from saddlepoint.evaluation.orders import Order
from saddlepoint.phrases import count
from saddlepoint.runs.spec import NORMS, SpecError, ThreatSpec, parse_radius

_DEFAULT_WINDOW = 256  # images; two batches of 128, as in App. A.7 of Chen et al. 2022


def threat(spec: ThreatSpec) -> Threat:
    """The threat model of a specification.

    Raises:
        SpecError: A window is given, but the order is natural.
        ValueError: Other settings contradict each other.
    """
    return Threat(
        Ball(NORMS[spec.norm], parse_radius(spec.radius)),
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
                f"a window of {count(spec.window, 'image')} needs an order that the attacker "
                "chooses. Set the order to 'by-label' or 'searched', or leave the window out."
            )
        return NaturalOrder()
    window = spec.window or _DEFAULT_WINDOW
    return SortedByLabel(window) if spec.order == "by-label" else WorstCaseOrder(window)
