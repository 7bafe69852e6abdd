"""Defense-GAN: classify the nearest image that a generator of natural images can produce."""

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
from saddlepoint.zoo.adaptive.fitting import Phase, minibatches, optimizer_step, seeded
from saddlepoint.zoo.adaptive.gradient_steps import input_gradient
from saddlepoint.zoo.adaptive.purification import Purifier
from saddlepoint.zoo.adaptive.validation import require_eval_mode

# Each use of randomness folds its own number into the keys.
_LATENT = 1
_MIX = 2


class Generator(nn.Module):
    """Generator [N, Z] -> [N, *shape] in [0, 1] with two hidden layers.

    Args:
        shape: Shape of an image.
        latent: Dimension Z of the latent space.
        hidden: Width of the hidden layers.
    """

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
        """Generate images from latent points z [N, Z]."""
        return cast(Tensor, self.layers(z))


@dataclass(frozen=True)
class WassersteinTraining:
    """Training of a generator G against a critic D (Gulrajani et al. 2017).

    The critic minimizes mean D(G(z)) - mean D(x) + penalty (|grad D(x^)| - 1)^2, where x^ is
    uniform between x and G(z). After every `critic_steps` of its updates the generator takes one
    step on -mean D(G(z)). Penalty, optimizer (Adam) and number of critic steps are those of the
    paper.
    """

    phase: Phase = field(default_factory=lambda: Phase(epochs=200, batch_size=64, rate=1e-4))
    critic_steps: int = 5  # per step of the generator
    penalty: float = 10.0  # weight of the gradient penalty

    def run(self, generator: Generator, critic: nn.Module, x: Tensor, seed: int) -> None:
        """Train both networks in place.

        Args:
            generator: Generator in training mode.
            critic: Critic [N, ...] -> [N, 1] in training mode.
            x: [M, ...] training images.
            seed: Seed of the minibatches and latent points.
        """
        generator_optimizer = self._adam(generator)
        critic_optimizer = self._adam(critic)
        with torch.enable_grad():
            for k, batch in enumerate(minibatches(len(x), self.phase, seed, x.device)):
                z = batch.keys.fold_in(_LATENT).normal((generator.latent,), x.dtype)
                fake = generator(z).detach()
                losses = self.critic_loss(critic, x[batch.rows], fake, batch.keys.fold_in(_MIX))
                optimizer_step(critic_optimizer, losses.mean(), batch.epoch)
                if k % self.critic_steps == self.critic_steps - 1:
                    loss = -critic(generator(z)).mean()
                    optimizer_step(generator_optimizer, loss, batch.epoch)

    def critic_loss(self, critic: nn.Module, real: Tensor, fake: Tensor, keys: Keys) -> Tensor:
        """Return the critic's loss [N] on real and generated images [N, ...]."""
        mixed = torch.lerp(real, fake, per_example(keys.uniform((), real.dtype), real))
        grad = input_gradient(lambda v: critic(v)[:, 0], mixed.requires_grad_())
        excess = grad.flatten(1).norm(dim=1) - 1
        loss: Tensor = critic(fake)[:, 0] - critic(real)[:, 0] + self.penalty * excess.square()
        return loss

    def _adam(self, net: nn.Module) -> torch.optim.Adam:
        return torch.optim.Adam(net.parameters(), self.phase.rate, betas=(0.0, 0.9))


_TRAINING = WassersteinTraining()


class DefenseGAN(Purifier):
    """Classify the nearest generated image: f(G(z*)), z* = argmin_z |G(z) - x|^2.

    The minimization takes `search_steps` gradient descent steps from each of `restarts` points
    z ~ N(0, 1); each example uses the restart that ends nearest (Samangouei et al. 2018, Sec. 3,
    with 200 steps and 10 restarts). The whole search is one step at the site `purify`. Exact
    gradients flow through all of it; `BPDA()` replaces its backward pass by the identity.

    Args:
        net: Classifier f: [N, ...] -> [N, C] in eval mode.
        generator: Generator G in eval mode.
        search_steps: Number of gradient descent steps.
        restarts: Number of starting points.
        step_size: Factor of the gradient in a descent step.
    """

    def __init__(
        self,
        net: nn.Module,
        generator: Generator,
        *,
        search_steps: int = 200,
        restarts: int = 10,
        step_size: float = 0.1,
    ) -> None:
        super().__init__(net, 1)
        if search_steps < 0 or restarts < 1 or step_size <= 0:
            raise ValueError(
                "DefenseGAN needs search_steps >= 0, restarts >= 1 and step_size > 0, got "
                f"search_steps={search_steps}, restarts={restarts} and step_size={step_size}."
            )
        require_eval_mode(generator, role="generator", owner="DefenseGAN")
        self.generator = generator
        self.search_steps = search_steps
        self.restarts = restarts
        self.step_size = step_size
        self.random = True

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        """Return the logits of the image and of the generated image."""

        def step(t: int, v: Tensor) -> Tensor:  # noqa: ARG001
            z = ctx.randn(self.restarts, self.generator.latent, dtype=v.dtype)
            return self.reconstruct(v, z)

        return self.classify_iterates(step, x, ctx)

    def reconstruct(self, x: Tensor, z: Tensor) -> Tensor:
        """Return the nearest generated images found by descent from z.

        Args:
            x: [N, ...] images.
            z: [N, R, Z] starting points.
        """
        target = x.repeat_interleave(self.restarts, dim=0)  # [N R, ...]
        z = z.flatten(0, 1)
        for _ in range(self.search_steps):
            z = z - self.step_size * input_gradient(lambda v: self._distance(v, target), z)
        best = self._distance(z, target).detach().view(len(x), self.restarts).argmin(1)  # [N]
        generated: Tensor = self.generator(z).unflatten(0, (len(x), self.restarts))
        return generated[torch.arange(len(x), device=x.device), best]

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
        """Train a copy of the generator against a copy of the critic.

        Args:
            x: [M, ...] training images.
            critic: Critic [N, ...] -> [N, 1].
            training: Settings of the training.
            seed: Seed of the minibatches and latent points.

        Returns:
            A new defense with the trained generator.
        """
        generator = copy.deepcopy(self.generator).train()
        with seeded(seed):
            training.run(generator, copy.deepcopy(critic).train(), x, seed)
        return DefenseGAN(
            self.net,
            generator.eval(),
            search_steps=self.search_steps,
            restarts=self.restarts,
            step_size=self.step_size,
        )
