"""The target of a probe, with a few images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from saddlepoint import phrases
from saddlepoint.attacks.spaces import Ball
from saddlepoint.audits.probes.traits import TraitName, Traits
from saddlepoint.audits.target.admission import (
    Conversion,
    Target,
    TargetError,
    check_data,
    check_output,
    conversion,
    explain_errors,
)
from saddlepoint.audits.target.answer import attacked_defense
from saddlepoint.audits.target.copy import copy_target
from saddlepoint.audits.target.instrument import Instrumented, Stateless
from saddlepoint.audits.target.pure_function import is_pure
from saddlepoint.audits.target.rounding import alike, relevant
from saddlepoint.audits.target.standard_form import standard_form
from saddlepoint.audits.verdict import Symptom
from saddlepoint.defenses import BlackBox, Context, Defense, Plain, Trace
from saddlepoint.rng import Keys

T = TypeVar("T")
ROWS = 16  # images: enough to observe most violations, cheap for any model
_ADAPTING_ROWS = 8  # of a defense that adapts: each output may take a training run
# Draws of a net that declares nothing. A random choice with probability 1/2 is missed once in a
# million probes, one with probability 1/10 once in eight.
_DRAWS = 20
# Why a property of outputs could not be measured.
UNCONTROLLED = "outputs change with a source of randomness that no seed controls, which hides it"
_REPEATS = 3  # calls that must be equal bit for bit before noise below rounding errors counts


@dataclass(frozen=True)
class ProbeTarget:
    """A target as a defense, and a few images with labels. Probes use copies of the target."""

    defense: Defense
    x: Tensor  # [n, ...]
    y: Tensor  # [n]
    space: Ball
    declares: bool  # the target is a Defense, which declares its properties
    module: nn.Module | None = None  # the target itself, if it is a module
    to_defense: Conversion = field(default=lambda target: target)
    unused_copy: Target | None = None  # never called; None: a Defense, or it cannot be copied
    original: Target | None = None  # the target in standard form
    notes: tuple[Symptom, ...] = ()  # what was done to get it into this form
    pure: bool = False  # calls on the same images are equal: `pure_function`
    # Margins [n] by hash of the points, of this target and of forms that differ in gradients alone.
    margins: dict[bytes, Tensor] = field(default_factory=dict, repr=False, compare=False)
    _known: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, target: Target, x: Tensor, y: Tensor, space: Ball, most: int = ROWS) -> ProbeTarget:
        """Check target and data, and take the first images, at most `most`.

        Raises:
            TargetError: target or data violates a rule that every attack relies on.
        """
        check_data(x, y, space)
        declares = isinstance(target, Defense)
        adapting = isinstance(target, Defense) and target.memory != "none"
        count = min(_ADAPTING_ROWS if adapting else ROWS, most)
        # A copy can be differentiated even if x was created in inference mode.
        rows = x[:count].detach().clone()
        target, notes = standard_form(target, rows, int(y.amax()) + 1)
        unused = None if declares else _copy_or_none(target)
        used = target if unused is None else copy_target(unused)
        to_defense = conversion(used, rows, int(y.amax()) + 1)
        defense = to_defense(used)
        pure = unused is not None and _is_pure(defense, rows)
        probed = cls(
            Plain(defense.net) if pure and isinstance(defense, Plain) else defense,
            rows,
            y[:count].long(),
            space,
            declares,
            target if isinstance(target, nn.Module) else None,
            to_defense,
            unused,
            target,
            notes,
            pure,
        )
        classes = probed.classes
        if int(y.amax()) >= classes:
            raise TargetError(
                f"labels go up to {int(y.amax())}, but the target has "
                f"{phrases.count(classes, 'class')} (0 to {classes - 1})."
                + (
                    " The lowest label is 1: pass y - 1."
                    if int(y.amin()) == 1
                    else " Check that data and model have the same classes."
                )
            )
        return probed

    def __len__(self) -> int:
        return len(self.x)

    @property
    def kind(self) -> str:
        """What the target is, for messages."""
        if self.declares:
            return "defense"
        return "callable" if isinstance(self.defense, BlackBox) else "model"

    @property
    def adapts(self) -> bool:
        """It declares that it adapts to test images."""
        return self.defense.memory != "none"

    @property
    def repeatable(self) -> bool:
        """It declares that equal calls have equal outputs."""
        return self.declares and not self.defense.random and not self.adapts

    @property
    def opaque(self) -> bool:
        """It is a net that names no sites."""
        return self.module is not None and isinstance(self.defense, Plain)

    @property
    def attacked(self) -> Defense:
        """The defense of which gradients are computed."""
        return attacked_defense(self.defense)

    @property
    def pixel_radius(self) -> float:
        """The radius per pixel, at most a fifth of the box; 1/255 for radius 0."""
        low, high = self.space.box
        per_pixel = self.space.radius * self.x[0].numel() ** (-1 / self.space.p)
        return min(per_pixel or 1 / 255, 0.2 * (high - low))

    @property
    def other_images(self) -> Tensor:
        """Other images of the same kind: the negatives, in reverse order."""
        low, high = self.space.box
        return (low + high - self.x).flip(0)

    @property
    def classes(self) -> int:
        """The number of classes, without the reject class."""
        return self.answer.shape[1] - self.defense.rejects

    @cached_property
    def answer(self) -> Tensor:
        """The answer of a fresh copy. It is computed once, since it may be expensive."""
        return self.fresh_copy().query()

    @cached_property
    def redrawn_answer(self) -> Tensor:
        """The answer with another random seed; if possible one that differs from `answer`.

        A net that chooses one of few branches at random often chooses the same one twice.
        """
        found = self.answer
        if self.pure:
            return found
        for seed in range(1, 2 if self.declares else _DRAWS + 1):
            other = self.fresh_copy().query(seed=seed)
            if not alike(self.answer, other):
                return other
            found = found if torch.equal(self.answer, other) else other
        return found

    @cached_property
    def randomized(self) -> bool:
        """Outputs change with the random seed.

        Noise below all rounding errors counts, if it can change predictions and outputs are equal
        bit for bit with the same seed.
        """
        other = self.redrawn_answer
        if self.uncontrolled or not alike(self.answer, other):
            return True
        if torch.equal(self.answer, other) or not relevant(self.answer, other):
            return False
        return all(torch.equal(self.answer, self.fresh_copy().query()) for _ in range(_REPEATS))

    @cached_property
    def uncontrolled(self) -> bool:
        """Outputs change although the random seed stays the same. Each call uses a fresh copy."""
        if self.declares:
            return False
        if not alike(self.answer, self.fresh_copy().query()):
            return True
        # A choice among few branches is often the same twice, so a randomized net is called again.
        repeats = 0 if alike(self.answer, self.redrawn_answer) else _DRAWS
        return any(not alike(self.answer, self.fresh_copy().query()) for _ in range(repeats))

    def fresh_copy(self) -> ProbeTarget:
        """The same with a copy of the target that was never called, if there is one.

        A pure function needs no copy.
        """
        if self.unused_copy is None:
            return self
        if self.pure:
            return replace(self)
        return replace(self, defense=self.to_defense(copy_target(self.unused_copy)))

    def stateless(self) -> ProbeTarget:
        """The same with a target that forgets every call, if it is a net that can be copied."""
        if not (isinstance(self.unused_copy, nn.Module) and isinstance(self.defense, Plain)):
            return self
        return replace(self, defense=Stateless(copy_target(self.unused_copy), random=True))

    def instrumented(self, *sites: str) -> ProbeTarget:
        """The same with a net that has these sites."""
        assert isinstance(self.defense, Plain), "only a net can be instrumented"
        kind = Stateless if isinstance(self.defense, Stateless) else Instrumented
        return replace(self, defense=kind(self.defense.net, sites, random=self.defense.random))

    def stateful(self, traits: Traits) -> bool:
        """Calls change the target, and it can be copied: each call then uses a fresh copy."""
        changes = TraitName.STATE in traits or TraitName.CHANGES_ITSELF in traits
        return changes and self.unused_copy is not None

    def keys(self, seed: int = 0, ids: Tensor | None = None, n: int | None = None) -> Keys:
        """Random keys of `n` rows (default: all images), by number or by `ids` [n]."""
        if ids is None:
            ids = torch.arange(len(self.x) if n is None else n, device=self.x.device)
        return Keys.of(seed, ids)

    def query(
        self,
        x: Tensor | None = None,
        *,
        seed: int = 0,
        ids: Tensor | None = None,
        keep: frozenset[str] | None = None,
    ) -> Tensor:
        """The answer after adapting to the images, if the defense adapts, without gradients.

        Args:
            x: images, [n, ...]; default: those of the probe.
            seed: seed of the random keys.
            ids: [n] row numbers of the random keys; default: 0 to n - 1.
            keep: views that are requested; default: all.

        Raises:
            TargetError: the target raises an error, or its outputs are no finite logits.
        """
        images = self.x if x is None else x
        ctx = Context(self.keys(seed, ids, len(images)), keep=keep)
        with torch.no_grad(), explain_errors(self.kind, images):
            out = self.defense.respond(images.clone(), ctx)
        check_output(out, images)
        return out.detach()  # a net may enable gradients itself

    def query_unadapted(self, x: Tensor | None = None) -> Tensor:
        """The answer without adapting, for images [n, ...]; default: those of the probe."""
        images = self.x if x is None else x
        if self.pure and x is None and not torch.is_grad_enabled():
            trace, ctx = self.trace()
            return self.defense.answer(trace, ctx)
        ctx = Context(self.keys(n=len(images)))
        with explain_errors(self.kind, images):
            return self.defense.answer(self.defense.trace(images.clone(), ctx), ctx)

    def trace(self) -> tuple[Trace, Context]:
        """All views without adapting, and the context with its sites and solver statistics.

        They are computed once for a pure function.
        """
        return self._once("trace", self._trace)

    def _trace(self) -> tuple[Trace, Context]:
        ctx = Context(self.keys())
        with torch.no_grad(), explain_errors(self.kind, self.x):
            return self.defense.trace(self.x, ctx), ctx

    def spread_answers(self, x: Tensor, ids: Tensor) -> Tensor:
        """Answers [n, C] of images [n, ...] from all parts of the data, in one call.

        Args:
            x: every k-th image of the data, for some k.
            ids: [n] the numbers of these images.
        """
        return self._once(f"{len(x)} answers", lambda: self.fresh_copy().query(x, ids=ids))

    def known_answers(self, count: int) -> Tensor | None:
        """The result of `spread_answers` for this number of images, if it is known."""
        found: Tensor | None = self._known.get(f"{count} answers")
        return found

    def _once(self, name: str, compute: Callable[[], T]) -> T:
        if not self.pure:
            return compute()
        if name not in self._known:
            self._known[name] = compute()
        found: T = self._known[name]
        return found


def _is_pure(defense: Defense, x: Tensor) -> bool:
    try:
        return type(defense) is Plain and is_pure(defense.net, x)
    except Exception:  # code that cannot run while operations are recorded
        return False


def _copy_or_none(target: Target) -> Target | None:
    """A copy, or None if the target cannot be copied. Then probes use the target itself."""
    try:
        copied: Target = copy_target(target)
    except Exception:  # user classes may raise anything
        return None
    return copied
