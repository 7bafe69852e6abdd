"""Contrastive reversal as a defense, its loss and its head."""

from __future__ import annotations

import copy
from functools import partial

import torch
from torch import Tensor, nn

from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.rng import Keys
from saddlepoint.zoo.adaptive.contrastive.augment import Augmentation
from saddlepoint.zoo.adaptive.descent import direction, signed_step
from saddlepoint.zoo.adaptive.layers import Features, refuse_training
from saddlepoint.zoo.adaptive.learning import Batch, Phase, minimize, seeded

_SIMCLR = Augmentation()
_TRAINING = Phase(epochs=200, batch_size=128, rate=1e-4)


def contrast(z: Tensor, negatives: Tensor | None = None, *, temperature: float = 0.2) -> Tensor:
    """[N]: how poorly the V views of an image, embedded as z [V, N, E], find each other among others.

    mean_v -log exp(s(z_v, z_first)) / sum exp(s(z_v, .)),  s(a, b) = cos(a, b) / temperature, the sum over all others: other views
    of the image, and negatives. These are all views of the other images of the batch, or the embedded images `negatives` [M, E].
    As released, only the first other view is the target; with more than two, the rest of them stands in the denominator.
    """
    z = nn.functional.normalize(z, dim=-1)
    views, rows = z.shape[:2]
    first = z[[1] + [0] * (views - 1)]  # of view 0 it is view 1, of all others view 0
    target = (z * first).sum(-1)  # [V, N]
    if negatives is None:
        others = torch.einsum("vne,wme->vnwm", z, z).flatten(2)
        itself = torch.eye(views * rows, dtype=torch.bool, device=z.device).view(views, rows, -1)
    else:
        own = torch.einsum("vne,wne->vnw", z, z)
        others = torch.cat([own, z @ nn.functional.normalize(negatives, dim=-1).T], dim=2)
        itself = torch.zeros_like(others, dtype=torch.bool)
        itself[..., :views] = torch.eye(views, dtype=torch.bool, device=z.device)[:, None]
    total = (others / temperature).masked_fill(itself, -torch.inf).logsumexp(-1)
    return (total - target / temperature).mean(0)


def contrastive_head(features: int) -> nn.Module:
    """Linear to 256, batch norm, ReLU, linear to 16, on the network's features."""
    return nn.Sequential(
        nn.Linear(features, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 16)
    )


