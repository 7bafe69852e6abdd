from __future__ import annotations

import os
import signal

# Before torch is imported, and for every process that a test starts: two workers with two threads each would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts the tests in the background has interrupts ignored, and every child would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
