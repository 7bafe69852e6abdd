"""Variational auto-encoders."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from torch import Tensor, nn


class Posterior(NamedTuple):
    """Where an encoder takes a latent point to lie: normal, with a variance for each coordinate."""

    mean: Tensor  # [N, Z]
    log_variance: Tensor  # [N, Z]

    def divergence(self) -> Tensor:
        """[N]: KL from the standard normal, sum_i (mean_i^2 + var_i - log var_i - 1) / 2."""
        return (self.mean.square() + self.log_variance.exp() - self.log_variance - 1).sum(1) / 2


class VAE(nn.Module):
    """An encoder [N, *shape] -> [N, 2 Z], means before log-variances, and a decoder [N, Z] -> [N, *shape] in [0, 1]."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module, latent: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.latent = latent

    @classmethod
    def linear(cls, shape: Sequence[int], *, latent: int = 8, hidden: int = 64) -> VAE:
        """One hidden layer on either side."""
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
        """For 28 x 28 pixels: four convolutions and four transposed ones, batch norm and ELU between them (Schott et al. 2019)."""
        inward = _stack(nn.Conv2d, (1, 32, 32, 64, 2 * latent), (5, 4, 3, 5))
        outward = _stack(nn.ConvTranspose2d, (latent, 32, 16, 16, 1), (4, 5, 5, 4))
        encoder = nn.Sequential(inward | {"flat": nn.Flatten()})
        decoder = nn.Sequential(
            OrderedDict({"picture": nn.Unflatten(1, (latent, 1, 1))})
            | outward
            | {"shade": nn.Sigmoid()}
        )
        return cls(encoder, decoder, latent)

    def encode(self, x: Tensor) -> Posterior:
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        return Posterior(mean, log_variance)

    def decode(self, z: Tensor) -> Tensor:
        return cast(Tensor, self.decoder(z))


def released_vaes(tensors: Mapping[str, Tensor]) -> tuple[VAE, ...]:
    """The convolutional ones, one per class, with tensors as Schott et al. released them.

    Those of class k are called `k.Encoder.conv_i.weight`, `k.Decoder.bn_i.running_mean` and so on, i = 0..3.
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
    # How many batches the statistics were taken from is not among them, and nothing asks for it in eval mode.
    counted = {
        name: value
        for name, value in vae.state_dict().items()
        if name.endswith("num_batches_tracked")
    }
    vae.load_state_dict(
        {name[:1].lower() + name[1:]: value for name, value in tensors.items()} | counted
    )
    return vae.eval()


def _stack(
    kind: type[nn.Conv2d | nn.ConvTranspose2d], widths: Sequence[int], kernels: Sequence[int]
) -> OrderedDict[str, nn.Module]:
    """Convolutions with strides 1, 2, 2, 1; batch norm and ELU after all but the last."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for k, (kernel, stride) in enumerate(zip(kernels, (1, 2, 2, 1), strict=True)):
        layers[f"conv_{k}"] = kind(widths[k], widths[k + 1], kernel, stride=stride)
        if k < len(kernels) - 1:
            layers |= {f"bn_{k}": nn.BatchNorm2d(widths[k + 1]), f"elu_{k}": nn.ELU()}
    return layers
