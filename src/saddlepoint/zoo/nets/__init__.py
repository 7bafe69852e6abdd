"""Networks that the zoo's models and defences stand on."""

from saddlepoint.zoo.nets.digits import DigitsCNN
from saddlepoint.zoo.nets.normalize import Normalize

__all__ = ["DigitsCNN", "Normalize"]
