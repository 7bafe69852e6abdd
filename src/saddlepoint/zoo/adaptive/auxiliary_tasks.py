"""Self-supervised auxiliary tasks of SOAP."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, Self, cast

import torch
from torch import Tensor, nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.rng import Keys
from saddlepoint.zoo.adaptive.feature_extraction import (
    example_layer_outputs,
    layer_outputs,
    logits_and_features,
)
from saddlepoint.zoo.adaptive.fitting import seeded
from saddlepoint.zoo.adaptive.nearest_upsampling import Resize, nearest
from saddlepoint.zoo.multi_exit.attach import linear_head

# Each use of randomness folds its own number into the keys.
_NOISE = 1
_FLIP = 2
_HEIGHT = 3
_WIDTH = 4


class TrainingPass(NamedTuple):
    """Result of one training pass over a batch."""

    loss: Tensor  # [N] auxiliary loss
    logits: Tensor  # [V, N, C] logits of the network on the V augmented copies of the batch


class AuxiliaryTask(Protocol):
    """An auxiliary loss that needs no labels."""

    def loss(self, net: nn.Module, x: Tensor) -> Tensor:
        """Return the loss [N] that purification minimizes at test time."""

    def training_pass(self, net: nn.Module, x: Tensor, keys: Keys) -> TrainingPass:
        """Return loss and logits on augmented copies of x, for joint training."""


@dataclass(frozen=True)
class LabelConsistency:
    """Loss mean_k (f(x)_k - f(a(x))_k)^2, where a flips, crops and resizes the image.

    Croce et al. 2022, Eq. 4, with the identity as a_1. The square and the fixed a_2 are those of
    the evaluated code: a_2 flips the image horizontally, removes `border` on each side and resizes
    the rest to the original size. That code crops 2 of 32 pixels; the original SOAP code crops 4.

    Purification follows the gradient of this loss through the resizing. The published numbers were
    measured with a PyTorch whose gradient of nearest-neighbor upsampling on CUDA was wrong:
    `resize=nearest_with_old_cuda_gradient` emulates it. The loss itself is the same.

    During training a_1 and a_2 are random: noise with standard deviation 0.1, clipped below at
    zero as in the released code, a horizontal flip, and a crop of at least three quarters of each
    side. They are drawn per example, while the released code draws them per batch.
    """

    border: float = 1 / 16  # fraction of height and width, at least one pixel
    resize: Resize = nearest  # how the cropped image is enlarged

    def loss(self, net: nn.Module, x: Tensor) -> Tensor:
        """Return the loss [N] between x [N, C, H, W] and its fixed transformation."""
        return _disagreement(net(x), net(self.transform(x)))

    def transform(self, x: Tensor) -> Tensor:
        """Return a_2(x): flipped, cropped and resized to the original size."""
        height, width = x.shape[-2:]
        down = max(round(self.border * height), 1)
        right = max(round(self.border * width), 1)
        cropped = x.flip(-1)[..., down : height - down, right : width - right]
        return self.resize(cropped, (height, width))

    def training_pass(self, net: nn.Module, x: Tensor, keys: Keys) -> TrainingPass:
        """Return loss and logits on two random views of x."""
        first, second = (net(_random_view(x, keys.fold_in(k))) for k in range(2))
        return TrainingPass(_disagreement(first, second), torch.stack([first, second]))


@dataclass(frozen=True)
class HeadTask(ABC):
    """A task with a head of its own on a layer of the network."""

    layer: str  # name of the layer
    head: nn.Module  # maps the layer's output to the prediction of the task
    noise: float  # standard deviation of the training noise, in units of the input

    @abstractmethod
    def network_inputs(self, x: Tensor) -> Tensor:
        """Return the V copies of x that the network processes, [V N, ...]."""

    @abstractmethod
    def loss_from_features(self, features: Tensor, x: Tensor) -> Tensor:
        """Return the loss [N], given the layer's outputs for `network_inputs(x)`."""

    def loss(self, net: nn.Module, x: Tensor) -> Tensor:
        """Return the loss [N] that purification minimizes at test time."""
        (features,) = layer_outputs(net, [self.layer], self.network_inputs(x))
        return self.loss_from_features(features, x)

    def training_pass(self, net: nn.Module, x: Tensor, keys: Keys) -> TrainingPass:
        """Return loss and logits on noisy copies of x."""
        logits, features = logits_and_features(net, self.layer, self._noisy_inputs(x, keys))
        loss = self.loss_from_features(features, x)
        return TrainingPass(loss, logits.view(-1, len(x), logits.shape[1]))

    def head_training_loss(self, net: nn.Module, x: Tensor, keys: Keys) -> Tensor:
        """Return the loss [N] on noisy copies of x, with gradients for the head only."""
        with torch.no_grad():
            (features,) = layer_outputs(net, [self.layer], self._noisy_inputs(x, keys))
        return self.loss_from_features(features, x)

    def copy_for_training(self) -> Self:
        """Return this task with a copy of its head in training mode."""
        return replace(self, head=copy.deepcopy(self.head).train())

    def _noisy_inputs(self, x: Tensor, keys: Keys) -> Tensor:
        inputs = self.network_inputs(x)
        noise = [
            keys.fold_in(_NOISE).fold_in(k).normal(tuple(x.shape[1:]), x.dtype)
            for k in range(len(inputs) // len(x))
        ]
        return (inputs + self.noise * torch.cat(noise)).clamp(0, 1)


@dataclass(frozen=True)
class Rotation(HeadTask):
    """Predict the rotation: mean_k CE(head(features(x rotated by 90 k degrees)), k), k = 0..3.

    Shi et al. 2020. The head returns [N, 4].
    """

    noise: float = 0.1

    @classmethod
    def on(cls, net: nn.Module, layer: str, example: Tensor, *, seed: int = 0) -> Rotation:
        """Build the task with a new head: average pooling and one linear layer.

        Args:
            net: Network.
            layer: Name of the layer below the head.
            example: [N, C, H, H] input that determines the size of the head.
            seed: Seed of the head's initial weights.
        """
        (features,) = example_layer_outputs(net, [layer], example)
        with seeded(seed):
            return cls(layer, linear_head(layer, features, 4).eval())

    def network_inputs(self, x: Tensor) -> Tensor:
        """Return the four rotations of x, [4 N, C, H, H]."""
        if x.ndim != 4 or x.shape[2] != x.shape[3]:
            raise ValueError(
                f"Rotation needs square images [N, C, H, H], got {list(x.shape)}. "
                "Use another auxiliary task."
            )
        return torch.cat([x.rot90(k, (2, 3)) for k in range(4)])

    def loss_from_features(self, features: Tensor, x: Tensor) -> Tensor:
        """Return the mean cross-entropy [N] over the four rotations."""
        quarter = torch.arange(4, device=x.device).repeat_interleave(len(x))
        return cross_entropy(self.head(features), quarter).view(4, len(x)).mean(0)


@dataclass(frozen=True)
class Reconstruction(HeadTask):
    """Reconstruct the input: mean_i (decoder(features(x))_i - x_i)^2 (Shi et al. 2020).

    During training the network processes noisy inputs and the target is the clean image.
    """

    noise: float = 0.5

    @classmethod
    def on(
        cls, net: nn.Module, layer: str, example: Tensor, *, width: int = 256, seed: int = 0
    ) -> Reconstruction:
        """Build the task with a new decoder: two linear layers and a sigmoid.

        Args:
            net: Network.
            layer: Name of the layer below the decoder.
            example: [N, ...] input that determines the sizes of the decoder.
            width: Number of hidden units.
            seed: Seed of the decoder's initial weights.
        """
        (features,) = example_layer_outputs(net, [layer], example)
        size = features[0].numel()
        shape = tuple(example.shape[1:])
        with seeded(seed):
            layers = [
                nn.Flatten(),
                nn.Linear(size, width),
                nn.ReLU(),
                nn.Linear(width, math.prod(shape)),
                nn.Sigmoid(),
            ]
        decoder = nn.Sequential(*layers, nn.Unflatten(1, shape))
        return cls(layer, decoder.to(features).eval())

    def network_inputs(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def loss_from_features(self, features: Tensor, x: Tensor) -> Tensor:
        """Return the mean squared reconstruction error [N]."""
        return cast(Tensor, (self.head(features) - x).square().flatten(1).mean(1))


def _disagreement(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).square().mean(1)


def _random_view(x: Tensor, keys: Keys) -> Tensor:
    """Add noise, flip and crop, drawn per example; resize by nearest neighbor."""
    n, _, height, width = x.shape
    noise = keys.fold_in(_NOISE).normal(tuple(x.shape[1:]), x.dtype)
    x = x + (0.1 * noise).clamp(0, 1)
    flipped = keys.fold_in(_FLIP).uniform(()) > 0.5
    x = torch.where(flipped.view(n, 1, 1, 1), x.flip(3), x)
    rows = _crop_indices(height, keys.fold_in(_HEIGHT))  # [N, H]
    columns = _crop_indices(width, keys.fold_in(_WIDTH))  # [N, W]
    example = torch.arange(n, device=x.device)[:, None, None]
    return x[example, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _crop_indices(size: int, keys: Keys) -> Tensor:
    """Return source pixels [N, size] of a random crop, resized to the original size.

    The crop has at least three quarters of the side.
    """
    first = keys.integers(max(size // 4, 1))
    shortest = size - size // 4
    length = shortest + keys.fold_in(1).integers((size - first - shortest).clamp(min=1))
    return first[:, None] + torch.arange(size, device=first.device) * length[:, None] // size
