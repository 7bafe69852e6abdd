"""Table 6: the defenses of a network that was trained without adversary."""

from __future__ import annotations

from saddlepoint.papers.deq import EXPERIMENTS
from saddlepoint.papers.deq.experiment import Lab
from saddlepoint.papers.deq.table_2 import under_pgd
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result


def run(request: Request) -> Result:
    return under_pgd(Lab.open(request), EXPERIMENTS[5], ("vanilla",))
