"""The bench of all experiments: static nets that are trained once, defenses on them, and episodes that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from saddlepoint.attacks.spaces import Ball
from saddlepoint.audits.result import Audit
from saddlepoint.data import load_data
from saddlepoint.defenses import Defense, Plain
from saddlepoint.evaluation import Adversary, Episode, Threat
from saddlepoint.evaluation.bootstrap import mean_of
from saddlepoint.evaluation.outcomes import Outcomes
from saddlepoint.papers.adaptive import EXPERIMENTS
from saddlepoint.papers.adaptive.attacks import static
from saddlepoint.papers.adaptive.defenses import DEFENSES, FITS, Base
from saddlepoint.papers.adaptive.nets import recipes
from saddlepoint.papers.adaptive.scales import SETTINGS, Setting
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Table
from saddlepoint.papers.runner import Bench, Images
from saddlepoint.runs.work import torch_threads

NOTES = (
    "lengths inside defenses are those of the paper in radii of the attacker's set; the anti-adversary's step is 0.15 as there",
    "static nets and auxiliary networks are trained here; the paper took the released ones where there were any",
)
FLOW = "SODEF is integrated by Runge-Kutta in 20 equal steps, row by row, where the released solver couples its batch"


@dataclass(frozen=True)
class Subject:
    """A defense, the net under it, and the test images on which both are attacked."""

    name: str
    base: str  # the recipe of the static net
    data: str
    defense: Defense
    space: Ball
    test: Images
    draws: int  # answers by which it is judged, if it is random
    batch: int

    @property
    def static(self) -> Plain:
        return static(self.defense)

    @property
    def threat(self) -> Threat:
        return Threat(self.space, draws=self.draws if self.defense.random else 1)

    def worst(self, episodes: Sequence[Episode]) -> Tensor:
        """[N] under an attacker who sends each unit the strongest of these."""
        return (
            Outcomes.of(list(episodes), ("final",), self.defense.unit)
            .worst_case_per_example()[0]
            .double()
            .cpu()
        )


@dataclass(frozen=True)
class Lab:
    """Where an experiment works. Networks and episodes that the request's folder holds are not made again; defenses are fitted."""

    request: Request
    setting: Setting
    bench: Bench
    bases: dict[str, Base] = field(default_factory=dict)

    @classmethod
    def open(cls, request: Request) -> Lab:
        setting = SETTINGS[request.scale]
        return cls(request, setting, Bench(request, setting.batch, setting.threads))

    def base(self, name: str) -> Base:
        """The static net of a recipe, with the images that defenses on it are fitted on."""
        if name not in self.bases:
            recipe = recipes(self.request.scale)[name]
            fit = FITS[self.request.scale]
            data = load_data(recipe.data, split="train", n=recipe.n)
            with torch_threads(self.setting.threads):
                net = self.bench.trained(recipe, Images(data.x, data.y))
            device = next(net.parameters()).device
            train = Images(data.x[: fit.images].to(device), data.y[: fit.images].to(device))
            self.bases[name] = Base(net, train, recipe.space, self.request.seed, recipe.data)
        return self.bases[name]

    def subject(self, name: str, base: str | None = None, *, scored: int | None = None) -> Subject:
        """The defense of that name on its usual net, or on another one, fitted; asked about so many images, or the usual number."""
        built = DEFENSES[name]
        setting = self.setting
        recipe = recipes(self.request.scale)[base or built.base]
        under = self.base(recipe.name)
        self.request.say(f"fitting {name} on {recipe.name}, {recipe.data}")
        with torch_threads(setting.threads):
            defense = built.make(under, FITS[self.request.scale])
        test = load_data(recipe.data, split="test", n=scored or setting.scored)
        device = under.train.x.device
        images = Images(test.x.to(device), test.y.to(device))
        batch = setting.steered if name == "ClosedLoopControl" else setting.batch
        return Subject(
            name, recipe.name, recipe.data, defense, recipe.space, images, setting.draws, batch
        )

    def play(
        self,
        subject: Subject,
        adversaries: Sequence[Adversary],
        *,
        threat: Threat | None = None,
        seed: int = 0,
    ) -> list[Episode]:
        """Every adversary against the defense."""
        return self._play(subject, subject.defense, adversaries, threat or subject.threat, seed)

    def play_static(
        self, subject: Subject, adversaries: Sequence[Adversary], *, space: Ball | None = None
    ) -> list[Episode]:
        """Every adversary against the net under it."""
        return self._play(subject, subject.static, adversaries, Threat(space or subject.space), 0)

    def audited(self, subject: Subject) -> Audit | None:
        """What an audit finds that is told nothing; None of a defense for which the scale has no time."""
        if subject.name not in self.setting.audited:
            return None
        bench = replace(self.bench, batch=subject.batch)
        name = f"{subject.name} on {subject.data}"
        return bench.audited(
            subject.defense,
            subject.test,
            threat=subject.threat,
            budget=self.setting.suite,
            name=name,
        )

    def _play(
        self,
        subject: Subject,
        defense: Defense,
        adversaries: Sequence[Adversary],
        threat: Threat,
        more: int,
    ) -> list[Episode]:
        bench = replace(self.bench, batch=subject.batch)
        seed = self.request.seed + more
        kind = "static net of " if defense is not subject.defense else ""
        return bench.play(
            defense,
            adversaries,
            subject.test,
            threat=threat,
            answers=None,
            name=f"{kind}{subject.name}, {subject.base}",
            seed=seed,
        )

    def result(
        self,
        name: str,
        tables: Sequence[Table],
        *,
        subjects: Sequence[Subject],
        notes: Sequence[str] = (),
        findings: Sequence[str] = (),
        repeats: int = 1,
    ) -> Result:
        experiment = next(one for one in EXPERIMENTS if one.name == f"adaptive/{name}")
        about = dict.fromkeys(self._about(subject) for subject in subjects)
        return self.bench.result(
            experiment,
            tables,
            notes=(*about, str(self.setting.spend), *notes, *NOTES),
            findings=findings,
            charts=(),
            repeats=repeats,
        )

    def _about(self, subject: Subject) -> str:
        recipe = recipes(self.request.scale)[subject.base]
        weights = sum(p.numel() for p in subject.static.net.parameters())
        count = "all" if recipe.n is None else f"the first {recipe.n}"
        return (
            f"{subject.base}: {subject.data}, {weights} weights, {recipe.epochs} epochs on {count} training images, of which a "
            f"share of {recipe.dev_share:.2g} chooses the epoch; {subject.space}"
        )


def right(episode: Episode) -> Tensor:
    """[N] how often the answer was right."""
    return episode.correct[0].double().cpu()


def apart(one: Tensor, other: Tensor, paper: float | None = None) -> Cell:
    """Points between two accuracies on the same images, with the interval of their difference."""
    found = mean_of(one - other)
    return Cell((100 * found.value,), paper, (100 * found.low, 100 * found.high))
