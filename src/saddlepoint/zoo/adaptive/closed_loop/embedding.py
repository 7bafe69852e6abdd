"""Where the activations of a layer lie: a linear subspace, or what an auto-encoder can reproduce."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from saddlepoint.zoo.adaptive.learning import Phase, minimize, seeded

Shape = tuple[int, ...]


class Embedding(Protocol):
    """The manifold of one layer's activations."""

    @property
    def shape(self) -> Shape: ...  # of one example's activation
    def residual(
        self, h: Tensor, *, alone: bool
    ) -> Tensor: ...  # what of h [N, *shape] is off it; row by row, if `alone`


class Learner(Protocol):
    """How an embedding is learnt."""

    @property
    def samples(self) -> int | None: ...  # training examples used; None: all
    def learn(self, h: Tensor, seed: int) -> Embedding: ...


@dataclass(frozen=True)
class Linear:
    """(I - V V^T)(h - c): what lies outside the span of V, seen from c, the mean of the batch or, if `alone`, of training data."""

    basis: Tensor  # V [d, r], orthonormal columns
    mean: Tensor  # [*shape], of the training data

    @property
    def shape(self) -> Shape:
        return tuple(self.mean.shape)

    def residual(self, h: Tensor, *, alone: bool) -> Tensor:
        centerd = (h - (self.mean if alone else h.mean(0))).flatten(1)
        return (centerd - (centerd @ self.basis) @ self.basis.T).view_as(h)


@dataclass(frozen=True)
class AutoEncoded:
    """h - decode(encode(h))."""

    net: nn.Module
    shape: Shape

    def residual(self, h: Tensor, *, alone: bool) -> Tensor:  # noqa: ARG002
        rest: Tensor = h - self.net(h)
        return rest


@dataclass(frozen=True)
class PrincipalComponents:
    """The leading right singular vectors of centerd activations, until their singular values sum to more than `share` of all."""

    share: float = 0.99  # of the sum of singular values, not of the variance
    samples: int | None = 5000

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(
                f"PrincipalComponents keeps a share of the spectrum, 0 < share <= 1, got share={self.share}."
            )

    def learn(self, h: Tensor, seed: int) -> Linear:  # noqa: ARG002
        mean = h.mean(0)
        _, values, rows = torch.linalg.svd((h - mean).flatten(1), full_matrices=False)
        reached = values.cumsum(0) / values.sum().clamp(min=torch.finfo(h.dtype).tiny)
        rank = min(int((reached <= self.share).sum()) + 1, len(values))
        return Linear(rows[:rank].T.contiguous(), mean)


def auto_encoder(shape: Shape) -> nn.Module:
    """Two layers in and two out, with ELU: stride-2 convolutions of 2 and 4 times the channels for pictures, else linear layers.

    The released widths are these for 3 and for 64 channels and up to a fifth more for those in between.
    """
    if len(shape) == 1:
        wide = max(shape[0] // 2, 1)
        narrow = max(shape[0] // 4, 1)
        inward = [
            nn.Linear(shape[0], wide),
            nn.ELU(),
            nn.BatchNorm1d(wide),
            nn.Linear(wide, narrow),
            nn.ELU(),
        ]
        return nn.Sequential(*inward, nn.Linear(narrow, wide), nn.ELU(), nn.Linear(wide, shape[0]))
    if len(shape) != 3 or shape[1] % 4 or shape[2] % 4:
        raise ValueError(
            "auto-encoders are made for activations [D] and for pictures [C, H, W] with sides that four divides, got "
            f"{list(shape)}. Give AutoEncoders a `build` of your own, or control another layer."
        )
    channels = shape[0]
    first = max(2 * shape[0], 18)
    second = max(4 * shape[0], 36)
    inward = [
        nn.Conv2d(channels, first, 4, stride=2, padding=1), nn.ELU(), nn.BatchNorm2d(first),
        nn.Conv2d(first, second, 4, stride=2, padding=1), nn.ELU(),
    ]  # fmt: skip
    outward = [
        nn.ConvTranspose2d(second, first, 4, stride=2, padding=1), nn.ELU(),
        nn.ConvTranspose2d(first, channels, 4, stride=2, padding=1),
    ]  # fmt: skip
    return nn.Sequential(*inward, *outward)


@dataclass(frozen=True)
class AutoEncoders:
    """An auto-encoder per layer, by the mean squared error with Adam; the last epoch's, not the one best on test data."""

    phase: Phase = field(
        default_factory=lambda: Phase(epochs=300, batch_size=128, rate=0.01, milestones=(100, 125))
    )
    build: Callable[[Shape], nn.Module] = auto_encoder
    samples: int | None = None

    def learn(self, h: Tensor, seed: int) -> AutoEncoded:
        shape = tuple(h.shape[1:])
        with seeded(seed):
            net = self.build(shape).to(h).train()
        optimizer = torch.optim.Adam(net.parameters(), self.phase.rate)
        minimize(
            lambda batch: (net(h[batch.rows]) - h[batch.rows]).square().flatten(1).mean(1),
            optimizer, len(h), self.phase, seed, h.device,
        )  # fmt: skip
        return AutoEncoded(net.eval().requires_grad_(False), shape)
