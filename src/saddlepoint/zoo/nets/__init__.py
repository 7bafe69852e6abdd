"""Networks that the zoo's models and defences stand on."""

from saddlepoint.zoo.nets.digits import DigitsCNN
from saddlepoint.zoo.nets.normalize import Normalize
from saddlepoint.zoo.nets.resnet import resnet18
from saddlepoint.zoo.nets.staged import Staged

__all__ = ["DigitsCNN", "Normalize", "Staged", "resnet18"]
