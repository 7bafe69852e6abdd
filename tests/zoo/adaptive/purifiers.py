"""Small purifiers in double precision, one of each kind, and what is asked of them all."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

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


def smooth_net(seed: int = 0, size: int = SIZE, width: int = 3) -> nn.Module:
    """No kinks, so that finite differences mean something; layers are called "0" to "5"."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [
            nn.Conv2d(1, width, 3, padding=1),
            nn.Tanh(),
            nn.Conv2d(width, width, 3),
            nn.Tanh(),
            nn.Flatten(),
        ]
        return nn.Sequential(*layers, nn.Linear(width * (size - 2) ** 2, CLASSES)).double().eval()


def pictures(n: int, seed: int = 1, size: int = SIZE) -> Tensor:
    """Away from the walls of the box, at which clipping has a kink."""
    return 0.3 + 0.4 * Keys.of(seed, torch.arange(n)).uniform((1, size, size), torch.float64)


def score_net(seed: int = 3) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ScoreNet(1, width=4, blocks=1).double().eval()


def discriminator(net: nn.Module) -> Discriminator:
    made = Discriminator.on(net, ("0", "2"), pictures(1), width=6, after=1)
    with torch.no_grad():  # fresh statistics would make batch norm the identity
        for k, module in enumerate(m for m in made.modules() if isinstance(m, nn.BatchNorm1d)):
            draw = Keys.of(k, torch.arange(3)).uniform((module.num_features,), torch.float64)
            module.running_mean.copy_(draw[0] - 0.5)
            module.running_var.copy_(0.5 + draw[1])
            module.bias.copy_(draw[2])
    return made


def itself(grad: Tensor) -> Tensor:
    return grad


Make = Callable[[nn.Module, int], Defense]  # (net, steps)
MAKES: dict[str, Make] = {
    "hedge": lambda net, steps: HedgeDefense(net, steps=steps),
    "anti-adversary": lambda net, steps: AntiAdversary(net, steps=steps),
    "soap, a radius per row": lambda net, steps: SOAP(net, steps=steps, coupled=False),
    "aid": lambda net, steps: AIDPurifier(net, discriminator(net), steps=steps),
    "denoising, rows alone": lambda net, steps: AdaptiveDenoising(
        net, score_net(), steps=steps, runs=2, noise=0.02, coupled=False
    ),
}
COUPLED: dict[str, Make] = {
    "soap": lambda net, steps: SOAP(net, steps=steps),
    "denoising": lambda net, steps: AdaptiveDenoising(
        net, score_net(), steps=steps, runs=2, noise=0.02
    ),
}
# Along the gradient itself instead of its sign, second derivatives of the net are part of the attacker's gradient.
SMOOTH: dict[str, Make] = {
    "hedge": lambda net, steps: HedgeDefense(net, steps=steps, step_size=0.01, direction=itself),
    "anti-adversary": lambda net, steps: AntiAdversary(
        net, steps=steps, step_size=0.05, direction=itself
    ),
    "soap": lambda net, steps: SOAP(
        net, steps=steps, step_size=0.5, radii=(0.4,), direction=itself
    ),
    "aid": lambda net, steps: AIDPurifier(
        net, discriminator(net), steps=steps, radius=0.3, step_size=2.0, direction=itself
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
    """Of the cross-entropy, as an attacker would take it."""
    objective = AttackObjective([defense], y, cross_entropy, **options)
    return Backprop().value_and_grad(objective, x, Keys.of(0, torch.arange(len(x)))).grad


class Memory(TorchDispatchMode):
    """Bytes of tensors alive at once, made while it is entered: at most, and now."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.max_loss_point = 0
        self._seen: weakref.WeakSet = weakref.WeakSet()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._note(tensor.untyped_storage())
        return out

    def _note(self, storage: torch.UntypedStorage) -> None:
        if storage not in self._seen:
            self._seen.add(storage)
            weakref.finalize(storage, self._freed, storage.nbytes())
            self.now += storage.nbytes()
            self.max_loss_point = max(self.max_loss_point, self.now)

    def _freed(self, size: int) -> None:
        self.now -= size
