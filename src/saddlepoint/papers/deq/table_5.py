"""Table 5: every state of a network that was trained without adversary, under the ready-made PGD-10."""

from __future__ import annotations

from saddlepoint.papers.deq import EXPERIMENTS, published
from saddlepoint.papers.deq.experiment import Lab
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result


def run(request: Request) -> Result:
    lab = Lab.open(request)
    subject = lab.subject("vanilla")
    states = lab.states(subject)
    table = states.table(published.TABLE_5_CLEAN, published.TABLE_5_ROBUST)
    return lab.result(
        EXPERIMENTS[4], [table], states=[states], findings=[states.accumulation(lab.early(subject))]
    )
