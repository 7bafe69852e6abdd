"""Models of the activations of a layer: a linear subspace or an auto-encoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from saddlepoint.zoo.adaptive.fitting import Batch, Phase, minimize, seeded

Shape = tuple[int, ...]
_COLUMNS = 64  # of a basis: with 16384 rows they fit into the cache
_LOST = 1e-7  # singular values below this fraction of the largest are rounding errors


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
        centered = (h - self.center(h, per_example=per_example)).flatten(1)
        return _outside(centered, self.basis).view_as(h)

    def center(self, h: Tensor, *, per_example: bool) -> Tensor:
        """Return the center c [*shape] of activations h [N, *shape]."""
        return self.mean if per_example else h.mean(0)

    def mean_square(self, h: Tensor, *, per_example: bool, center: Tensor | None = None) -> Tensor:
        """Return the mean square of the residual, [N]; `center` [*shape] replaces c if given.

        Its gradient by h - c is 2 / d times the residual, because the projection is symmetric and
        idempotent. No further products with the basis are needed for it.
        """
        if center is None:
            center = self.center(h, per_example=per_example)
        centered = (h - center).flatten(1)
        return cast(Tensor, _MeanSquare.apply(centered, self.basis))  # type: ignore[no-untyped-call]


def mean_square_residual(
    embedding: Embedding, h: Tensor, *, per_example: bool, center: Tensor | None = None
) -> Tensor:
    """Return the mean square [N] of the residual of activations h [N, *shape].

    Args:
        embedding: Embedding of the layer.
        h: Activations.
        per_example: Whether the result of a row must not depend on the other rows.
        center: [*shape] center of a linear subspace; None: as `per_example` says.
    """
    if isinstance(embedding, LinearEmbedding):
        return embedding.mean_square(h, per_example=per_example, center=center)
    return embedding.residual(h, per_example=per_example).square().flatten(1).mean(1)


def _outside(a: Tensor, basis: Tensor) -> Tensor:
    """Return (I - V V^T) a for the rows of a [N, d].

    Both products with a few columns of V follow each other, so that these are read from memory
    once. This needs columns that are stored one after another.
    """
    if torch.is_grad_enabled() or not basis.T.is_contiguous():
        return a - (a @ basis) @ basis.T
    outside = a.clone()
    for part in torch.split(basis.T, _COLUMNS):
        outside.addmm_(a @ part.T, part, alpha=-1)
    return outside


class _MeanSquare(torch.autograd.Function):
    """mean_i r_i^2 with r = (I - V V^T) a; the gradient is 2 r / d."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, basis: Tensor) -> Tensor:
        residual = _outside(a, basis)
        ctx.save_for_backward(a, basis, residual)
        return residual.square().mean(1)

    @staticmethod
    def backward(ctx: Any, *cotangent: Tensor) -> tuple[Tensor, None]:
        a, basis, residual = ctx.saved_tensors
        # A second derivative needs the residual as a function of a.
        residual = _outside(a, basis) if torch.is_grad_enabled() else residual
        return cotangent[0][:, None] * residual * (2 / a.shape[1]), None


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
    singular values exceeds `share` of the total sum. The singular vectors are computed from the
    eigenvectors of the smaller of the two Gram matrices, in float64 (`right_singular_vectors`).
    """

    share: float = 0.99  # of the sum of singular values, not of the variance
    samples: int | None = 5000  # training examples used; None: all

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"PrincipalComponents needs 0 < share <= 1, got share={self.share}.")

    def learn(self, h: Tensor, seed: int) -> LinearEmbedding:  # noqa: ARG002
        """Fit the subspace to activations h [M, *shape]."""
        mean = h.mean(0)
        values, leading = right_singular_vectors((h - mean).flatten(1))
        cumulative = values.cumsum(0) / values.sum().clamp(min=torch.finfo(values.dtype).tiny)
        rank = min(int((cumulative <= self.share).sum()) + 1, len(values))
        columns = leading(rank).to(h.dtype).T.contiguous()  # [r, d], for products of few columns
        return LinearEmbedding(columns.T, mean)


class SingularVectors(NamedTuple):
    """Singular values, and a function that returns the leading right singular vectors."""

    values: Tensor  # [min(M, d)], decreasing
    leading: Callable[[int], Tensor]  # rank r -> [d, r] with orthonormal columns


def right_singular_vectors(a: Tensor) -> SingularVectors:
    """Compute the right singular vectors of a matrix from the smaller of its Gram matrices.

    A^T A = V S^2 V^T if A [M, d] is tall. Otherwise A A^T = U S^2 U^T and V = A^T U / S. An
    eigenvalue has an absolute error of about eps |A|^2, so that singular values below sqrt(eps) |A|
    are lost in rounding errors. The computation is in float64, where this is 1e-8 |A|.

    Args:
        a: [M, d] matrix.

    Returns:
        Singular values in float64, and their vectors. Directions of lost singular values are
        arbitrary if A is tall, and are left out of the vectors otherwise.
    """
    a = a.double()
    tall = len(a) >= a.shape[1]
    squares, vectors = torch.linalg.eigh(a.T @ a if tall else a @ a.T)  # increasing
    values = squares.clamp(min=0).sqrt().flip(0)

    def leading(rank: int) -> Tensor:
        first: Tensor = vectors[:, vectors.shape[1] - rank :].flip(1)
        if tall:
            return first.contiguous()
        known = values[:rank] > _LOST * values[0]
        found: Tensor = a.T @ (first[:, known] / values[:rank][known])
        return found

    return SingularVectors(values, leading)


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
