"""Numbers published by Xu et al., printed next to ours; accuracies in percent."""

from __future__ import annotations

from collections.abc import Mapping

ATTACKS = ("FGSM", "PGD-20", "PGD-100", "EoT-PGD-20", "VMI-FGSM", "AutoAttack")
EVALUATIONS = ("Single attack", "Average attack", "Max-average attack", "AIMER")

# Case -> one row per evaluation, one column per attack. In "entropy", the rows of the single and
# the average attack are identical in three columns, which looks like an error in the paper.
TABLE_1: Mapping[str, tuple[tuple[float, ...], ...]] = {
    "static": (
        (60.29, 56.04, 54.12, 54.42, 55.30, 59.34),
        (56.54, 52.09, 50.51, 50.72, 51.38, 56.49),
        (54.32, 50.26, 49.72, 48.96, 49.36, 55.92),
        (52.81, 45.85, 43.21, 43.60, 45.10, 42.40),
    ),
    "random": (
        (66.57, 52.77, 45.04, 47.60, 48.04, 46.63),
        (62.87, 47.49, 40.86, 42.42, 44.00, 43.42),
        (62.11, 45.90, 39.17, 40.40, 42.45, 46.31),
        (60.87, 43.61, 37.70, 38.55, 40.87, 40.70),
    ),
    "entropy": (
        (62.90, 44.81, 37.08, 39.23, 41.17, 39.59),
        (62.01, 44.81, 37.93, 39.23, 41.17, 39.97),
        (59.82, 43.53, 35.98, 37.78, 39.70, 39.50),
        (59.65, 42.30, 35.69, 37.30, 39.56, 38.56),
    ),
    "confidence-msdnet": (
        (51.32, 42.31, 38.79, 39.34, 40.31, 35.21),
        (54.70, 43.65, 38.40, 39.71, 41.81, 35.10),
        (60.17, 48.96, 43.72, 44.98, 52.90, 34.22),
        (51.04, 40.47, 33.73, 35.53, 37.69, 33.64),
    ),
    "confidence-vit": (
        (58.76, 56.71, 49.79, 56.31, 56.43, 59.55),
        (55.19, 52.09, 50.78, 50.91, 51.47, 56.58),
        (53.63, 50.57, 49.53, 49.88, 50.22, 55.29),
        (53.45, 50.47, 49.10, 49.67, 50.17, 54.98),
    ),
}

# Network -> method -> (mismatch rate R_mis, clean accuracy, robust accuracy).
TABLE_2: Mapping[str, Mapping[str, tuple[float | None, float, float]]] = {
    "resnet-18": {
        "Single-exit": (None, 84.37, 49.82),
        "Multi-exit (static)": (0.00, 84.83, 50.65),
        "Multi-exit (dynamic)": (0.38, 83.02, 51.30),
        "Multi-exit (NEED)": (0.43, 83.60, 52.77),
    },
    "vgg-16": {
        "Single-exit": (None, 89.66, 43.35),
        "Multi-exit (static)": (0.00, 92.40, 42.33),
        "Multi-exit (dynamic)": (0.36, 92.19, 42.33),
        "Multi-exit (NEED)": (0.46, 93.70, 45.32),
    },
}

# Training method -> (without NEED, with NEED); clean first, then one column per attack.
TABLE_3: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "Standard": (
        (92.24, 8.37, 0.11, 0.00, 0.08, 0.03, 0.00),
        (91.30, 18.33, 1.70, 2.34, 4.12, 3.02, 0.29),
    ),
    "PGD-AT": (
        (77.30, 52.50, 47.86, 46.13, 46.43, 47.17, 43.09),
        (75.17, 54.31, 50.61, 47.03, 46.63, 47.29, 46.07),
    ),
    "TRADES": (
        (79.26, 52.60, 47.30, 45.48, 45.83, 46.76, 42.06),
        (81.77, 53.42, 48.26, 45.87, 45.92, 47.63, 47.77),
    ),
    "MART": (
        (76.15, 51.10, 44.88, 42.44, 42.86, 44.01, 38.58),
        (76.12, 51.60, 45.58, 43.90, 44.07, 44.34, 43.58),
    ),
    "FAT": (
        (83.65, 50.42, 44.73, 42.73, 42.84, 43.35, 38.03),
        (82.65, 54.18, 47.76, 43.80, 45.62, 46.88, 43.61),
    ),
}

# Milliseconds on an RTX A6000. The available text of the paper has only the last two numbers of
# AIMER's column.
TABLE_4_MAX_AVERAGE: Mapping[str, float] = {
    "FGSM": 3.0964,
    "PGD-20": 13.540,
    "PGD-100": 114.38,
    "EoT-PGD-20": 25.308,
    "VMI-FGSM": 73.650,
    "AutoAttack": 1959.0,
    "Pre-processing": 0.0,
    "Complete evaluation": 1.0945e8,
}
TABLE_4_AIMER: Mapping[str, float] = {"Pre-processing": 1.0187e5, "Complete evaluation": 3.0040e7}
