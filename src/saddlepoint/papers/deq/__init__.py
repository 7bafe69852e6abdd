"""Yang, Pang & Liu 2022.

"A Closer Look at the Adversarial Robustness of Deep Equilibrium Models". The appendices of the
paper were not available. Where the main text leaves a choice open, a comment next to it says so.
"""

from __future__ import annotations

from saddlepoint.papers.registry import Experiment

_PACKAGE = "saddlepoint.papers.deq"

EXPERIMENTS = (
    Experiment(
        "deq/table-1",
        "Gradient masking in a network without fixed points",
        "A network trained with exact gradients and 8/7 solver steps has 80 % robust accuracy "
        "under PGD with the exact gradient, 37 % with the unrolled gradient, and 6 % under Square, "
        "which uses no gradient.",
        f"{_PACKAGE}.table_1:run",
        real=f"{_PACKAGE}.table_1:run",
    ),
    Experiment(
        "deq/table-2",
        "Three defenses under six gradients, PGD-10",
        "The ensemble of states is the best defense: 47.12 % for the unrolled (8/7) and 39.18 % "
        "for the exact (50/50) network.",
        f"{_PACKAGE}.table_2:run",
        real=f"{_PACKAGE}.table_2:run",
    ),
    Experiment(
        "deq/table-3",
        "Three defenses under six gradients, PGD-10 and AutoAttack, two sizes",
        "The ensemble is the best defense of both sizes, and PGD-10 is often stronger than "
        "AutoAttack.",
        f"{_PACKAGE}.table_3:run",
        real=f"{_PACKAGE}.training_costs:table_3",
    ),
    Experiment(
        "deq/table-4",
        "Equilibrium networks compared with ordinary networks of the same size",
        "Equilibrium networks are competitive with, or slightly more robust than, ordinary ones.",
        f"{_PACKAGE}.table_4:run",
        real=f"{_PACKAGE}.training_costs:table_4",
    ),
    Experiment(
        "deq/table-5",
        "Every state of a network without adversarial training",
        "The ready-made PGD-10 breaks every state: from the second state on, the robust accuracy "
        "is zero.",
        f"{_PACKAGE}.table_5:run",
        real=f"{_PACKAGE}.table_5:run",
    ),
    Experiment(
        "deq/table-6",
        "Three defenses of a network without adversarial training",
        "All defenses are broken: the robust accuracy is 1.31 % for the early state and zero for "
        "the others.",
        f"{_PACKAGE}.table_6:run",
        real=f"{_PACKAGE}.table_6:run",
    ),
    Experiment(
        "deq/figure-2",
        "Accuracy and relative error of every state",
        "Intermediate states are more robust to the ready-made PGD-10 than the final state. With "
        "8/7 steps and exact gradients every relative error is above 0.75, with unrolled gradients "
        "the last one is 0.04.",
        f"{_PACKAGE}.figure_2:run",
        real=f"{_PACKAGE}.figure_2:run",
    ),
    Experiment(
        "deq/figure-3",
        "Gradients at every state, by estimator",
        "The strongest attacks on the early state z_3 use u_4 among the adjoint states, and one "
        "undamped step from z_1 among the unrolled gradients.",
        f"{_PACKAGE}.figure_3:run",
        real=f"{_PACKAGE}.figure_3:run",
    ),
    Experiment(
        "deq/figure-4",
        "Robustness of every state to every adjoint state",
        "The attack with u_{n+1} is always the strongest on z_n: the adjoint process is aligned "
        "with the forward pass.",
        f"{_PACKAGE}.figure_4:run",
        real=f"{_PACKAGE}.figure_4:run",
    ),
    Experiment(
        "deq/cifar10",
        "A convolutional network, trained in three ways, and its converged twins",
        "Intermediate states accumulate robustness, and exact gradients are obfuscated where 8/7 "
        "solver steps do not converge.",
        f"{_PACKAGE}.cifar10:run",
        real=f"{_PACKAGE}.cifar10:run_real",
    ),
    Experiment(
        "deq/appendix-f",
        "Cost of defenses and attacks",
        "Memory of the defenses and running time of the attacks, in an appendix that was not "
        "available.",
        f"{_PACKAGE}.costs:run",
        real=f"{_PACKAGE}.costs:run",
    ),
)
