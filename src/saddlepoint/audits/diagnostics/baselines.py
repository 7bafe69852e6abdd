"""What a robust accuracy is held against: a claim, the usual attacks, the static net inside, what can be proven."""

from __future__ import annotations

import torch

from saddlepoint.attacks.losses import fooled
from saddlepoint.audits.diagnostics.bounds import prove
from saddlepoint.audits.diagnostics.trials import Trials
from saddlepoint.audits.planning.properties import ANTICIPATING, APPROXIMATE, AVERAGING, Sent
from saddlepoint.audits.statistics import mcnemar
from saddlepoint.audits.verdict import CertifiedBound, Comparisons, StaticNet


def compare(trials: Trials, claim: float | None) -> Comparisons:
    return Comparisons(claim, _standard(trials), _static(trials), trials.cost, _proven(trials))


def _proven(trials: Trials) -> CertifiedBound | None:
    """Over all images, a batch at a time."""
    job = trials.job
    share = 0.0
    found = None
    for x, y in zip(
        torch.split(job.x, trials.at_once), torch.split(job.y, trials.at_once), strict=True
    ):
        found = prove(job.defense, x, y, job.threat.space)
        if found is None:
            return None
        share += found.accuracy * len(x) / len(job.x)
    return None if found is None else CertifiedBound(share, found.method)


def _standard(trials: Trials) -> float | None:
    """What plain gradients and queries leave, as any attack on any net uses them; None where no such attack was sent."""
    usual = [one for one in trials.sent if one.black_box or _plain(one)]
    return float(trials.left(usual).mean()) if any(one.white_box for one in usual) else None


def _plain(sent: Sent) -> bool:
    special = sent.ruled or sent.responds or sent.kinds & (ANTICIPATING | APPROXIMATE | AVERAGING)
    return sent.white_box and not special and sent.aims <= {"last"}


def _static(trials: Trials) -> StaticNet | None:
    if trials.static is None or trials.static_left is None:
        return None
    with torch.no_grad():
        rows = torch.split(
            torch.arange(len(trials.job.x), device=trials.job.x.device), trials.at_once
        )
        parts = [fooled(trials.static(trials.job.x[some]), trials.job.y[some]) for some in rows]
    found = mcnemar(trials.judged, trials.static_left)
    clean = 1 - float(torch.cat(parts).double().mean())
    robust = float(trials.static_left.mean())
    return StaticNet(clean, robust, found.only_first, found.only_second, found.p)
