"""What every experiment does in the same way: it trains networks once, keeps its episodes, counts their cost and reports."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import NamedTuple

import torch
from torch import Tensor, nn

from saddlepoint.attacks.spaces import Ball
from saddlepoint.audits.planning.suite import Budget
from saddlepoint.audits.result import Audit
from saddlepoint.defenses import Answer, Defense
from saddlepoint.evaluation import Adversary, Episode, Threat
from saddlepoint.papers.registry import Experiment, Request
from saddlepoint.papers.result import Cloud, Heat, Result, Table
from saddlepoint.runs.cached_play import kept
from saddlepoint.runs.runner import audit
from saddlepoint.runs.work import Work, torch_threads
from saddlepoint.training import Epoch, Recipe, fit, initial


class Images(NamedTuple):
    x: Tensor
    y: Tensor

    def first(self, count: int) -> Images:
        return Images(self.x[:count], self.y[:count])


@dataclass
class Tally:
    """What the attacks behind an experiment cost."""

    seconds: float = 0.0
    forward: float = 0.0
    backward: float = 0.0

    def add(self, episodes: Sequence[Episode]) -> None:
        self.seconds += sum(e.seconds for e in episodes)
        self.forward += sum(float(e.forward.sum()) for e in episodes)
        self.backward += sum(float(e.backward.sum()) for e in episodes)

    def include(self, audit: Audit) -> None:
        self.seconds += sum(row.seconds for row in audit.rows)
        self.forward += audit.n * sum(row.forward for row in audit.rows)
        self.backward += audit.n * sum(row.backward for row in audit.rows)


@dataclass(frozen=True)
class Bench:
    """Where an experiment works. What is found in the request's folder is not done again."""

    request: Request
    batch: int
    threads: (
        int | None
    )  # None: torch's own choice, and cells then belong to machines with as many cores
    tally: Tally = field(default_factory=Tally)

    def trained(self, recipe: Recipe, images: Images, seed: int | None = None) -> nn.Module:
        """The network of a recipe, or as far as it was trained in the folder, and on from there."""

        def tell(epoch: Epoch) -> None:
            scores = f"dev {100 * epoch.clean:.1f} % clean, {100 * epoch.selected:.1f} % attacked"
            self.request.say(
                f"training {recipe.name}: epoch {epoch.number} of {recipe.epochs}, {scores}"
            )

        out = self.request.out / "nets" / recipe.name.lower().replace(" ", "-")
        seed = self.request.seed if seed is None else seed
        net = initial(recipe, seed)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return fit(
            net, images.x, images.y, recipe, seed=seed, out=out, progress=tell, device=device
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
        """Every adversary on these images, against all answers; those that were played before are found again."""
        send = kept(
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
            watch=_Telling(self.request, f"{name}, seed {seed}"),
        )
        episodes = send(adversaries)
        self.tally.add(episodes)
        return episodes

    def audited(
        self, defense: Defense, images: Images, *, threat: Threat, budget: Budget, name: str
    ) -> Audit:
        """What an audit finds that is handed the defense and told nothing, kept in a folder of its own."""
        folder = "".join(letter if letter.isalnum() else "-" for letter in name.lower())
        self.request.say(f"auditing {name}, {len(images.x)} images")
        with torch_threads(self.threads):
            found = audit(
                defense, *images, threat=threat, budget=budget, seed=self.request.seed, batch_size=self.batch, name=name,
                out=self.request.out / "audits" / folder, watch=_Telling(self.request, name),
            )  # fmt: skip
        self.tally.include(found)
        return found

    def result(
        self,
        experiment: Experiment,
        tables: Sequence[Table],
        *,
        notes: Sequence[str],
        findings: Sequence[str],
        charts: Sequence[Heat | Cloud],
        repeats: int,
        symptoms: Sequence[str] = (),
    ) -> Result:
        request = self.request
        return Result(
            experiment=experiment.name,
            title=experiment.title,
            reports=experiment.reports,
            scale=request.scale,
            seed=request.seed,
            repeats=repeats,
            command=f"saddlepoint reproduce {experiment.name} --scale {request.scale} --seed {request.seed}",
            tables=tuple(tables),
            notes=tuple(notes),
            findings=tuple(findings),
            seconds=self.tally.seconds,
            forward=self.tally.forward,
            backward=self.tally.backward,
            versions={
                "saddlepoint": version("saddlepoint"),
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            charts=tuple(charts),
            symptoms=tuple(symptoms),
        )


@dataclass(frozen=True)
class _Telling:
    """Says which adversary has been played, as it goes."""

    request: Request
    title: str

    def begin(self, work: Work, missing: Sequence[tuple[int, int]]) -> None:
        if missing:
            self.request.say(f"{self.title}: {len(missing)} of {len(work.keys)} cells to play")

    def cell(self, cell: tuple[int, int], episode: Episode) -> None:
        self.request.say(
            f"{self.title}: {episode.adversary}, batch {cell[0] + 1}, {episode.seconds:.1f} s"
        )

    def say(self, message: str) -> None:
        self.request.say(message)
