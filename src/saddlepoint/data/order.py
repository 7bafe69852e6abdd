"""A fixed shuffled order for data that is stored sorted by class.

With it, the first n examples are a sample of all classes.
"""

from __future__ import annotations

import hashlib


def fixed_order(count: int) -> list[int]:
    """A permutation of 0..count-1, sorted by the SHA-256 of the decimal index.

    It does not depend on the version of any library.
    """
    return sorted(range(count), key=lambda index: hashlib.sha256(str(index).encode()).digest())
