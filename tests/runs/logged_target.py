"""A target that logs the process of every forward pass, and can kill its process at one of them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from saddlepoint.audits import Audit
from saddlepoint.audits.profile import Stage
from saddlepoint.runs.executors import Executor
from saddlepoint.runs.runner import run_spec
from saddlepoint.runs.spec import AttackSpec, DataSpec, RunSpec, ThreatSpec

# `calls.log` has one line per forward pass. A process kills itself before the forward pass with the
# number in `kill_at`.
_SOURCE = """
import os
import signal
from pathlib import Path

import torch
from torch import nn

FOLDER = Path(__file__).parent


class Logged(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            self.layer.weight.copy_(torch.randn(10, 64, generator=generator))
            self.layer.bias.zero_()

    def forward(self, x):
        log = FOLDER / "calls.log"
        with log.open("a") as file:
            file.write(f"{os.getpid()}\\n")
        kill_at = FOLDER / "kill_at"
        if kill_at.exists() and len(log.read_text().split()) == int(kill_at.read_text()):
            os.kill(os.getpid(), signal.SIGKILL)
        return self.layer(x.flatten(1))


def make():
    return Logged().eval()
"""
ATTACKS = tuple(AttackSpec(kind="apgd", name=f"apgd-{k}", steps=5 + k, loss="ce") for k in range(3))


@dataclass
class LoggedTarget:
    """The target in a folder, and what was logged. It is also the watch of its audit."""

    folder: Path
    out: str = "run"
    calls_at: dict[Stage, int] = field(default_factory=dict)  # forward passes before each stage
    calls_in_total: int = 0  # forward passes before the end of the audit

    @classmethod
    def write(cls, folder: Path) -> LoggedTarget:
        """Write the file of the target."""
        (folder / "net.py").write_text(_SOURCE)
        return cls(folder)

    @property
    def spec(self) -> RunSpec:
        """Four groups of images, so that there is work for several processes."""
        return RunSpec(
            target=f"{self.folder / 'net.py'}:make",
            data=DataSpec(n=16),
            threat=ThreatSpec(radius="0.05"),
            attacks=ATTACKS,
            batch_size=4,
        )

    @property
    def run(self) -> Path:
        """The folder of the run."""
        return self.folder / self.out

    @property
    def driver(self) -> int:
        """The process that starts the audit."""
        return os.getpid()

    @property
    def pids(self) -> list[int]:
        """The process of every forward pass so far."""
        log = self.folder / "calls.log"
        return [int(line) for line in log.read_text().split()] if log.is_file() else []

    @property
    def pids_after_the_plan(self) -> set[int]:
        """All processes that called the target from the attack stage to the end of the audit."""
        return set(self.pids[self.calls_at[Stage.ATTACK] : self.calls_in_total])

    def reset(self) -> None:
        """Forget the calls so far."""
        (self.folder / "calls.log").unlink(missing_ok=True)

    def kill_at(self, call: int) -> None:
        """The process with this forward pass kills itself; passes are counted from `reset` on."""
        (self.folder / "kill_at").write_text(str(call))

    def audit(self, executor: Executor) -> Audit:
        """Audit the target and store the run."""
        audit = run_spec(self.spec, self.run, executor=executor, watch=self)
        self.calls_in_total = len(self.pids)
        return audit

    def stage(self, stage: Stage, message: str) -> None:
        self.calls_at.setdefault(stage, len(self.pids))

    def begin(self, work, missing): ...
    def cell(self, cell, episode): ...
    def measure(self, missing): ...
    def measured(self, cell): ...
    def say(self, message): ...
