"""Chen et al. 2022.

"Towards Evaluating the Robustness of Neural Networks Learned by Transduction".
"""

from __future__ import annotations

from saddlepoint.papers.registry import Experiment

_PACKAGE = "saddlepoint.papers.transductive"

EXPERIMENTS = (
    Experiment(
        "transductive/table-1",
        "Runtime masking and cleansing, one image at a time",
        "Under points of AutoAttack and PGD on the base network, RMC has 71.7 to 98.3 % robust "
        "accuracy. Under GMSA it has 0.5 to 8.1 % with a standard base, and less than the static "
        "network alone with an adversarially trained base.",
        f"{_PACKAGE}.table_1:run",
        f"{_PACKAGE}.comparisons:table_1",
        real=f"{_PACKAGE}.real:table_1",
    ),
    Experiment(
        "transductive/table-2",
        "DENT in naturally ordered batches",
        "AutoAttack, on the module or on the static network, overestimates the robustness of DENT. "
        "Under high-confidence PGD, FPA and GMSA it is little more robust than the static network.",
        f"{_PACKAGE}.table_2:run",
        f"{_PACKAGE}.comparisons:table_2",
        real=f"{_PACKAGE}.real_dent:table_2",
    ),
    Experiment(
        "transductive/table-3",
        "Domain adversarial networks as a defense",
        "On MNIST, DANN has 97.59, 96.66 and 96.81 % robust accuracy under AutoAttack, PGD and "
        "FPA, and 6.17 % under GMSA-MIN.",
        f"{_PACKAGE}.table_3:run",
        f"{_PACKAGE}.comparisons:table_3",
        real=f"{_PACKAGE}.real:table_3",
    ),
    Experiment(
        "transductive/table-4",
        "Transductive adversarial training",
        "A network retrained with new randomness has 94.27 % robust accuracy under GMSA on MNIST; "
        "a known network has 86.61 % under AutoAttack.",
        f"{_PACKAGE}.table_4:run",
        f"{_PACKAGE}.comparisons:table_4",
        real=f"{_PACKAGE}.real:table_4",
    ),
    Experiment(
        "transductive/table-5",
        "DENT in batches that the attacker has sorted by label",
        "With images sorted in windows of 256, each of seven networks is less robust to PGD with "
        "DENT than without it.",
        f"{_PACKAGE}.table_5:run",
        f"{_PACKAGE}.comparisons:table_5",
        real=f"{_PACKAGE}.real_dent:table_5",
    ),
    Experiment(
        "transductive/table-6",
        "Runtime masking and cleansing, several sequences of images",
        "Over five MNIST sequences, the robust accuracy under GMSA-AVG is 0.54 ± 0.05 % with a "
        "standard base and 57.14 ± 5.83 % with Madry's.",
        f"{_PACKAGE}.table_6:run",
        f"{_PACKAGE}.comparisons:table_6",
        real=f"{_PACKAGE}.real:table_6",
    ),
    Experiment(
        "transductive/figure-1",
        "Which images URejectron rejects",
        "(a) It rejects PGD's points; (b) it accepts points of Carlini and Wagner's attack; (c) it "
        "rejects all slightly brighter images.",
        f"{_PACKAGE}.figure_1:run",
        f"{_PACKAGE}.comparisons:figure_1",
        real=f"{_PACKAGE}.real:figure_1",
    ),
)
