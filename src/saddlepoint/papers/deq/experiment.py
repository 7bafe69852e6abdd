"""The bench of all experiments: equilibrium networks that are trained once, their states, and episodes that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from saddlepoint.attacks.spaces import Ball
from saddlepoint.audits.statistics import wilson
from saddlepoint.data import load_data
from saddlepoint.defenses import Answer, Plain, view
from saddlepoint.evaluation import Adversary, Episode, FixedPoints
from saddlepoint.evaluation.bootstrap import Estimate, mean_of
from saddlepoint.papers.deq.gradients import Gradient, adjoint_at, ready_made, unrolled_at
from saddlepoint.papers.deq.nets import recipes
from saddlepoint.papers.deq.scales import SETTINGS, Setting
from saddlepoint.papers.deq.states import ended, label, residuals, unsettled
from saddlepoint.papers.registry import Experiment, Request
from saddlepoint.papers.result import Cell, Cloud, Heat, Result, Row, Table
from saddlepoint.papers.runner import Bench, Images
from saddlepoint.runs.work import torch_threads
from saddlepoint.training import split
from saddlepoint.zoo.deq import DEQ, EarlyState, FinalState, Solved

NOTES = (
    "points are the best visited by the attacked objective; the released code sends the last",
    "early state and intermediate attacks are chosen on held-out training images; the released code knows no such split",
    "every image is solved by itself; in the released code an image's answer depends on its batch",
    "adjoint: B_n^T moves u_n, Eq. 10 transposed, with beta = 0.9; the paper's beta is in an appendix that was not available",
    "residual: relative, ||f(z) - z|| / ||f(z)||, the median over the images",
)


@dataclass(frozen=True)
class Trained:
    """A trained network of any kind, images of the training set that may choose, and test images that only score."""

    name: str
    net: nn.Module
    space: Ball
    data: str
    dev: Images
    test: Images

    @property
    def weights(self) -> int:
        return sum(p.numel() for p in self.net.parameters())


@dataclass(frozen=True)
class Subject(Trained):
    """An equilibrium network."""

    net: Solved

    @property
    def steps(self) -> int:
        return self.net.method.steps

    @cached_property
    def defense(self) -> DEQ:
        return self.net.defense

    @property
    def title(self) -> str:
        """With the steps of its solvers, as the paper has it: exact-long (50/50); unrolled (8+6), of solver and unrolling."""
        backward = getattr(self.net.rule, "method", None)
        solver = (
            f"{self.steps}/{backward.steps}" if backward else f"{self.steps}+{self.net.after.steps}"
        )
        return f"{self.name} ({solver})"

    @property
    def answers(self) -> dict[str, Answer]:
        """Every state answers: the columns of the game."""
        return {name: view(name) for name in self.defense.names}

    def right(self, episode: Episode, name: str) -> Tensor:
        """[N] was the answer with this state right?"""
        return episode.correct[self.defense.names.index(name)].double().cpu()


@dataclass(frozen=True)
class States:
    """Every state of a network, clean and under the ready-made attack, on test images."""

    subject: Subject
    clean: Episode
    attacked: Episode
    residual: dict[str, Tensor]  # [N] on clean images, by state
    moved: dict[str, Tensor]  # [N] on attacked ones
    symptoms: tuple[str, ...]

    def far(self, name: str) -> Cell:
        """The residual of this state, which stands beside its accuracy."""
        return Cell((float(self.residual[name].median()),))

    def table(self, clean: Sequence[float] = (), robust: Sequence[float] = ()) -> Table:
        """A row per state; `clean` and `robust` are the paper's, of z_1, z_2, ..."""
        rows = []
        for k, name in enumerate(self.subject.defense.names):
            papers = [
                figures[k] if name.startswith("solve/") and k < len(figures) else None
                for figures in (clean, robust)
            ]
            accuracies = [
                accuracy(self.subject.right(e, name), paper)
                for e, paper in zip((self.clean, self.attacked), papers, strict=True)
            ]
            rows.append(
                Row(
                    (label(name),),
                    (*accuracies, self.far(name), Cell((float(self.moved[name].median()),))),
                )
            )
        columns = ("clean, %", "ready-made PGD-10, %", "residual, clean", "residual, attacked")
        title = f"{self.subject.title}, {self.subject.data}: every state"
        return Table(title, ("state",), columns, tuple(rows), len(self.subject.test.x), digits=3)

    def accumulation(self, early: EarlyState) -> str:
        """Does an intermediate state withstand the ready-made attack better than the final one? It was chosen on other images."""
        apart = mean_of(
            self.subject.right(self.attacked, early.name)
            - self.subject.right(self.attacked, FinalState.name)
        )
        verdict = (
            "robustness accumulates on the way" if apart.low > 0
            else "there is no robustness accumulation but its opposite" if apart.high < 0
            else "no robustness accumulation that these images could show"
        )  # fmt: skip
        return (
            f"{self.subject.title}: under the ready-made PGD-10 the state {label(early.name)} is {100 * apart.value:+.1f} points "
            f"({100 * apart.low:+.1f} to {100 * apart.high:+.1f}) from the final one: {verdict}."
        )


