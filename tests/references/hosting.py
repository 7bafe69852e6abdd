"""What every peer needs around it: a name, a seed, a net it accepts, and points as one type."""

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

Norm = Literal["Linf", "L2"]
Adapter = Callable[..., Tensor]

ORDER: dict[Norm, float] = {"Linf": math.inf, "L2": 2}

MODULES = {
    "adv-lib": "adv_lib",
    "adversarial-robustness-toolbox": "art",
    "foolbox": "foolbox",
    "pyautoattack": "pyautoattack",
    "torchattacks": "torchattacks",
}


def why_missing(peer: str) -> str | None:
    """The reason to skip a peer, or None when it can be used."""
    if importlib.util.find_spec(MODULES[peer]) is None:
        return (
            f"{peer} is not installed; pip install --no-deps -r tests/references/requirements.txt"
        )
    return None


def versions() -> dict[str, str]:
    """The installed version of every peer that is there."""
    return {peer: importlib.metadata.version(peer) for peer in MODULES if why_missing(peer) is None}


@contextlib.contextmanager
def peer(name: str, seed: int) -> Iterator[Any]:
    """The peer's module, with its warnings silenced and the global generators it draws from seeded, then put back."""
    reason = why_missing(name)
    if reason is not None:
        raise ModuleNotFoundError(reason)
    python = random.getstate()
    numpy = np.random.get_state()  # noqa: NPY002
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        try:
            yield import_adv_lib() if name == "adv-lib" else importlib.import_module(MODULES[name])
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


def import_adv_lib() -> types.ModuleType:
    """`adv_lib.attacks`, which imports torchvision (for LPIPS) and visdom (for plots); no attack here uses them.

    Where they are not installed, empty modules stand in for them while adv-lib is imported, and are taken away again.
    """
    stand_ins = {
        name: types.ModuleType(name) for name in ("torchvision", "visdom") if _absent(name)
    }
    if "torchvision" in stand_ins:
        stand_ins["torchvision"].models = types.ModuleType("torchvision.models")  # type: ignore[attr-defined]
    sys.modules.update(stand_ins)
    try:
        return importlib.import_module("adv_lib.attacks")
    finally:
        for name in stand_ins:
            del sys.modules[name]


def anchored(net: nn.Module) -> nn.Module:
    """The net with one unused parameter: torchattacks and ART ask the first parameter for the device."""
    return Anchored(net).eval()


class Anchored(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.anchor = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)
        return logits


def points(found: Any) -> Tensor:
    return torch.as_tensor(found).detach().float().clone()


def _absent(module: str) -> bool:
    return module not in sys.modules and importlib.util.find_spec(module) is None
