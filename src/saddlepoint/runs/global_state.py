"""Keeps the settings of the process that code of a target may change."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def kept_globals() -> Iterator[None]:
    """Restore global settings after a block that runs a target.

    These are the current folder, the default floating-point type, the gradient mode, the number of
    torch threads, and the states of the global random generators of Python, numpy and torch. The
    results of cells therefore do not depend on what an earlier cell left behind.
    """
    folder = os.open(".", os.O_RDONLY)
    dtype = torch.get_default_dtype()
    gradients = torch.is_grad_enabled()
    threads = torch.get_num_threads()
    states = (random.getstate(), np.random.get_state(), torch.get_rng_state())  # noqa: NPY002
    try:
        yield
    finally:
        os.fchdir(folder)
        os.close(folder)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(gradients)
        torch.set_num_threads(threads)
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])
