"""One audit as it was asked for on the command line."""

from __future__ import annotations

import re
import shlex
import tempfile
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from saddlepoint.cli.radius import USUAL, Norm, Radius
from saddlepoint.cli.target import find_target

if TYPE_CHECKING:
    import torch

    from saddlepoint.auditing import Audit, Watch
    from saddlepoint.data import Data

_USUAL_COUNT = 500


class Effort(StrEnum):
    """How much an audit may cost."""

    quick = "quick"
    standard = "standard"
    thorough = "thorough"


@dataclass(frozen=True)
class Request:
    """Everything that determines an audit's numbers, and where it is written."""

    target: str
    data: str = "digits"
    n: int | None = None  # None: the first 500, or all if there are fewer
    norm: Norm = Norm.linf
    eps: Radius = USUAL[Norm.linf]
    budget: Effort = Effort.standard
    seed: int = 0
    batch_size: int = 128
    device: str = "cpu"
    root: Path | None = None
    out: Path | None = None  # None: a folder below runs/

    @property
    def folder(self) -> Path:
        return self.out or Path("runs") / f"{_plain(self.target)}-{self.norm}-{_plain(self.eps.text)}"

    def command(self, n: int) -> str:
        """The command line that asks for this audit of `n` images, with every default written out."""
        words = ["saddlepoint", "audit", self.target, "--data", self.data, "--n", n, "--norm", self.norm, "--eps", self.eps.text]
        words += ["--budget", self.budget, "--seed", self.seed, "--batch-size", self.batch_size, "--device", self.device]
        words += ["--root", self.root] if self.root else []
        return shlex.join(str(word) for word in [*words, "--out", self.folder])

    def run(self, watch: Watch | None = None) -> Audit:
        """The audit, written into `folder`. What the user can have got wrong is found before the attacks begin."""
        from saddlepoint.attack.space import L1, L2, Linf
        from saddlepoint.auditing import audit

        space = {Norm.linf: Linf, Norm.l2: L2, Norm.l1: L1}[self.norm](self.eps.value)
        device = _device(self.device)
        data = self._images()
        target = find_target(self.target)
        _refuse_unwritable(self.folder)
        done = audit(
            target, data.x, data.y, threat=space, budget=self.budget.value, seed=self.seed, device=device,
            batch_size=self.batch_size, name=self.target, watch=watch,
        )  # fmt: skip
        named = replace(done, data=self.data, classes=data.classes, command=self.command(len(data)))
        named.to_html(named.save(self.folder) / "report.html")
        return named

    def _images(self) -> Data:
        from saddlepoint.data import SOURCES, load_data

        if self.n is not None:
            return load_data(self.data, n=self.n, root=self.root)
        # Every named source has more; a user's own may have fewer, and then all are taken.
        data = load_data(self.data, n=_USUAL_COUNT if self.data in SOURCES else None, root=self.root)
        return data.take(min(len(data), _USUAL_COUNT))


def _device(name: str) -> torch.device:
    import torch

    try:
        return torch.zeros(1, device=torch.device(name)).device
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise ValueError(f"the device {name!r} cannot be used ({first}). Try --device cpu.") from error


def _refuse_unwritable(folder: Path) -> None:
    """Nobody wants to hear after an hour that the result has no place."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"cannot write to {folder} ({error}). Choose another folder with --out.") from error


def _plain(text: str) -> str:
    """A part of a folder's name: the end of a path, without what file systems or shells read."""
    short = text.removeprefix("zoo:") if "/" not in text or ":" not in text else text.rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9.]+", "-", short.replace(".py:", "-")).strip("-.") or "target"
