"""The bench of all experiments: networks that are trained once, what attacks find on them, and episodes that are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Ball, per_example
from saddlepoint.data import load_data
from saddlepoint.defenses import Defense, Plain, view
from saddlepoint.evaluation import (
    Adversary,
    Cascade,
    Direct,
    Episode,
    FixedPoints,
    MaxLossPoint,
    Threat,
    autoattack,
)
from saddlepoint.evaluation.bootstrap import mean_of
from saddlepoint.papers.registry import Experiment, Request
from saddlepoint.papers.result import Cell, Cloud, Result, Table
from saddlepoint.papers.runner import Bench, Images
from saddlepoint.papers.transductive.nets import recipes
from saddlepoint.papers.transductive.scales import SETTINGS, Setting
from saddlepoint.rng import Keys
from saddlepoint.runs.work import torch_threads
from saddlepoint.training import Recipe
from saddlepoint.training.loop import permutation

MOVED = "AA, all moved"
HANDED = ("AA", MOVED, "PGD")
NOTES = (
    "AA: points of AutoAttack on the static network, and the clean image where it does not succeed, as its own code returns them; "
    f"{MOVED}: its strongest point there too",
    "attackers see no state of the defender (leaking=False) and none of its coins; they rehearse with their own",
    "of FPA's and GMSA's rounds the one is sent that the rehearsed defender answers worst; the released code may send clean images",
)


@dataclass(frozen=True)
class Base:
    """A trained static network, and what attacks on it find on some test images."""

    name: str
    net: nn.Module
    images: Images
    space: Ball
    clean: Episode
    auto: Episode
    pgd: Episode

    @property
    def handed(self) -> dict[str, FixedPoints]:
        """The points found here, for a defense that stands on this network."""
        wrong = self.auto.correct[0].to(self.images.x.device) == 0
        stock = torch.where(per_example(wrong, self.images.x), self.auto.points, self.images.x)
        return {
            name: FixedPoints(name, points)
            for name, points in zip(HANDED, (stock, self.auto.points, self.pgd.points), strict=True)
        }


@dataclass(frozen=True)
class Lab:
    """Where an experiment works. What is found in the request's folder is not done again."""

    request: Request
    setting: Setting
    bench: Bench
    known: dict[str, nn.Module] = field(default_factory=dict)

    @classmethod
    def open(cls, request: Request) -> Lab:
        setting = SETTINGS[request.scale]
        return cls(request, setting, Bench(request, 128, setting.threads))

    @property
    def seeds(self) -> range:
        """One per repeat."""
        return range(self.request.seed, self.request.seed + self.setting.repeats)

    def recipe(self, name: str) -> Recipe:
        return recipes(self.request.scale)[name]

    def net(self, name: str, number: int | None = None) -> nn.Module:
        """The network of a recipe; with a number, one of several that differ by nothing but their coins."""
        recipe = self.recipe(name)
        key = name if number is None else f"{name} {number}"
        if key not in self.known:
            seed = (
                self.request.seed
                if number is None
                else 1000 * self.request.seed + 100 * (number + 1)
            )  # 100 (i + 1): the authors'
            with torch_threads(self.setting.threads):
                self.known[key] = self.bench.trained(
                    replace(recipe, name=key), self.training(recipe.data, recipe.n), seed
                )
        return self.known[key]

    def training(self, data: str, n: int | None) -> Images:
        found = load_data(data, split="train", n=n)
        return Images(found.x, found.y)

    def drawn(self, data: str, n: int, seed: int) -> Images:
        """A sequence of n test images, drawn by the seed."""
        found = load_data(data, split="test")
        rows = permutation(Keys.of(seed, torch.arange(len(found))))[:n]
        return Images(found.x[rows], found.y[rows])

    def base(self, name: str, images: Images, pgd: Adversary, number: int | None = None) -> Base:
        """The network with what AutoAttack and this attack find on it."""
        net = self.net(name, number)
        space = self.recipe(name).space
        budget = self.setting.auto
        auto = Cascade(
            "autoattack",
            autoattack(steps=budget.steps, targets=budget.targets, queries=budget.queries),
        )
        return Base(
            name, net, images, space, *self.on(net, [FixedPoints(), auto, pgd], images, space, name)
        )

    def on(
        self,
        net: nn.Module,
        adversaries: Sequence[Adversary],
        images: Images,
        space: Ball,
        name: str,
    ) -> list[Episode]:
        """Adversaries against a static network. Its answer is a column: images that it gets wrong are attacked too."""
        return self.bench.play(
            Plain(net),
            adversaries,
            images,
            threat=space,
            answers={"final": view("final")},
            name=name,
            seed=self.request.seed,
        )

    def against(
        self,
        defense: Defense,
        sent: Mapping[str, Adversary],
        images: Images,
        threat: Threat,
        *,
        batch: int,
        seed: int | None = None,
    ) -> dict[str, Episode]:
        """The adversaries of the columns of these names, against a defense that learns."""
        seed = self.request.seed if seed is None else seed
        bench = replace(self.bench, batch=batch)
        name = f"{type(defense).__name__} on {len(images.x)} images"
        episodes = bench.play(
            defense, list(sent.values()), images, threat=threat, answers=None, name=name, seed=seed
        )
        return dict(zip(sent, episodes, strict=True))

    def result(
        self,
        experiment: Experiment,
        tables: Sequence[Table],
        *,
        notes: Sequence[str],
        findings: Sequence[str],
        charts: Sequence[Cloud] = (),
        repeats: int = 1,
    ) -> Result:
        return self.bench.result(
            experiment, tables, notes=(*notes, f"on static networks {self.setting.auto}", *NOTES), findings=findings, charts=charts,
            repeats=repeats,
        )  # fmt: skip


def right(episode: Episode) -> Tensor:
    """[N] was the answer right?"""
    return episode.correct[0].double().cpu()


def accuracy(episodes: Sequence[Episode], paper: float | None = None) -> Cell:
    """Percent, a value per repeat."""
    return Cell(tuple(100 * float(right(episode).mean()) for episode in episodes), paper)


def apart(over: Episode | Tensor, under: Episode | Tensor) -> str:
    """By how many points one accuracy lies above another on the same images, and where that would lie on others."""
    first, second = (one if isinstance(one, Tensor) else right(one) for one in (over, under))
    found = mean_of(first - second)
    return f"{100 * found.value:+.1f} points ({100 * found.low:+.1f} to {100 * found.high:+.1f})"


def climbing(pgd: PGD) -> MaxLossPoint:
    """PGD on the cross-entropy, whose highest points are sent: they are scored on other networks than the attacked one."""
    return MaxLossPoint(Direct("pgd", pgd, cross_entropy))


def about(name: str, net: nn.Module, space: Ball, recipe: Recipe) -> str:
    weights = sum(p.numel() for p in net.parameters())
    return f"{name}: {recipe.data}, {weights} weights, {space}"
