"""Contrastive reversal as a defense."""

from __future__ import annotations

import copy
from functools import partial

import torch
from torch import Tensor, nn

from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.rng import Keys
from saddlepoint.zoo.adaptive.contrastive.augmentation import Augmentation
from saddlepoint.zoo.adaptive.contrastive.loss import contrastive_head, contrastive_loss
from saddlepoint.zoo.adaptive.feature_extraction import Features
from saddlepoint.zoo.adaptive.fitting import Batch, Phase, minimize, seeded
from saddlepoint.zoo.adaptive.gradient_steps import gradient_sign, projected_step
from saddlepoint.zoo.adaptive.validation import require_eval_mode

_SIMCLR = Augmentation()
_TRAINING = Phase(epochs=200, batch_size=128, rate=1e-4)


class ContrastiveReversal(Defense):
    """Lower a contrastive loss of augmented views of x by signed gradient steps, then classify.

    x_{t+1} = project(x_t - step_size sign(grad L(x_t)));  output f(x_steps).

    The projection is onto the Linf ball of `radius` around x and [0, 1]. L is the contrastive loss
    of random views of x_t, embedded by a head on the network's features; every step draws new
    views (Mao et al. 2021; Croce et al. 2022, Sec. 3.6, Eq. 6 and B.8).

    The view "reverse/t" is the network at x_t; "reverse/0" is the static network at x. The random
    start and all steps pass through the site "reverse". The sign has a zero derivative, so the
    exact gradient of a step differs from `BPDA()` only where a pixel ends at 0 or 1.

    As in the released code, the negatives are the other images of the batch, attacked or not, and
    all images of a batch share the parameters of the augmentations. With external `negatives`,
    which are embedded without augmentation, and `shared_augmentation=False` the examples are
    independent. The released code starts at random; Croce et al. start at x
    (`random_start=False`).

    Args:
        net: Classifier f: [N, C, H, W] -> [N, classes] in eval mode.
        head: Head on the features; None: created by `fit`.
        layer: Layer that gives the features: its output is averaged over positions. None: the
            features are the input of the network's last linear layer.
        negatives: [M, C, H, W] external negatives; None: the other images of the batch.
        shared_augmentation: Whether a batch shares the parameters of the augmentations.
        views: Number of augmented views, >= 2.
        steps: Number of descent steps.
        step_size: Length of a step, in units of the input.
        radius: Linf radius, in units of the input; the default is twice the attacker's.
        temperature: Temperature of the loss.
        random_start: Whether the descent starts at a random point of the ball.
        augment: Augmentation of the views.
    """

    def __init__(
        self,
        net: nn.Module,
        head: nn.Module | None = None,
        *,
        layer: str | None = None,
        negatives: Tensor | None = None,
        shared_augmentation: bool = True,
        views: int = 4,
        steps: int = 40,
        step_size: float = 2 / 255,
        radius: float = 16 / 255,
        temperature: float = 0.2,
        random_start: bool = True,
        augment: Augmentation = _SIMCLR,
    ) -> None:
        if views < 2 or steps < 0 or step_size <= 0 or radius <= 0 or temperature <= 0:
            raise ValueError(
                "ContrastiveReversal needs views >= 2, steps >= 0, step_size > 0, radius > 0 and "
                f"temperature > 0, got views={views}, steps={steps}, step_size={step_size}, "
                f"radius={radius} and temperature={temperature}."
            )
        require_eval_mode(net, role="network", owner="ContrastiveReversal")
        self.net = net
        self.head = head
        self.features = Features(net, layer)
        self.negatives = negatives
        self.shared_augmentation = shared_augmentation
        self.views = views
        self.augment = augment
        self.steps = steps
        self.step_size = step_size
        self.radius = radius
        self.random_start = random_start
        self.temperature = temperature
        self.coupled = steps > 0 and (negatives is None or shared_augmentation)
        self.random = steps > 0
        self.static = net

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        """Move x and return the logits at every iterate."""
        views = [View("reverse/0", self.net(x))] if ctx.keeps("reverse/0") or not self.steps else []
        negatives = self._embedded_negatives(x) if self.steps else None
        v = x
        if self.steps and self.random_start:
            v = ctx.through("reverse", partial(self._random_point, ctx), x)
        for t in range(1, self.steps + 1):
            v = ctx.through("reverse", partial(self._step, ctx, x, negatives), v)
            if ctx.keeps(f"reverse/{t}") or t == self.steps:
                views.append(View(f"reverse/{t}", self.net(v)))
        return Trace(tuple(views))

    def fit(self, x: Tensor, *, phase: Phase = _TRAINING, seed: int = 0) -> ContrastiveReversal:
        """Train the head, or a copy of the given one further; the network is unchanged.

        The loss uses two views of each training image, with the batch as negatives.

        Args:
            x: [M, C, H, W] training images, at least two.
            phase: Epochs, batch size and learning rate of Adam.
            seed: Seed of the minibatches, the augmentations and the initial weights.

        Returns:
            A new defense with the trained head.

        Raises:
            ValueError: If there are fewer than two images or they have the wrong type or shape.
        """
        if not x.is_floating_point() or x.ndim != 4 or len(x) < 2:
            raise ValueError(
                "fit needs at least two floating-point images [N, C, H, W], "
                f"got {x.dtype} {list(x.shape)}."
            )
        head = self._new_head(x, seed) if self.head is None else copy.deepcopy(self.head)
        optimizer = torch.optim.Adam(head.train().parameters(), phase.rate)

        def loss(batch: Batch) -> Tensor:
            images = x[batch.rows]
            with torch.no_grad():
                features = [
                    self.features(self.augment(images, u))
                    for u in self._random_numbers(Context(batch.keys), images, views=2)
                ]
            z = head(torch.cat(features)).view(2, len(images), -1)
            return contrastive_loss(z, temperature=self.temperature)

        minimize(loss, optimizer, len(x), phase, seed, x.device)
        return self._with_head(head.eval())

    def embed(self, x: Tensor) -> Tensor:
        """Return the head's embeddings [N, E] of images x.

        Raises:
            RuntimeError: If there is no head yet.
        """
        if self.head is None:
            raise RuntimeError(
                "ContrastiveReversal has no contrastive head yet. Call fit: "
                "ContrastiveReversal(net).fit(x), or pass one: ContrastiveReversal(net, head)."
            )
        z: Tensor = self.head(self.features(x))
        return z

    def loss(self, x: Tensor, numbers: Tensor, negatives: Tensor | None = None) -> Tensor:
        """Compute the contrastive loss [N] of augmented views of x.

        Args:
            x: [N, C, H, W] images.
            numbers: [V, N, 14] uniform numbers, which determine the V views.
            negatives: [M, E] embedded negatives; None: the other images of x.
        """
        views = torch.cat([self.augment(x, u) for u in numbers])
        z = self.embed(views).view(len(numbers), len(x), -1)
        return contrastive_loss(z, negatives, temperature=self.temperature)

    def _embedded_negatives(self, x: Tensor) -> Tensor | None:
        if self.negatives is None:
            return None
        with torch.no_grad():
            return self.embed(self.negatives.to(x))

    def _random_point(self, ctx: Context, x: Tensor) -> Tensor:
        return Linf(self.radius).project(x + self.radius * (2 * ctx.rand_like(x) - 1), x)

    def _step(self, ctx: Context, center: Tensor, negatives: Tensor | None, x: Tensor) -> Tensor:
        numbers = self._random_numbers(ctx, x, self.views)
        sign = gradient_sign(lambda v: self.loss(v, numbers, negatives), x)
        return projected_step(x, -sign, self.step_size, center, self.radius)

    def _random_numbers(self, ctx: Context, x: Tensor, views: int) -> Tensor:
        """Draw the uniform numbers [V, N, 14] of the views."""
        shape = (views, Augmentation.random_numbers)
        if not self.shared_augmentation:
            return ctx.rand(*shape, dtype=x.dtype).transpose(0, 1)
        keys = Keys.of(ctx.shared_seed(), torch.arange(1, device=x.device))
        return keys.uniform(shape, x.dtype).expand(len(x), -1, -1).transpose(0, 1)

    def _new_head(self, x: Tensor, seed: int) -> nn.Module:
        features = self.features.of(x[:1])
        with seeded(seed):
            return contrastive_head(features.shape[1]).to(features)

    def _with_head(self, head: nn.Module) -> ContrastiveReversal:
        """Return the same defense with another head."""
        return ContrastiveReversal(
            self.net,
            head,
            layer=self.features.layer,
            negatives=self.negatives,
            shared_augmentation=self.shared_augmentation,
            views=self.views,
            steps=self.steps,
            step_size=self.step_size,
            radius=self.radius,
            temperature=self.temperature,
            random_start=self.random_start,
            augment=self.augment,
        )
