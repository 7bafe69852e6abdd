"""What probing found that decides how a target is attacked."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from saddlepoint.audits.probes.operations import Replaced
from saddlepoint.audits.probes.traits import TraitName, Traits
from saddlepoint.audits.target.branches import Branch
from saddlepoint.audits.target.control_flow import Jump
from saddlepoint.audits.target.exits import HiddenExits
from saddlepoint.audits.target.pixel_codes import FoundLevels

_MASKING = (
    TraitName.NO_GRADIENT,
    TraitName.NON_FINITE_GRADIENTS,
    TraitName.ZERO_GRADIENTS,
    TraitName.WRONG_GRADIENTS,
    TraitName.HIDDEN_SCORES,
    TraitName.GRAD_MODE,
    TraitName.REQUIRES_GRAD,
)


_COSTLY = 30  # operations of a prediction, in units of those of the static net


@dataclass(frozen=True)
class TargetFacts:
    """Measured facts about a target."""

    traits: Traits = field(default_factory=lambda: Traits(()))
    solves: frozenset[str] = frozenset()  # sites with a fixed-point solver
    bypassed: tuple[str, ...] = ()  # sites where BPDA gives better gradients than the exact ones
    branches: tuple[Branch, ...] = ()  # discrete branches, one of which each image takes
    exits: HiddenExits | None = None  # class scores inside a plain model
    jump: Jump | None = None  # of the output, where hidden decisions change that are not attacked
    unrecorded: str = ""  # the error of a call with recorded operations; empty: there was none
    levels: FoundLevels | None = None  # the levels of pixels; None: outputs depend on more
    saturation: float | None = None  # lead inside saturated softmax functions; None: none is
    eight_bit: bool = False  # all pixels of the images are multiples of 1/255
    replaced: Replaced = field(default_factory=Replaced)  # operations with surrogate gradients

    def has(self, name: TraitName) -> bool:
        """Whether a trait is present."""
        return name in self.traits

    @property
    def draws(self) -> int | None:
        """Draws after which the mean gradient has more signal than noise; None: not measured."""
        amount = self.traits.amount(TraitName.NOISY_GRADIENTS)
        return None if amount is None else math.ceil(amount)

    @property
    def masked(self) -> bool:
        """Outputs are more reliable than gradients."""
        return bool(self.bypassed) or any(self.has(name) for name in _MASKING)

    @property
    def costly(self) -> bool:
        """One prediction costs as much as many of the static net."""
        amount = self.traits.amount(TraitName.EXPENSIVE)
        return amount is not None and amount >= _COSTLY

    @property
    def no_exact_gradient(self) -> bool:
        """Exact gradients are missing, or zero on every image."""
        all_zero = self.traits.amount(TraitName.ZERO_GRADIENTS) == 1.0
        return self.has(TraitName.NO_GRADIENT) or (self.has(TraitName.ZERO_GRADIENTS) and all_zero)


UNKNOWN = TargetFacts()
