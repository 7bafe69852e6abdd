"""Calls of torch functions on discrete tensors that have soft partners."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saddlepoint.audits.target.soft import Soft, logical, look_up, select
from saddlepoint.gradients.rule import straight_through

CASTS = frozenset(
    [
        "float",
        "double",
        "half",
        "bfloat16",
        "byte",
        "char",
        "short",
        "int",
        "long",
        "to",
        "type",
        "type_as",
    ]
)
_LOGICAL = frozenset(["and", "or", "xor", "not", "invert"])
# Functions that only select or move entries, so that they apply to weights option by option.
_MOVING = frozenset(
    [
        "reshape",
        "view",
        "flatten",
        "unsqueeze",
        "squeeze",
        "permute",
        "transpose",
        "movedim",
        "expand",
        "repeat",
        "getitem",
        "clone",
        "contiguous",
        "view_as",
        "expand_as",
        "t",
    ]
)
# Look-ups: the position of the index among the arguments.
_LOOK_UPS = {
    "one_hot": 0,
    "embedding": 0,
    "eq": 0,
    "ne": 0,
    "gather": 2,
    "index_select": 2,
    "take_along_dim": 1,
    "take": 1,
}


class NoSurrogateError(NotImplementedError):
    """No gradient can pass a call with a soft argument. The caller then counts it as lost."""


class Call(NamedTuple):
    """A call of a torch function."""

    func: Callable[..., Any]
    name: str  # without underscores
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self) -> Any:
        """Call the function as the target does."""
        return self.func(*self.args, **self.kwargs)

    @property
    def tensors(self) -> Iterator[Tensor]:
        """All tensors among the arguments."""
        yield from _tensors((*self.args, *self.kwargs.values()))


class Partners:
    """The soft partners of the discrete tensors of one forward pass."""

    def __init__(self) -> None:
        # The tensor is kept, since an id is unique only while its object exists.
        self._of: dict[int, tuple[Tensor, Soft]] = {}

    def get(self, tensor: Any) -> Soft | None:
        """The partner of a tensor; None if it has none."""
        found = self._of.get(id(tensor))
        return None if found is None else found[1]

    def set(self, tensor: Tensor, soft: Soft) -> None:
        """Make `soft` the partner of a tensor."""
        self._of[id(tensor)] = (tensor, soft)

    def floats(self, value: Any) -> Any:
        """An argument with partners in place of discrete tensors."""
        if isinstance(value, Tensor):
            soft = self.get(value)
            return value if soft is None else soft.value
        if isinstance(value, list | tuple) and type(value) in (list, tuple):
            return type(value)(self.floats(item) for item in value)
        return value

    def attach(self, exact: Any, soft: Any, weights: Tensor | None = None) -> Any:
        """An exact result with the gradient of a soft one; its partner, if it is discrete."""
        if isinstance(exact, list | tuple) and isinstance(soft, list | tuple):
            pairs = [self.attach(e, s) for e, s in zip(exact, soft, strict=True)]
            return type(exact)(pairs)
        if not (isinstance(exact, Tensor) and isinstance(soft, Tensor)):
            return exact
        if exact.shape != soft.shape or not soft.requires_grad:
            return exact
        if exact.is_floating_point():
            return straight_through(soft.to(exact.dtype), exact.detach())
        self.set(exact, Soft(straight_through(soft, exact.to(soft.dtype)), weights))
        return exact


def consume(call: Call, partners: Partners) -> Any:
    """Run a call that has discrete arguments with partners.

    Raises:
        NoSurrogateError: the gradient of a partner cannot pass this call.
    """
    if call.name == "setitem":
        return _assign(call, partners)
    exact = call.run()
    with torch._C.DisableTorchFunction():
        if call.name in ("where", "masked_fill"):
            return _select(call, exact, partners)
        if call.name in CASTS:
            soft = partners.get(call.args[0])
            if soft is None:  # `type_as` and `to` with another discrete tensor
                return exact
            dtype = exact.dtype if exact.is_floating_point() else soft.value.dtype
            return partners.attach(exact, soft.value.to(dtype), soft.weights)
        if call.name in _LOGICAL:
            return _logical(call, exact, partners)
        if call.name in ("any", "all"):
            function = torch.amax if call.name == "any" else torch.amin
            value = partners.floats(call.args[0])
            return partners.attach(exact, function(value, *call.args[1:], **call.kwargs))
        read = _look_up(call, partners)
        if read is not None:
            return partners.attach(exact, read)
        return _repeat(call, exact, partners)


def _repeat(call: Call, exact: Any, partners: Partners) -> Any:
    """Repeat a function on partners: arithmetic, sums and functions that move entries."""
    args = partners.floats(call.args)
    kwargs = {name: partners.floats(value) for name, value in call.kwargs.items()}
    try:
        soft = call.func(*args, **kwargs)
    except (RuntimeError, TypeError, IndexError) as error:
        raise NoSurrogateError from error
    first = partners.get(call.args[0])
    weights = None
    if call.name in _MOVING and first is not None and first.weights is not None:
        moved = [call.func(w, *args[1:], **kwargs) for w in first.weights.unbind(-1)]
        weights = torch.stack(moved, dim=-1)
    usable = isinstance(soft, Tensor | list | tuple)
    if not usable and any(True for _ in _tensors((exact,))):
        raise NoSurrogateError
    return partners.attach(exact, soft, weights)


def _select(call: Call, exact: Tensor, partners: Partners) -> Any:
    first, second, third = (*call.args, *call.kwargs.values())[:3]
    fills = call.name == "masked_fill"
    mask = partners.get(second if fills else first)
    if_true = partners.floats(third if fills else second)
    if_false = partners.floats(first if fills else third)
    if mask is None:
        return partners.attach(exact, call.func(*partners.floats(call.args), **call.kwargs))
    smooth = exact if exact.is_floating_point() else exact.to(mask.value.dtype)
    return partners.attach(exact, select(mask.value, if_true, if_false, smooth))


def _logical(call: Call, exact: Tensor, partners: Partners) -> Any:
    if exact.dtype != torch.bool:
        raise NoSurrogateError
    softs = [partners.get(tensor) for tensor in call.tensors]
    dtype = next(soft.value.dtype for soft in softs if soft is not None)
    values = [torch.as_tensor(partners.floats(value)).to(dtype) for value in call.args]
    result = logical(call.name, values)
    if result is None:
        raise NoSurrogateError
    return partners.attach(exact, result)


def _look_up(call: Call, partners: Partners) -> Tensor | None:
    """The soft result of a look-up; None if the call is none.

    Raises:
        NoSurrogateError: the shapes of index and result do not fit.
    """
    if call.name == "getitem":
        return _read_items(call, partners)
    position = _LOOK_UPS.get(call.name)
    if position is None:
        return None
    args = (*call.args, *call.kwargs.values())
    index = args[position] if position < len(args) else None
    soft = partners.get(index)
    if soft is None:
        return None
    assert isinstance(index, Tensor)

    def read(other: Tensor) -> Tensor:
        replaced = [other if value is index else value for value in call.args]
        named = {n: other if v is index else v for n, v in call.kwargs.items()}
        out: Tensor = call.func(*replaced, **named)
        return out

    sizes = {
        "embedding": lambda: args[1].shape[0],
        "gather": lambda: args[0].shape[args[1]],
        "index_select": lambda: args[0].shape[args[1]],
        "take": lambda: args[0].numel(),
        "take_along_dim": lambda: args[0].shape[args[2] if len(args) > 2 else 0],
        "one_hot": lambda: call.run().shape[-1],
    }
    size = sizes[call.name]() if call.name in sizes else None
    found = look_up(read, index, soft, size)
    if found is None:
        raise NoSurrogateError
    return found


def _read_items(call: Call, partners: Partners) -> Tensor | None:
    """table[index] or table[..., index, ...] with one soft index."""
    table = call.args[0]
    items = call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)
    softs = [k for k, item in enumerate(items) if partners.get(item) is not None]
    if not softs:
        return None
    index = items[softs[0]]
    soft = partners.get(index)
    countable = not any(item is None or item is Ellipsis for item in items)
    if len(softs) > 1 or soft is None or index.dtype == torch.bool or not countable:
        raise NoSurrogateError

    def read(other: Tensor) -> Tensor:
        out: Tensor = table[tuple(other if item is index else item for item in items)]
        return out

    found = look_up(read, index, soft, table.shape[softs[0]])
    if found is None:
        raise NoSurrogateError
    return found


def _assign(call: Call, partners: Partners) -> None:
    """target[index] = value, where index or value is soft."""
    target, index, value = call.args
    mask = partners.get(index)
    with torch._C.DisableTorchFunction():
        if mask is None:
            _assign_value(target, index, value, partners)
            return
        fits = not isinstance(value, Tensor) or value.ndim <= target.ndim
        if index.dtype != torch.bool or not target.is_floating_point() or not fits:
            raise NoSurrogateError
        before = target.clone()
    call.run()
    with torch._C.DisableTorchFunction():
        value = partners.floats(value)
        scalar = not isinstance(value, Tensor) or value.numel() == 1
        # Values for selected entries, in their order, are written where they belong.
        replaced = value if scalar else target.detach()
        weights = mask.value.reshape(*index.shape, *[1] * (target.ndim - index.ndim))
        target.copy_(select(weights, replaced, before, target.clone()))


def _assign_value(target: Tensor, index: Any, value: Any, partners: Partners) -> None:
    soft = partners.floats(value)
    if target.is_floating_point():
        target[index] = soft.to(target.dtype)
        return
    previous = partners.floats(target)
    previous = previous.clone() if previous.is_floating_point() else previous.to(soft.dtype)
    previous[index] = soft
    target[index] = value
    partners.attach(target, previous)


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
