"""Closed-loop control: steer the activations of a network toward those of training data."""

from saddlepoint.zoo.adaptive.closed_loop.defense import ClosedLoopControl
from saddlepoint.zoo.adaptive.closed_loop.embedding import (
    AutoEncoderEmbedding,
    AutoEncoderLearner,
    Embedding,
    EmbeddingLearner,
    LinearEmbedding,
    PrincipalComponents,
    auto_encoder,
)

__all__ = [
    "AutoEncoderEmbedding",
    "AutoEncoderLearner",
    "ClosedLoopControl",
    "Embedding",
    "EmbeddingLearner",
    "LinearEmbedding",
    "PrincipalComponents",
    "auto_encoder",
]
