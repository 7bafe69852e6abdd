"""The functions of the package that combine audits, runs and reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from saddlepoint.attacks.spaces import Ball, Linf
from saddlepoint.audits import Audit, AuditRequest, Target
from saddlepoint.audits.planning.budget import Budget
from saddlepoint.audits.target.admission import placed
from saddlepoint.audits.verdict import Verification
from saddlepoint.evaluation import Adversary, Threat
from saddlepoint.reports import html
from saddlepoint.runs.cache import Watch
from saddlepoint.runs.runner import run_request
from saddlepoint.runs.verify import confirmed


def audit(
    target: Target,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat | Ball = Linf(8 / 255),  # noqa: B008
    budget: Budget = "standard",
    adversaries: Sequence[Adversary] = (),
    seed: int = 0,
    out: str | Path | None = None,
    device: str | torch.device | None = None,
    batch_size: int = 128,
    name: str | None = None,
    claim: float | None = None,
    allow_unusual: bool = False,
    watch: Watch | None = None,
) -> Audit:
    """Measure the robust accuracy of a target and judge the estimate.

    Args:
        target: an nn.Module from pixels in [0, 1] to logits, a `Defense`, or any callable on
            batches, on which only attacks without gradients are possible.
        x: clean images, [N, ...], in [0, 1].
        y: labels, [N].
        threat: the threat model, or its perturbation set; default: Linf with radius 8/255.
        budget: "quick", "standard" or "thorough".
        adversaries: replace those that the budget would compose.
        seed: random seed.
        out: a folder. Every finished cell is stored there, the same call continues where it was
            stopped, and record and report are written.
        device: where images and model are moved; default: where they are.
        batch_size: images per cell.
        name: of the target; default: its class.
        claim: a robust accuracy to test, 0.62 for 62 %. If it is refuted, the verdict is
            *overstated*.
        allow_unusual: audit even if the clean accuracy or the radius looks like a mistake, such as
            shifted labels, missing normalization or a radius of 8 for pixels in [0, 1].
        watch: follows progress.

    Returns:
        The audit. `robust_accuracy` is an upper bound, `verdict` says whether it is credible.

    Raises:
        TargetError: the data or the target violates a rule that every attack relies on, or they
            look like a mistake (`allow_unusual`).
    """
    if device is not None:
        x = x.to(device)
        y = y.to(device)
        target = placed(target, device)
    request = AuditRequest(
        target,
        x,
        y,
        threat if isinstance(threat, Threat) else Threat(threat),
        budget=budget,
        adversaries=tuple(adversaries),
        seed=seed,
        batch_size=batch_size,
        name=name or "",
        claim=claim,
        allow_unusual=allow_unusual,
    )
    return _run_and_report(request, out, watch)


def verify(audit: Audit) -> Verification:
    """Evaluate every worst point of a stored audit again, in a new process.

    The target is loaded from the specification of its run, so its code runs. An audit of a model
    in memory cannot be verified.

    Args:
        audit: an audit that was stored with `out=` or loaded with `Audit.load`.

    Returns:
        All checks.

    Raises:
        ValueError: the audit was not stored.
        VerificationError: a check failed.
    """
    return confirmed(audit)


def write_report(audit: Audit, path: str | Path) -> Path:
    """Write an audit as one self-contained HTML page.

    Args:
        audit: the audit.
        path: the file.

    Returns:
        The file.
    """
    return html.write_report(audit, Path(path))


def _run_and_report(request: AuditRequest, out: str | Path | None, watch: Watch | None) -> Audit:
    if out is None:
        return run_request(request, watch=watch)
    result = run_request(request, out=Path(out), watch=watch)
    write_report(result, Path(out) / "report.html")
    return result
