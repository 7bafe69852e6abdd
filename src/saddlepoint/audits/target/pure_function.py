"""Whether a net is a pure function: torch operations on images and weights, and nothing else.

Such a net draws no random numbers, keeps no state, reads no clock, and which of its code runs is
decided neither by the value of a tensor nor by whether gradients are computed. Calls with the same
images are then equal, so that one call shows what repeated calls of copies show for other nets.

Two things are checked. The code that the net can reach names functions of torch, of `math` and
harmless builtins only. And one call with recorded operations uses no random operation, reads no
value, and changes nothing that this code can reach. What cannot be judged is not pure.
"""

from __future__ import annotations

import builtins
import dis
import functools
import types
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from saddlepoint.defenses.reachable import children, is_foreign, reachable
from saddlepoint.evaluation.mutation import tensor_sums

_MODULES = {"torch", "math", "typing", "collections", "__future__"}
# Layers of these libraries are torch operations; random ones are recorded as such.
_LAYERS = {"torch", "torchvision", "timm"}
_BUILTINS = {
    *("abs", "all", "any", "bool", "dict", "divmod", "enumerate", "filter", "float", "frozenset"),
    *("getattr", "hasattr", "int", "isinstance", "issubclass", "iter", "len", "list", "map", "max"),
    *("min", "next", "object", "pow", "print", "property", "range", "reversed", "round", "set"),
    *("setattr", "slice", "sorted", "staticmethod", "str", "sum", "super", "tuple", "type", "zip"),
    *(n for n, v in vars(builtins).items() if isinstance(v, type) and issubclass(v, Exception)),
}
# Attributes that lead out of torch, or by which values and addresses reach Python without a
# recorded operation.
_ATTRIBUTES = {
    *("os", "sys", "time", "random", "threading", "multiprocessing", "subprocess", "ctypes", "jit"),
    *("numpy", "__array__", "__dlpack__", "data_ptr", "storage", "untyped_storage"),
    *("_storage", "tobytes", "seed", "initial_seed", "default_generator", "Generator", "cuda"),
    *(
        "__dict__",
        "__globals__",
        "__builtins__",
        "__subclasses__",
        "ops",
        "hub",
        "utils",
        "futures",
    ),
}
# Attributes by which code behaves differently while an attack computes gradients.
_GRADIENT_MODE = {
    *("requires_grad", "is_leaf", "grad_fn", "is_grad_enabled"),
    *("is_inference", "is_inference_mode_enabled"),
}
_LOADS = {"LOAD_GLOBAL", "LOAD_NAME"}
_FORBIDDEN_CODE = {"STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME", "IMPORT_FROM"}
_PLAIN_TYPES = (
    *(type(None), bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, OrderedDict),
    type(torch.empty(0).shape),
)
_READS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_MASKS = (torch.bool, torch.uint8)


