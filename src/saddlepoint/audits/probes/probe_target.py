"""A target and a few images to ask it about."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional

from saddlepoint.attacks.spaces import Ball
from saddlepoint.audits.probes.traits import TraitName, Traits
from saddlepoint.audits.target.admission import (
    Form,
    Target,
    TargetError,
    asking,
    check_data,
    form,
    refuse_answer,
)
from saddlepoint.audits.target.answer import AnswerView, answer_is_not_last_view
from saddlepoint.audits.target.copy import copied
from saddlepoint.audits.target.instrument import Instrumented, Stateless
from saddlepoint.defenses import BlackBox, Context, Defense, Plain, Trace
from saddlepoint.rng import Keys

ROWS = 16  # enough to see a rule broken, cheap for any model
_TOSSES = 20  # of a net that declares nothing: a fair coin hides once in a million times, one in ten once in eight
_LEARNER_ROWS = 8  # of a defense that learns from what it is asked: each answer may be a training


@dataclass(frozen=True)
class ProbeTarget:
    """What is probed: copies of the target, so that nothing asked here leaves a mark, and a few images with labels."""

    defense: Defense
    x: Tensor
    y: Tensor
    space: Ball
    declares: bool  # was a Defense handed over, which says what it is?
    module: nn.Module | None = None  # the target itself, if it is one
    form: Form = field(default=lambda target: target)  # how the target becomes a defense
    untouched: Target | None = (
        None  # a copy that was never asked; None where the target cannot be copied, or is a Defense
    )

    @classmethod
    def of(cls, target: Target, x: Tensor, y: Tensor, space: Ball) -> ProbeTarget:
        check_data(x, y, space)
        learner = isinstance(target, Defense) and target.memory != "none"
        count = _LEARNER_ROWS if learner else ROWS
        # A copy can be differentiated even if x was made in inference mode.
        rows = x[:count].detach().clone()
        labels = y[:count].long()
        untouched = None if isinstance(target, Defense) else _copied(target)
        used = target if untouched is None else copied(untouched)
        made = form(used, rows, int(y.amax()) + 1)
        module = target if isinstance(target, nn.Module) else None
        subject = cls(
            made(used), rows, labels, space, isinstance(target, Defense), module, made, untouched
        )
        if int(y.amax()) >= subject.classes:
            most = subject.classes
            raise TargetError(
                f"labels go up to {int(y.amax())}, but the target answers with {most} classes (0 to {most - 1})."
            )
        return subject

    def __len__(self) -> int:
        return len(self.x)

    @property
    def kind(self) -> str:
        return (
            "defense"
            if self.declares
            else "callable"
            if isinstance(self.defense, BlackBox)
            else "model"
        )

    @property
    def learns(self) -> bool:
        return self.defense.memory != "none"

    @property
    def other(self) -> Tensor:
        """Other images of the same kind: these in negative, in another order."""
        low, high = self.space.box
        return (low + high - self.x).flip(0)

    @property
    def aimed_at(self) -> Defense:
        """What gradients are taken of."""
        return AnswerView(self.defense) if answer_is_not_last_view(self.defense) else self.defense

    @cached_property
    def answer(self) -> Tensor:
        """The first answer, asked for once: it may be dear."""
        return self.fresh().query()

    @cached_property
    def otherwise(self) -> Tensor:
        """An answer with other coins, another one if there is any: a net that picks one of few ways often picks the same twice."""
        for seed in range(1, 2 if self.declares else _TOSSES + 1):
            other = self.fresh().query(seed=seed)
            if not alike(self.answer, other):
                break
        return other

    @property
    def classes(self) -> int:
        return self.answer.shape[1] - self.defense.rejects

    def renewed(self) -> ProbeTarget:
        """The same with a target that forgets after every call; as it is, unless it is a module that can be copied."""
        if not (isinstance(self.untouched, nn.Module) and isinstance(self.defense, Plain)):
            return self
        return replace(self, defense=Stateless(copied(self.untouched), random=True))

    def opened(self, *sites: str) -> ProbeTarget:
        """The same with a module whose layers, or functions, of these names are sites."""
        assert isinstance(self.defense, Plain), "only a net can be opened"
        kind = Stateless if isinstance(self.defense, Stateless) else Instrumented
        return replace(self, defense=kind(self.defense.net, sites, random=self.defense.random))

    def stateful(self, traits: Traits) -> bool:
        """Calls change the target, and it can be copied: each call then uses a fresh copy."""
        changes = TraitName.STATE in traits or TraitName.CHANGES_ITSELF in traits
        return changes and self.untouched is not None

    @property
    def opaque(self) -> bool:
        """Is it a net that names no sites?"""
        return self.module is not None and isinstance(self.defense, Plain)

    def fresh(self) -> ProbeTarget:
        """The same with a target that nobody has asked anything; as it is, where there is no such copy."""
        return (
            self
            if self.untouched is None
            else replace(self, defense=self.form(copied(self.untouched)))
        )

    def keys(self, seed: int = 0, ids: Tensor | None = None, n: int | None = None) -> Keys:
        count = len(self.x) if n is None else n
        return Keys.of(seed, torch.arange(count, device=self.x.device) if ids is None else ids)

    def query(
        self,
        x: Tensor | None = None,
        *,
        seed: int = 0,
        ids: Tensor | None = None,
        keep: frozenset[str] | None = None,
    ) -> Tensor:
        """The answer, after adapting to x if the defense does that."""
        given = self.x if x is None else x
        ctx = Context(self.keys(seed, ids, len(given)), keep=keep)
        with torch.no_grad(), asking(self.kind, given):
            out = self.defense.respond(given.clone(), ctx)
        refuse_answer(out, given)
        return out.detach()  # a net may record gradients of its own

    def look(self, x: Tensor | None = None, *, seed: int = 0, ids: Tensor | None = None) -> Tensor:
        """The answer of the defense as it stands: without adapting."""
        given = self.x if x is None else x
        ctx = Context(self.keys(seed, ids, len(given)))
        with asking(self.kind, given):
            return self.defense.answer(self.defense.trace(given.clone(), ctx), ctx)

    def views(self) -> tuple[Trace, Context]:
        """All views of the defense as it stands, and what the context saw on the way."""
        ctx = Context(self.keys())
        with torch.no_grad(), asking(self.kind, self.x):
            return self.defense.trace(self.x, ctx), ctx


def alike(a: Tensor, b: Tensor) -> bool:
    """Equal but for rounding.

    Kernels add up in another order for another batch size: a few hundred roundings at the scale of the logits. Nets in half
    precision add up in single, so that only the results of layers are rounded.
    """
    a, b = _as_wide(a, b)
    if not a.is_floating_point() or a.shape != b.shape:
        return torch.equal(a, b)
    eps = torch.finfo(a.dtype).eps
    scale = float(a.abs().amax().clamp(min=1.0))
    return bool((a.double() - b.double()).abs().amax() <= (2e3 if eps < 1e-6 else 32) * eps * scale)


def gap(a: Tensor, b: Tensor) -> str:
    """How far apart, in words."""
    a, b = _as_wide(a, b)
    if a.shape != b.shape:
        return f"shape {list(a.shape)} became {list(b.shape)}"
    apart = (a.double() - b.double()).abs()
    return f"logits move by up to {apart.amax().item():.2g}, {int((a.argmax(1) != b.argmax(1)).sum())} of {len(a)} labels change"


def _as_wide(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Answers with labels are as wide as the highest label asks for: none was given to the classes that are missing."""
    width = max(a.shape[-1], b.shape[-1])
    wide, as_wide = (functional.pad(t, (0, width - t.shape[-1])) for t in (a, b))
    return wide, as_wide


def _copied(target: Target) -> Target | None:
    try:
        made: Target = copied(target)
    except Exception:  # whatever a user's class raises: it cannot be copied, and is asked itself
        return None
    return made
