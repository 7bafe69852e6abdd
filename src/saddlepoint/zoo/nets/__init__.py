"""The network architectures of the zoo."""

from saddlepoint.zoo.nets.dann import DANNNet, dann_cifar, dann_mnist
from saddlepoint.zoo.nets.deq import ConvDEQNet, DenseDEQNet
from saddlepoint.zoo.nets.digits import DigitsCNN
from saddlepoint.zoo.nets.equilibrium import Equilibrium
from saddlepoint.zoo.nets.lenet import lenet
from saddlepoint.zoo.nets.mdeq import (
    MDEQNet,
    mdeq_cifar,
    mdeq_digits,
    mdeq_large,
    mdeq_mnist,
    mdeq_xl,
)
from saddlepoint.zoo.nets.monotone import MonotoneNet
from saddlepoint.zoo.nets.msdnet import l2w_den, msdnet
from saddlepoint.zoo.nets.normalize import Normalize
from saddlepoint.zoo.nets.ranet import RANet, ranet
from saddlepoint.zoo.nets.resnet import resnet, resnet18
from saddlepoint.zoo.nets.staged import Staged
from saddlepoint.zoo.nets.vgg import vgg16
from saddlepoint.zoo.nets.vit import vit_b16, vit_small
from saddlepoint.zoo.nets.wide_resnet import wrn34_10

__all__ = [
    "ConvDEQNet",
    "DANNNet",
    "DenseDEQNet",
    "DigitsCNN",
    "Equilibrium",
    "MDEQNet",
    "MonotoneNet",
    "Normalize",
    "RANet",
    "Staged",
    "dann_cifar",
    "dann_mnist",
    "l2w_den",
    "lenet",
    "mdeq_cifar",
    "mdeq_digits",
    "mdeq_large",
    "mdeq_mnist",
    "mdeq_xl",
    "msdnet",
    "ranet",
    "resnet",
    "resnet18",
    "vgg16",
    "vit_b16",
    "vit_small",
    "wrn34_10",
]
