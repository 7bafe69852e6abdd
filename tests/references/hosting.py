"""Shared code of the adapters: import with a fixed seed, a net that peers accept, and results."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import math
import random
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

Norm = Literal["Linf", "L2", "L1"]
Adapter = Callable[..., Tensor]

ORDER: dict[Norm, float] = {"Linf": math.inf, "L2": 2, "L1": 1}

MODULES = {
    "adv-lib": "adv_lib",
    "adversarial-robustness-toolbox": "art",
    "foolbox": "foolbox",
    "pyautoattack": "pyautoattack",
    "torchattacks": "torchattacks",
}


def why_missing(peer: str) -> str | None:
    """The reason why a peer cannot be used, or None if it is installed."""
    if importlib.util.find_spec(MODULES[peer]) is None:
        return (
            f"{peer} is not installed; pip install --no-deps -r tests/references/requirements.txt"
        )
    return None


def versions() -> dict[str, str]:
    """The version of every installed peer."""
    return {peer: importlib.metadata.version(peer) for peer in MODULES if why_missing(peer) is None}


@contextlib.contextmanager
def imported_peer(name: str, seed: int) -> Iterator[Any]:
    """Import a peer, with warnings ignored and the global generators seeded.

    The states of the generators are restored afterwards.

    Raises:
        ModuleNotFoundError: The peer is not installed.
    """
    reason = why_missing(name)
    if reason is not None:
        raise ModuleNotFoundError(reason)
    python_state = random.getstate()
    numpy_state = np.random.get_state()  # noqa: NPY002
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        try:
            yield import_adv_lib() if name == "adv-lib" else importlib.import_module(MODULES[name])
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002


def import_adv_lib() -> types.ModuleType:
    """Import `adv_lib.attacks` without its dependencies torchvision and visdom.

    adv-lib imports torchvision (for LPIPS) and visdom (for plots); no attack used here needs them.
    If they are not installed, empty modules replace them during the import.
    """
    placeholders = {
        name: types.ModuleType(name) for name in ("torchvision", "visdom") if _is_absent(name)
    }
    if "torchvision" in placeholders:
        models = types.ModuleType("torchvision.models")
        placeholders["torchvision"].models = models  # type: ignore[attr-defined]
    sys.modules.update(placeholders)
    try:
        return importlib.import_module("adv_lib.attacks")
    finally:
        for name in placeholders:
            del sys.modules[name]


def with_parameter(net: nn.Module) -> nn.Module:
    """The net with an unused parameter: torchattacks and ART read the device from the first one."""
    return WithParameter(net).eval()


class WithParameter(nn.Module):
    """A net with one unused parameter."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.anchor = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)
        return logits


def to_points(result: Any) -> Tensor:
    """The result of an attack, a tensor or an array, as a new float32 tensor."""
    return torch.as_tensor(result).detach().float().clone()


def _is_absent(module: str) -> bool:
    return module not in sys.modules and importlib.util.find_spec(module) is None
