"""Deep equilibrium models: defenses that predict from the fixed point of a network."""

from saddlepoint.zoo.deq.early_states import EarlyStateChoice, early_state
from saddlepoint.zoo.deq.jacobian_penalty import JacobianPenalty, mean_square_jacobian
from saddlepoint.zoo.deq.mdeq import MDEQ
from saddlepoint.zoo.deq.model import DEQ, EarlyState, FinalState, MeanState, State, Unrolled
from saddlepoint.zoo.deq.monotone import MonotoneDEQ
from saddlepoint.zoo.deq.solved import Solved, digits_deq_exact, digits_deq_unrolled
from saddlepoint.zoo.deq.splitting import (
    ForwardBackward,
    Iterate,
    PeacemanRachford,
    Splitting,
    adjoint,
    equilibrium,
    solve_monotone,
)
from saddlepoint.zoo.deq.training import EquilibriumTraining, Stack
from saddlepoint.zoo.nets import ConvDEQNet, DenseDEQNet, MDEQNet, MonotoneNet

__all__ = [
    "DEQ",
    "MDEQ",
    "ConvDEQNet",
    "DenseDEQNet",
    "EarlyState",
    "EarlyStateChoice",
    "EquilibriumTraining",
    "FinalState",
    "ForwardBackward",
    "Iterate",
    "JacobianPenalty",
    "MDEQNet",
    "MeanState",
    "MonotoneDEQ",
    "MonotoneNet",
    "PeacemanRachford",
    "Solved",
    "Splitting",
    "Stack",
    "State",
    "Unrolled",
    "adjoint",
    "digits_deq_exact",
    "digits_deq_unrolled",
    "early_state",
    "equilibrium",
    "mean_square_jacobian",
    "solve_monotone",
]
