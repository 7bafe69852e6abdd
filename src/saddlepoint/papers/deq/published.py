"""Numbers of Yang et al. 2022 that are shown next to ours.

All are accuracies in percent on CIFAR-10 at radius 8/255.
"""

from __future__ import annotations

from collections.abc import Mapping

DEFENSES = ("Final", "Early", "Ensemble")
ATTACKS = (
    "adjoint Final",
    "adjoint Intermediate",
    "adjoint Ensemble",
    "unrolled Final",
    "unrolled Intermediate",
    "unrolled Ensemble",
)

# Table 1, by gradient: PGD-10, PGD-1000. Clean accuracy and Square do not depend on the gradient.
TABLE_1: Mapping[str, tuple[float, float]] = {"exact": (79.97, 80.10), "unrolled": (37.07, 36.39)}
TABLE_1_CLEAN = 78.24
TABLE_1_SQUARE = 5.95

# PGD-10, by network and defense: one number per attack in `ATTACKS`.
PGD: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "unrolled": {
        "Final": (49.81, 59.49, 54.91, 42.67, 62.24, 51.52),
        "Early": (54.90, 39.19, 42.76, 51.90, 29.38, 34.20),
        "Ensemble": (51.52, 52.43, 49.47, 49.02, 55.10, 47.12),
    },
    "exact-long": {
        "Final": (37.77, 70.52, 43.70, 36.70, 69.29, 48.08),
        "Early": (75.25, 12.44, 40.12, 73.93, 18.24, 26.22),
        "Ensemble": (40.20, 72.41, 45.06, 39.18, 68.83, 49.10),
    },
    "unrolled-xl": {
        "Final": (55.80, 55.80, 67.30, 48.58, 65.94, 58.23),
        "Early": (51.40, 51.40, 60.78, 52.08, 55.70, 48.88),
        "Ensemble": (52.87, 52.87, 61.40, 51.70, 59.71, 53.23),
    },
    "vanilla": {
        "Final": (8.90, 11.45, 3.69, 0.00, 0.00, 0.00),
        "Early": (6.08, 4.54, 3.42, 2.00, 2.94, 1.31),
        "Ensemble": (9.12, 6.39, 3.48, 0.00, 0.00, 0.00),
    },
}

# AutoAttack, by network and defense: one number per attack in `ATTACKS`. Its published code returns
# the clean image where the attack on the attacked state fails.
CLEAN_COPIES: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "unrolled": {
        "Final": (51.48, 61.95, 52.95, 37.27, 65.53, 49.66),
        "Early": (61.12, 55.47, 56.84, 56.86, 25.41, 49.74),
        "Ensemble": (56.06, 58.69, 55.02, 50.45, 58.63, 48.37),
    },
    "unrolled-xl": {
        "Final": (58.21, 58.21, 64.24, 43.97, 72.76, 69.83),
        "Early": (58.92, 58.92, 62.98, 56.58, 62.67, 62.87),
        "Ensemble": (58.08, 58.08, 62.23, 54.09, 66.90, 56.45),
    },
}

# Clean accuracy, by network and defense.
CLEAN: Mapping[str, Mapping[str, float]] = {
    "unrolled": {"Final": 78.03, "Early": 79.57, "Ensemble": 79.67},
    "exact-long": {"Final": 73.51, "Early": 86.98, "Ensemble": 75.12},
    "unrolled-xl": {"Final": 82.92, "Early": 80.12, "Ensemble": 81.17},
    "vanilla": {"Final": 92.53, "Early": 38.81, "Ensemble": 87.31},
}

# Table 4: clean, PGD-10, AutoAttack. The paper quotes ordinary networks from Pang et al. 2021.
TABLE_4: Mapping[str, tuple[float, float, float]] = {
    "static": (82.52, 53.58, 48.51),
    "unrolled": (79.67, 47.12, 48.37),
    "static-xl": (86.07, 56.60, 52.19),
    "unrolled-xl": (81.17, 51.70, 54.09),
}

# Table 5: the states z_1, ..., z_8.
TABLE_5_CLEAN = (38.81, 82.62, 89.63, 91.77, 92.08, 92.29, 92.39, 92.53)
TABLE_5_ROBUST = (2.00, 0.00, 0.00, 0.00, 0.00, 0.00, 0.00, 0.00)


def robustness(network: str) -> float | None:
    """Return max over defenses of min over attacks of the PGD-10 numbers; None if not reported."""
    rows = PGD.get(network)
    return None if rows is None else max(min(row) for row in rows.values())
