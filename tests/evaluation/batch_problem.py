"""A small network and a batch of images for tests of defenses that adapt to their batch."""

from __future__ import annotations

from typing import Any

import torch
from tests.problems import Static, Transductive, smooth, uniform
from torch import Tensor

from saddlepoint.attacks.ensemble import AverageLoss, LossWeighting, MinLoss
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.evaluation import AttackContext, Direct, Threat

SPACE = Linf(0.1)
N = 12
X = uniform(0, N, 6)
NET = smooth(1)
Y = NET(X).argmax(1)
PGD5 = Direct("pgd", PGD(steps=5, step_size=0.03), cross_entropy)
BATCH = Transductive(NET, torch.zeros(6, dtype=torch.float64))
WEIGHTINGS: list[LossWeighting] = [AverageLoss(), MinLoss()]


def context(threat: Threat | None = None, n: int = N, seed: int = 0) -> AttackContext:
    return AttackContext.open(threat or Threat(SPACE), torch.arange(n), seed)


def objectives(*nets: Any, y: Tensor = Y, loss: Any = cross_entropy) -> tuple[AttackObjective, ...]:
    return tuple(AttackObjective([Static(net)], y, loss) for net in nets)