def is_pure(net: nn.Module, x: Tensor) -> bool:
    """Whether a net is a pure function, as far as one call with the images x [N, ...] shows."""
    before = _values(net)
    if before is None:
        return False
    images = x.clone()
    operations = _Operations(images)
    with torch.no_grad(), _Reads(operations) as reads, operations:
        net(images)
    return operations.pure and reads.pure and _values(net) == before


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Whether operations are deterministic, and none makes values of images known to Python code.

    Values that do not depend on images may be read: they are the same in every call.
    """

    def __init__(self, images: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pure = True
        self._kept = [images]  # no address is used twice
        self._dependent = {_address(images)}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in `CountOperations`

    def depends(self, value: object) -> bool:
        """Whether a tensor, or one of a list, may depend on the images."""
        if isinstance(value, Tensor):
            return _address(value) in self._dependent
        return isinstance(value, list | tuple) and any(map(self.depends, value))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        dependent = self.depends([*args, *kwargs.values()])
        self.pure = self.pure and _deterministic(func, args, kwargs, dependent=dependent)
        out = func(*args, **kwargs)
        if "empty" in func.__name__ and out.numel():  # uninitialized memory
            self.pure = False
        for one in out if isinstance(out, list | tuple) else (out,):
            if isinstance(one, Tensor):
                self._kept.append(one)
                self._dependent |= {_address(one)} if dependent else set()
        return out


class _Reads(TorchFunctionMode):
    """Whether Python code gets no values of images by functions that are no operations."""

    def __init__(self, operations: _Operations) -> None:
        super().__init__()
        self.pure = True
        self._operations = operations

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "tolist" and self._operations.depends(args[0]):
            self.pure = False
        return func(*args, **(kwargs or {}))


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _deterministic(func: Any, args: Any, kwargs: Any, *, dependent: bool) -> bool:
    if func.namespace != "aten":
        return False
    name = func.overloadpacket.__name__
    if torch.Tag.nondeterministic_seeded in func.tags:
        return "scaled_dot_product" in name and _argument(func, "dropout_p", args, kwargs) == 0
    if name == "index":  # the shape of the result is known unless an index is a mask
        masks = [one for one in args[1] if one is not None and one.dtype in _MASKS]
        return not masks or not dependent
    return not (dependent and _READS.intersection(func.tags))


def _argument(func: Any, name: str, args: Any, kwargs: Any) -> object:
    names = [one.name for one in func._schema.arguments]
    position = names.index(name) if name in names else len(args)
    return args[position] if position < len(args) else kwargs.get(name, 0.0)


def _values(net: nn.Module) -> dict[str, object] | None:
    """What identifies all values that the code of a net can reach; None if it may be impure."""
    found: dict[str, object] = {}
    for place, value in reachable(net):
        if not _judged(value):
            return None
        if isinstance(value, nn.Module):
            named = (*value._parameters.items(), *value._buffers.items())
            found.update({f"{place}.{name}": _identity(tensor) for name, tensor in named})
        if isinstance(value, types.FunctionType | type) and is_foreign(value):
            continue
        for name, inner in children(value):
            found[f"{place}/{name}"] = _identity(inner)
    return found


def _identity(value: Any) -> object:
    """Equal for two values if and only if nothing changed, as far as it is no other object."""
    if isinstance(value, Tensor):
        version = None if value.is_inference() else value._version
        return id(value), tuple(value.shape), value.requires_grad, version, tensor_sums(value)
    if isinstance(value, bool | int | float | complex | str | bytes | None):
        return str(value)
    if isinstance(value, types.MethodType):  # made anew at every access
        return id(value.__func__)
    if isinstance(value, tuple | list | dict | set | frozenset):
        return len(value)
    return id(value)


def _judged(value: Any) -> bool:
    """Whether an object is known to have no state and no effects other than recorded ones."""
    if isinstance(value, nn.Module):
        scripted = isinstance(value, torch.jit.ScriptModule)
        return not scripted and all(_judged_class(one) for one in type(value).__mro__)
    if isinstance(value, type):
        return _judged_class(value)
    if isinstance(value, types.FunctionType):
        return _judged_function(value)
    if isinstance(value, types.MethodType | staticmethod | classmethod | property):
        return True  # their functions are judged by themselves
    if isinstance(value, types.BuiltinFunctionType):
        module = _root(value)
        return module in _MODULES or (module == "builtins" and value.__name__ in _BUILTINS)
    if isinstance(value, types.ModuleType):
        return _root(value) in _MODULES
    if type(value) in _PLAIN_TYPES or isinstance(value, functools.partial):
        return True
    own = not is_foreign(type(value))
    return own and all(_judged_class(one) for one in type(value).__mro__)


def _judged_class(kind: type) -> bool:
    if kind is object or _root(kind) in _LAYERS or kind in _PLAIN_TYPES:
        return True
    return not is_foreign(kind)  # its functions are reachable


def _judged_function(function: types.FunctionType) -> bool:
    if is_foreign(function):
        return _root(function) in _LAYERS | _MODULES
    return all(_judged_code(code, function.__globals__) for code in _codes(function.__code__))


def _judged_code(code: types.CodeType, names: dict[str, Any]) -> bool:
    if not (_ATTRIBUTES | _GRADIENT_MODE).isdisjoint(code.co_names):
        return False
    for operation, name in _instructions(code):
        if operation in _FORBIDDEN_CODE:
            return False
        if operation not in _LOADS:
            continue
        if name in names:
            value = names[name]
            if isinstance(value, types.ModuleType) and _root(value) not in _MODULES:
                return False
        elif name in vars(builtins) and name not in _BUILTINS:
            return False
    return True


@functools.lru_cache(maxsize=1024)
def _instructions(code: types.CodeType) -> frozenset[tuple[str, str]]:
    """Operations that concern names outside of a function, each with the name."""
    relevant = _FORBIDDEN_CODE | _LOADS
    return frozenset(
        (one.opname, str(one.argval))
        for one in dis.get_instructions(code)
        if one.opname in relevant
    )


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _root(value: Any) -> str:
    """The package that an object belongs to."""
    module = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    return str(module or type(getattr(value, "__self__", None)).__module__).partition(".")[0]
