"""Models of the activations of a layer: a linear subspace or an auto-encoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from saddlepoint.zoo.adaptive.fitting import Batch, Phase, minimize, seeded

Shape = tuple[int, ...]


class Embedding(Protocol):
    """The manifold of the activations of one layer."""

    @property
    def shape(self) -> Shape:
        """Shape of the activation of one example."""

    def residual(self, h: Tensor, *, per_example: bool) -> Tensor:
        """Return the difference between activations h [N, *shape] and the manifold.

        Args:
            h: Activations.
            per_example: Whether the result of a row must not depend on the other rows.
        """


class EmbeddingLearner(Protocol):
    """Fits an embedding to activations."""

    @property
    def samples(self) -> int | None:
        """Number of training examples used; None: all."""

    def learn(self, h: Tensor, seed: int) -> Embedding:
        """Fit an embedding to activations h [M, *shape]."""


@dataclass(frozen=True)
class LinearEmbedding:
    """The linear subspace with residual (I - V V^T)(h - c).

    The center c is the mean of the batch or, if `per_example`, of the training data.
    """

    basis: Tensor  # V [d, r], orthonormal columns
    mean: Tensor  # [*shape], mean of the training data

    @property
    def shape(self) -> Shape:
        """Shape of the activation of one example."""
        return tuple(self.mean.shape)

    def residual(self, h: Tensor, *, per_example: bool) -> Tensor:
        """Return the part of h - c outside of the subspace, [N, *shape]."""
        centered = (h - (self.mean if per_example else h.mean(0))).flatten(1)
        return (centered - (centered @ self.basis) @ self.basis.T).view_as(h)


@dataclass(frozen=True)
class AutoEncoderEmbedding:
    """The outputs of an auto-encoder, with residual h - decode(encode(h))."""

    net: nn.Module
    shape: Shape

    def residual(self, h: Tensor, *, per_example: bool) -> Tensor:  # noqa: ARG002
        """Return the reconstruction error, [N, *shape]."""
        error: Tensor = h - self.net(h)
        return error


@dataclass(frozen=True)
class PrincipalComponents:
    """Fits a linear subspace by principal component analysis.

    It keeps the leading right singular vectors of the centered activations until the sum of their
    singular values exceeds `share` of the total sum.
    """

    share: float = 0.99  # of the sum of singular values, not of the variance
    samples: int | None = 5000  # training examples used; None: all

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"PrincipalComponents needs 0 < share <= 1, got share={self.share}.")

    def learn(self, h: Tensor, seed: int) -> LinearEmbedding:  # noqa: ARG002
        """Fit the subspace to activations h [M, *shape]."""
        mean = h.mean(0)
        _, values, vectors = torch.linalg.svd((h - mean).flatten(1), full_matrices=False)
        cumulative = values.cumsum(0) / values.sum().clamp(min=torch.finfo(h.dtype).tiny)
        rank = min(int((cumulative <= self.share).sum()) + 1, len(values))
        return LinearEmbedding(vectors[:rank].T.contiguous(), mean)


def auto_encoder(shape: Shape) -> nn.Module:
    """Build an auto-encoder with two encoder and two decoder layers and ELU activations.

    Feature maps [C, H, W] get stride-2 convolutions with 2 C and 4 C channels. Vectors [D] get
    linear layers. The released widths agree for 3 and for 64 channels and are up to a fifth larger
    in between.

    Raises:
        ValueError: For another number of dimensions, or if 4 does not divide height and width.
    """
    if len(shape) == 1:
        return _linear_auto_encoder(shape[0])
    if len(shape) != 3 or shape[1] % 4 or shape[2] % 4:
        raise ValueError(
            "auto_encoder supports activations [D] and feature maps [C, H, W] with H and W "
            f"divisible by 4, got {list(shape)}. Pass a `build` function to AutoEncoderLearner, "
            "or control another layer."
        )
    return _convolutional_auto_encoder(shape[0])


def _linear_auto_encoder(size: int) -> nn.Module:
    first = max(size // 2, 1)
    second = max(size // 4, 1)
    return nn.Sequential(
        nn.Linear(size, first),
        nn.ELU(),
        nn.BatchNorm1d(first),
        nn.Linear(first, second),
        nn.ELU(),
        nn.Linear(second, first),
        nn.ELU(),
        nn.Linear(first, size),
    )


def _convolutional_auto_encoder(channels: int) -> nn.Module:
    first = max(2 * channels, 18)
    second = max(4 * channels, 36)
    return nn.Sequential(
        nn.Conv2d(channels, first, 4, stride=2, padding=1),
        nn.ELU(),
        nn.BatchNorm2d(first),
        nn.Conv2d(first, second, 4, stride=2, padding=1),
        nn.ELU(),
        nn.ConvTranspose2d(second, first, 4, stride=2, padding=1),
        nn.ELU(),
        nn.ConvTranspose2d(first, channels, 4, stride=2, padding=1),
    )


@dataclass(frozen=True)
class AutoEncoderLearner:
    """Trains an auto-encoder on the mean squared error with Adam.

    The weights are those after the last epoch, not those with the lowest error on test data.
    """

    phase: Phase = field(
        default_factory=lambda: Phase(epochs=300, batch_size=128, rate=0.01, milestones=(100, 125))
    )
    build: Callable[[Shape], nn.Module] = auto_encoder  # shape of an activation -> auto-encoder
    samples: int | None = None  # training examples used; None: all

    def learn(self, h: Tensor, seed: int) -> AutoEncoderEmbedding:
        """Train an auto-encoder on activations h [M, *shape]."""
        shape = tuple(h.shape[1:])
        with seeded(seed):
            net = self.build(shape).to(h).train()
        optimizer = torch.optim.Adam(net.parameters(), self.phase.rate)

        def loss(batch: Batch) -> Tensor:
            error: Tensor = net(h[batch.rows]) - h[batch.rows]
            return error.square().flatten(1).mean(1)

        minimize(loss, optimizer, len(h), self.phase, seed, h.device)
        return AutoEncoderEmbedding(net.eval().requires_grad_(False), shape)
