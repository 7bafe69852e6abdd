"""Networks that answer at several depths: `forward(x)` returns logits [N, C] for every exit, the last one last."""

from saddlepoint.zoo.nets.resnet import resnet18
from saddlepoint.zoo.nets.staged import Staged

__all__ = ["Staged", "resnet18"]
