"""Networks with several exits: `forward(x)` returns the logits [N, C] of each exit in order."""

from saddlepoint.zoo.multi_exit.attach import Attached, attach_exits
from saddlepoint.zoo.multi_exit.cost import multiply_adds
from saddlepoint.zoo.nets.msdnet import l2w_den, msdnet
from saddlepoint.zoo.nets.ranet import RANet, ranet
from saddlepoint.zoo.nets.resnet import resnet18
from saddlepoint.zoo.nets.staged import Staged
from saddlepoint.zoo.nets.vgg import vgg16
from saddlepoint.zoo.nets.vit import vit_b16, vit_small
from saddlepoint.zoo.nets.wide_resnet import wrn34_10

__all__ = [
    "Attached",
    "RANet",
    "Staged",
    "attach_exits",
    "l2w_den",
    "msdnet",
    "multiply_adds",
    "ranet",
    "resnet18",
    "vgg16",
    "vit_b16",
    "vit_small",
    "wrn34_10",
]
