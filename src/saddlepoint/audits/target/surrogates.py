"""Recording of all operations of a target, and the target with surrogates for some of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from saddlepoint.audits.target.operation_mode import OperationMode, running
from saddlepoint.audits.target.operations import NO_GRAD, Operation
from saddlepoint.audits.target.source_lines import calling_line
from saddlepoint.audits.target.wrappers import TargetWrapper, connected
from saddlepoint.defenses import Context, Defense, Trace
from saddlepoint.gradients.rule import straight_through


class SurrogateOperations(TargetWrapper):
    """A defense with a site at each of some operations of its code.

    Args:
        inner: the defense.
        operations: the operations, each with its surrogate.
    """

    def __init__(self, inner: Defense, operations: tuple[Operation, ...]) -> None:
        super().__init__(inner)
        self.operations = operations

    def rewrap(self, inner: Defense, rows: Tensor | None = None) -> Defense:  # noqa: ARG002
        return SurrogateOperations(inner, self.operations)

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        with self._running(ctx):
            trace = self.inner.trace(x, ctx)
        return connected(trace, x) if ctx.rules else trace

    def answer(self, trace: Trace, ctx: Context) -> Tensor:
        with self._running(ctx):
            return self.inner.answer(trace, ctx)

    @contextmanager
    def _running(self, ctx: Context) -> Iterator[None]:
        names = [str(operation) for operation in self.operations]
        ctx.expect(names)
        if not torch.is_grad_enabled() or not any(name in ctx.rules for name in names):
            yield
            return
        table = {operation.key: operation for operation in self.operations}
        with running(OperationMode(table, ctx.rules)):
            yield


@dataclass
class Calls:
    """All calls of one operation in a forward pass."""

    operation: Operation
    values: list[Tensor] = field(default_factory=list)  # exact results in floating point
    arguments: list[Tensor] = field(default_factory=list)  # arguments of the surrogate


class Recording(OperationMode):
    """Records every operation that may lose gradients; its surrogate passes them on."""

    def __init__(self) -> None:
        super().__init__({}, {})
        self.functions = {NO_GRAD}  # saved tensors are copied
        self.calls: dict[tuple[str, str], Calls] = {}
        self.lost: dict[tuple[str, str], Operation] = {}  # operations without a surrogate

    def find(self, function: str) -> Operation | None:
        line = calling_line()
        if line is None:
            return None
        operation = Operation(line, function)
        return self.calls.setdefault(operation.key, Calls(operation)).operation

    def replace(self, operation: Operation, value: Tensor, soft: Tensor, argument: Tensor) -> Any:
        calls = self.calls[operation.key]
        calls.values.append(value.detach())
        calls.arguments.append(argument.detach())
        return straight_through(soft, value)

    def records_gradients(self, function: str = NO_GRAD) -> bool:
        return self.find(function) is not None

    def lose(self, function: str) -> None:
        line = calling_line()
        if line is not None:
            operation = Operation(line, function)
            self.lost[operation.key] = operation


def record(defense: Defense, x: Tensor, ctx: Context) -> Recording:
    """Record the operations of one forward pass for images [N, ...]."""
    recording = Recording()
    x = x.detach().clone().requires_grad_()
    with torch.enable_grad(), running(recording):
        defense.trace(x.clone(), ctx)
    return recording
