"""State that calls of a net keep outside of it: caches of a process, class attributes, globals.

A copy of a net shares it with the original, so that one call changes the outputs or the gradients
of the next whichever copy is called.
"""

from __future__ import annotations

import dis
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from saddlepoint.audits.target.copy import copy_target
from saddlepoint.audits.target.rounding import alike, lacks_arithmetic
from saddlepoint.defenses.generators import seeded
from saddlepoint.defenses.reachable import reachable

_CALLS = 40  # enough to fill a cache or to pass a threshold of a call counter
_NEAR = 1 / 255
_CONTAINERS = (dict, list, set, deque)
_NO_STATE = (tuple, frozenset, types.MethodType, types.ModuleType, staticmethod, classmethod)


@dataclass(frozen=True)
class Content:
    """The content of one object at one time."""

    owner: Any
    entries: dict[Any, Any]  # by key, attribute or position

    @classmethod
    def of(cls, owner: Any) -> Content:
        """The content now."""
        match owner:
            case types.FunctionType():  # the globals that it assigns
                names = _assigned_globals(owner)
                return cls(
                    owner,
                    {n: owner.__globals__[n] for n in names if n in owner.__globals__},
                )
            case dict():
                return cls(owner, dict(dict.items(owner)))  # without methods of a subclass
            case list() | set() | deque():
                return cls(owner, dict(enumerate(owner)))
            case type():
                return cls(owner, {k: v for k, v in vars(owner).items() if k[:2] != "__"})
            case _ if is_cache(owner):
                return cls(owner, {"size": owner.cache_info().currsize})
            case _:
                return cls(owner, dict(getattr(owner, "__dict__", {})))

    def same(self, other: Content) -> bool:
        """Whether both have the same entries. A number counts by value, other objects do not."""
        mine = list(self.entries.items())
        theirs = list(other.entries.items())
        return len(mine) == len(theirs) and all(
            a == b and _identical(v, w) for (a, v), (b, w) in zip(mine, theirs, strict=True)
        )

    def restore(self) -> None:
        """Give the object this content again, if it has another one."""
        if self.same(Content.of(self.owner)):
            return
        match self.owner:
            case types.FunctionType():
                self.owner.__globals__.update(self.entries)
            case dict():
                self.owner.clear()
                self.owner.update(self.entries)
            case list() | deque():
                self.owner.clear()
                self.owner.extend(self.entries.values())
            case set():
                self.owner.clear()
                self.owner.update(self.entries.values())
            case _ if is_cache(self.owner):
                self.owner.cache_clear()
            case _:
                self._restore_attributes()

    def _restore_attributes(self) -> None:
        now = Content.of(self.owner).entries
        for name in now.keys() - self.entries.keys():
            delattr(self.owner, name)
        for name, value in self.entries.items():
            if name not in now or now[name] is not value:
                setattr(self.owner, name, value)

    def emptied(self) -> Content:
        """No entries, for a container; the same content for any other object."""
        empty = isinstance(self.owner, _CONTAINERS) or is_cache(self.owner)
        return Content(self.owner, {}) if empty else self


class SharedObjects:
    """Objects outside of a net, with the content that they have when a call starts.

    A copy of a net refers to the same objects.
    """

    def __init__(self, places: Sequence[str], contents: Sequence[Content]) -> None:
        self.places = tuple(places)
        self.contents = tuple(contents)

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedObjects:
        return self

    def __bool__(self) -> bool:
        return bool(self.contents)

    def emptied(self, number: int) -> SharedObjects:
        """The same objects; the one with this number is empty when a call starts."""
        contents = list(self.contents)
        contents[number] = contents[number].emptied()
        return SharedObjects(self.places, contents)

    @contextmanager
    def at_start(self) -> Iterator[None]:
        """Give all objects their content, and restore at the end what they had before."""
        with ExitStack() as stack:
            for content in self.contents:
                stack.callback(Content.of(content.owner).restore)
                content.restore()
            yield


class Isolated(nn.Module):
    """A net whose calls all start with the same state outside of it, and leave none.

    Args:
        net: the net.
        shared: the objects outside of it that its calls change.
    """

    def __init__(self, net: nn.Module, shared: SharedObjects) -> None:
        super().__init__()
        self.net = net
        self.shared = shared
        self.training = net.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with self.shared.at_start():
            return self.net(*args, **kwargs)


