"""Xu et al., "Rethinking the Adversarial Robustness of Multi-Exit Neural Networks in an Attack-Defense Game".

Its appendices and code were not available: what the main text leaves open is said beside each choice.
"""

from __future__ import annotations

from saddlepoint.papers.registry import Experiment

_HOME = "saddlepoint.papers.multi_exit"

EXPERIMENTS = (
    Experiment(
        "multi-exit/table-1",
        "Robust accuracy found by four ways to evaluate",
        "AIMER finds lower robustness than the single, the average and the max-average attack, in all 30 columns of five cases.",
        f"{_HOME}.table_1:run",
    ),
    Experiment(
        "multi-exit/table-2",
        "Four ways to answer under AIMER",
        "NEED is more robust than a single-exit network, the last exit and dynamic inference, at a larger mismatch.",
        f"{_HOME}.table_2:run",
    ),
    Experiment(
        "multi-exit/table-3",
        "NEED on top of five ways to train",
        "NEED improves standard training, PGD-AT, TRADES, MART and FAT under every one of six attacks.",
        f"{_HOME}.table_3:run",
    ),
    Experiment(
        "multi-exit/table-4",
        "What the evaluations cost",
        "AIMER costs about a quarter of the max-average attack, its preparation included.",
        f"{_HOME}.table_4:run",
    ),
    Experiment(
        "multi-exit/figure-3",
        "Accuracy when attacker and defender choose their exits",
        "An attack on exactly the exits that answer is the strongest (Remarks 3.1-3.4, Assumption 3.5).",
        f"{_HOME}.figure_3:run",
    ),
    Experiment(
        "multi-exit/figure-6",
        "Mismatch and expected accuracy for random strategies of the defender",
        "AIMER has the lowest mismatch and the lowest expected accuracy for each of 200 random strategies.",
        f"{_HOME}.figure_6:run",
    ),
    Experiment(
        "multi-exit/honest",
        "What is left of NEED when the attacker knows the mix, or chooses per image (ours)",
        "Not in the paper, where the attacker sends one partial attack to all images, and AutoAttack finds a gap of 13.52 points.",
        f"{_HOME}.honest:run",
    ),
    Experiment(
        "multi-exit/seven-exits",
        "The full game on seven exits, 127 x 127, and the few rows of it that matter (ours)",
        "Not in the paper: its games have 15 and 31 actions.",
        f"{_HOME}.seven_exits:run",
    ),
)
