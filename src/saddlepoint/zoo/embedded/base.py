"""Base class of the recipes of packaged defenses."""

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

RADIUS = 0.15  # Linf radius on the digits, at which the networks were trained
SCALE = RADIUS / (8 / 255)  # scales lengths published for radius 8/255 to this radius

Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class Kit(ABC):
    """Recipe of a packaged defense: its network, its training and its construction.

    The fields of a subclass are the settings that differ from the defaults of the defense class.
    The record of the defense contains all fields.
    """

    name: str
    base: str  # zoo name of the underlying network
    radius: float = RADIUS  # Linf radius of the evaluation
    measured_on: int = 100  # number of test digits of the evaluation
    draws: int = 5  # evaluations per example, if the defense is randomized
    attack_steps: int = 20  # steps of the attack on the whole defense
    rounds: int = 3  # rounds of the attack on a defense that adapts to the test batch

    kind: ClassVar[type[Defense]]  # class of the defense
    trains_network: ClassVar[bool] = False  # whether it protects a network that it trained further

    @abstractmethod
    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> Defense:
        """Build the defense.

        Args:
            net: Underlying network in eval mode.
            weights: Tensors returned by `learn`.
        """

    def learn(
        self,
        net: nn.Module,  # noqa: ARG002
        x: Tensor,  # noqa: ARG002
        y: Tensor,  # noqa: ARG002
        seed: int,  # noqa: ARG002
    ) -> dict[str, Tensor]:
        """Train the auxiliary parts of the defense; most defenses have none.

        Args:
            net: Underlying network in eval mode.
            x: [M, 1, 8, 8] training digits.
            y: [M] labels.
            seed: Seed of all randomness.

        Returns:
            Trained tensors by name, a function of the arguments alone.
        """
        return {}

    def rules(self) -> dict[str, Rule]:
        """Return the gradient rules per site for an attack that knows the defense."""
        return {}

    def threat(self) -> Threat:
        """Return the threat model of the evaluation."""
        return Threat(Linf(self.radius), draws=self.draws)


def prefixed_state(**modules: nn.Module) -> dict[str, Tensor]:
    """Collect the tensors of modules; each name is prefixed by the name of the module."""
    return {
        f"{name}.{key}": value
        for name, module in modules.items()
        for key, value in module.state_dict().items()
    }


def load_prefixed_state(name: str, module: Module, weights: Mapping[str, Tensor]) -> Module:
    """Load the tensors with the prefix `name` into the module and set it to eval mode."""
    prefix = f"{name}."
    module.load_state_dict(
        {
            key.removeprefix(prefix): value
            for key, value in weights.items()
            if key.startswith(prefix)
        }
    )
    return module.eval()
