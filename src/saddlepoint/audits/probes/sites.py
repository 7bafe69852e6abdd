"""Where gradients get lost: at the sites that a defense names, or in the layers of a module that names none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from saddlepoint.attacks.losses import margin
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.audits.probes.probe_target import ProbeTarget
from saddlepoint.audits.target.admission import asking
from saddlepoint.audits.target.instrument import FUNCTIONS, INPUT, cut_off
from saddlepoint.defenses import Context, Plain
from saddlepoint.gradients import BPDA, Backprop, Rule

_MOST = 0.5  # of the rows


@dataclass(frozen=True)
class Crossing:
    """What became of the gradient at one site, or layer."""

    site: str
    keeps_shape: bool  # could the identity stand in for it?
    lost: bool  # a gradient came out of what followed, and none, zero or no number went on


@dataclass
class _Passage:
    """One run of a site: what was given to it, what it gave, and the gradients that came by."""

    keeps_shape: bool
    cut: bool  # its output asks for no gradient
    left: list[Tensor] = field(default_factory=list)  # at the output
    entered: list[Tensor] = field(default_factory=list)  # at the input

    @property
    def lost(self) -> bool:
        if self.cut:
            return True
        if not self.left:
            return False
        there = (
            (self.left[0] != 0).reshape(len(self.left[0]), -1).any(1)
        )  # a site may give one number per row
        here = self.entered[0] if self.entered else torch.zeros_like(self.left[0])
        rows = here.reshape(len(here), -1)
        gone = ~rows.isfinite().all(1) | (rows == 0).all(1)
        return bool(there.any()) and float((gone & there).sum()) > _MOST * float(there.sum())


@dataclass(frozen=True)
class _Listening(Rule):
    """The exact gradient, overheard."""

    passages: list[_Passage]

    def apply(self, fn: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        if not (torch.is_grad_enabled() and x.requires_grad):
            return fn(x)
        entered = x.view_as(x)
        out = fn(entered)
        self.passages.append(_overheard(entered, out))
        return out


def crossings(subject: ProbeTarget) -> tuple[Crossing, ...]:
    """At every named site of a defense but its solves, which have rules of their own; by name."""
    _, ctx = subject.views()
    sites = sorted(ctx.sites - set(ctx.solve_info))
    passages: dict[str, list[_Passage]] = {site: [] for site in sites}
    rules: dict[str, Rule] = {site: _Listening(runs) for site, runs in passages.items()}
    _climb(subject, rules)
    return tuple(_crossing(site, runs) for site, runs in passages.items() if runs)


def killers(subject: ProbeTarget) -> tuple[str, ...]:
    """Sites around which a gradient gets where through them it does not: named ones, or layers and functions of an opaque module.

    Of a module: the innermost layers that lose gradients, else the functions of torch in it that have none, else both, else the
    first layers that are given something of the images' shape that has no gradient, as what numpy made of them.
    """
    if not subject.opaque:
        return tuple(
            crossing.site
            for crossing in crossings(subject)
            if crossing.lost and crossing.keeps_shape
        )
    inner = tuple(
        crossing.site for crossing in layers(subject) if crossing.lost and crossing.keeps_shape
    )
    inline = functions(subject)
    for sites in (inner, inline, (*inner, *inline), entrances(subject)):
        if sites and _leads_on(subject.opened(*sites), dict.fromkeys(sites, BPDA())):
            return sites
    return ()


def functions(subject: ProbeTarget) -> tuple[str, ...]:
    """Those in which a module may lose gradients, by name; some show only in the graph that is recorded for a gradient."""
    opened = subject.opened(*FUNCTIONS)
    x = subject.x.clone().requires_grad_()
    ctx = Context(subject.keys())
    with torch.enable_grad(), asking(subject.kind, x):
        opened.defense.trace(x.clone(), ctx)  # no leaf: what changes its input is told elsewhere
    return tuple(sorted(ctx.sites))


def entrances(subject: ProbeTarget) -> tuple[str, ...]:
    """Inputs of layers that are like the images, change with them and have no gradient; not of layers inside such a one."""
    first, other = (_entered(subject.fresh(), x) for x in (subject.x, subject.x.flip(0)))
    made = [name for name in first if name in other and not torch.equal(first[name], other[name])]
    return tuple(
        f"{INPUT}{name}"
        for name in made
        if not any(name.startswith(f"{holder}.") for holder in made)
    )


def _entered(subject: ProbeTarget, images: Tensor) -> dict[str, Tensor]:
    """What every layer is given, the first time, that is like the images and has no gradient."""
    assert isinstance(subject.defense, Plain), "only a net has layers to look into"
    x = images.clone().requires_grad_()
    found = dict[str, Tensor]()

    def before(name: str, module: nn.Module, given: tuple[Any, ...]) -> None:  # noqa: ARG001
        if torch.is_grad_enabled() and cut_off(given, x):
            found.setdefault(name, given[0])

    names = {name: module for name, module in subject.defense.net.named_modules() if name}
    handles = [
        module.register_forward_pre_hook(partial(before, name)) for name, module in names.items()
    ]
    try:
        with torch.enable_grad(), asking(subject.kind, x):
            subject.defense.trace(x.clone(), Context(subject.keys()))
    finally:
        for handle in handles:
            handle.remove()
    return found


def _leads_on(subject: ProbeTarget, rules: Mapping[str, Rule]) -> bool:
    """Does a gradient reach most images?"""
    grad = _climb(subject, rules)
    return (
        grad is not None
        and float((grad.isfinite() & (grad != 0)).flatten(1).any(1).double().mean()) > _MOST
    )


def layers(subject: ProbeTarget) -> tuple[Crossing, ...]:
    """At every layer of a module that maps a tensor to a tensor, found by hooks; a layer that holds one that loses is not named."""
    subject = subject.fresh()  # one call of a net that remembers is its first
    assert isinstance(subject.defense, Plain), "only a net has layers to look into"
    net = subject.defense.net
    names = {module: name for name, module in net.named_modules() if name}
    with _listened(names) as passages:
        _climb(subject, {})
    lost = [_crossing(name, runs) for name, runs in passages.items() if runs]
    holders = {
        crossing.site
        for crossing in lost
        if any(o.lost and o.site.startswith(f"{crossing.site}.") for o in lost)
    }
    return tuple(crossing for crossing in lost if crossing.site not in holders)


@contextmanager
def _listened(names: dict[nn.Module, str]) -> Iterator[dict[str, list[_Passage]]]:
    """Passages of every layer while the net is run."""
    passages: dict[str, list[_Passage]] = {name: [] for name in names.values()}
    entered: dict[nn.Module, Tensor] = {}

    def before(module: nn.Module, given: tuple[object, ...]) -> tuple[object, ...] | None:
        entered.pop(module, None)
        x = given[0] if len(given) == 1 else None
        if not (isinstance(x, Tensor) and x.requires_grad):
            return None
        entered[module] = x.view_as(x)
        return (entered[module],)

    def after(module: nn.Module, given: tuple[object, ...], out: object) -> None:  # noqa: ARG001
        x = entered.pop(module, None)
        if isinstance(out, Tensor) and x is not None:
            passages[names[module]].append(_overheard(x, out))

    handles = [
        handle
        for m in names
        for handle in (m.register_forward_pre_hook(before), m.register_forward_hook(after))
    ]
    try:
        yield passages
    finally:
        for handle in handles:
            handle.remove()


def _overheard(entered: Tensor, out: Tensor) -> _Passage:
    passage = _Passage(entered.shape == out.shape, not out.requires_grad)
    if not passage.cut:
        entered.register_hook(passage.entered.append)  # type: ignore[no-untyped-call]
        out.register_hook(passage.left.append)  # type: ignore[no-untyped-call]
    return passage


def _crossing(site: str, runs: list[_Passage]) -> Crossing:
    return Crossing(site, all(run.keeps_shape for run in runs), any(run.lost for run in runs))


def _climb(subject: ProbeTarget, rules: Mapping[str, Rule]) -> Tensor | None:
    objective = AttackObjective([subject.aimed_at], subject.y, margin, rules=rules)
    try:
        return Backprop().value_and_grad(objective, subject.x, subject.keys()).grad
    except (ValueError, RuntimeError):
        return None  # a gradient that is cut somewhere: the passages say where
