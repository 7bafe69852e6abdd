"""Croce, Gowal, Brunner, Shelhamer, Hein & Cemgil 2022, "Evaluating the Adversarial Robustness of Adaptive Test-time Defenses"."""

from __future__ import annotations

from saddlepoint.papers.registry import Experiment

_HOME = "saddlepoint.papers.adaptive"

EXPERIMENTS = (
    Experiment(
        "adaptive/table-1",
        "Nine defenses, what they cost and what is left of them",
        "None of nine defenses keeps what it reported; where the static net is robust none improves on it, and four weaken it, at "
        "2 to 518 times the cost of an answer.",
        f"{_HOME}.table_1:run",
    ),
    Experiment(
        "adaptive/table-2",
        "SODEF under points that maximize the static net's loss",
        "Points of AutoAttack, mostly clean copies, leave more than the static net has (60.9 % in Linf, 66.8 % in L2), points of "
        "maximal loss less (52.2 %, 58.2 %).",
        f"{_HOME}.table_2:run",
    ),
    Experiment(
        "adaptive/table-3",
        "The hedge defense on three robust nets",
        "Points found on a shorter hedge defense, with BPDA and EoT, leave no more than the static net has: 61.0 % of 63.0 %, "
        "59.2 % of 59.2 %, 45.2 % of 45.0 %.",
        f"{_HOME}.table_3:run",
    ),
    Experiment(
        "adaptive/table-4",
        "AID-purifier on several data",
        "Attacked directly, purified nets are less robust than static ones on CIFAR-10 and CIFAR-100, 43.8 % to 49.3 % and 18.2 % "
        "to 23.3 %, and more on SVHN, whose static net is weak.",
        f"{_HOME}.table_4:run",
    ),
    Experiment(
        "adaptive/closed-loop",
        "Closed-loop control under gradients with its controls held constant",
        "34.5 % withstand PGD-20 on the static net, 9.5 % PGD-20 with BPDA and 5.6 % APGD with BPDA, at 89.1 % clean accuracy.",
        f"{_HOME}.closed_loop:run",
    ),
)