def changed_outside(
    net: nn.Module, copied: nn.Module, call: Callable[[nn.Module], object]
) -> SharedObjects:
    """The objects outside of a net that a call changes, with their content before it.

    Their content is restored. An object is outside of a net if a copy of the net refers to it, too.

    Args:
        net: the net.
        copied: a copy of it.
        call: calls the copy.
    """
    of_copy = {id(reached.value) for reached in reachable(copied)}
    found = [one for one in reachable(net) if id(one.value) in of_copy and _may_change(one.value)]
    before = [Content.of(one.value) for one in found]
    try:
        call(copied)
        now = [Content.of(one.value) for one in found]
    finally:
        for content in before:
            content.restore()
    changed = [k for k in range(len(found)) if not before[k].same(now[k])]
    return SharedObjects([found[k].place for k in changed], [before[k] for k in changed])


def depends_on(net: nn.Module, shared: SharedObjects, x: Tensor) -> bool:
    """Whether outputs or gradients depend on what earlier calls left outside of a net.

    A copy of the net that was called many times is compared with one that was not, at images and
    at points near them. A counter or a log outside of a net has no effect on either.

    Args:
        net: the net.
        shared: the objects outside of it that its calls change.
        x: images, [N, ...].
    """
    near = near_points(x)
    used = copy_target(net)
    with shared.at_start():
        for _ in range(_CALLS):
            _observe(used, x[:1], gradients=False)
        _observe(used, x, gradients=False)
        after = [_observe(used, points) for points in (x, near)]
    for points, seen in zip((x, near), after, strict=True):
        expected = _observe(Isolated(copy_target(net), shared), points)
        if not all(alike(a, b) for a, b in zip(seen, expected, strict=True)):
            return True
    return False


def near_points(x: Tensor) -> Tensor:
    """Points near images, [N, ...], in the range of their pixels."""
    return x + _NEAR * torch.where(x > x.mean(), -1.0, 1.0).to(x)


def _observe(net: nn.Module, x: Tensor, *, gradients: bool = True) -> tuple[Tensor, Tensor]:
    """All outputs, [N, C], and the gradient of their weighted sum, [N, d]; NaN without one."""
    x = x.clone().requires_grad_(gradients)
    with torch.set_grad_enabled(gradients), seeded(net, 0, x.device):
        parts = [one for one in all_tensors(net(x)) if one.is_floating_point() and one.ndim > 1]
    total = torch.cat([one.reshape(len(x), -1).double() for one in parts], dim=1)  # [N, C]
    weights = torch.arange(1, total.shape[1] + 1, device=x.device)
    grad = torch.full_like(x, torch.nan)
    if gradients and total.requires_grad:
        found = torch.autograd.grad((total * weights).sum(), x, allow_unused=True)[0]
        grad = grad if found is None else found
    return total.detach(), grad.flatten(1)


def same_outputs(a: object, b: object) -> bool:
    """Whether two outputs contain the same tensors except for rounding errors."""
    first = list(all_tensors(a))
    second = list(all_tensors(b))
    if [t.shape for t in first] != [t.shape for t in second]:
        return False
    return all(alike(_as_rows(t), _as_rows(u)) for t, u in zip(first, second, strict=True))


def _as_rows(value: Tensor) -> Tensor:
    rows = value.detach().reshape(len(value) if value.ndim else 1, -1)
    return rows.float() if lacks_arithmetic(rows.dtype) else rows


def all_tensors(out: Any) -> Iterator[Tensor]:
    """The tensors inside an output."""
    if isinstance(out, Tensor):
        yield out
    elif isinstance(out, dict | list | tuple):
        for one in out.values() if isinstance(out, dict) else out:
            yield from all_tensors(one)


def is_cache(value: object) -> bool:
    """Whether it is a function behind `functools.lru_cache` or `functools.cache`."""
    kind = type(value)  # objects may create attributes when they are looked up
    return hasattr(kind, "cache_clear") and hasattr(kind, "cache_info")


def _may_change(value: object) -> bool:
    if isinstance(value, _NO_STATE):
        return False
    if isinstance(value, types.FunctionType):
        return bool(_assigned_globals(value))
    if isinstance(value, (*_CONTAINERS, type)) or is_cache(value):
        return True
    return hasattr(value, "__dict__")


def _assigned_globals(function: types.FunctionType) -> tuple[str, ...]:
    found = (step for step in dis.get_instructions(function) if step.opname == "STORE_GLOBAL")
    return tuple(dict.fromkeys(str(step.argval) for step in found))


def _identical(a: Any, b: Any) -> bool:
    plain = (bool, int, float, str)
    return a is b or (isinstance(a, plain) and isinstance(b, plain) and a == b)
