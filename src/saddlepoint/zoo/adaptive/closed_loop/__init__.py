"""Closed-loop control: activations are steered back to where training data lie."""

from saddlepoint.zoo.adaptive.closed_loop.defense import ClosedLoopControl
from saddlepoint.zoo.adaptive.closed_loop.embedding import (
    AutoEncoded,
    AutoEncoders,
    Embedding,
    Learner,
    Linear,
    PrincipalComponents,
    auto_encoder,
)

__all__ = [
    "AutoEncoded",
    "AutoEncoders",
    "ClosedLoopControl",
    "Embedding",
    "Learner",
    "Linear",
    "PrincipalComponents",
    "auto_encoder",
]
