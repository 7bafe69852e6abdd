"""AID-purifier: move the input to where a discriminator sees no attack."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Ball, Linf, per_example
from saddlepoint.defenses import Context, Plain, Trace
from saddlepoint.evaluation import Adversary, AttackContext, Direct, Threat
from saddlepoint.zoo.adaptive.features import features, probed
from saddlepoint.zoo.adaptive.inner import Ascent, Direction, Purifier, shown, walk
from saddlepoint.zoo.adaptive.learning import Batch, Phase, minimize, seeded
from saddlepoint.zoo.multi_exit.attach import Pooled

_MIX = 1


class Discriminator(nn.Module):
    """The logit of "natural", from the means of what some layers of a net give (Hwang et al. 2021).

    Each layer has an encoder of 1 + `before` linear layers to `width` units; all encodings together pass `after` layers, each half
    as wide as what it is given, and one that gives the logit. Batch norm and ReLU follow every layer but that. The released network
    looks at four layers and multiplies those that are switched off by zero before their encoders, which then are constants: the
    same with the layers named that are left, `before=1, after=3` on CIFAR and `before=0, after=2` on SVHN.
    """

    def __init__(
        self,
        layers: Sequence[str],
        widths: Sequence[int],
        *,
        width: int = 1024,
        before: int = 1,
        after: int = 3,
    ) -> None:
        super().__init__()
        self.layers = tuple(layers)
        self.pooled = Pooled()
        self.encoders = nn.ModuleList(_stack([size, *[width] * (1 + before)]) for size in widths)
        sizes = [len(widths) * width // 2**k for k in range(after + 1)]
        if sizes[-1] < 1:
            raise ValueError(
                f"{sizes[0]} units cannot be halved {after} times. Give a larger width, or fewer layers after."
            )
        self.decision = nn.Sequential(_stack(sizes), nn.Linear(sizes[-1], 1))

    @classmethod
    def on(
        cls,
        net: nn.Module,
        layers: Sequence[str],
        example: Tensor,
        *,
        width: int = 1024,
        before: int = 1,
        after: int = 3,
        seed: int = 0,
    ) -> Discriminator:
        """A new one, sized by what the named layers give to an example."""
        given = [Pooled()(out) for out in probed(net, layers, example)]
        with seeded(seed):
            made = cls(
                layers, [out.shape[1] for out in given], width=width, before=before, after=after
            )
        return made.to(given[0]).eval()

    def forward(self, given: Sequence[Tensor]) -> Tensor:  # one [N, ...] per layer -> [N]
        encoded = [
            encoder(self.pooled(out)) for encoder, out in zip(self.encoders, given, strict=True)
        ]
        return cast(Tensor, self.decision(torch.cat(encoded, dim=1))[:, 0])


class AIDPurifier(Purifier):
    """argmax_d D(x + d) with ||d||_inf <= radius and x + d in the box, D the chance of being natural, then f(x + d).

    Hwang et al. 2021; Croce et al. 2022, Sec. 3.7, Eq. 7 with g = 1 - D: signed steps of radius / 4, as the released code takes
    whatever it is told. They are taken on the logit, whose gradient has D's sign where D itself is rounded to 0 or 1. Radius 0.031
    is for CIFAR-10; the paper's are 0.062 on CIFAR-100 and 0.047 on SVHN.
    """

    def __init__(
        self,
        net: nn.Module,
        discriminator: Discriminator,
        *,
        radius: float = 0.031,  # in units of the input
        steps: int = 10,
        step_size: float | None = None,  # None: radius / 4
        box: tuple[float, float] = (0.0, 1.0),
        direction: Direction = torch.sign,
    ) -> None:
        super().__init__(net, steps)
        if discriminator.training:
            raise ValueError(
                "AIDPurifier was given a discriminator in training mode, where rows share statistics. Call its eval()."
            )
        self.discriminator = discriminator
        self.space = Linf(radius, box=box)
        self.ascent = Ascent(radius / 4 if step_size is None else step_size, self.space, direction)

    def naturalness(self, x: Tensor) -> Tensor:
        """[N] the discriminator's logit."""
        return cast(Tensor, self.discriminator(features(self.net, self.discriminator.layers, x)))

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        def step(t: int, v: Tensor) -> Tensor:  # noqa: ARG001
            return self.ascent(self.naturalness, v, x)

        return shown(walk(step, x, self.steps, ctx), self.net, self.steps, ctx)

    def fit(
        self,
        x: Tensor,
        y: Tensor,
        *,
        adversary: Adversary | None = None,
        space: Ball | None = None,
        beyond: float = 2.0,
        epochs: int = 1,
        batch_size: int = 128,
        learning_rate: float = 0.01,
        seed: int = 0,
    ) -> AIDPurifier:
        """The same with a discriminator that has learned to tell x from attacks on the net, by SGD; the net stays as it is.

        BCE(D(w x + (1 - w) v), w) with w uniform in [0, 1] and the vertex v = x + beyond (x' - x), clipped into the box: AVmixup
        (Lee et al. 2020). x' is the `adversary`'s point in `space`, by default that of ten steps of 0.004 in radius 0.031.
        """
        net = self.net
        discriminator = copy.deepcopy(self.discriminator).train()
        adversary = adversary or Direct("pgd", PGD(steps=10, step_size=0.004), loss=cross_entropy)
        threat = Threat(space or Linf(0.031, box=self.space.box))
        optimizer = torch.optim.SGD(
            discriminator.parameters(), lr=learning_rate, momentum=0.9, weight_decay=2e-4
        )

        def losses(batch: Batch) -> Tensor:
            here = x[batch.rows]
            attacked = adversary.move(
                AttackContext.open(threat, batch.rows, seed), Plain(net), here, y[batch.rows]
            ).max_loss_point
            natural = batch.keys.fold_in(_MIX).uniform((), x.dtype)  # [B]
            vertex = (here + beyond * (attacked - here)).clamp(*threat.space.box)
            with torch.no_grad():
                given = features(
                    net, discriminator.layers, torch.lerp(vertex, here, per_example(natural, here))
                )
            return functional.binary_cross_entropy_with_logits(
                discriminator(given), natural, reduction="none"
            )

        with seeded(seed):
            minimize(
                losses, optimizer, len(x), Phase(epochs, batch_size, learning_rate), seed, x.device
            )
        return AIDPurifier(
            net, discriminator.eval(), radius=self.space.radius, steps=self.steps, step_size=self.ascent.step_size,
            box=self.space.box, direction=self.ascent.direction,
        )  # fmt: skip


def _stack(sizes: Sequence[int]) -> nn.Sequential:
    """Linear layers from size to size, each with batch norm and ReLU."""
    layers = [
        nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU()) for a, b in pairwise(sizes)
    ]
    return nn.Sequential(*layers)
