"""Networks that others trained, in a folder of the user; none of them ships with the package."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from torch import nn

from saddlepoint.locate import locate

MODULES = "modules.py"  # networks as modules with named layers
OPAQUE = "loaders.py"  # networks as functions of their input, without layers that can be reached


@dataclass(frozen=True)
class ModelFolder:
    """A folder of weight files with Python files that load them by name.

    The name of a network is the path of its weight file in the folder without its suffix, for
    example "cifar10/resnet20" for `cifar10/resnet20.safetensors`. `modules.py` in the folder
    defines `load(name)`, which returns a network in eval mode that maps images [N, C, H, W] in
    [0, 1] to logits. `loaders.py` may do the same for further networks. Loading executes these
    files, so a folder must be trusted like a script.

    Raises:
        FileNotFoundError: if the folder has no `modules.py`.
    """

    path: Path

    def __post_init__(self) -> None:
        if not (self.path / MODULES).is_file():
            raise FileNotFoundError(
                f"{self.path} has no {MODULES}. A folder of third-party networks has weight files "
                f"and a {MODULES} whose function load(name) returns the network of a weight file."
            )

    def weight_file(self, name: str) -> Path:
        """Return the weight file of a network.

        Raises:
            FileNotFoundError: if the folder has no weight file of this name.
        """
        place = self.path / name
        found = sorted(file for file in place.parent.glob(f"{place.name}.*") if file.is_file())
        if not found:
            raise FileNotFoundError(
                f"{self.path} has no network {name!r}: there is no file {name}.safetensors. "
                "Choose a folder that contains it with --models."
            )
        return found[0]

    def sha256(self, name: str) -> str:
        """Return the SHA-256 of the weight file of a network."""
        return hashlib.sha256(self.weight_file(name).read_bytes()).hexdigest()

    def load(self, name: str, *, loader: str = MODULES, **changes: object) -> nn.Module:
        """Load a network.

        Args:
            name: name of the network.
            loader: the file in the folder whose `load` is called: `MODULES` or `OPAQUE`.
            changes: further arguments of its `load`.

        Raises:
            FileNotFoundError: if the folder has no weight file of this name.
            LocateError: if the loader does not exist or does not define `load`.
        """
        self.weight_file(name)
        load = cast("Callable[..., nn.Module]", locate(f"{self.path / loader}:load"))
        return load(name, **changes)
