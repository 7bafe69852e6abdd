"""What was sent against a defense, told by what an adversary is made of, not by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from saddlepoint.attacks.min_norm import MINIMUM_NORM
from saddlepoint.audits.target.answer import AgainstAnswer
from saddlepoint.defenses import Defense, Plain
from saddlepoint.describe import PlainValue as Described
from saddlepoint.describe import describe
from saddlepoint.evaluation import (
    Adversary,
    Direct,
    Escalate,
    FixedPoints,
    MultiTarget,
    OnExamples,
    Restarts,
    Transfer,
)

# As descriptions call them: what stands in for a backward pass that fails, and what looks at many coins or at one.
APPROXIMATE = frozenset({"BPDA", "SPSA", "Phantom"})
AVERAGING = frozenset({"EoT", "FixedRandomness"})
ANTICIPATING = frozenset(
    {"GreedyModelSpace", "FixedPoint", "RetrainedEnsemble", "JointEquilibrium"}
)  # they see what a defense will become
_COPYING = frozenset(
    {"CleanCopies", "CleanFallback"}
)  # they hand over the clean image where they failed


@dataclass(frozen=True)
class Sent:
    """One adversary of an audit and what it is made of."""

    index: int  # among all that were sent; the clean images are number 0
    adversary: Adversary
    kinds: frozenset[str]  # the classes inside, at any depth
    aims: frozenset[str]  # at which views
    ruled: bool  # a gradient crosses some site in a way of the attacker's own
    responds: bool  # differentiates through the adaptation

    @classmethod
    def of(cls, index: int, adversary: Adversary) -> Sent:
        told = list(_mappings(describe(adversary)))
        aims = frozenset(str(part["aim"]) for part in told if "aim" in part)
        ruled, responds = (
            any(bool(part.get(name)) for part in told) for name in ("rules", "respond")
        )
        return cls(index, adversary, kinds(describe(adversary)), aims, ruled, responds)

    @property
    def name(self) -> str:
        return self.adversary.name

    @property
    def remedy(self) -> bool:
        """Sent after a first round, to what it had left standing."""
        return isinstance(self.adversary, OnExamples)

    @property
    def transfers(self) -> bool:
        return "Transfer" in self.kinds

    @property
    def mixed(self) -> bool:
        """Follows gradients from where a search without them ended: what it takes speaks neither for the one nor for the other."""
        return "WarmStart" in self.kinds

    @property
    def white_box(self) -> bool:
        """Follows the gradient of the defense itself, and nothing else."""
        return self.adversary.needs == "gradient" and not self.transfers and not self.mixed

    @property
    def black_box(self) -> bool:
        """Asks the defense for scores or labels alone."""
        return self.adversary.needs != "gradient" and not self.transfers

    @property
    def nearest(self) -> bool:
        """Looks for the nearest mistake, and climbs nothing on the way."""
        return bool(kinds(describe(core(self.adversary) or self.adversary)) & MINIMUM_NORM)

    @property
    def copies(self) -> bool:
        """Hands over the clean image where it did not succeed."""
        return bool(self.kinds & _COPYING)

    def from_static(self, defense: Defense) -> bool:
        """Are its points found on the static net of this defense?"""
        sources = [part.source for part in _parts(self.adversary) if isinstance(part, Transfer)]
        return any(
            source.static is not None and source.static is defense.static for source in sources
        )

    def adaptive(self, defense: Defense, *, gradients_fail: bool) -> bool:
        """Was it made for what this defense does at test time, rather than for a static net?

        It must follow the gradient of the whole defense: where that fails by a rule of its own, where coins are tossed by averaging
        or fixing them, where the defense learns by anticipating what it will become.
        """
        return (
            self.white_box
            and (not gradients_fail or bool(self.kinds & APPROXIMATE) or self.ruled)
            and (not defense.random or bool(self.kinds & AVERAGING))
            and (defense.memory == "none" or self.responds or bool(self.kinds & ANTICIPATING))
        )


def everything(adversaries: Sequence[Adversary]) -> tuple[Sent, ...]:
    """All but the clean images, which come first."""
    return tuple(
        Sent.of(a, adversary)
        for a, adversary in enumerate(adversaries)
        if not isinstance(adversary, FixedPoints)
    )


def static_inside(defense: Defense) -> Any:
    """The static net of a defense that is more than it; None of a net as it is, however it is looked at."""
    innermost = defense
    while isinstance(held := getattr(innermost, "inner", None), Defense):
        innermost = held
    return None if isinstance(innermost, Plain) else defense.static


def core(adversary: Adversary) -> Adversary | None:
    """One run of one optimizer, if that is what the adversary repeats: without restarts and targets, else as it was."""
    if isinstance(adversary, MultiTarget):
        return adversary.direct
    if isinstance(adversary, Escalate):
        return core(adversary.first)
    if isinstance(adversary, Restarts | OnExamples):
        return core(adversary.adversary)
    if isinstance(adversary, AgainstAnswer):
        inner = core(adversary.adversary)
        return None if inner is None else AgainstAnswer(inner)
    return (
        adversary
        if any(isinstance(part, Direct) for part in (adversary, getattr(adversary, "direct", None)))
        else None
    )


def varied(adversary: Adversary, change: Callable[[Direct], Direct]) -> Adversary:
    """The same `core` with another optimizer, loss or aim."""
    if isinstance(adversary, Direct):
        return change(adversary)
    assert is_dataclass(adversary), "adversaries are dataclasses"
    name = "direct" if isinstance(getattr(adversary, "direct", None), Direct) else "adversary"
    changed: Adversary = replace(adversary, **{name: varied(getattr(adversary, name), change)})
    return changed


def direct_of(core: Adversary) -> Direct:
    """The optimizer and objective inside a `core`."""
    found: list[Direct] = []
    varied(core, lambda direct: found.append(direct) or direct)  # type: ignore[func-returns-value]
    return found[0]


def climbing(sent: Sequence[Sent]) -> list[tuple[Sent, Adversary]]:
    """White-box attacks that climb an objective step by step, each with its `core`."""
    found = [(one, core(one.adversary)) for one in sent if one.white_box and not one.nearest]
    return [(one, inner) for one, inner in found if inner is not None]


def kinds(described: Described) -> frozenset[str]:
    """The names of all classes inside a description."""
    return frozenset(str(part["kind"]) for part in _mappings(described) if "kind" in part)


def _mappings(described: Described) -> Iterator[dict[str, Described]]:
    if isinstance(described, dict):
        yield described
    if isinstance(described, dict | list):
        for item in described.values() if isinstance(described, dict) else described:
            yield from _mappings(item)


def _parts(value: Any) -> Iterator[Any]:
    """The dataclasses inside, at any depth."""
    if is_dataclass(value) and not isinstance(value, type):
        yield value
        for one in fields(value):
            yield from _parts(getattr(value, one.name))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _parts(item)
