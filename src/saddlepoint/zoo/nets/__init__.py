"""Networks that the zoo's models and defences stand on."""

from saddlepoint.zoo.nets.deq import ConvDEQNet, DenseDEQNet
from saddlepoint.zoo.nets.digits import DigitsCNN
from saddlepoint.zoo.nets.equilibrium import Equilibrium
from saddlepoint.zoo.nets.mdeq import MDEQNet, mdeq_cifar, mdeq_digits, mdeq_large, mdeq_mnist, mdeq_xl
from saddlepoint.zoo.nets.monotone import MonotoneNet
from saddlepoint.zoo.nets.normalize import Normalize

__all__ = [
    "ConvDEQNet",
    "DenseDEQNet",
    "DigitsCNN",
    "Equilibrium",
    "MDEQNet",
    "MonotoneNet",
    "Normalize",
    "mdeq_cifar",
    "mdeq_digits",
    "mdeq_large",
    "mdeq_mnist",
    "mdeq_xl",
]
