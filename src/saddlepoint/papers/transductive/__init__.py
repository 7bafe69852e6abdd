"""Chen et al. 2022, "Towards Evaluating the Robustness of Neural Networks Learned by Transduction"."""

from __future__ import annotations

from saddlepoint.papers.registry import Experiment

_HOME = "saddlepoint.papers.transductive"

EXPERIMENTS = (
    Experiment(
        "transductive/table-1",
        "Runtime masking and cleansing, one image at a time",
        "Points from AutoAttack and PGD on the base network leave RMC 71.7 to 98.3 %; GMSA leaves 0.5 to 8.1 % with a standard "
        "base, and less than the static network alone with an adversarially trained one.",
        f"{_HOME}.table_1:run",
    ),
    Experiment(
        "transductive/table-2",
        "DENT in naturally ordered batches",
        "AutoAttack, on the module or on the static network, overrates DENT; high-confidence PGD leaves little more than the "
        "static network has, and FPA and GMSA the same.",
        f"{_HOME}.table_2:run",
    ),
    Experiment(
        "transductive/table-3",
        "Domain adversarial networks as a defense",
        "DANN withstands AutoAttack, PGD and FPA on MNIST (97.59, 96.66 and 96.81 %) and falls to 6.17 % under GMSA-MIN.",
        f"{_HOME}.table_3:run",
    ),
    Experiment(
        "transductive/table-4",
        "Transductive adversarial training",
        "Retrained with fresh coins, 94.27 % withstand GMSA on MNIST, where AutoAttack leaves a known network 86.61 %.",
        f"{_HOME}.table_4:run",
    ),
    Experiment(
        "transductive/table-5",
        "DENT in batches that the attacker has sorted by label",
        "Sorted in windows of 256 images, PGD brings all seven networks with DENT below themselves without it.",
        f"{_HOME}.table_5:run",
    ),
    Experiment(
        "transductive/table-6",
        "Runtime masking and cleansing, several sequences of images",
        "Over five sequences GMSA-AVG leaves 0.54 ± 0.05 % of MNIST with a standard base and 57.14 ± 5.83 % with Madry's.",
        f"{_HOME}.table_6:run",
    ),
    Experiment(
        "transductive/figure-1",
        "URejectron: what it refuses and what slips through",
        "(a) It refuses PGD's points; (b) those of Carlini and Wagner slip through; (c) slightly brighter images are all refused.",
        f"{_HOME}.figure_1:run",
    ),
)
