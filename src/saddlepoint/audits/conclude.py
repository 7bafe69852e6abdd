"""The conclude stage: from evidence to the result. Nothing is run here."""

from __future__ import annotations

import platform
from importlib.metadata import version

import torch
from torch import Tensor

from saddlepoint.audits.diagnostics.baselines import comparisons
from saddlepoint.audits.diagnostics.checklist import checklist
from saddlepoint.audits.diagnostics.symptoms import symptoms
from saddlepoint.audits.evidence import Evidence
from saddlepoint.audits.remedies.results import RemedyResults
from saddlepoint.audits.result import Audit, Examples
from saddlepoint.audits.statistics import over_units
from saddlepoint.describe import describe


def conclude(evidence: Evidence, seconds: float = 0.0) -> Audit:
    """The result of an audit.

    Args:
        evidence: outcomes of attacks and diagnostics.
        seconds: wall time of the audit, for the record.
    """
    plan = evidence.plan
    job = plan.job
    correct = evidence.robust
    remedies = RemedyResults.of(evidence)
    scores = torch.cat([g.verdict.rejection_scores for g in evidence.groups], dim=3)
    return Audit(
        target=plan.name,
        threat=str(job.threat),
        threat_description=describe(job.threat),  # type: ignore[arg-type]
        budget=plan.budget,
        seed=job.seed,
        n=len(job.x),
        clean_accuracy=float(evidence.clean.mean()),
        robust_accuracy=float(correct.mean()),
        interval=over_units(correct, _units(evidence), job.defense.unit),
        rows=evidence.rows,
        symptoms=(*plan.findings, *map(remedies.on_symptom, symptoms(evidence))),
        checklist=tuple(map(remedies.on_item, checklist(evidence))),
        compared=comparisons(evidence),
        versions={
            "saddlepoint": version("saddlepoint"),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        x=job.x.cpu(),
        y=job.y.cpu(),
        worst_points=evidence.points,
        correct=correct,
        answered=torch.cat([g.verdict.answered[0] for g in evidence.groups]),
        examples=_examples(evidence),
        rejection_scores=scores[:, :, :1].flatten(1, 2),
        seconds=seconds,
        data=plan.data,
        classes=plan.classes,
        command=plan.command,
        recognized=plan.recognized,
        engine=job.engine,
    )


def _units(e: Evidence) -> Tensor:
    """[N] the number of the batch that was evaluated together; a stream is one unit."""
    if e.defense.unit == "stream":
        return torch.zeros(len(e.clean), dtype=torch.long)
    counts = [int(g.verdict.batch.amax()) + 1 for g in e.groups]
    return torch.cat([g.verdict.batch + sum(counts[:k]) for k, g in enumerate(e.groups)])


def _examples(e: Evidence) -> Examples:
    """Per image: the strongest attack, its point, the passes, and whether it was confirmed."""
    claimed = torch.cat([g.outcomes.worst_case_per_example()[0] for g in e.groups])
    verified = torch.ones(len(claimed), dtype=torch.bool)
    if not e.defense.random:
        verified = claimed == e.robust
    episodes = [g.outcomes.episodes for g in e.groups]
    return Examples(
        winner=tuple(name for g in e.groups for name in g.winner),
        margin=torch.cat([g.verdict.margin[0] for g in e.groups]),
        size=torch.cat([g.verdict.size for g in e.groups]),
        forward=torch.cat([torch.stack([one.forward for one in g]).sum(0) for g in episodes]),
        backward=torch.cat([torch.stack([one.backward for one in g]).sum(0) for g in episodes]),
        smallest=e.smallest,
        draws=e.plan.job.threat.draws if e.defense.random else 1,
        verified=verified,
    )
