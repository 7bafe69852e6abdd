"""Numbers published by Chen et al. 2022, printed next to ours; accuracies in percent."""

from __future__ import annotations

from collections.abc import Mapping

PublishedRow = tuple[float, ...]

# (Data, base) -> clean accuracy of the static network and of RMC, static network under AA, then RMC
# under AA, PGD, FPA, GMSA-AVG, GMSA-MIN.
TABLE_1: Mapping[tuple[str, str], PublishedRow] = {
    ("mnist", "Standard"): (99.50, 99.00, 0.00, 97.70, 98.30, 0.60, 0.50, 1.10),
    ("mnist", "Madry"): (99.60, 97.00, 87.70, 95.70, 96.10, 59.50, 61.40, 58.80),
    ("cifar10", "Standard"): (94.30, 93.10, 0.00, 94.20, 97.60, 8.50, 8.00, 8.10),
    ("cifar10", "Madry"): (83.20, 90.90, 44.30, 77.90, 71.70, 40.80, 42.50, 39.60),
}

# (Data, base) -> clean accuracy of the static network and of RMC, static network under AA, then RMC
# under GMSA-AVG and GMSA-MIN; means of five runs.
TABLE_6: Mapping[tuple[str, str], PublishedRow] = {
    ("mnist", "Standard"): (99.40, 98.62, 0.00, 0.54, 0.80),
    ("mnist", "Madry"): (99.24, 96.50, 87.86, 57.14, 59.48),
    ("cifar10", "Standard"): (93.96, 93.56, 0.00, 8.50, 8.92),
    ("cifar10", "Madry"): (83.70, 91.46, 43.58, 38.50, 39.00),
}

# Base -> clean accuracy of the static network and of DENT, static network under AA, then DENT under
# DENT-AA, AA, PGD, FPA, GMSA-AVG, GMSA-MIN. The bases are RobustBench networks that are not trained
# here, so only the gains over the static network are compared.
TABLE_2: Mapping[str, PublishedRow] = {
    "Wu et al.": (85.70, 86.10, 58.00, 78.80, 64.40, 59.50, 59.30, 59.60, 59.60),
    "Carmon et al.": (88.00, 87.40, 57.30, 80.10, 61.70, 58.40, 58.40, 58.50, 58.50),
    "Sehwag et al.": (87.30, 86.90, 54.90, 76.50, 59.60, 55.80, 55.80, 55.80, 55.80),
    "Wang et al.": (86.60, 85.60, 53.60, 75.90, 61.30, 55.90, 55.80, 56.10, 56.10),
    "Hendrycks et al.": (85.80, 85.50, 51.80, 77.20, 58.40, 54.20, 54.40, 54.20, 54.20),
    "Wong et al.": (81.20, 81.00, 42.40, 69.70, 48.90, 44.10, 44.30, 44.50, 44.30),
    "Ding et al.": (82.40, 82.40, 39.70, 62.80, 44.80, 39.90, 39.40, 39.10, 39.20),
}
# Base -> static network under AA, then DENT on batches sorted by label under AA, PGD, FPA,
# GMSA-AVG, GMSA-MIN.
TABLE_5: Mapping[str, PublishedRow] = {
    "Wu et al.": (58.00, 58.00, 50.40, 50.30, 50.40, 50.40),
    "Carmon et al.": (57.30, 58.00, 51.80, 51.80, 51.80, 51.80),
    "Sehwag et al.": (54.90, 55.90, 50.10, 49.80, 50.00, 50.00),
    "Wang et al.": (53.60, 55.90, 49.00, 49.10, 48.90, 48.70),
    "Hendrycks et al.": (51.80, 53.10, 48.10, 48.20, 48.30, 48.30),
    "Wong et al.": (42.40, 44.60, 40.10, 39.90, 40.00, 40.00),
    "Ding et al.": (39.70, 42.10, 36.20, 35.70, 35.30, 35.00),
}

# Data -> clean accuracy of the standard network, of Madry's and of DANN; the standard network and
# Madry's under AA; then DANN under AA, PGD, FPA, GMSA-AVG, GMSA-MIN.
TABLE_3: Mapping[str, PublishedRow] = {
    "mnist": (99.42, 99.16, 99.27, 0.00, 88.92, 97.59, 96.66, 96.81, 79.37, 6.17),
    "cifar10": (93.95, 86.06, 89.61, 0.00, 39.49, 66.61, 60.54, 53.98, 5.53, 8.56),
}

# Data -> clean accuracy of Madry's network and of TADV, Madry's network under AA, then TADV under
# AA, PGD, FPA, GMSA-AVG, GMSA-MIN.
TABLE_4: Mapping[str, PublishedRow] = {
    "mnist": (99.01, 99.05, 86.61, 96.07, 96.48, 95.47, 94.27, 95.48),
    "cifar10": (87.69, 88.51, 45.29, 72.12, 59.05, 58.64, 54.12, 57.77),
}

# Accuracy of the classifier of Figure 1 on training and validation images, under PGD and CW, and on
# brighter images (App. A.6).
FIGURE_1: Mapping[str, float] = {
    "train": 99.90,
    "validation": 99.63,
    "PGD": 3.66,
    "CW": 0.00,
    "brightness": 98.90,
}
