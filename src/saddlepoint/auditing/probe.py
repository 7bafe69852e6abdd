"""What is this target, really? Functional tests of its behaviour, beside what it declares."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from saddlepoint.attack.space import Ball
from saddlepoint.auditing.admission import Target
from saddlepoint.auditing.probes.behaviour import input_changed, neighbours, past, randomness
from saddlepoint.auditing.probes.inside import inside
from saddlepoint.auditing.probes.outputs import outputs
from saddlepoint.auditing.probes.slopes import slopes
from saddlepoint.auditing.probes.subject import Subject
from saddlepoint.auditing.probes.watched import watched
from saddlepoint.auditing.traits import Trait, Traits
from saddlepoint.game import Threat

FAMILIES: tuple[Callable[[Subject], Iterator[Trait]], ...] = (
    input_changed, randomness, neighbours, past, watched, slopes, outputs, inside,
)  # fmt: skip


def probe(target: Target, x: Tensor, y: Tensor, *, threat: Threat | Ball) -> Traits:
    """What the target is like, measured on the first few of the images; nothing is attacked, and the target stays as it is.

    `target` is what `audit` takes: an nn.Module, a `Defense` or a callable on batches. The threat says how large steps are.
    """
    return examine(Subject.of(target, x, y, threat.space if isinstance(threat, Threat) else threat))


def examine(subject: Subject) -> Traits:
    """All families in turn."""
    return Traits(tuple(trait for family in FAMILIES for trait in family(subject)))
