"""Reproductions of the tables and figures of published papers.

To add a paper, write a package that defines `EXPERIMENTS` and add the package to `PAPERS`.
"""

from __future__ import annotations

from collections.abc import Mapping

from saddlepoint.papers import adaptive, blind_audit, deq, multi_exit, transductive
from saddlepoint.papers.registry import SCALES, Experiment, Request, Scale, select_experiments

PAPERS = (multi_exit, deq, adaptive, transductive, blind_audit)
EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.name: experiment for paper in PAPERS for experiment in paper.EXPERIMENTS
}

__all__ = ["EXPERIMENTS", "SCALES", "Experiment", "Request", "Scale", "select_experiments"]
