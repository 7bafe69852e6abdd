"""Traits: measured properties of a target, beside what it declares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from html import escape
from typing import Any, Self

from saddlepoint.phrases import count

CERTAIN = 1.0  # confidence in a trait that was observed once: one observation proves it


class TraitName(StrEnum):
    """All traits that are probed, each with what it means when it is present."""

    description: str

    def __new__(cls, value: str, description: str) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.description = description
        return member

    CHANGES_INPUT = "changes its input", "it modifies the input tensor in place"
    RANDOM = "random", "outputs change with the random seed"
    UNSEEDED = "unseeded", "outputs change although the random seed stays the same"
    NOISE_PER_ROW = "noise per row", "each row of a batch gets its own noise"
    NOISE_PER_BATCH = "noise per batch", "all rows of a batch get the same noise"
    COUPLED = "coupled", "the output for an image depends on the other images of the batch"
    ROW_ORDER = "row order", "outputs depend on the order of rows"
    BATCH_SIZE = "batch size", "outputs depend on the batch size"
    STATE = "state", "earlier calls change later outputs"
    CHANGES_ITSELF = "changes itself", "a call modifies parameters, buffers or attributes"
    GRAD_MODE = "grad mode", "outputs change when gradients are enabled"
    REQUIRES_GRAD = "requires grad", "outputs change when the input requires a gradient"
    TRAINING_FLAG = "training flag", "its own code reads the training flag"
    SITES = "sites", "it has named steps with a replaceable backward pass"
    NO_GRADIENT = "no gradient", "no gradient reaches the input"
    NON_FINITE_GRADIENTS = "non-finite gradients", "gradients contain NaN or infinity"
    ZERO_GRADIENTS = "zero gradients", "gradients are exactly zero"
    WRONG_GRADIENTS = "misdirected gradients", "gradients differ from finite differences"
    NOISY_GRADIENTS = "noisy gradients", "gradients change with the random seed"
    SATURATED_LOGITS = "saturated logits", "the cross-entropy is exactly zero in floating point"
    PROBABILITIES = "probabilities", "outputs are probabilities, not logits"
    HIDDEN_SCORES = "hidden scores", "outputs do not rank the wrong classes"
    QUANTIZED = "quantized", "outputs are piecewise constant"
    JUMPS = "jumps", "a tiny step from an image changes outputs as much as a large one"
    VIEWS_DISAGREE = "views disagree", "intermediate views predict other classes"
    OTHER_ANSWER = "answer is not the last view", "it answers with something else"
    OPTIMIZES = "optimizes inside", "it computes gradients at test time"
    UNUSED_LAYERS = (
        "unused layers",
        "it has layers that no image reaches, and decides in Python code what it runs",
    )
    EXITS = "early exits", "it answers from one or more of several classifiers inside"
    BRANCHES = "branches", "it decides for single images what it computes"
    SOLVER_RESIDUAL = "solver not converged", "a solver stops far from a fixed point"
    EXPENSIVE = "costly", "one prediction costs more than one of the static net"
    ADAPTS = "adapts", "`adapt` changes its outputs"
    ADAPTS_DIFFERENTIABLY = "adapts differentiably", "the gradient through `adapt` is informative"


COUPLING = (TraitName.COUPLED, TraitName.ROW_ORDER, TraitName.BATCH_SIZE)
GRADIENT_MODE = (TraitName.GRAD_MODE, TraitName.REQUIRES_GRAD)


@dataclass(frozen=True)
class Trait:
    """One probed property: whether it is present, with evidence, and whether it is declared."""

    name: TraitName
    present: bool | None  # None: it could not be measured
    evidence: str
    confidence: float  # that `present` is right, in [0, 1]; 0 where it could not be measured
    declared: bool | None = None  # None: the target declares nothing about it
    places: tuple[str, ...] = ()  # sites, layers or views where it was found or looked for
    amount: float | None = None  # how much, in the unit that the evidence names

    @property
    def denied(self) -> bool:
        """The trait is present although the target declares that it is not."""
        return self.present is True and self.declared is False


@dataclass(frozen=True, repr=False)
class Traits:
    """All probed traits, in the order of the probes. `"random" in traits` tests for presence.

    `print(traits)` shows those that are present, with evidence.
    """

    found: tuple[Trait, ...]

    def __repr__(self) -> str:
        return f"<Traits: {', '.join(trait.name for trait in self._present) or 'none'}>"

    def __str__(self) -> str:
        lines = [f"{trait.name}: {trait.evidence}" for trait in self._present]
        return "\n".join([*lines, f"Measured: {count(len(self.found), 'property')}."])

    def _repr_html_(self) -> str:
        return "<br>".join(escape(line) for line in str(self).splitlines())

    @property
    def _present(self) -> list[Trait]:
        return [trait for trait in self.found if trait.present]

    def __iter__(self) -> Iterator[Trait]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def __contains__(self, name: object) -> bool:
        return any(trait.name == name and trait.present for trait in self.found)

    def __getitem__(self, name: str) -> Trait:
        for trait in self.found:
            if trait.name == name:
                return trait
        known = ", ".join(trait.name for trait in self.found)
        raise KeyError(f"there is no trait {name!r}. Known traits: {known}.")

    def places(self, name: TraitName) -> tuple[str, ...]:
        """Where a trait was found; empty if it was not probed."""
        return next((trait.places for trait in self.found if trait.name is name), ())

    def amount(self, name: TraitName) -> float | None:
        """How much of a trait was measured; None if it was not probed or has no amount."""
        return next((trait.amount for trait in self.found if trait.name is name), None)

    @property
    def denied(self) -> tuple[Trait, ...]:
        """Traits that are present although the target declares that they are not."""
        return tuple(trait for trait in self.found if trait.denied)

    def record(self) -> list[dict[str, Any]]:
        """Plain values for JSON."""
        return [{**asdict(trait), "places": list(trait.places)} for trait in self.found]


def present(
    name: TraitName,
    evidence: str,
    *,
    declared: bool | None = None,
    places: tuple[str, ...] = (),
    amount: float | None = None,
) -> Trait:
    """A trait that was observed."""
    return Trait(name, True, evidence, CERTAIN, declared, places, amount)


def absent(
    name: TraitName,
    trials: int,
    evidence: str,
    *,
    declared: bool | None = None,
    places: tuple[str, ...] = (),
    amount: float | None = None,
) -> Trait:
    """A trait that was not observed in `trials` trials.

    By Laplace's rule the next trial does not show it either with probability (n + 1) / (n + 2).
    """
    return Trait(name, False, evidence, (trials + 1) / (trials + 2), declared, places, amount)


def unmeasured(name: TraitName, reason: str, *, declared: bool | None = None) -> Trait:
    """A trait that could not be measured."""
    return Trait(name, None, reason, 0.0, declared)


def observed(
    name: TraitName,
    found: bool,
    trials: int,
    if_present: str,
    if_absent: str,
    *,
    declared: bool | None = None,
) -> Trait:
    """A trait that was observed, or was not in `trials` trials."""
    if found:
        return present(name, if_present, declared=declared)
    return absent(name, trials, if_absent, declared=declared)
