"""Small purifiers in double precision and helpers to test them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.defenses import Context, Defense
from saddlepoint.gradients import Backprop, Rule
from saddlepoint.rng import Keys
from saddlepoint.zoo.adaptive import (
    SOAP,
    AdaptiveDenoising,
    AIDPurifier,
    AntiAdversary,
    Discriminator,
    HedgeDefense,
    ScoreNet,
)

CLASSES = 4
SIZE = 4


def build_module(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """Build a module in double precision and eval mode, with initial weights from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().double().eval()


def smooth_net(seed: int = 0, size: int = SIZE, width: int = 3) -> nn.Module:
    """Build a smooth network with layers "0" to "5"; finite differences are accurate on it."""
    return build_module(
        lambda: nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.Tanh(),
            nn.Conv2d(width, width, 3),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(width * (size - 2) ** 2, CLASSES),
        ),
        seed,
    )


def images(n: int, seed: int = 1, size: int = SIZE) -> Tensor:
    """Draw images away from 0 and 1, where clipping is not differentiable."""
    return 0.3 + 0.4 * Keys.of(seed, torch.arange(n)).uniform((1, size, size), torch.float64)


def score_net(seed: int = 3) -> nn.Module:
    """Build a small untrained score network."""
    return build_module(lambda: ScoreNet(1, width=4, blocks=1), seed)


def discriminator(net: nn.Module) -> Discriminator:
    """Build a small discriminator.

    Its batch norm statistics are not 0 and 1: those would make batch norm the identity.
    """
    built = Discriminator.on(net, ("0", "2"), images(1), width=6, after=1)
    with torch.no_grad():
        for k, module in enumerate(m for m in built.modules() if isinstance(m, nn.BatchNorm1d)):
            draw = Keys.of(k, torch.arange(3)).uniform((module.num_features,), torch.float64)
            module.running_mean.copy_(draw[0] - 0.5)
            module.running_var.copy_(0.5 + draw[1])
            module.bias.copy_(draw[2])
    return built


def identity(grad: Tensor) -> Tensor:
    """Step direction that equals the gradient."""
    return grad


Build = Callable[[nn.Module, int], Defense]  # (net, steps) -> defense
INDEPENDENT: dict[str, Build] = {
    "hedge": lambda net, steps: HedgeDefense(net, steps=steps),
    "anti-adversary": lambda net, steps: AntiAdversary(net, steps=steps),
    "soap, per example": lambda net, steps: SOAP(net, steps=steps, coupled=False),
    "aid": lambda net, steps: AIDPurifier(net, discriminator(net), steps=steps),
    "denoising, per example": lambda net, steps: AdaptiveDenoising(
        net, score_net(), steps=steps, runs=2, noise=0.02, coupled=False
    ),
}
COUPLED: dict[str, Build] = {
    "soap": lambda net, steps: SOAP(net, steps=steps),
    "denoising": lambda net, steps: AdaptiveDenoising(
        net, score_net(), steps=steps, runs=2, noise=0.02
    ),
}
# The steps follow the gradient instead of its sign, so the attacker's gradient contains second
# derivatives of the network.
SMOOTH: dict[str, Build] = {
    "hedge": lambda net, steps: HedgeDefense(net, steps=steps, step_size=0.01, direction=identity),
    "anti-adversary": lambda net, steps: AntiAdversary(
        net, steps=steps, step_size=0.05, direction=identity
    ),
    "soap": lambda net, steps: SOAP(
        net, steps=steps, step_size=0.5, radii=(0.4,), direction=identity
    ),
    "aid": lambda net, steps: AIDPurifier(
        net, discriminator(net), steps=steps, radius=0.3, step_size=2.0, direction=identity
    ),
    "denoising": lambda net, steps: AdaptiveDenoising(
        net, score_net(), steps=steps, runs=1, noise=0.02, stop=0.0, coupled=False
    ),
}


def context(
    n: int, rules: dict[str, Rule] | None = None, keep: frozenset[str] | None = None
) -> Context:
    return Context(Keys.of(0, torch.arange(n)), rules or {}, keep)


def gradient(defense: Defense, x: Tensor, y: Tensor, **options) -> Tensor:
    """Compute the gradient of the cross-entropy with respect to x, as an attacker does."""
    objective = AttackObjective([defense], y, cross_entropy, **options)
    return Backprop().value_and_grad(objective, x, Keys.of(0, torch.arange(len(x)))).grad
