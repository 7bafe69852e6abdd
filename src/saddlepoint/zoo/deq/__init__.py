"""Deep equilibrium models: defences that answer with the fixed point of a network."""

from saddlepoint.zoo.deq.monotone import MonotoneDEQ
from saddlepoint.zoo.deq.splitting import ForwardBackward, Iterate, PeacemanRachford, Splitting, adjoint, equilibrium, settle
from saddlepoint.zoo.nets import ConvDEQNet, DenseDEQNet, MDEQNet, MonotoneNet

__all__ = [
    "ConvDEQNet",
    "DenseDEQNet",
    "ForwardBackward",
    "Iterate",
    "MDEQNet",
    "MonotoneDEQ",
    "MonotoneNet",
    "PeacemanRachford",
    "Splitting",
    "adjoint",
    "equilibrium",
    "settle",
]
