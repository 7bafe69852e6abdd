"""The bench of all experiments: networks that are trained once, images of two kinds, and episodes that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Ball
from saddlepoint.data import load_data
from saddlepoint.defenses import (
    Answer,
    Confident,
    Context,
    LowEntropy,
    MultiExit,
    Strategy,
    Subset,
    Trace,
    all_subsets,
    mean_logits,
)
from saddlepoint.defenses.gates import exit_logits
from saddlepoint.evaluation import Adversary, Episode
from saddlepoint.games.aimer import distribution
from saddlepoint.games.exit_attacks import Craft, Drawn, max_average
from saddlepoint.games.exit_game import ExitGame, columns_of, exit_game
from saddlepoint.papers.multi_exit import EXPERIMENTS
from saddlepoint.papers.multi_exit.nets import Listed, recipes
from saddlepoint.papers.multi_exit.scales import SETTINGS, Rows, Setting
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cloud, Heat, Result, Table
from saddlepoint.papers.runner import Bench, Images
from saddlepoint.runs.work import torch_threads
from saddlepoint.training import split
from saddlepoint.zoo.records import WEIGHTS, entry, load, names


@dataclass(frozen=True)
class Subject:
    """A trained network, images that may build its game, and test images that only score.

    The first are those of the training set that were held out to choose the epoch; thresholds of gates come from them too.
    """

    name: str
    base: MultiExit
    exits: int
    space: Ball
    data: str
    game: Images
    test: Images
    gates: dict[str, Strategy]

    @property
    def subsets(self) -> tuple[Subset, ...]:
        return all_subsets(self.exits)

    @property
    def everything(self) -> Subset:
        return tuple(range(1, self.exits + 1))

    @property
    def answers(self) -> dict[str, Answer]:
        """Columns that are scored: every set of exits, then the gates."""
        return {
            **columns_of(self.subsets),
            **{name: _gated(gate) for name, gate in self.gates.items()},
        }


@dataclass(frozen=True)
class Defender:
    """A way to answer: weights over the scored columns, and what the attacker takes for its strategy."""

    weights: Tensor  # [D + gates]
    known: Tensor  # [D] over sets of exits; of a gate, how often each exit answers under the average attack (Sec. 3.3)

    def right(self, episode: Episode) -> Tensor:
        """[N] how probable a right answer is, exact over the defender's draw."""
        return self.weights[: len(episode.correct)] @ episode.correct.double()


