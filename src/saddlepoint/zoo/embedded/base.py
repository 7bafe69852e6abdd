"""What a defense of the zoo consists of, beside the network it stands on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from torch import Tensor, nn

from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Defense
from saddlepoint.evaluation import Threat
from saddlepoint.gradients import Rule

RADIUS = 0.15  # Linf, of all digits: what the networks were trained against
SCALE = (
    RADIUS / (8 / 255)
)  # lengths that were published for images of 255 levels and a radius of 8 of them are multiplied by it

Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class Kit(ABC):
    """A defense by name: the network it stands on, what it learns beforehand, and how both become the defense.

    Fields are the choices in which it differs from the defaults of its class; a record keeps them all.
    """

    name: str
    base: str  # the entry of the network
    radius: float = RADIUS  # at which it is measured
    measured_on: int = 100  # test digits
    draws: int = 5  # answers by which it is measured, if it tosses coins
    attack_steps: int = 20  # of the attack on the whole defense
    rounds: int = 3  # of the attack on one that learns at test time

    kind: ClassVar[type[Defense]]

    @abstractmethod
    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> Defense:
        """The defense, given the network and what was learnt."""

    def learn(self, net: nn.Module, x: Tensor, y: Tensor, seed: int) -> dict[str, Tensor]:  # noqa: ARG002
        """What is learnt beforehand on training images: a function of the arguments. Most often nothing is."""
        return {}

    def rules(self) -> dict[str, Rule]:
        """How an attacker who knows the defense takes gradients across its sites."""
        return {}

    def threat(self) -> Threat:
        """What it is measured under."""
        return Threat(Linf(self.radius), draws=self.draws)


def gathered(**modules: nn.Module) -> dict[str, Tensor]:
    """The tensors of modules, each under its name."""
    return {
        f"{name}.{key}": value
        for name, module in modules.items()
        for key, value in module.state_dict().items()
    }


def restored(name: str, module: Module, weights: Mapping[str, Tensor]) -> Module:
    """The module with the tensors that were gathered under its name, in eval mode."""
    start = f"{name}."
    module.load_state_dict(
        {key.removeprefix(start): value for key, value in weights.items() if key.startswith(start)}
    )
    return module.eval()
