"""Table 5: every state of a network without adversarial training under the ready-made PGD-10."""

from __future__ import annotations

from saddlepoint.papers.deq import published
from saddlepoint.papers.deq.experiment import DEQExperiment
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result


def run(request: Request) -> Result:
    """Reproduce Table 5."""
    experiment = DEQExperiment.open(request)
    subject = experiment.subject("vanilla")
    states = experiment.states(subject)
    table = states.table(published.TABLE_5_CLEAN, published.TABLE_5_ROBUST)
    finding = states.accumulation(experiment.early(subject))
    return experiment.result("table-5", [table], states=[states], findings=[finding])
