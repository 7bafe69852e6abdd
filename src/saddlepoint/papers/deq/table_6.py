"""Table 6: the defenses of a network without adversarial training."""

from __future__ import annotations

from saddlepoint.papers.deq.table_2 import under_pgd
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result


def run(request: Request) -> Result:
    """Reproduce Table 6."""
    return under_pgd(request, "table-6", ("vanilla",))
