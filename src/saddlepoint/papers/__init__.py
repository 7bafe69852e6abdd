"""Tables and figures of papers, made again. A further paper is a package with `EXPERIMENTS`, added to the list below."""

from __future__ import annotations

from collections.abc import Mapping

from saddlepoint.papers import adaptive, deq, multi_exit, transductive
from saddlepoint.papers import blind_audit as untold
from saddlepoint.papers.registry import SCALES, Experiment, Request, Scale, chosen

PAPERS = (multi_exit, deq, adaptive, transductive, untold)
EXPERIMENTS: Mapping[str, Experiment] = {
    one.name: one for paper in PAPERS for one in paper.EXPERIMENTS
}

__all__ = ["EXPERIMENTS", "SCALES", "Experiment", "Request", "Scale", "chosen"]
