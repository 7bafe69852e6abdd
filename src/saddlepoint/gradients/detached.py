"""No gradient through a solve."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from saddlepoint.gradients.implicit import SolveRule
from saddlepoint.gradients.solve import Solve
from saddlepoint.solvers import Solution


@dataclass(frozen=True)
class Detached(SolveRule):
    """States are constants: only what the defense computes from them afterwards is differentiated.

    For a defense that makes k damped steps from the end of its solve, this is the phantom gradient
    with which such networks are trained (Geng et al. 2021; Yang et al. 2022, Eq. 4-6).
    """

    def attach(self, solve: Solve) -> Solution:
        with torch.no_grad():
            return solve.run()
