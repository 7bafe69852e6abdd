"""Runs a target with surrogates as backward passes of some of its operations.

Values are always those of the target, to the last bit. With a rule such as `BPDA()` at an
operation, its backward pass is that of a surrogate (Athalye et al. 2018, Sec. 4.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

from saddlepoint.audits.target.calls import CASTS, Call, Partners, consume
from saddlepoint.audits.target.detours import Detours
from saddlepoint.audits.target.operations import (
    CHOICES,
    COMPARISONS,
    COUNTS,
    FLAT,
    HIGHEST,
    NO_GRAD,
    PERIODIC,
    QUOTIENTS,
    SIGNS,
    Operation,
)
from saddlepoint.audits.target.saved_copies import SavedCopies
from saddlepoint.audits.target.soft import Soft, chosen, ranked, step
from saddlepoint.audits.target.source_lines import calling_line
from saddlepoint.audits.target.threads import inside_threads
from saddlepoint.audits.target.transforms import outside_transforms
from saddlepoint.gradients import Exact, Rule

_LEAVING = frozenset(["numpy", "array", "tolist", "item"])
_RETURNING = frozenset(["tensor", "as_tensor", "from_numpy", "new_tensor", "array_wrap"])
# Special methods whose names are those of casts without their underscores.
_SCALARS = frozenset(["__float__", "__int__", "__index__", "__bool__"])


class OperationMode(TorchFunctionMode):
    """Runs operations with their surrogates as backward passes.

    Args:
        operations: the operations, by line and function.
        rules: rules of the attacker, by name of the operation.
    """

    def __init__(
        self, operations: Mapping[tuple[str, str], Operation], rules: Mapping[str, Rule]
    ) -> None:
        super().__init__()
        self.operations = operations
        self.rules = rules
        self.functions = {function for _, function in operations}
        self.partners = Partners()
        self.detours = Detours()

    def find(self, function: str) -> Operation | None:
        """The operation at the line that is running; None if it is not one of them."""
        if function not in self.functions:
            return None
        line = calling_line()
        found = None if line is None else self.operations.get((line.place, function))
        return None if found is None else found.under(self.rules)

    def replace(self, operation: Operation, value: Tensor, soft: Tensor, argument: Tensor) -> Any:  # noqa: ARG002
        """The exact value with the gradient of the rule for an operation.

        Args:
            operation: the operation.
            value: its exact value in floating point.
            soft: the surrogate, of the same shape.
            argument: the argument of the surrogate.
        """
        if not operation.passes:
            soft = soft.detach()
        return self.rules.get(str(operation), Exact()).apply(lambda _: value, soft)

    def lose(self, function: str) -> None:
        """A gradient is lost where no surrogate is known."""

    @outside_transforms
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = Call(func, _name(func), tuple(args), kwargs or {})
        if func is torch._C._set_grad_enabled:
            return self._set_grad_enabled(func, *args)
        if not torch.is_grad_enabled():
            return call.run()
        if call.name in _RETURNING:
            return self._return(call)
        if not any(self._depends(t) for t in call.tensors):
            return call.run()
        functional = _functional(call)
        if functional is None:
            return self._run(call)
        if functional.name not in FLAT | PERIODIC | SIGNS and not self._is_discrete(call):
            return call.run()
        return self._run_in_place(functional, call.args[0])

    def _run(self, call: Call) -> Any:
        if call.name in _LEAVING or call.func.__name__ in _SCALARS:
            return self._leave(call)
        handler = self._handler(call)
        if handler is not None:
            return handler(call)
        if self._is_discrete(call):
            try:
                return consume(call, self.partners)
            except NotImplementedError:
                self.lose(call.name)
                return call.run()
        return call.run()

    def _run_in_place(self, call: Call, target: Tensor) -> Tensor:
        out = self._run(call)
        with torch._C.DisableTorchFunction():
            target.copy_(out)
            soft = self.partners.get(out)
            if soft is not None:
                self.partners.set(target, soft)
        return target

    def _handler(self, call: Call) -> Callable[[Call], Any] | None:
        name = call.name
        first = next(iter(call.tensors))
        if name in COMPARISONS:
            return self._compare
        if name in COUNTS:
            return self._count
        if name in CHOICES and _has_indices(call):
            return self._choose
        is_float = first.is_floating_point()
        if not is_float:
            return None
        quotient = name in QUOTIENTS or (name == "div" and "rounding_mode" in call.kwargs)
        if name in FLAT or name in PERIODIC or name in SIGNS or quotient:
            return self._flatten
        return self._cast if name in CASTS else None

    def _flatten(self, call: Call) -> Any:
        """Rounding, signs, remainders and `detach`."""
        operation = self.find(call.name)
        exact = call.run()
        if operation is None:
            return exact
        with torch._C.DisableTorchFunction():
            u = call.args[0]
            soft = u
            if call.name in SIGNS:
                soft = step(u, operation.width)
                soft = soft if call.name == "heaviside" else 2 * soft - 1
            elif len(call.args) > 1 and call.name not in FLAT and call.name not in PERIODIC:
                soft = u / self.partners.floats(call.args[1])
            return self.replace(operation, exact.detach(), soft.expand_as(exact), u)

    def _cast(self, call: Call) -> Any:
        """Casts of floating-point numbers to integers; others pass gradients."""
        exact = call.run()
        if exact.is_floating_point() or exact.dtype == torch.bool:
            return exact
        operation = self.find(call.name)
        if operation is not None:
            self._discrete(operation, exact, Soft(call.args[0]), call.args[0])
        return exact

    def _compare(self, call: Call) -> Any:
        operation = self.find(call.name)
        exact = call.run()
        if operation is None:
            return exact
        with torch._C.DisableTorchFunction():
            a, b = (self.partners.floats(v) for v in (*call.args, *call.kwargs.values())[:2])
            argument = COMPARISONS[call.name] * (a - b)
            self._discrete(operation, exact, Soft(step(argument, operation.width)), argument)
        return exact

    def _count(self, call: Call) -> Any:
        operation = self.find(call.name)
        exact = call.run()
        if operation is None:
            return exact
        values, boundaries = call.args[:2] if call.name == "bucketize" else call.args[1::-1]
        if boundaries.ndim != 1:
            self.lose(call.name)
            return exact
        with torch._C.DisableTorchFunction():
            argument = self.partners.floats(values)[..., None] - boundaries
            count = step(argument, operation.width).sum(-1)
            self._discrete(operation, exact, Soft(count), argument)
        return exact

    def _choose(self, call: Call) -> Any:
        """The index of the highest or lowest score."""
        exact = call.run()
        index = exact if isinstance(exact, Tensor) else exact[1]
        operation = self.find(call.name)
        if operation is None:
            return exact
        with torch._C.DisableTorchFunction():
            scores = self.partners.floats(call.args[0])
            soft = _soft_choice(call, scores, exact, operation.width)
            self._discrete(operation, index, soft, scores)
        return exact

    def _discrete(self, operation: Operation, exact: Tensor, soft: Soft, argument: Tensor) -> None:
        """Give a discrete result its partner."""
        with torch._C.DisableTorchFunction():
            value = exact.to(soft.value.dtype)
            out = self.replace(operation, value, soft.value.expand_as(value), argument)
            if out.requires_grad:
                self.partners.set(exact, Soft(out, soft.weights))

    def _leave(self, call: Call) -> Any:
        """Values that leave torch, for numpy or for Python."""
        tensor = call.args[0]
        with torch._C.DisableTorchFunction():
            self.detours.leave(self.partners.floats(tensor))
            return call.func(tensor.detach(), *call.args[1:], **call.kwargs)

    def _return(self, call: Call) -> Any:
        """Values that return to torch."""
        exact = call.run()
        if not isinstance(exact, Tensor) or not self.detours:
            return exact
        operation = self.find(call.name)
        if operation is None:
            return exact
        with torch._C.DisableTorchFunction():
            source = self.detours.source_of(exact)
            if source is None:
                self.lose(call.name)
                return exact
            if not exact.is_floating_point():
                self._discrete(operation, exact, Soft(source), source)
                return exact
            return self.replace(operation, exact, source.to(exact), source)

    def run_function(self, cls: type[Function], apply: Callable[..., Any], args: Any) -> Any:
        """A custom function: its surrogate is the gradient of its own forward pass."""
        depends = any(self._depends(t) for t in args if isinstance(t, Tensor))
        if not torch.is_grad_enabled() or not depends:
            return apply(*args)
        operation = self.find(cls.__name__)
        with torch._C.DisableTorchFunction():
            exact = apply(*args)
        if operation is None or not isinstance(exact, Tensor):
            return exact
        soft = _forward(cls, args)
        first = next(a for a in args if isinstance(a, Tensor) and self._depends(a))
        if soft is None or soft.shape != exact.shape or not soft.requires_grad:
            self.lose(cls.__name__)
            return exact
        with torch._C.DisableTorchFunction():
            return self.replace(operation, exact, soft, first)

    def records_gradients(self, function: str = NO_GRAD) -> bool:
        """Whether the line that disables gradients is an operation with a rule."""
        operation = self.find(function)
        return operation is not None and operation.passes and str(operation) in self.rules

    def _set_grad_enabled(self, func: Any, enabled: bool) -> None:
        func(enabled or (torch.is_grad_enabled() and self.records_gradients()))

    def saved_tensors(self) -> AbstractContextManager[object]:
        """Copy tensors saved for the backward pass if gradients are recorded under no_grad."""
        if NO_GRAD not in self.functions:
            return nullcontext()
        return torch.autograd.graph.saved_tensors_hooks(SavedCopies(), lambda saved: saved)

    def _depends(self, tensor: Tensor) -> bool:
        return tensor.requires_grad or self.partners.get(tensor) is not None

    def _is_discrete(self, call: Call) -> bool:
        return any(self.partners.get(tensor) is not None for tensor in call.tensors)


@contextmanager
def running(mode: OperationMode) -> Iterator[None]:
    """Run the target with a mode. Functions that torch modes do not see are replaced meanwhile."""
    apply = Function.__dict__["apply"]
    from_numpy = torch.from_numpy
    enter = torch.inference_mode.__enter__
    leave = torch.inference_mode.__exit__

    def custom(cls: type[Function], *args: Any) -> Any:
        bound = apply.__get__(None, cls)
        if cls.__module__.startswith(("saddlepoint.gradients", "torch.")) or _modes_disabled():
            return bound(*args)
        return mode.run_function(cls, bound, args)

    def imported(array: Any) -> Tensor:
        return mode.__torch_function__(from_numpy, (), (array,))  # type: ignore[no-any-return]

    def entered(self: Any) -> None:
        self._records = mode.records_gradients()
        if not self._records:
            enter(self)

    def left(self: Any, *error: Any) -> None:
        if not self._records:
            leave(self, *error)

    Function.apply = classmethod(custom)  # type: ignore[assignment, method-assign]
    torch.from_numpy = imported  # type: ignore[assignment]
    torch.inference_mode.__enter__ = entered  # type: ignore[method-assign]
    torch.inference_mode.__exit__ = left  # type: ignore[method-assign]
    try:
        with mode.saved_tensors(), mode, inside_threads(mode):
            yield
    finally:
        Function.apply = apply  # type: ignore[method-assign]
        torch.from_numpy = from_numpy
        torch.inference_mode.__enter__ = enter  # type: ignore[method-assign]
        torch.inference_mode.__exit__ = leave  # type: ignore[method-assign]


def _modes_disabled() -> bool:
    return bool(torch._C._is_torch_function_all_disabled())


def _has_indices(call: Call) -> bool:
    """Whether a choice returns indices; a maximum of all entries or of two tensors does not."""
    if call.name not in ("max", "min"):
        return True
    return "dim" in call.kwargs or (len(call.args) > 1 and isinstance(call.args[1], int))


def _soft_choice(call: Call, scores: Tensor, exact: Any, width: float) -> Soft:
    arguments = dict(zip(("dim", "keepdim"), call.args[1:], strict=False)) | call.kwargs
    dim = arguments.get("dim", -1)
    sign = 1 if call.name in HIGHEST else -1
    if isinstance(exact, Tensor) and call.name != "argsort":
        if dim is None or (call.name.startswith("arg") and "dim" not in arguments):
            return chosen(sign * scores.flatten(), exact, 0, width)
        return chosen(sign * scores, exact, dim, width)
    if call.name in ("max", "min"):
        return chosen(sign * scores, exact[1], dim, width)
    if call.name == "topk":
        dim = call.args[2] if len(call.args) > 2 else call.kwargs.get("dim", -1)
    index = exact if isinstance(exact, Tensor) else exact[1]
    return ranked(scores, scores.gather(dim, index), index, dim, width)


class _ForwardContext:
    """The context of a custom forward pass whose backward pass is not used."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


