"""What robust accuracy is compared with."""

from __future__ import annotations

from saddlepoint.audits.diagnostics.bounds import certificate_method
from saddlepoint.audits.evidence import AttackRun, Evidence
from saddlepoint.audits.statistics import mcnemar
from saddlepoint.audits.verdict import CertifiedBound, Comparisons, StaticNet


def comparisons(evidence: Evidence) -> Comparisons:
    """The claim, a standard evaluation, the static net, the cost and a certified bound."""
    return Comparisons(
        evidence.plan.claim,
        _standard(evidence),
        _static(evidence),
        evidence.diagnoses.cost,
        _certified(evidence),
    )


def _certified(e: Evidence) -> CertifiedBound | None:
    method = certificate_method(e.defense, e.plan.job.x.dtype)
    if e.diagnoses.certified is None or method is None:
        return None
    return CertifiedBound(float(e.diagnoses.certified.double().mean()), method)


def _standard(e: Evidence) -> float | None:
    """Accuracy under attacks that work on any net; None if there was no such gradient attack."""
    usual = [run for run in e.runs if run.properties.black_box or _plain(run)]
    if not any(run.properties.white_box for run in usual):
        return None
    return float(e.remaining(usual).mean())


def _plain(run: AttackRun) -> bool:
    has = run.properties
    special = (
        has.custom_rules
        or has.through_adaptation
        or has.anticipates_adaptation
        or has.approximate_backward
        or has.handles_randomness
        or has.other_views
    )
    return has.white_box and not special


def _static(e: Evidence) -> StaticNet | None:
    static = e.diagnoses.static
    if e.static is None or static is None:
        return None
    test = mcnemar(e.robust, static.robust)
    return StaticNet(
        float(static.clean.mean()),
        float(static.robust.mean()),
        test.only_first,
        test.only_second,
        test.p,
    )
