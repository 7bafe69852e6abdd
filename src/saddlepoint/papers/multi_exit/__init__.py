"""Xu et al.

"Rethinking the Adversarial Robustness of Multi-Exit Neural Networks in an Attack-Defense Game".
The appendices and the code of the paper were not available. Where the main text leaves a choice
open, a comment next to it says so.
"""

from __future__ import annotations

from saddlepoint.papers.registry import Experiment

_PACKAGE = "saddlepoint.papers.multi_exit"

EXPERIMENTS = (
    Experiment(
        "multi-exit/table-1",
        "Robust accuracy under four evaluations",
        "AIMER finds a lower robust accuracy than the single, the average and the max-average "
        "attack, in all 30 columns of five cases.",
        f"{_PACKAGE}.table_1:run",
        real=f"{_PACKAGE}.table_1:run_real",
    ),
    Experiment(
        "multi-exit/table-2",
        "Four inference strategies under AIMER",
        "NEED is more robust than a single-exit network, the last exit and dynamic inference, at a "
        "larger mismatch.",
        f"{_PACKAGE}.table_2:run",
        real=f"{_PACKAGE}.table_2:run_real",
    ),
    Experiment(
        "multi-exit/table-3",
        "NEED combined with five training methods",
        "NEED improves standard training, PGD-AT, TRADES, MART and FAT under each of six attacks.",
        f"{_PACKAGE}.table_3:run",
        real=f"{_PACKAGE}.table_3:run_real",
    ),
    Experiment(
        "multi-exit/table-4",
        "Cost of the evaluations",
        "AIMER costs about a quarter of the max-average attack, including its preparation.",
        f"{_PACKAGE}.table_4:run",
        real=f"{_PACKAGE}.table_4:run_real",
    ),
    Experiment(
        "multi-exit/figure-3",
        "Accuracy for each choice of exits by attacker and defender",
        "An attack on exactly the exits that the defender uses is the strongest (Remarks 3.1-3.4, "
        "Assumption 3.5).",
        f"{_PACKAGE}.figure_3:run",
        real=f"{_PACKAGE}.figure_3:run_real",
    ),
    Experiment(
        "multi-exit/figure-6",
        "Mismatch and expected accuracy for random strategies of the defender",
        "AIMER has the lowest mismatch and the lowest expected accuracy for each of 200 random "
        "strategies.",
        f"{_PACKAGE}.figure_6:run",
        real=f"{_PACKAGE}.figure_6:run_real",
    ),
    Experiment(
        "multi-exit/out-of-sample",
        "NEED under attackers that know its mixed strategy or choose per image (ours)",
        "Not in the paper. There the attacker runs one partial attack on all images, and "
        "AutoAttack finds a gap of 13.52 points.",
        f"{_PACKAGE}.out_of_sample:run",
    ),
    Experiment(
        "multi-exit/latent-features",
        "LAFEAT, which uses the gradients of other exits, beside PGD-100 (ours)",
        "In an appendix that was not available. The paper uses LAFIT, the later version of LAFEAT.",
        f"{_PACKAGE}.latent_features:run",
    ),
    Experiment(
        "multi-exit/architectures",
        "WRN-34-10, RANet, L2W-DEN and Tiny ImageNet under four evaluations (ours)",
        "In appendices that were not available.",
        f"{_PACKAGE}.architectures:run",
    ),
    Experiment(
        "multi-exit/seven-exits",
        "The full game on seven exits, 127 x 127, and the rows that determine its value (ours)",
        "Not in the paper: its games have 15 and 31 actions.",
        f"{_PACKAGE}.seven_exits:run",
        real=f"{_PACKAGE}.third_party_game:run",
    ),
    Experiment(
        "multi-exit/five-exits",
        "Tables 1 and 2 and the game on one network with five exits (ours)",
        "Tables 1 and 2 have VGG-16 with five exits. AIMER finds a lower robust accuracy than the "
        "single, the average and the max-average attack. NEED is more robust than the last exit "
        "and than a single-exit network.",
        f"{_PACKAGE}.five_exits:run",
        real=f"{_PACKAGE}.five_exits:run_real",
    ),
)
