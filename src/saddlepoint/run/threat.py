"""From the words of a specification to a threat model."""

from __future__ import annotations

from saddlepoint.attack.space import Ball
from saddlepoint.game import ByLabel, Control, Natural, Searched, Threat
from saddlepoint.game.order import Order
from saddlepoint.run.spec import NORMS, SpecError, ThreatSpec, radius

_WINDOW = 256  # two batches of 128, as in App. A.7 of Chen et al. 2022


def threat(spec: ThreatSpec) -> Threat:
    """The threat model that a section describes; one that contradicts itself is refused with what to change."""
    return Threat(
        Ball(NORMS[spec.norm], radius(spec.eps)),
        access=spec.access,
        queries=spec.queries,
        coins=spec.coins,
        draws=spec.draws or 1,
        rounds=spec.rounds,
        leaking=spec.leaking,
        order=_order(spec),
        control=Control(spec.control, spec.victims),
        live=spec.live,
    )


def _order(spec: ThreatSpec) -> Order:
    if spec.order == "natural":
        if spec.window is not None:
            raise SpecError(
                f"a window of {spec.window} examples is for an order that the attacker chooses. Give order = 'by-label' or "
                "'searched' too, or leave the window out."
            )
        return Natural()
    window = spec.window or _WINDOW
    return ByLabel(window) if spec.order == "by-label" else Searched(window)