def _forward(cls: type[Function], args: Any) -> Tensor | None:
    """The forward pass of a custom function with a recorded graph; None if it fails."""
    separate = cls.setup_context is not Function.setup_context
    forward: Any = cls.forward
    try:
        out = forward(*args) if separate else forward(_ForwardContext(), *args)
    except (RuntimeError, TypeError, AttributeError):
        return None
    return out if isinstance(out, Tensor) else None


def _name(func: Any) -> str:
    """The name of a function without underscores, the same for functions and methods."""
    name: str = getattr(func, "__name__", "")
    if name == "__get__":
        return str(getattr(func.__self__, "__name__", ""))
    if name in _SCALARS:
        return name
    name = name.removeprefix("logical_").removeprefix("bitwise_")
    return name.strip("_") if name.startswith("__") else name


def _functional(call: Call) -> Call | None:
    """The same call out of place; None if it does not modify its first argument."""
    name: str = getattr(call.func, "__name__", "")
    special = name.startswith("__i") and name.endswith("__") and name[3:-2] in ("and", "or", "xor")
    plain = name.endswith("_") and not name.startswith("_")
    if not special and not plain:
        return None
    base = f"__{name[3:]}" if special else name[:-1]
    func = getattr(Tensor, base, None)
    if func is None:
        return None
    return Call(func, _name(func), call.args, call.kwargs)
