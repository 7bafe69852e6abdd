"""Numbers of Croce et al. 2022 that are shown next to ours, in percent.

The numbers of Table 1 are in `saddlepoint.zoo.adaptive.taxonomy.TABLE`.
"""

from __future__ import annotations

from collections.abc import Mapping

# Table 2, by norm: static model under AutoAttack; SODEF under AutoAttack's transferred points
# (clean images where AutoAttack failed); SODEF under APGD's transferred points.
TABLE_2: Mapping[str, tuple[float, float, float]] = {
    "Linf": (53.9, 60.9, 52.2),
    "L2": (59.1, 66.8, 58.2),
}

# Table 3, by underlying static model: static model; hedge defense under points from the static
# model, under points from a hedge defense with five steps, and under the worse of both.
TABLE_3: Mapping[str, tuple[float, float, float, float]] = {
    "Gowal et al. 2020": (63.0, 65.9, 61.1, 61.0),
    "Carmon et al. 2019": (59.2, 65.5, 59.6, 59.2),
    "Andriushchenko & Flammarion 2020": (45.0, 54.1, 45.8, 45.2),
}

# B.3: the hedge defense under APGD of the AutoAttack library on the static model, which returns the
# clean image where it fails.
HEDGE_CLEAN_COPIES: Mapping[str, float] = {"Gowal et al. 2020": 69.2}

# Table 4, by dataset: static model; purified model under transferred and under direct attacks.
TABLE_4: Mapping[str, tuple[float, float, float]] = {
    "CIFAR-10": (49.3, 56.0, 43.8),
    "CIFAR-100": (23.3, 32.3, 18.2),
    "SVHN": (10.5, 62.0, 29.1),
}

# B.7: the purified model on SVHN under APGD with 1000 iterations and 10 restarts.
TABLE_4_LONGER: Mapping[str, float] = {"SVHN": 25.0}

# Sec. 3.3: closed-loop control on a ResNet-20, radius 2/255.
CLOSED_LOOP: Mapping[str, float] = {
    "clean": 89.1,
    "transfer PGD": 34.5,
    "PGD + BPDA": 9.5,
    "APGD + BPDA": 5.6,
}
CLOSED_LOOP_STATIC = 0.0

# Sec. 3.8: the anti-adversary under points of APGD on the static model. The static model has the
# same robust accuracy.
ANTI_ADVERSARY_TRANSFER = 63.7

# Sec. 3.6: contrastive reversal under AutoAttack's points and under points of maximal loss, both
# from the static model; under BPDA and EoT; with fixed randomness; and the static model.
CONTRASTIVE: Mapping[str, float] = {
    "AutoAttack": 67.0,
    "APGD": 63.9,
    "BPDA and EoT": 58.4,
    "fixed": 56.4,
    "static": 59.4,
}

# Sec. 3.5, B.5 and Table 1: SOAP on its authors' network.
SOAP: Mapping[str, float] = {
    "clean": 83.7,
    "FGSM": 54.5,
    "APGD+BPDA (traj.)": 3.7,
}