@dataclass(frozen=True)
class Lab:
    """Where an experiment works. What is found in the request's folder is not done again."""

    request: Request
    setting: Setting
    bench: Bench
    known: dict[str, Trained] = field(default_factory=dict)

    @classmethod
    def open(cls, request: Request) -> Lab:
        setting = SETTINGS[request.scale]
        return cls(request, setting, Bench(request, setting.batch, setting.threads))

    def subject(self, name: str) -> Subject:
        """The equilibrium network of that name, trained by its recipe, or as far as it was in the folder."""
        found = self.trained(name)
        assert isinstance(found, Subject), f"{name} solves nothing"
        return found

    def trained(self, name: str) -> Trained:
        if name not in self.known:
            self.known[name] = self._made(name)
        return self.known[name]

    def _made(self, name: str) -> Trained:
        recipe = recipes(self.request.scale)[name]
        setting = self.setting
        data = load_data(recipe.data, split="train", n=recipe.n)
        with torch_threads(setting.threads):
            net = self.bench.trained(recipe, Images(data.x, data.y))
        device = next(net.parameters()).device
        rows = split(len(data), recipe.dev_share, self.request.seed).dev[: setting.chosen_on]
        dev = Images(data.x[rows].to(device), data.y[rows].to(device))
        test = load_data(recipe.data, split="test", n=setting.scored)
        scored = Images(test.x.to(device), test.y.to(device))
        if isinstance(net, Solved):
            return Subject(name, net, recipe.space, recipe.data, dev, scored)
        return Trained(name, net, recipe.space, recipe.data, dev, scored)

    def swept(self, of: Trained) -> Images:
        """The test images that AutoAttack is sent to."""
        return Images(of.test.x[: self.setting.swept], of.test.y[: self.setting.swept])

    def play(self, of: Trained, adversaries: Sequence[Adversary], images: Images) -> list[Episode]:
        """Every adversary on these images, scored on every state."""
        defense, answers = (
            (of.defense, of.answers) if isinstance(of, Subject) else (Plain(of.net), None)
        )
        return self.bench.play(
            defense,
            adversaries,
            images,
            threat=of.space,
            answers=answers,
            name=of.name,
            seed=self.request.seed,
        )

    def states(self, subject: Subject) -> States:
        clean, attacked = self.play(
            subject, [FixedPoints(), ready_made(subject.net).pgd(self.setting.pgd)], subject.test
        )
        with torch_threads(self.setting.threads):
            kinds = {"clean": subject.test.x, "attacked": attacked.points.to(subject.test.x.device)}
            still, moved = (
                residuals(subject.defense, x, self.setting.batch) for x in kinds.values()
            )
            solved = {
                kind: ended(subject.defense, x, self.setting.batch) for kind, x in kinds.items()
            }
        return States(
            subject, clean, attacked, still, moved, tuple(unsettled(subject.title, solved))
        )

    def early(self, subject: Subject) -> EarlyState:
        """z_n with the highest accuracy under the ready-made attack on held-out images, the smallest n of several (Sec. 5.2)."""
        (episode,) = self.play(
            subject, [ready_made(subject.net).pgd(self.setting.pgd)], subject.dev
        )
        numbers = range(1, subject.steps + 1)
        return max(
            (EarlyState(n) for n in numbers),
            key=lambda state: float(subject.right(episode, state.name).mean()),
        )

    def candidates(self, subject: Subject) -> tuple[list[Gradient], list[Gradient]]:
        """Intermediate gradients: by the adjoint, and by unrolling."""
        numbers = range(1, min(self.setting.states, subject.steps) + 1)
        unrolled = [
            unrolled_at(n, steps, damping)
            for n in numbers
            for steps in self.setting.unrolled
            for damping in self.setting.dampings
        ]
        return [adjoint_at(n) for n in numbers], unrolled

    def strongest(
        self, subject: Subject, gradients: Sequence[Gradient], early: EarlyState
    ) -> Gradient:
        """The gradient that hurts the early state most on held-out images (Sec. 6.2)."""
        episodes = self.play(subject, [one.pgd(self.setting.pgd) for one in gradients], subject.dev)
        left = [float(subject.right(episode, early.name).mean()) for episode in episodes]
        return gradients[left.index(min(left))]

    def result(
        self,
        experiment: Experiment,
        tables: Sequence[Table],
        *,
        states: Sequence[States] = (),
        others: Sequence[Trained] = (),
        notes: Sequence[str] = (),
        findings: Sequence[str] = (),
        charts: Sequence[Heat | Cloud] = (),
    ) -> Result:
        return self.bench.result(
            experiment,
            tables,
            notes=(
                *map(_about, [*(one.subject for one in states), *others]),
                self.setting.budgets,
                *notes,
                *NOTES,
            ),
            findings=findings,
            charts=charts,
            repeats=1,
            symptoms=[symptom for one in states for symptom in one.symptoms],
        )


def accuracy(right: Tensor, paper: float | None = None) -> Cell:
    """[N] -> percent, with Wilson's interval over images."""
    share = float(right.mean())
    interval = wilson(share, len(right))
    return Cell((100 * share,), paper, (100 * interval.low, 100 * interval.high))


def percent(found: Estimate, paper: float | None = None) -> Cell:
    return Cell((100 * found.value,), paper, (100 * found.low, 100 * found.high))


def stacked(subject: Subject, episodes: Sequence[Episode], names: Sequence[str]) -> Tensor:
    """[A, D, N] who was right, by attack and by state."""
    return torch.stack(
        [torch.stack([subject.right(episode, name) for name in names]) for episode in episodes]
    )


def _about(one: Trained) -> str:
    title = one.title if isinstance(one, Subject) else one.name
    return f"{title}: {one.data}, {one.weights} weights, {one.space}; chosen on {len(one.dev.x)} held-out training images"
