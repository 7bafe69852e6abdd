"""Trains networks, runs attacks and audits with a cache on disk, and counts what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from saddlepoint.api import audit
from saddlepoint.attacks.spaces import Ball
from saddlepoint.audits.cells import Measurement
from saddlepoint.audits.planning.budget import Budget
from saddlepoint.audits.result import Audit
from saddlepoint.defenses import Answer, Defense
from saddlepoint.evaluation import Adversary, Episode, Threat
from saddlepoint.papers.fingerprint import CodeVersion, digest_of_margins, fingerprint
from saddlepoint.papers.provenance import versions
from saddlepoint.papers.registry import Experiment, Request
from saddlepoint.papers.result import HeatMap, Plot, Result, Table
from saddlepoint.papers.third_party import MODULES, ModelFolder
from saddlepoint.runs.cached_play import cached_play
from saddlepoint.runs.work import Work, torch_threads
from saddlepoint.training import Epoch, Recipe, fit, initial


class Images(NamedTuple):
    """Images with their labels."""

    x: Tensor  # [N, C, H, W] in [0, 1]
    y: Tensor  # [N]

    def first(self, count: int | None) -> Images:
        """Return the first `count` images; None: all."""
        return Images(self.x[:count], self.y[:count])

    def to(self, device: torch.device) -> Images:
        """Return the images on another device."""
        return Images(self.x.to(device), self.y.to(device))


@dataclass
class AttackCost:
    """The total cost of the attacks of an experiment, and the margins that they reached."""

    seconds: float = 0.0
    forward: float = 0.0  # forward passes of single images
    backward: float = 0.0  # backward passes of single images
    margins: list[float] = field(default_factory=list)  # mean margin at the points of each attack

    def add_episodes(self, episodes: Sequence[Episode]) -> None:
        """Add the cost of these attacks."""
        self.margins += [float(episode.margin.double().mean()) for episode in episodes]
        self.seconds += sum(episode.seconds for episode in episodes)
        self.forward += sum(float(episode.forward.sum()) for episode in episodes)
        self.backward += sum(float(episode.backward.sum()) for episode in episodes)

    def add_audit(self, audit: Audit) -> None:
        """Add the cost of all attacks of an audit."""
        self.margins.append(float(audit.examples.margin.double().mean()))
        self.seconds += sum(row.seconds for row in audit.rows)
        self.forward += audit.n * sum(row.forward for row in audit.rows)
        self.backward += audit.n * sum(row.backward for row in audit.rows)


@dataclass(frozen=True)
class Runner:
    """Runs training, attacks and audits of one request and reuses what the output folder has."""

    request: Request
    batch: int  # images per batch
    threads: int | None  # None: torch's default; cached cells then depend on the number of cores
    cost: AttackCost = field(default_factory=AttackCost)
    weights: dict[str, str] = field(default_factory=dict)  # SHA-256 by loaded third-party network

    def load_third_party(self, name: str, *, loader: str = MODULES, **changes: object) -> nn.Module:
        """Load a network that others trained; the result will name its weight file by SHA-256.

        Args:
            name: name of the network in the folder of models of the request.
            loader: the file of the folder that loads it.
            changes: further arguments of its loader.

        Raises:
            FileNotFoundError: if the folder does not contain the network.
        """
        assert self.request.models is not None, "only at scale real"
        folder = ModelFolder(self.request.models)
        net = folder.load(name, loader=loader, **changes)
        self.weights[name] = folder.sha256(name)
        return net

    def train(self, recipe: Recipe, images: Images, seed: int | None = None) -> nn.Module:
        """Train the network of a recipe, or resume its training from the output folder.

        Args:
            recipe: network, data and training method.
            images: training images.
            seed: seed of weights and training; default: the seed of the request.

        Returns:
            The trained network, on the GPU if there is one.
        """

        def report(epoch: Epoch) -> None:
            scores = f"dev {100 * epoch.clean:.1f} % clean, {100 * epoch.selected:.1f} % attacked"
            self.request.progress(
                f"training {recipe.name}: epoch {epoch.number} of {recipe.epochs}, {scores}"
            )

        out = self.request.out / "nets" / recipe.name.lower().replace(" ", "-")
        seed = self.request.seed if seed is None else seed
        net = initial(recipe, seed)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return fit(
            net, images.x, images.y, recipe, seed=seed, out=out, progress=report, device=device
        ).net

    def play(
        self,
        defense: Defense,
        adversaries: Sequence[Adversary],
        images: Images,
        *,
        threat: Threat | Ball,
        answers: Mapping[str, Answer] | None,
        name: str,
        seed: int,
    ) -> list[Episode]:
        """Run each adversary against a defense; results in the output folder are reused.

        Args:
            defense: the attacked defense.
            adversaries: the attacks.
            images: attacked images.
            threat: threat model, or only the allowed perturbations.
            answers: the answers that are scored, by name; None: the defense's own answer.
            name: name of the defense in progress messages and in the cache.
            seed: seed of the random keys.

        Returns:
            One episode per adversary.
        """
        play = cached_play(
            defense,
            images.x,
            images.y,
            threat=threat,
            answers=answers,
            out=self.request.out / "episodes",
            name=name,
            seed=seed,
            batch_size=self.batch,
            threads=self.threads,
            watch=_Progress(self.request, f"{name}, seed {seed}"),
        )
        episodes = play(adversaries)
        self.cost.add_episodes(episodes)
        return episodes

    def audit(
        self,
        defense: Defense,
        images: Images,
        *,
        threat: Threat,
        budget: Budget,
        name: str,
        workers: int | None = None,
    ) -> Audit:
        """Audit a defense without information about it; the audit is saved in its own folder.

        Args:
            defense: the audited defense.
            images: audited images.
            threat: threat model.
            budget: budget of the audit.
            name: name of the defense; the folder is named after it.
            workers: processes, on which no number depends; None: one per core, if they save time.

        Returns:
            The audit.
        """
        folder = "".join(letter if letter.isalnum() else "-" for letter in name.lower())
        self.request.progress(f"auditing {name}, {len(images.x)} images")
        with torch_threads(self.threads):
            result = audit(
                defense,
                images.x,
                images.y,
                threat=threat,
                budget=budget,
                seed=self.request.seed,
                batch_size=self.batch,
                name=name,
                allow_unusual=True,  # a table has weak defenses as well
                workers=workers,
                out=self.request.out / "audits" / folder,
                watch=_Progress(self.request, name),
            )
        self.cost.add_audit(result)
        return result

    def result(
        self,
        experiment: Experiment,
        tables: Sequence[Table],
        *,
        notes: Sequence[str],
        findings: Sequence[str],
        charts: Sequence[HeatMap | Plot],
        repeats: int,
        symptoms: Sequence[str] = (),
        not_run: str = "",
    ) -> Result:
        """Assemble the result of an experiment with request, cost and versions.

        Args:
            experiment: the reproduced table or figure.
            tables: the measured tables.
            notes: how the numbers were measured.
            findings: conclusions.
            charts: charts to draw.
            repeats: how often the measurement was repeated.
            symptoms: warnings about the numbers.
            not_run: why there are no tables, with the measured cost.
        """
        request = self.request
        folder = " --models FOLDER" if request.models else ""
        command = (
            f"saddlepoint reproduce {experiment.name} --scale {request.scale} "
            f"--seed {request.seed}{folder}"
        )
        return Result(
            experiment=experiment.name,
            title=experiment.title,
            reports=experiment.reports,
            scale=request.scale,
            seed=request.seed,
            repeats=repeats,
            command=command,
            tables=tuple(tables),
            notes=tuple(notes),
            findings=tuple(findings),
            seconds=self.cost.seconds,
            forward=self.cost.forward,
            backward=self.cost.backward,
            versions=versions(),
            charts=tuple(charts),
            symptoms=tuple(symptoms),
            code=CodeVersion(fingerprint(experiment.modules), digest_of_margins(self.cost.margins)),
            weights=dict(self.weights),
            not_run=not_run,
        )


@dataclass(frozen=True)
class _Progress:
    """Reports finished cells through the progress callback of the request."""

    request: Request
    title: str

    def begin(self, work: Work, missing: Sequence[tuple[int, int]]) -> None:
        if missing:
            self.request.progress(f"{self.title}: {len(missing)} of {len(work.keys)} cells to run")

    def cell(self, cell: tuple[int, int], episode: Episode) -> None:
        self.request.progress(
            f"{self.title}: {episode.adversary}, batch {cell[0] + 1}, {episode.seconds:.1f} s"
        )

    def measure(self, missing: Sequence[Measurement]) -> None:
        self.request.progress(f"{self.title}: {len(missing)} diagnostics to run")

    def measured(self, cell: Measurement) -> None:
        self.request.progress(f"{self.title}: {cell.name}")

    def say(self, message: str) -> None:
        self.request.progress(message)
