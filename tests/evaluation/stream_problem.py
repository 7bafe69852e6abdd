"""A small network and a stream of images for tests of streams."""

from __future__ import annotations

import torch
from tests.problems import smooth, uniform

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.evaluation import Direct

SPACE = Linf(0.1)
N = 24
X = uniform(0, N, 6)
NET = smooth(1)
Y = NET(X).argmax(1)
PGD3 = Direct("pgd", PGD(steps=3), cross_entropy)
ZERO = torch.zeros(6, dtype=torch.float64)
