"""What a robust accuracy is held against: a claim, the usual attacks, the static net inside, what can be proven."""

from __future__ import annotations

import torch

from saddlepoint.attack.loss import fooled
from saddlepoint.auditing.bounds import prove
from saddlepoint.auditing.findings import Compared, Proven, StaticNet
from saddlepoint.auditing.sent import ANTICIPATING, APPROXIMATE, AVERAGING, Sent
from saddlepoint.auditing.statistics import mcnemar
from saddlepoint.auditing.trials import Trials


def compare(trials: Trials, claim: float | None) -> Compared:
    return Compared(claim, _standard(trials), _static(trials), trials.cost, _proven(trials))


def _proven(trials: Trials) -> Proven | None:
    """Over all images, a batch at a time."""
    job, share, found = trials.job, 0.0, None
    for x, y in zip(torch.split(job.x, trials.at_once), torch.split(job.y, trials.at_once), strict=True):
        found = prove(job.defense, x, y, job.threat.space)
        if found is None:
            return None
        share += found.accuracy * len(x) / len(job.x)
    return None if found is None else Proven(share, found.method)


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
        rows = torch.split(torch.arange(len(trials.job.x), device=trials.job.x.device), trials.at_once)
        parts = [fooled(trials.static(trials.job.x[some]), trials.job.y[some]) for some in rows]
    found = mcnemar(trials.judged, trials.static_left)
    clean, robust = 1 - float(torch.cat(parts).double().mean()), float(trials.static_left.mean())
    return StaticNet(clean, robust, found.only_first, found.only_second, found.p)
