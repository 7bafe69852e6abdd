"""Runs the probe stage on a target, for tests of defenses."""

from __future__ import annotations

from torch import Tensor

from saddlepoint.attacks.spaces import Ball
from saddlepoint.audits import AuditRequest, Target
from saddlepoint.audits.probes.stage import Probed, probe_stage
from saddlepoint.evaluation import Threat


def probe_target(target: Target, x: Tensor, y: Tensor, space: Ball) -> Probed:
    """What the probe stage of an audit finds. Nets of tests may be untrained, so at chance."""
    return probe_stage(AuditRequest(target, x, y, Threat(space), allow_unusual=True))
