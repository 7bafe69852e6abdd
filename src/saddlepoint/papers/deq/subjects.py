"""A trained network with the images it is evaluated on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, nn

from saddlepoint.attacks.spaces import Ball
from saddlepoint.defenses import Answer, view
from saddlepoint.evaluation import Episode
from saddlepoint.papers.experiment import count_weights, describe_net
from saddlepoint.papers.runner import Images
from saddlepoint.zoo.deq import DEQ, Solved


@dataclass(frozen=True)
class TrainedNetwork:
    """A trained network of any kind and its images."""

    name: str
    net: nn.Module
    space: Ball  # allowed perturbations
    data: str  # name of the dataset
    dev: Images  # used to select attacks and states
    test: Images  # used only for the reported accuracies
    dev_kind: str = "held-out training images"  # what the images of `dev` are

    @property
    def title(self) -> str:
        """The name shown in tables."""
        return self.name

    @property
    def weights(self) -> int:
        """Number of parameters."""
        return count_weights(self.net)

    def describe(self) -> str:
        """Describe the network in one line."""
        selection = f"states and attacks selected on {len(self.dev.x)} {self.dev_kind}"
        return describe_net(self.title, self.net, self.data, self.space, selection)


@dataclass(frozen=True)
class DEQSubject(TrainedNetwork):
    """A trained equilibrium network."""

    net: Solved
    comparable: bool = True  # whether the paper's network of this name has the same solver

    @property
    def reported(self) -> str:
        """The name under which the paper's numbers are found; empty if they are not comparable."""
        return self.name if self.comparable else ""

    @property
    def steps(self) -> int:
        """Number of solver steps of the forward pass."""
        return self.net.method.steps

    @cached_property
    def defense(self) -> DEQ:
        """The network as a defense; every solver state is a view."""
        return self.net.defense

    @property
    def title(self) -> str:
        """The name with its solver steps in the paper's notation.

        `exact-long (50/50)` has 50 forward and 50 backward solver steps; `unrolled (8+6)` has 8
        solver steps and 6 unrolled steps.
        """
        backward = getattr(self.net.rule, "method", None)
        if backward:
            return f"{self.name} ({self.steps}/{backward.steps})"
        return f"{self.name} ({self.steps}+{self.net.after.steps})"

    @property
    def answers(self) -> dict[str, Answer]:
        """One scored answer per state."""
        return {name: view(name) for name in self.defense.names}

    def correct(self, episode: Episode, name: str) -> Tensor:
        """Return for each example [N] whether the prediction from this state is correct."""
        return episode.correct[self.defense.names.index(name)].double().cpu()
