"""The search for parts of a model that it uses for some images only: branches and early exits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from saddlepoint.audits.probes.probe_target import ProbeTarget
from saddlepoint.audits.probes.traits import (
    COUPLING,
    GRADIENT_MODE,
    Trait,
    TraitName,
    Traits,
    absent,
    present,
    unmeasured,
)
from saddlepoint.audits.target.branches import Branch, find_branches
from saddlepoint.audits.target.control_flow import Jump, find_jump
from saddlepoint.audits.target.exit_search import Recorder, find_exits
from saddlepoint.audits.target.exits import HiddenExits
from saddlepoint.defenses import Context, MultiExit
from saddlepoint.locate import describe_error
from saddlepoint.phrases import count, times

# Branches are searched only in deterministic, stateless nets with independent rows and gradients.
_NO_BRANCHES = (
    TraitName.RANDOM,
    *COUPLING,
    TraitName.STATE,
    TraitName.CHANGES_ITSELF,
    TraitName.NO_GRADIENT,
    *GRADIENT_MODE,
)
# Exits are searched in all nets that give the same outputs at every call.
_NO_EXITS = (TraitName.RANDOM, TraitName.STATE, TraitName.CHANGES_ITSELF, *GRADIENT_MODE)


@dataclass(frozen=True)
class HiddenParts:
    """What the search found inside a net that names no sites."""

    branches: tuple[Branch, ...] = ()  # discrete branches, one of which each image takes
    exits: HiddenExits | None = None  # class scores inside the net
    jump: Jump | None = None  # of the output, where decisions change that are not attacked
    unrecorded: str = ""  # the error of a call with recorded operations; empty: there was none


def find_hidden(target: ProbeTarget, traits: Traits) -> HiddenParts:
    """Search branches, exits, and jumps of the output that neither of them explains.

    Args:
        target: the target; a defense, which names its views, is not searched.
        traits: its measured traits.
    """
    if not target.opaque:
        return HiddenParts()
    branches: tuple[Branch, ...] = ()
    if _reason(traits, _NO_BRANCHES) is None:
        branches = find_branches(target.defense, target.x, target.y, Context(target.keys()))
    if _reason(traits, _NO_EXITS) is not None:
        return HiddenParts(branches)
    recorder = Recorder(target.defense, target.x, Context(target.keys()))
    try:
        first = recorder.first()
    except Exception as error:  # numbers that are recorded are no plain floats and integers
        return HiddenParts(branches, unrecorded=describe_error(error))
    exits = find_exits(recorder, first, target.y)
    explained = branches or (exits is not None and exits.selected)
    if explained or any(name in traits for name in COUPLING):
        return HiddenParts(branches, exits)
    return HiddenParts(branches, exits, find_jump(recorder, first))


def with_hidden(target: ProbeTarget, traits: Traits) -> Traits:
    """The traits, with those of early exits and of branches.

    Args:
        target: the target.
        traits: its traits so far.
    """
    hidden = find_hidden(target, traits)
    return Traits((*traits, *_exits(traits, target, hidden), *_branches(traits, target, hidden)))


def _exits(traits: Traits, target: ProbeTarget, hidden: HiddenParts) -> Iterator[Trait]:
    name = TraitName.EXITS
    if isinstance(target.defense, MultiExit):
        declared = True if target.declares else None
        yield present(name, "the network returns one output per exit", declared=declared)
    elif not target.opaque:
        yield unmeasured(name, "the target is not a net whose operations can be recorded")
    elif (reason := _reason(traits, _NO_EXITS)) is not None:
        yield unmeasured(name, f"not searched, because it has the trait {reason!r}")
    elif hidden.unrecorded:
        yield unmeasured(name, f"an error while operations are recorded ({hidden.unrecorded})")
    elif hidden.exits is None:
        yield absent(name, len(target), "no class scores inside decide the output")
    else:
        found = count(
            len(hidden.exits) + hidden.exits.left_out,
            "output of a classifier",
            "outputs of classifiers",
        )
        yield present(name, f"{found} inside, from which it answers ({hidden.exits.places})")


def _branches(traits: Traits, target: ProbeTarget, hidden: HiddenParts) -> Iterator[Trait]:
    name = TraitName.BRANCHES
    if not target.opaque:
        yield unmeasured(name, "the target is not a net whose operations can be recorded")
    elif hidden.branches:
        found = count(len(hidden.branches), "result of a decision", "results of decisions")
        yield present(name, f"{found} for single images would change an output")
    elif hidden.jump is not None:
        place = f" ({hidden.jump.place})" if hidden.jump.place else ""
        yield present(
            name,
            "where it runs other operations, the output jumps by "
            f"{times(hidden.jump.size)} the typical lead of the predicted class{place}",
        )
    elif (reason := _reason(traits, _NO_BRANCHES)) is not None:
        yield unmeasured(name, f"not searched, because it has the trait {reason!r}")
    else:
        yield absent(name, len(target), "no decision for single images changes an output")


def _reason(traits: Traits, excluded: tuple[TraitName, ...]) -> str | None:
    """The first of the excluded traits that is present."""
    return next((str(name) for name in excluded if name in traits), None)