@dataclass(frozen=True)
class Lab:
    """Where an experiment works. What is found in the request's folder is not done again."""

    request: Request
    setting: Setting
    bench: Bench

    @classmethod
    def open(cls, request: Request) -> Lab:
        setting = SETTINGS[request.scale]
        return cls(request, setting, Bench(request, setting.batch, setting.threads))

    @property
    def seeds(self) -> range:
        """One per repeat."""
        return range(self.request.seed, self.request.seed + self.setting.repeats)

    def subject(self, name: str) -> Subject:
        """The network of that name: the zoo's if it holds it, else trained by its recipe, or as far as it was, in the folder."""
        recipe = recipes(self.request.scale)[name]
        setting = self.setting
        data = load_data(recipe.data, split="train", n=recipe.n)
        place = next(
            (
                place
                for place in (self.request.out / "nets", WEIGHTS)
                if recipe.name in names(place)
            ),
            None,
        )
        with torch_threads(setting.threads):
            net = (
                self.bench.trained(recipe, Images(data.x, data.y))
                if place is None
                else load(recipe.name, place)
            )
        seed = self.request.seed if place is None else entry(recipe.name, place).seed
        dev = split(len(data), recipe.dev_share, seed).dev
        test = load_data(recipe.data, split="test", n=setting.scored)
        device = next(net.parameters()).device
        held = Images(data.x[dev].to(device), data.y[dev].to(device))
        base = MultiExit(net if isinstance(net(held.x[:1]), list) else Listed(net))
        logits = exit_logits(base, held.x)
        gates: dict[str, Strategy] = {
            "entropy": LowEntropy.calibrated(logits),
            "confidence": Confident.calibrated(logits),
        }
        return Subject(
            name=name,
            base=base,
            exits=len(logits),
            space=recipe.space,
            data=recipe.data,
            game=held.first(setting.played),
            test=Images(test.x.to(device), test.y.to(device)),
            gates=gates,
        )

    def play(
        self,
        subject: Subject,
        adversaries: Sequence[Adversary],
        images: Images,
        *,
        seed: int,
        answers: dict[str, Answer] | None = None,
    ) -> list[Episode]:
        """Every adversary on these images, against all scored columns; those that were played before are found again."""
        return self.bench.play(
            subject.base,
            adversaries,
            images,
            threat=subject.space,
            answers=answers or subject.answers,
            name=subject.name,
            seed=seed,
        )

    def game(
        self,
        subject: Subject,
        images: Images | None = None,
        *,
        attack: PGD | None = None,
        double_oracle: bool = False,
    ) -> ExitGame:
        """The exit game on the images held out for it, or on others."""
        x, y = images or subject.game
        attack = attack or self.setting.payoff
        return exit_game(
            subject.base,
            x,
            y,
            threat=subject.space,
            attack=attack,
            craft=Rows(attack),
            rows="double-oracle" if double_oracle else "all",
            send=lambda sent: self.play(
                subject,
                sent,
                Images(x, y),
                seed=self.request.seed,
                answers=columns_of(subject.subsets),
            ),
        )

    def defender(
        self, subject: Subject, game: ExitGame, strategy: Tensor | Subset | str
    ) -> Defender:
        """A mix of the game's columns, one set of exits, or a gate by its name."""
        none = torch.zeros(len(subject.gates), dtype=torch.float64)
        if isinstance(strategy, str):
            weights = torch.cat([torch.zeros(len(subject.subsets), dtype=torch.float64), none])
            place = len(subject.subsets) + list(subject.gates).index(strategy)
            return Defender(
                weights.index_fill(0, torch.tensor([place]), 1.0),
                distribution(game, subject.base, subject.gates[strategy]),
            )
        known = game.one_hot(strategy) if isinstance(strategy, tuple) else strategy
        return Defender(torch.cat([known, none]), known)

    def swept(self, subject: Subject) -> Images:
        """The test images that are attacked in six ways."""
        return subject.test.first(self.setting.swept)

    def few(self, subject: Subject) -> Subject:
        """The subject with fewer images, for attacks that are many."""
        return replace(
            subject, game=subject.game.first(self.setting.swept), test=self.swept(subject)
        )

    def result(
        self,
        name: str,
        tables: Sequence[Table],
        *,
        subjects: Sequence[Subject],
        notes: Sequence[str] = (),
        findings: Sequence[str] = (),
        charts: Sequence[Heat | Cloud] = (),
        repeats: int | None = None,  # where nothing was repeated: 1
    ) -> Result:
        experiment = next(one for one in EXPERIMENTS if one.name == f"multi-exit/{name}")
        return self.bench.result(
            experiment,
            tables,
            notes=(*(self._about(subject) for subject in subjects), *notes),
            findings=findings,
            charts=charts,
            repeats=repeats or self.setting.repeats,
        )

    def _about(self, subject: Subject) -> str:
        weights = sum(p.numel() for p in subject.base.net.parameters())
        return (
            f"{subject.name}: {subject.data}, {subject.exits} exits, {weights} weights, {subject.space}; game on "
            f"{len(subject.game.x)} held-out training images with PGD-{self.setting.payoff.steps}"
        )


def attackers(
    subject: Subject, game: ExitGame, defender: Defender, craft: Craft
) -> dict[str, Adversary]:
    """The four evaluations of Table 1, by the paper's names."""
    return {
        "Single attack": craft((subject.exits,)),
        "Average attack": craft(subject.everything),
        "Max-average attack": max_average(craft, subject.exits),
        "AIMER": aimed(game, defender.known, craft),
    }


def aimed(game: ExitGame, known: Tensor, craft: Craft) -> Adversary:
    """AIMER: the partial attack on the exits of the game's best response, drawn for every example where several tie (Eq. 6-7)."""
    response = game.best_response(known).tolist()
    tied = [
        (target, p)
        for target, p in zip(game.targets, response, strict=True)
        if p > 0 and target is not None
    ]
    if len(tied) == 1:
        return craft(tied[0][0])
    return Drawn("aimer", tuple(craft(target) for target, _ in tied), tuple(p for _, p in tied))


def _gated(strategy: Strategy) -> Answer:
    def answer(trace: Trace) -> Tensor:
        logits = trace.logits
        return mean_logits(logits, strategy.pick(logits, Context.seeded(0, logits.shape[1])))

    return answer
