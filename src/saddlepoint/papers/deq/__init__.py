"""Yang, Pang & Liu 2022, "A Closer Look at the Adversarial Robustness of Deep Equilibrium Models".

Its appendices were not available: what the main text leaves open is said beside each choice.
"""

from __future__ import annotations

from saddlepoint.papers.registry import Experiment

_HOME = "saddlepoint.papers.deq"

EXPERIMENTS = (
    Experiment(
        "deq/table-1",
        "A network without fixed points masks its gradient",
        "Trained with exact gradients and 8/7 solver steps, 80 % withstand PGD with the exact gradient, 37 % with the unrolled "
        "one, and 6 % Square, which needs none.",
        f"{_HOME}.table_1:run",
    ),
    Experiment(
        "deq/table-2",
        "Three defenses under six gradients, PGD-10",
        "The ensemble of states is the best defense: 47.12 % for the unrolled (8/7) and 39.18 % for the exact (50/50) network.",
        f"{_HOME}.table_2:run",
    ),
    Experiment(
        "deq/table-3",
        "Three defenses under six gradients, PGD-10 and AutoAttack, two sizes",
        "The ensemble is the best defense of both sizes, and PGD-10 is often stronger than AutoAttack.",
        f"{_HOME}.table_3:run",
    ),
    Experiment(
        "deq/table-4",
        "Equilibrium networks beside ordinary ones of the same size",
        "Equilibrium networks are competitive with, or slightly more robust than, ordinary ones.",
        f"{_HOME}.table_4:run",
    ),
    Experiment(
        "deq/table-5",
        "Every state of a network trained without adversary",
        "The ready-made PGD-10 defeats every state: from the second on, nothing is left.",
        f"{_HOME}.table_5:run",
    ),
    Experiment(
        "deq/table-6",
        "Three defenses of a network trained without adversary",
        "All attacks defeat it: 1.31 % are left of the early state, nothing of the others.",
        f"{_HOME}.table_6:run",
    ),
    Experiment(
        "deq/figure-2",
        "Accuracy and relative error of every state",
        "Intermediate states withstand the ready-made PGD-10 better than the final one; with 8/7 steps and exact gradients every "
        "relative error is above 0.75, with unrolled ones the last is 0.04.",
        f"{_HOME}.figure_2:run",
    ),
    Experiment(
        "deq/figure-3",
        "Gradients at every state, by estimator",
        "u_4 hurts the early state z_3 most among adjoint states, one undamped step from z_1 among unrolled ones.",
        f"{_HOME}.figure_3:run",
    ),
    Experiment(
        "deq/figure-4",
        "Which adjoint state hurts which state",
        "u_{n+1} always hurts z_n most: the adjoint process is aligned with the forward pass.",
        f"{_HOME}.figure_4:run",
    ),
    Experiment(
        "deq/appendix-f",
        "What defenses and attacks cost",
        "Memory of the defenses and running time of the attacks, in an appendix that was not available.",
        f"{_HOME}.costs:run",
    ),
)
