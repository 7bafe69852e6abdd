"""What the authors of four papers broke by hand, handed to an audit that is told nothing."""

from __future__ import annotations

from saddlepoint.papers.registry import Experiment

_HOME = "saddlepoint.papers.blind_audit.audit"

EXPERIMENTS = (
    Experiment(
        "untold/adaptive",
        "Adaptive test-time defenses, audited untold",
        "Croce et al. 2022 broke nine of them, each by an attack of its own: none is more robust than the net under it by more "
        "than some points.",
        f"{_HOME}:adaptive",
    ),
    Experiment(
        "untold/transductive",
        "Transductive defenses, audited untold",
        "Chen et al. 2022 broke four of them by greedy model space attacks and by stronger points from the base network.",
        f"{_HOME}:transductive",
    ),
    Experiment(
        "untold/multi-exit",
        "A multi-exit network in four ways to answer, audited untold",
        "Xu et al. wrote AIMER, the best response to each of them.",
        f"{_HOME}:multi_exit",
    ),
    Experiment(
        "untold/equilibrium",
        "Equilibrium networks that answer with one of three states, audited untold",
        "Yang et al. 2022 attacked them along gradients of intermediate states.",
        f"{_HOME}:equilibrium",
    ),
)
