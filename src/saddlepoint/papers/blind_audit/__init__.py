"""Audits without any information about the defense, on defenses that four papers broke by hand."""

from __future__ import annotations

from saddlepoint.papers.registry import Experiment

_MODULE = "saddlepoint.papers.blind_audit.audit"

EXPERIMENTS = (
    Experiment(
        "blind-audit/adaptive",
        "Blind audit of adaptive test-time defenses",
        "Croce et al. 2022 broke nine defenses, each with its own adaptive attack; none of them is "
        "more than a few points more robust than its static network.",
        f"{_MODULE}:adaptive",
        sources=("saddlepoint.audits.pipeline",),
    ),
    Experiment(
        "blind-audit/transductive",
        "Blind audit of transductive defenses",
        "Chen et al. 2022 broke four defenses with greedy model space attacks and with stronger "
        "points transferred from the base network.",
        f"{_MODULE}:transductive",
        sources=("saddlepoint.audits.pipeline",),
    ),
    Experiment(
        "blind-audit/multi-exit",
        "Blind audit of a multi-exit network with four strategies for choosing exits",
        "Xu et al. propose AIMER, the best response to each of these strategies.",
        f"{_MODULE}:multi_exit",
        sources=("saddlepoint.audits.pipeline",),
    ),
    Experiment(
        "blind-audit/equilibrium",
        "Blind audit of deep equilibrium networks that predict from one of three solver states",
        "Yang et al. 2022 attacked these networks along gradients of intermediate states.",
        f"{_MODULE}:equilibrium",
        sources=("saddlepoint.audits.pipeline",),
    ),
)