class ContrastiveReversal(Defense):
    """x_{t+1} = project(x_t - step_size sign(grad L(x_t))) around x, in the set of `radius` and in [0, 1]; answers net(x_steps).

    L is the contrastive loss of random views of x_t, embedded by a head on the network's features (Mao et al. 2021; Croce et al.
    2022, Sec. 3.6, Eq. 6 and B.8); every step draws new views. "reverse/t" is the network at x_t; "reverse/0" is at x itself, the
    static network. Steps, and the random start before the first, cross the site "reverse". The sign has no slope: what the exact
    gradient sees of a step is its box alone, so it differs from `BPDA()` only where a pixel ends at 0 or 1.

    As released, negatives are the other images of the same batch, attacked or not, and the batch shares the parameters of its
    augmentations. With images of your own as `negatives` [M, C, H, W], which are embedded as they are, and `shared=False` every row
    answers by itself. The released code starts at random; Croce et al. start at x (`random_start=False`).
    """

    def __init__(
        self,
        net: nn.Module,
        head: nn.Module | None = None,
        *,
        layer: str | None = None,
        negatives: Tensor | None = None,
        shared: bool = True,
        views: int = 4,
        steps: int = 40,
        step_size: float = 2 / 255,
        radius: float = 16 / 255,  # twice the attacker's
        temperature: float = 0.2,
        random_start: bool = True,
        augment: Augmentation = _SIMCLR,
    ) -> None:
        if views < 2 or steps < 0 or step_size <= 0 or radius <= 0 or temperature <= 0:
            raise ValueError(
                "ContrastiveReversal needs views >= 2, steps >= 0, step_size > 0, radius > 0 and temperature > 0, got "
                f"views={views}, steps={steps}, step_size={step_size}, radius={radius} and temperature={temperature}."
            )
        refuse_training(net)
        self.net = net
        self.head = head
        self.features = Features(net, layer)
        self.negatives = negatives
        self.shared = shared
        self.views = views
        self.augment = augment
        self.steps = steps
        self.step_size = step_size
        self.radius = radius
        self.random_start = random_start
        self.temperature = temperature
        self.coupled = steps > 0 and (negatives is None or shared)
        self.random = steps > 0
        self.static = net

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        views = [View("reverse/0", self.net(x))] if ctx.keeps("reverse/0") or not self.steps else []
        with torch.no_grad():
            negatives = (
                self.embed(self.negatives.to(x))
                if self.steps and self.negatives is not None
                else None
            )
        here = (
            ctx.through("reverse", partial(self._start, ctx), x)
            if self.steps and self.random_start
            else x
        )
        for t in range(1, self.steps + 1):
            here = ctx.through("reverse", partial(self._step, ctx, x, negatives), here)
            if ctx.keeps(f"reverse/{t}") or t == self.steps:
                views.append(View(f"reverse/{t}", self.net(here)))
        return Trace(tuple(views))

    def fit(self, x: Tensor, *, phase: Phase = _TRAINING, seed: int = 0) -> ContrastiveReversal:
        """This defense with a trained head: two views of each training image, the batch as negatives, the network as it is.

        A head that was given is trained further, in a copy.
        """
        if not x.is_floating_point() or x.ndim != 4 or len(x) < 2:
            raise ValueError(
                f"fit needs at least two floating-point images [N, C, H, W], got {x.dtype} {list(x.shape)}."
            )
        head = self._new(x, seed) if self.head is None else copy.deepcopy(self.head)
        optimizer = torch.optim.Adam(head.train().parameters(), phase.rate)

        def loss(batch: Batch) -> Tensor:
            images = x[batch.rows]
            with torch.no_grad():
                found = [
                    self.features(self.augment(images, u))
                    for u in self._numbers(Context(batch.keys), images, views=2)
                ]
            return contrast(
                head(torch.cat(found)).view(2, len(images), -1), temperature=self.temperature
            )

        minimize(loss, optimizer, len(x), phase, seed, x.device)
        return ContrastiveReversal(
            self.net, head.eval(), layer=self.features.layer, negatives=self.negatives, shared=self.shared, views=self.views,
            steps=self.steps, step_size=self.step_size, radius=self.radius, temperature=self.temperature,
            random_start=self.random_start, augment=self.augment,
        )  # fmt: skip

    def embed(self, x: Tensor) -> Tensor:
        """[N, E]: where the head puts images."""
        if self.head is None:
            raise RuntimeError(
                "ContrastiveReversal has no contrastive head yet. Call fit: ContrastiveReversal(net).fit(x), or give one: "
                "ContrastiveReversal(net, head)."
            )
        z: Tensor = self.head(self.features(x))
        return z

    def loss(self, x: Tensor, numbers: Tensor, negatives: Tensor | None = None) -> Tensor:
        """[N]: the contrastive loss of the views that uniform numbers [V, N, 14] make of x; `negatives` [M, E] are embedded."""
        views = torch.cat([self.augment(x, u) for u in numbers])
        return contrast(
            self.embed(views).view(len(numbers), len(x), -1),
            negatives,
            temperature=self.temperature,
        )

    def _start(self, ctx: Context, x: Tensor) -> Tensor:
        return Linf(self.radius).project(x + self.radius * (2 * ctx.rand_like(x) - 1), x)

    def _step(self, ctx: Context, center: Tensor, negatives: Tensor | None, x: Tensor) -> Tensor:
        numbers = self._numbers(ctx, x, self.views)
        uphill = direction(lambda v: self.loss(v, numbers, negatives), x)
        return signed_step(x, -uphill, self.step_size, center, self.radius)

    def _numbers(self, ctx: Context, x: Tensor, views: int) -> Tensor:  # [V, N, 14]
        shape = (views, Augmentation.numbers)
        if not self.shared:
            return ctx.rand(*shape, dtype=x.dtype).transpose(0, 1)
        one = Keys.of(ctx.shared_seed(), torch.arange(1, device=x.device)).uniform(shape, x.dtype)
        return one.expand(len(x), -1, -1).transpose(0, 1)

    def _new(self, x: Tensor, seed: int) -> nn.Module:
        features = self.features.of(x[:1])
        with seeded(seed):
            return contrastive_head(features.shape[1]).to(features)
