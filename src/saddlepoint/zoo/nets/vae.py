"""Variational autoencoders."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from torch import Tensor, nn


class Posterior(NamedTuple):
    """The approximate posterior of a latent point: normal, with a diagonal covariance."""

    mean: Tensor  # [N, Z]
    log_variance: Tensor  # [N, Z]

    def divergence(self) -> Tensor:
        """Return the KL divergence from the standard normal, [N].

        KL = sum_i (mean_i^2 + var_i - log var_i - 1) / 2.
        """
        return (self.mean.square() + self.log_variance.exp() - self.log_variance - 1).sum(1) / 2


class VAE(nn.Module):
    """An encoder and a decoder.

    Args:
        encoder: [N, *shape] -> [N, 2 Z], means before log-variances.
        decoder: [N, Z] -> [N, *shape] in [0, 1].
        latent: Z.
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module, latent: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.latent = latent

    @classmethod
    def linear(cls, shape: Sequence[int], *, latent: int = 8, hidden: int = 64) -> VAE:
        """Return an untrained network with one hidden layer in the encoder and in the decoder.

        Args:
            shape: Shape of an image.
            latent: Number of latent coordinates.
            hidden: Units of the hidden layers.
        """
        pixels = math.prod(shape)
        encoder = nn.Sequential(
            nn.Flatten(), nn.Linear(pixels, hidden), nn.ELU(), nn.Linear(hidden, 2 * latent)
        )
        decoder = [
            nn.Linear(latent, hidden),
            nn.ELU(),
            nn.Linear(hidden, pixels),
            nn.Sigmoid(),
            nn.Unflatten(1, tuple(shape)),
        ]
        return cls(encoder, nn.Sequential(*decoder), latent)

    @classmethod
    def convolutional(cls, *, latent: int = 8) -> VAE:
        """Return an untrained network for 28 x 28 gray images (Schott et al. 2019).

        It has four convolutions and four transposed ones, with batch norm and ELU between them.

        Args:
            latent: Number of latent coordinates.
        """
        convolutions = _stack(nn.Conv2d, (1, 32, 32, 64, 2 * latent), (5, 4, 3, 5))
        transposed = _stack(nn.ConvTranspose2d, (latent, 32, 16, 16, 1), (4, 5, 5, 4))
        encoder = nn.Sequential(convolutions | {"flat": nn.Flatten()})
        decoder = nn.Sequential(
            OrderedDict({"image": nn.Unflatten(1, (latent, 1, 1))})
            | transposed
            | {"sigmoid": nn.Sigmoid()}
        )
        return cls(encoder, decoder, latent)

    def encode(self, x: Tensor) -> Posterior:
        """Return the posterior of each image, [N, *shape] -> [N, Z] twice."""
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        return Posterior(mean, log_variance)

    def decode(self, z: Tensor) -> Tensor:
        """Return the images of latent points, [N, Z] -> [N, *shape]."""
        return cast(Tensor, self.decoder(z))


def released_vaes(tensors: Mapping[str, Tensor]) -> tuple[VAE, ...]:
    """Return convolutional networks, one per class, with the tensors that Schott et al. released.

    Args:
        tensors: Those of class k are called `k.Encoder.conv_i.weight`,
        `k.Decoder.bn_i.running_mean`
            and so on, i = 0..3.
    """
    classes = sorted({name.partition(".")[0] for name in tensors}, key=int)
    return tuple(
        _released(
            {
                name.partition(".")[2]: value
                for name, value in tensors.items()
                if name.startswith(f"{k}.")
            }
        )
        for k in classes
    )


def _released(tensors: Mapping[str, Tensor]) -> VAE:
    vae = VAE.convolutional(latent=len(tensors["Decoder.conv_0.weight"]))
    # The number of batches behind the statistics was not released and is not used in eval mode.
    batch_counts = {
        name: value
        for name, value in vae.state_dict().items()
        if name.endswith("num_batches_tracked")
    }
    vae.load_state_dict(
        {name[:1].lower() + name[1:]: value for name, value in tensors.items()} | batch_counts
    )
    return vae.eval()


def _stack(
    kind: type[nn.Conv2d | nn.ConvTranspose2d], widths: Sequence[int], kernels: Sequence[int]
) -> OrderedDict[str, nn.Module]:
    """Return convolutions with strides 1, 2, 2, 1; batch norm and ELU follow all but the last."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for k, (kernel, stride) in enumerate(zip(kernels, (1, 2, 2, 1), strict=True)):
        layers[f"conv_{k}"] = kind(widths[k], widths[k + 1], kernel, stride=stride)
        if k < len(kernels) - 1:
            layers |= {f"bn_{k}": nn.BatchNorm2d(widths[k + 1]), f"elu_{k}": nn.ELU()}
    return layers
