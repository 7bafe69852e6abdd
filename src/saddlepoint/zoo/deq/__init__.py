"""Deep equilibrium models: defences that answer with the fixed point of a network."""

from saddlepoint.zoo.deq.monotone import MonotoneDEQ
from saddlepoint.zoo.deq.splitting import ForwardBackward, Iterate, PeacemanRachford, Splitting, adjoint, equilibrium, settle

__all__ = [
    "ForwardBackward",
    "Iterate",
    "MonotoneDEQ",
    "PeacemanRachford",
    "Splitting",
    "adjoint",
    "equilibrium",
    "settle",
]
