"""Targets that behave well while they are probed, and badly later.

They count their calls, over all processes, in the file that MISBEHAVE_LOG names.
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from saddlepoint import load_data


class Late(nn.Module):
    """Classifies by the nearest class mean, until its log says that it should not.

    The file MISBEHAVE_LOG.plan has lines "FIRST LAST NAME": from call FIRST to call LAST it
    misbehaves as the function NAME does.
    """

    def __init__(self) -> None:
        super().__init__()
        x, y = load_data("digits", split="train")
        means = [x[y == label].mean(0).flatten() for label in range(10)]
        self.register_buffer("means", torch.stack(means))
        self.log = Path(os.environ["MISBEHAVE_LOG"])

    def forward(self, x):
        with self.log.open("ab") as file:
            file.write(b".")
        logits = 4 * (x.flatten(1) @ self.means.T - (self.means * self.means).sum(1) / 2)
        call = self.log.stat().st_size
        for line in self.log.with_suffix(".plan").read_text().splitlines():
            first, last, name = line.split()
            if int(first) <= call <= int(last):
                return MISBEHAVIOR[name](logits)
        return logits


def late():
    return Late().eval()


def _exit(z):
    sys.exit(0)


def _raise(z):
    raise LookupError("no such route")


def _segfault(z):
    ctypes.string_at(0)


def _hang(z):
    time.sleep(3600)


def _globals(z):
    os.chdir("/")
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(2)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    return z


def _run_out(z):
    raise RuntimeError(
        "[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't "
        "allocate memory: you tried to allocate 99 bytes."
    )


MISBEHAVIOR = {
    "exits": _exit,
    "raises": _raise,
    "shape": lambda z: z[0],
    "rows": lambda z: z[:-1],
    "nothing": lambda z: None,
    "memory": _run_out,
    "nan": lambda z: z * float("nan"),
    "segfaults": _segfault,
    "hangs": _hang,
    "globals": _globals,
}


class Four(nn.Module):
    """Fits four images into memory."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()

    def forward(self, x):
        if len(x) > 4:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate.")
        return self.net(x)


def four():
    torch.manual_seed(0)
    return Four().eval()


def leaves_at_once():
    class Leaves(nn.Module):
        def forward(self, x):
            sys.exit(0)

    return Leaves().eval()


def writes_to_descriptor():
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

        def forward(self, x):
            os.write(1, b"progress\n")
            return self.net(x)

    torch.manual_seed(0)
    return Writes().eval()
