"""Settings of all tests."""

from __future__ import annotations

import os
import signal

# Set before torch is imported, for every process that a test starts: two workers with two
# threads each would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that runs the tests in the background ignores interrupts, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
