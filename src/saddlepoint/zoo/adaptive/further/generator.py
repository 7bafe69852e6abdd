"""Defense-GAN: the net sees what a generator can make of the image, and a generator has never made an attack."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from saddlepoint.attacks.spaces import per_example
from saddlepoint.defenses import Context, Trace
from saddlepoint.rng import Keys
from saddlepoint.zoo.adaptive.descent import slope
from saddlepoint.zoo.adaptive.inner import Purifier, shown, walk
from saddlepoint.zoo.adaptive.learning import Phase, batches, descend, seeded

_LATENT = 1
_MIX = 2


class Generator(nn.Module):
    """[N, Z] -> [N, *shape] in [0, 1]: two hidden layers."""

    def __init__(self, shape: Sequence[int], *, latent: int = 32, hidden: int = 256) -> None:
        super().__init__()
        self.latent = latent
        self.shape = tuple(shape)
        body = [nn.Linear(latent, hidden), nn.ELU(), nn.Linear(hidden, hidden), nn.ELU()]
        self.layers = nn.Sequential(
            *body,
            nn.Linear(hidden, math.prod(self.shape)),
            nn.Sigmoid(),
            nn.Unflatten(1, self.shape),
        )

    def forward(self, z: Tensor) -> Tensor:
        return cast(Tensor, self.layers(z))


@dataclass(frozen=True)
class WassersteinTraining:
    """The critic D makes mean D(G(z)) - mean D(x) + penalty (|grad D(x^)| - 1)^2 small; G -mean D(G(z)), after `critics` times.

    x^ lies uniformly between x and G(z). Gulrajani et al. 2017, with their penalty, Adam and critics.
    """

    phase: Phase = field(default_factory=lambda: Phase(epochs=200, batch_size=64, rate=1e-4))
    critics: int = 5
    penalty: float = 10.0

    def run(self, generator: Generator, critic: nn.Module, x: Tensor, seed: int) -> None:
        """Trains both in place."""
        make, judge = (
            torch.optim.Adam(net.parameters(), self.phase.rate, betas=(0.0, 0.9))
            for net in (generator, critic)
        )
        with torch.enable_grad():
            for k, batch in enumerate(batches(len(x), self.phase, seed, x.device)):
                real = x[batch.rows]
                z = batch.keys.fold_in(_LATENT).normal((generator.latent,), x.dtype)
                descend(
                    judge,
                    self.criticism(
                        critic, real, generator(z).detach(), batch.keys.fold_in(_MIX)
                    ).mean(),
                    batch.epoch,
                )
                if k % self.critics == self.critics - 1:
                    descend(make, -critic(generator(z)).mean(), batch.epoch)

    def criticism(self, critic: nn.Module, real: Tensor, made: Tensor, keys: Keys) -> Tensor:
        """[N] what the critic makes small."""
        between = torch.lerp(real, made, per_example(keys.uniform((), real.dtype), real))
        steep = slope(lambda v: critic(v)[:, 0], between.requires_grad_()).flatten(1).norm(dim=1)
        loss: Tensor = critic(made)[:, 0] - critic(real)[:, 0] + self.penalty * (steep - 1).square()
        return loss


_TRAINING = WassersteinTraining()


class DefenseGAN(Purifier):
    """f(G(z*)), z* = argmin_z |G(z) - x|^2 by `search` steps of gradient descent from each of `starts` points z ~ N(0, 1).

    Samangouei et al. 2018, Sec. 3, with 200 steps and 10 starts; of the starts a row takes the one that ends nearest. The search is
    one step at the site `purify`; exact gradients run through all of it, `BPDA()` takes it for the identity.
    """

    def __init__(
        self,
        net: nn.Module,
        generator: Generator,
        *,
        search: int = 200,
        starts: int = 10,
        step_size: float = 0.1,
    ) -> None:
        super().__init__(net, 1)
        if search < 0 or starts < 1 or step_size <= 0:
            raise ValueError(
                f"DefenseGAN needs search >= 0, starts >= 1 and step_size > 0, got search={search}, starts={starts} and "
                f"step_size={step_size}."
            )
        if generator.training:
            raise ValueError("DefenseGAN was given a generator in training mode. Call its eval().")
        self.generator = generator
        self.search = search
        self.starts = starts
        self.step_size = step_size
        self.random = True

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        def step(t: int, v: Tensor) -> Tensor:  # noqa: ARG001
            return self.nearest(v, ctx.randn(self.starts, self.generator.latent, dtype=v.dtype))

        return shown(walk(step, x, self.steps, ctx), self.net, self.steps, ctx)

    def nearest(self, x: Tensor, z: Tensor) -> Tensor:
        """What the generator makes that is nearest to x, searched from z [N, R, Z]."""
        wanted = x.repeat_interleave(self.starts, dim=0)  # [N R, ...]
        z = z.flatten(0, 1)
        for _ in range(self.search):
            z = z - self.step_size * slope(lambda v: self._distance(v, wanted), z)
        best = self._distance(z, wanted).detach().view(len(x), self.starts).argmin(1)  # [N]
        made: Tensor = self.generator(z).unflatten(0, (len(x), self.starts))
        return made[torch.arange(len(x), device=x.device), best]

    def _distance(self, z: Tensor, x: Tensor) -> Tensor:
        return cast(Tensor, (self.generator(z) - x).square().flatten(1).sum(1))

    def fit(
        self,
        x: Tensor,
        critic: nn.Module,
        *,
        training: WassersteinTraining = _TRAINING,
        seed: int = 0,
    ) -> DefenseGAN:
        """The same with a generator that has learned x against a critic [N, ...] -> [N, 1], which is a copy too."""
        generator = copy.deepcopy(self.generator).train()
        with seeded(seed):
            training.run(generator, copy.deepcopy(critic).train(), x, seed)
        return DefenseGAN(
            self.net,
            generator.eval(),
            search=self.search,
            starts=self.starts,
            step_size=self.step_size,
        )
