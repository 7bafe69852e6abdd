"""Croce, Gowal, Brunner, Shelhamer, Hein & Cemgil 2022.

"Evaluating the Adversarial Robustness of Adaptive Test-time Defenses".
"""

from __future__ import annotations

from saddlepoint.papers.registry import Experiment

_PACKAGE = "saddlepoint.papers.adaptive"

EXPERIMENTS = (
    Experiment(
        "adaptive/table-1",
        "Cost and robust accuracy of nine defenses",
        "All nine defenses are less robust than their authors reported. None improves on a robust "
        "static model, and four weaken it; inference costs 2 to 518 times as much.",
        f"{_PACKAGE}.table_1:run",
        real=f"{_PACKAGE}.real:run",
        sources=("saddlepoint.audits.pipeline",),
    ),
    Experiment(
        "adaptive/table-2",
        "SODEF under points that maximize the loss of the static model",
        "Under AutoAttack's points on the static model, most of which are clean images, SODEF "
        "seems more robust than the static model (60.9 % in Linf, 66.8 % in L2). Under points of "
        "maximal loss it is less robust (52.2 %, 58.2 %).",
        f"{_PACKAGE}.table_2:run",
        real=f"{_PACKAGE}.real_table_2:run",
    ),
    Experiment(
        "adaptive/table-3",
        "The hedge defense on three robust models",
        "Attacks with BPDA and EoT on a hedge defense with fewer steps transfer: the hedge defense "
        "has 61.0 %, 59.2 % and 45.2 % robust accuracy, its static models 63.0 %, 59.2 % and "
        "45.0 %.",
        f"{_PACKAGE}.table_3:run",
        real=f"{_PACKAGE}.real_costs:table_3",
    ),
    Experiment(
        "adaptive/table-4",
        "AID-purifier on several datasets",
        "Under direct attacks, purified models are less robust than static ones on CIFAR-10 "
        "(43.8 % against 49.3 %) and CIFAR-100 (18.2 % against 23.3 %). On SVHN, where the static "
        "model is weak, they are more robust.",
        f"{_PACKAGE}.table_4:run",
        real=f"{_PACKAGE}.real_costs:table_4",
    ),
    Experiment(
        "adaptive/closed-loop",
        "Closed-loop control under gradients with constant controls",
        "At 89.1 % clean accuracy, the robust accuracy is 34.5 % under PGD-20 on the static model, "
        "9.5 % under PGD-20 with BPDA and 5.6 % under APGD with BPDA.",
        f"{_PACKAGE}.closed_loop:run",
        real=f"{_PACKAGE}.real_costs:closed_loop",
    ),
    Experiment(
        "adaptive/contrastive",
        "Contrastive reversal under randomness that the attacker does or does not know",
        "The robust accuracy is 67.0 % under transferred points of AutoAttack, 63.9 % under those "
        "of APGD, 58.4 % under BPDA and EoT, and 56.4 % with a fixed seed; the static model has "
        "59.4 %. With negatives that are hidden from the attacker, the defense does not improve on "
        "the static model under transferred points.",
        f"{_PACKAGE}.contrastive:run",
        real=f"{_PACKAGE}.real_costs:contrastive",
    ),
    Experiment(
        "adaptive/radii",
        "SODEF and its static network at several radii",
        "The paper has one radius per norm. This figure shows whether its result depends on it.",
        f"{_PACKAGE}.radii:run",
        real=f"{_PACKAGE}.radii:run_real",
    ),
)
