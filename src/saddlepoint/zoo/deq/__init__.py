"""Deep equilibrium models: defenses that answer with the fixed point of a network."""

from saddlepoint.zoo.deq.early import Choice, early_state
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
    settle,
)
from saddlepoint.zoo.nets import ConvDEQNet, DenseDEQNet, MDEQNet, MonotoneNet

__all__ = [
    "DEQ",
    "MDEQ",
    "Choice",
    "ConvDEQNet",
    "DenseDEQNet",
    "EarlyState",
    "FinalState",
    "ForwardBackward",
    "Iterate",
    "MDEQNet",
    "MeanState",
    "MonotoneDEQ",
    "MonotoneNet",
    "PeacemanRachford",
    "Solved",
    "Splitting",
    "State",
    "Unrolled",
    "adjoint",
    "digits_deq_exact",
    "digits_deq_unrolled",
    "early_state",
    "equilibrium",
    "settle",
]
