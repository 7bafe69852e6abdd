"""The base class of the experiments of all papers: settings, data, training and attacks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, Protocol, Self, TypeVar

import torch
from torch import nn

from saddlepoint.attacks.spaces import Ball
from saddlepoint.data import load_data
from saddlepoint.defenses import Answer, Defense
from saddlepoint.evaluation import Adversary, Episode, Threat
from saddlepoint.papers.registry import Experiment, Request, Scale
from saddlepoint.papers.runner import Images, Runner
from saddlepoint.runs.work import torch_threads
from saddlepoint.training import Recipe


class ScaleSetting(Protocol):
    """What every paper's settings of a scale contain."""

    @property
    def batch(self) -> int:
        """Images per attacked batch."""

    @property
    def repeats(self) -> int:
        """Number of repeated measurements, each with its own seed."""

    @property
    def threads(self) -> int | None:
        """Threads of torch; None: torch's default, cached cells then depend on the machine."""


SettingT = TypeVar("SettingT", bound=ScaleSetting)


@dataclass(frozen=True)
class PaperExperiment(ABC, Generic[SettingT]):
    """Base class: what the experiments of all papers do in the same way.

    Trained networks and attack results are saved in the output folder of the request and are
    reused from there. Each paper derives one class that adds its models and attacks.
    """

    experiments: ClassVar[tuple[Experiment, ...]]  # the tables and figures of the paper

    request: Request
    setting: SettingT
    runner: Runner

    @classmethod
    @abstractmethod
    def settings(cls) -> Mapping[Scale, SettingT]:
        """Return the paper's settings for each scale."""

    @classmethod
    def open(cls, request: Request) -> Self:
        """Start an experiment with the settings of the requested scale."""
        setting = cls.settings()[request.scale]
        return cls(request, setting, Runner(request, setting.batch, setting.threads))

    @property
    def seeds(self) -> range:
        """One seed per repeat, starting with the seed of the request."""
        return range(self.request.seed, self.request.seed + self.setting.repeats)

    def entry(self, name: str) -> Experiment:
        """Return the paper's experiment of this name without the paper's prefix ("table-1")."""
        return next(one for one in self.experiments if one.name.partition("/")[2] == name)

    def training_images(self, data: str, n: int | None) -> Images:
        """Load the first `n` training images of a dataset on the CPU; None: all."""
        found = load_data(data, split="train", n=n, root=self.request.data)
        return Images(found.x, found.y)

    def test_images(self, data: str, n: int | None, device: torch.device) -> Images:
        """Load the first `n` test images of a dataset to a device; None: all."""
        found = load_data(data, split="test", n=n, root=self.request.data)
        return Images(found.x, found.y).to(device)

    def train(self, recipe: Recipe, images: Images, seed: int | None = None) -> nn.Module:
        """Train the network of a recipe, or resume or reuse its training from the output folder.

        Args:
            recipe: network, data and training method.
            images: training images.
            seed: seed of weights and training; default: the seed of the request.
        """
        with torch_threads(self.setting.threads):
            return self.runner.train(recipe, images, seed)

    def run_attacks(
        self,
        defense: Defense,
        adversaries: Sequence[Adversary],
        images: Images,
        *,
        threat: Threat | Ball,
        name: str,
        answers: Mapping[str, Answer] | None = None,
        seed: int | None = None,
        batch: int | None = None,
    ) -> list[Episode]:
        """Run each adversary against a defense, or reuse the cached result.

        Args:
            defense: the attacked defense.
            adversaries: the attacks.
            images: attacked images.
            threat: threat model, or only the allowed perturbations.
            name: name of the defense in progress messages and in the cache.
            answers: the answers that are scored, by name; None: the defense's own answer.
            seed: seed of the random keys; default: the seed of the request.
            batch: images per batch; default: the batch size of the setting.

        Returns:
            One episode per adversary.
        """
        runner = self.runner if batch is None else replace(self.runner, batch=batch)
        return runner.play(
            defense,
            adversaries,
            images,
            threat=threat,
            answers=answers,
            name=name,
            seed=self.request.seed if seed is None else seed,
        )


def device_of(net: nn.Module) -> torch.device:
    """Return the device of a network's parameters."""
    return next(net.parameters()).device


def count_weights(net: nn.Module) -> int:
    """Return the number of parameters of a network."""
    return sum(parameter.numel() for parameter in net.parameters())


def describe_net(title: str, net: nn.Module, data: str, space: Ball, *details: str) -> str:
    """Describe a network in one line for the notes of a result.

    Args:
        title: name of the network.
        net: the network.
        data: name of the dataset.
        space: allowed perturbations.
        details: further facts.

    Returns:
        For example `TRADES: mnist, 20490 weights, Linf(0.2); 8 epochs`.
    """
    return "; ".join((f"{title}: {data}, {count_weights(net)} weights, {space}", *details))
