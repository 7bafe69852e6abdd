"""Audits without information about the defense, compared with the attacks of four papers."""

from __future__ import annotations

from saddlepoint.papers.registry import Experiment

_HOME = "saddlepoint.papers.blind_audit.audit"

EXPERIMENTS = (
    Experiment(
        "untold/adaptive",
        "Blind audits of adaptive test-time defenses",
        "Croce et al. 2022 broke nine of them, each with a specific attack: none is more than a "
        "few points more robust than its static model.",
        f"{_HOME}:adaptive",
    ),
    Experiment(
        "untold/transductive",
        "Blind audits of transductive defenses",
        "Chen et al. 2022 broke four of them with greedy model space attacks and with stronger "
        "points from the base network.",
        f"{_HOME}:transductive",
    ),
    Experiment(
        "untold/multi-exit",
        "Blind audits of a multi-exit network with four inference strategies",
        "Xu et al. proposed AIMER, the best response to each of them.",
        f"{_HOME}:multi_exit",
    ),
    Experiment(
        "untold/equilibrium",
        "Blind audits of equilibrium networks that answer with one of three states",
        "Yang et al. 2022 attacked them with gradients at intermediate states.",
        f"{_HOME}:equilibrium",
    ),
)
