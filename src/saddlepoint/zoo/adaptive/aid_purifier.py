"""AID-purifier: move the input to where a discriminator sees a natural image."""

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
from saddlepoint.phrases import count, how_often
from saddlepoint.zoo.adaptive.feature_extraction import example_layer_outputs, layer_outputs
from saddlepoint.zoo.adaptive.fitting import Batch, Phase, minimize, seeded
from saddlepoint.zoo.adaptive.gradient_steps import AscentStep, Direction
from saddlepoint.zoo.adaptive.purification import Purifier
from saddlepoint.zoo.adaptive.validation import require_eval_mode
from saddlepoint.zoo.multi_exit.attach import Pooled

_MIX = 1  # folded into the keys for the mixing weights


class Discriminator(nn.Module):
    """Predict the logit of "natural" from pooled outputs of some layers of a network.

    Each layer has an encoder of 1 + `before` linear layers with `width` units. The concatenated
    encodings pass `after` linear layers, each half as wide as its input, and a last linear layer
    that returns the logit. Batch norm and ReLU follow every linear layer but the last.

    Hwang et al. 2021. The released network has encoders for four layers: the first convolution and
    the three blocks of a wide residual network. It multiplies the inputs of unused encoders by
    zero, so that their outputs are constant. On CIFAR it uses the first and the third layer, with
    `before=1, after=3`; on SVHN the first and the fourth, with `before=0, after=2`.
    `released_discriminator` loads its weights.

    Args:
        layers: Names of the layers.
        widths: Number of channels of each layer.
        off: Names of the layers whose outputs are multiplied by zero before their encoder.
        width: Number of units of each encoder layer.
        before: Number of further layers in each encoder.
        after: Number of layers after the concatenation.

    Raises:
        ValueError: If the width cannot be halved `after` times, if `off` names another layer, or if
            it names all of them.
    """

    def __init__(
        self,
        layers: Sequence[str],
        widths: Sequence[int],
        *,
        off: Sequence[str] = (),
        width: int = 1024,
        before: int = 1,
        after: int = 3,
    ) -> None:
        super().__init__()
        self.layers = tuple(layers)
        self.off = tuple(off)
        if not set(self.off) < set(self.layers):
            raise ValueError(
                f"the layers are {list(self.layers)}, of which some but not all can be off, "
                f"got off={list(self.off)}."
            )
        self.pooled = Pooled()
        self.encoders = nn.ModuleList(_stack([size, *[width] * (1 + before)]) for size in widths)
        sizes = [len(widths) * width // 2**k for k in range(after + 1)]
        if sizes[-1] < 1:
            raise ValueError(
                f"{count(sizes[0], 'unit')} cannot be halved {how_often(after)}. "
                "Increase `width` or decrease `after`."
            )
        self.decision = nn.Sequential(_stack(sizes), nn.Linear(sizes[-1], 1))

    @classmethod
    def on(
        cls,
        net: nn.Module,
        layers: Sequence[str],
        example: Tensor,
        *,
        off: Sequence[str] = (),
        width: int = 1024,
        before: int = 1,
        after: int = 3,
        seed: int = 0,
    ) -> Discriminator:
        """Build a discriminator with sizes taken from the layers' outputs for an example.

        Args:
            net: Network with these layers.
            layers: Names of the layers.
            example: [N, ...] input of the network.
            off: Names of the layers whose outputs are multiplied by zero before their encoder.
            width: Number of units of each encoder layer.
            before: Number of further layers in each encoder.
            after: Number of layers after the concatenation.
            seed: Seed of the initial weights.

        Returns:
            The discriminator in eval mode.
        """
        pooled = [Pooled()(output) for output in example_layer_outputs(net, layers, example)]
        widths = [features.shape[1] for features in pooled]
        with seeded(seed):
            discriminator = cls(layers, widths, off=off, width=width, before=before, after=after)
        return discriminator.to(pooled[0]).eval()

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Return the logit [N], given one tensor [N, ...] per layer."""
        encoded = []
        for name, encoder, output in zip(self.layers, self.encoders, features, strict=True):
            pooled = self.pooled(output)
            encoded.append(encoder(0 * pooled if name in self.off else pooled))
        return cast(Tensor, self.decision(torch.cat(encoded, dim=1))[:, 0])


class AIDPurifier(Purifier):
    """Maximize a discriminator's probability of "natural" around x, then classify the maximizer.

    d = argmax_d D(x + d)  with  ||d||_inf <= radius and x + d in the box.

    D is the probability of "natural" (Hwang et al. 2021; Croce et al. 2022, Sec. 3.7, Eq. 7 with
    g = 1 - D). The released code takes signed steps of radius / 4 and ignores its step size
    option. Here the steps increase the logit: its gradient has the sign of D's gradient, also
    where D is rounded to 0 or 1. The default radius 0.031 is for CIFAR-10; the paper uses 0.062
    on CIFAR-100 and 0.047 on SVHN.

    Args:
        net: Classifier f: [N, ...] -> [N, C] in eval mode.
        discriminator: Discriminator on layers of the network, in eval mode.
        radius: Linf radius of the purification, in units of the input.
        steps: Number of ascent steps.
        step_size: Length of a step, in units of the input; None: radius / 4.
        box: Lower and upper bound of the input.
        direction: Maps the gradient to the step direction.
    """

    def __init__(
        self,
        net: nn.Module,
        discriminator: Discriminator,
        *,
        radius: float = 0.031,
        steps: int = 10,
        step_size: float | None = None,
        box: tuple[float, float] = (0.0, 1.0),
        direction: Direction = torch.sign,
    ) -> None:
        super().__init__(net, steps)
        require_eval_mode(discriminator, role="discriminator", owner="AIDPurifier")
        self.discriminator = discriminator
        self.space = Linf(radius, box=box)
        step = radius / 4 if step_size is None else step_size
        self.ascent = AscentStep(step, self.space, direction)

    def natural_logit(self, x: Tensor) -> Tensor:
        """Return the discriminator's logit [N] of "natural"."""
        features = layer_outputs(self.net, self.discriminator.layers, x)
        return cast(Tensor, self.discriminator(features))

    @torch.no_grad()
    def detection_rate(self, natural: Tensor, attacked: Tensor) -> float:
        """Return how often a natural image has a higher logit than an attacked one.

        This is the area under the ROC curve over all pairs. At 0.5 the discriminator is at chance,
        and purification has no relation to the perturbation.

        Args:
            natural: [N, ...] natural images.
            attacked: [M, ...] attacked images.
        """
        difference = self.natural_logit(natural)[:, None] - self.natural_logit(attacked)
        return float((difference.sign().double() + 1).mean() / 2)

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        """Purify x and return the logits at every iterate."""

        def step(t: int, v: Tensor) -> Tensor:  # noqa: ARG001
            return self.ascent(self.natural_logit, v, x)

        return self.classify_iterates(step, x, ctx)

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
        """Train a copy of the discriminator with SGD; the network is unchanged.

        The loss is BCE(D(w x + (1 - w) v), w) with w uniform in [0, 1] and the vertex
        v = x + beyond (x' - x), clipped to the box: AVmixup (Lee et al. 2020). x' is the
        adversary's point.

        Args:
            x: [M, ...] training images.
            y: [M] labels.
            adversary: Attack on the network; None: PGD with ten steps of 0.004.
            space: Perturbation set of the attack; None: Linf radius 0.031.
            beyond: Factor by which the perturbation is extrapolated.
            epochs: Number of passes over the images.
            batch_size: Upper bound of the batch size.
            learning_rate: Learning rate of SGD.
            seed: Seed of the order of the images, the attack and the mixing weights.

        Returns:
            A new defense with the trained discriminator.
        """
        net = self.net
        discriminator = copy.deepcopy(self.discriminator).train()
        adversary = adversary or Direct("pgd", PGD(steps=10, step_size=0.004), loss=cross_entropy)
        threat = Threat(space or Linf(0.031, box=self.space.box))
        optimizer = torch.optim.SGD(
            discriminator.parameters(), lr=learning_rate, momentum=0.9, weight_decay=2e-4
        )

        def losses(batch: Batch) -> Tensor:
            natural = x[batch.rows]
            context = AttackContext.open(threat, batch.rows, seed)
            result = adversary.move(context, Plain(net), natural, y[batch.rows])
            vertex = natural + beyond * (result.max_loss_point - natural)
            vertex = vertex.clamp(*threat.space.box)
            weight = batch.keys.fold_in(_MIX).uniform((), x.dtype)  # [B], w
            mixed = torch.lerp(vertex, natural, per_example(weight, natural))
            with torch.no_grad():
                features = layer_outputs(net, discriminator.layers, mixed)
            return functional.binary_cross_entropy_with_logits(
                discriminator(features), weight, reduction="none"
            )

        phase = Phase(epochs, batch_size, learning_rate)
        with seeded(seed):
            minimize(losses, optimizer, len(x), phase, seed, x.device)
        return self._with_discriminator(discriminator.eval())

    def _with_discriminator(self, discriminator: Discriminator) -> AIDPurifier:
        """Return the same defense with another discriminator."""
        return AIDPurifier(
            self.net,
            discriminator,
            radius=self.space.radius,
            steps=self.steps,
            step_size=self.ascent.step_size,
            box=self.space.box,
            direction=self.ascent.direction,
        )


def _stack(sizes: Sequence[int]) -> nn.Sequential:
    """Build linear layers of the given sizes, each followed by batch norm and ReLU."""
    layers = [
        nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU()) for a, b in pairwise(sizes)
    ]
    return nn.Sequential(*layers)
