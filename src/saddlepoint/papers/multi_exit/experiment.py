"""What the experiments of this paper share: multi-exit networks, their games, and attacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Ball
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
    intervals,
    mean_logits,
)
from saddlepoint.defenses.gates import exit_logits
from saddlepoint.evaluation import Adversary, Episode, FixedPoints
from saddlepoint.games.exit_adversaries import Drawn
from saddlepoint.games.exit_attacks import ExitAttack, max_average
from saddlepoint.games.exit_game import columns_of, exit_game
from saddlepoint.games.payoffs import ExitGame
from saddlepoint.games.strategies import distribution
from saddlepoint.papers.budgets import counted
from saddlepoint.papers.cells import repeated_accuracy_cell
from saddlepoint.papers.experiment import PaperExperiment, describe_net, device_of
from saddlepoint.papers.few_images import few_images_caveats
from saddlepoint.papers.multi_exit import EXPERIMENTS
from saddlepoint.papers.multi_exit.nets import SingleExitWrapper, recipes
from saddlepoint.papers.multi_exit.scales import SETTINGS, EoTPGD, MultiExitSetting, PartialPGD
from saddlepoint.papers.registry import Experiment, Scale
from saddlepoint.papers.result import Cell, HeatMap, Plot, Result, Table
from saddlepoint.papers.runner import Images
from saddlepoint.runs.work import torch_threads
from saddlepoint.training import Recipe, split
from saddlepoint.zoo.records import WEIGHTS, entry, load, names


@dataclass(frozen=True)
class MultiExitSubject:
    """A trained multi-exit network with its images and gates.

    The images of the game are training images that were held out to select the epoch. The
    thresholds of the gates are calibrated on such images as well.
    """

    name: str
    base: MultiExit
    exits: int  # number of exits
    space: Ball  # allowed perturbations
    data: str  # name of the dataset
    game: Images  # for the payoff matrix
    test: Images  # used only for the reported accuracies
    gates: dict[str, Strategy]  # dynamic inference strategies by name
    game_kind: str = "held-out training images"  # what the images of the game are

    @property
    def subsets(self) -> tuple[Subset, ...]:
        """All sets of exits: the actions of the game."""
        return all_subsets(self.exits)

    @property
    def everything(self) -> Subset:
        """The set of all exits."""
        return tuple(range(1, self.exits + 1))

    @property
    def answers(self) -> dict[str, Answer]:
        """The scored answers: every set of exits, then the gates."""
        return {
            **columns_of(self.subsets),
            **{name: _gate_answer(gate) for name, gate in self.gates.items()},
        }


@dataclass(frozen=True)
class Defender:
    """An inference strategy and what the attacker knows about it."""

    weights: Tensor  # [D + gates] probabilities over the scored answers
    # [D] probabilities over sets of exits that the attacker assumes. For a gate: how often each
    # exit is used under the average attack (Sec. 3.3).
    known: Tensor

    def correct(self, episode: Episode) -> Tensor:
        """Return the probability [N] of a correct answer, exact over the defender's draw."""
        return self.weights[: len(episode.correct)] @ episode.correct.double()


@dataclass(frozen=True)
class MultiExitExperiment(PaperExperiment[MultiExitSetting]):
    """Experiments with multi-exit networks."""

    experiments: ClassVar[tuple[Experiment, ...]] = EXPERIMENTS

    @classmethod
    def settings(cls) -> Mapping[Scale, MultiExitSetting]:
        """Return the settings for each scale."""
        return SETTINGS

    def subject(self, name: str) -> MultiExitSubject:
        """Return the network of this name with its images and calibrated gates.

        The weights are those in the output folder or those shipped with the library; without such
        weights the network is trained.
        """
        recipe = recipes(self.request.scale)[name]
        images = self.training_images(recipe.data, recipe.n)
        net, seed = self._network(recipe, images)
        rows = split(len(images.x), recipe.dev_share, seed).dev
        held_out = Images(images.x[rows], images.y[rows]).to(device_of(net))
        base = MultiExit(net if isinstance(net(held_out.x[:1]), list) else SingleExitWrapper(net))
        logits = exit_logits(base, held_out.x)
        gates: dict[str, Strategy] = {
            "entropy": LowEntropy.calibrated(logits),
            "confidence": Confident.calibrated(logits),
        }
        return MultiExitSubject(
            name=name,
            base=base,
            exits=len(logits),
            space=recipe.space,
            data=recipe.data,
            game=held_out.first(self.setting.game_images),
            test=self.test_images(recipe.data, self.setting.test_images, device_of(net)),
            gates=gates,
        )

    def _network(self, recipe: Recipe, images: Images) -> tuple[nn.Module, int]:
        """Load or train a network; return it with the seed of its training."""
        for folder in (self.request.out / "nets", WEIGHTS):
            if recipe.name in names(folder):
                with torch_threads(self.setting.threads):
                    return load(recipe.name, folder), entry(recipe.name, folder).seed
        return self.train(recipe, images), self.request.seed

    def play(
        self,
        subject: MultiExitSubject,
        adversaries: Sequence[Adversary],
        images: Images,
        *,
        seed: int,
        answers: dict[str, Answer] | None = None,
    ) -> list[Episode]:
        """Run each adversary on these images and score all answers.

        Args:
            subject: the attacked network.
            adversaries: the attacks.
            images: attacked images.
            seed: seed of the random keys.
            answers: the scored answers; default: those of the subject.
        """
        return self.run_attacks(
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
        subject: MultiExitSubject,
        images: Images | None = None,
        *,
        attack: PGD | None = None,
        double_oracle: bool = False,
    ) -> ExitGame:
        """Compute the exit game.

        Args:
            subject: the network.
            images: images of the payoff matrix; default: the held-out images of the subject.
            attack: attack of the rows; default: that of the setting.
            double_oracle: compute only the rows that the double-oracle method needs.

        Where the setting has only rows that attack neighboring exits, every set of exits is still a
        column.
        """
        x, y = images or subject.game
        attack = attack or self.setting.payoff

        def play(adversaries: Sequence[Adversary]) -> list[Episode]:
            answers = columns_of(subject.subsets)
            seed = self.request.seed
            return self.play(subject, adversaries, Images(x, y), seed=seed, answers=answers)

        if self.setting.rows == "intervals":
            rows = intervals(subject.exits)
            clean, *episodes = play([FixedPoints(), *map(PartialPGD(attack), rows)])
            return ExitGame.of(subject.subsets, rows, episodes, subject.exits, clean)
        return exit_game(
            subject.base,
            x,
            y,
            threat=subject.space,
            attack=attack,
            exit_attack=PartialPGD(attack),
            rows="double-oracle" if double_oracle else "all",
            run_adversaries=play,
        )

    def defender(
        self, subject: MultiExitSubject, game: ExitGame, strategy: Tensor | Subset | str
    ) -> Defender:
        """Make a defender.

        Args:
            subject: the network.
            game: its exit game.
            strategy: probabilities over the game's columns [D], one set of exits, or the name of
                a gate.
        """
        no_gate = torch.zeros(len(subject.gates), dtype=torch.float64)
        if isinstance(strategy, str):
            no_subset = torch.zeros(len(subject.subsets), dtype=torch.float64)
            index = len(subject.subsets) + list(subject.gates).index(strategy)
            weights = torch.cat([no_subset, no_gate]).index_fill(0, torch.tensor([index]), 1.0)
            return Defender(weights, distribution(game, subject.base, subject.gates[strategy]))
        known = game.one_hot(strategy) if isinstance(strategy, tuple) else strategy
        return Defender(torch.cat([known, no_gate]), known)

    def accuracies(
        self,
        subject: MultiExitSubject,
        defender: Defender,
        adversaries: Sequence[Adversary],
        images: Images,
        papers: Sequence[float | None] | None = None,
    ) -> list[Cell]:
        """Run adversaries once per repeat; one cell of the defender's accuracy per adversary.

        Args:
            subject: the network.
            defender: the attacked inference strategy.
            adversaries: the attacks.
            images: attacked images.
            papers: the paper's number for each adversary; default: none.
        """
        repeats = [self.play(subject, adversaries, images, seed=seed) for seed in self.seeds]
        return [
            repeated_accuracy_cell([defender.correct(repeat[k]) for repeat in repeats], paper)
            for k, paper in enumerate(papers or [None] * len(adversaries))
        ]

    def reduced_images(self, subject: MultiExitSubject) -> Images:
        """Return the test images on which all six attacks are run."""
        return subject.test.first(self.setting.reduced_images)

    def reduced_subject(self, subject: MultiExitSubject) -> MultiExitSubject:
        """Return the subject with fewer images, for experiments with many attacks."""
        return replace(
            subject,
            game=subject.game.first(self.setting.reduced_images),
            test=self.reduced_images(subject),
        )

    def result(
        self,
        name: str,
        tables: Sequence[Table],
        *,
        subjects: Sequence[MultiExitSubject],
        notes: Sequence[str] = (),
        findings: Sequence[str] = (),
        charts: Sequence[HeatMap | Plot] = (),
        repeats: int | None = None,
        symptoms: Sequence[str] = (),
    ) -> Result:
        """Assemble the result of one experiment.

        Findings from few images begin with caveats.

        Args:
            name: name of the experiment without the paper, for example "table-1".
            tables: the measured tables.
            subjects: the attacked networks, described in the notes.
            notes: further notes.
            findings: conclusions.
            charts: charts to draw.
            repeats: number of repeated measurements; default: that of the setting.
            symptoms: warnings about the numbers.
        """
        return self.runner.result(
            self.entry(name),
            tables,
            notes=(*(self._describe(subject) for subject in subjects), *notes),
            findings=(*few_images_caveats(tables), *findings) if findings else (),
            charts=charts,
            repeats=repeats or self.setting.repeats,
            symptoms=symptoms,
        )

    def _describe(self, subject: MultiExitSubject) -> str:
        return describe_net(
            subject.name,
            subject.base.net,
            subject.data,
            subject.space,
            counted(subject.exits, "exit"),
            f"game on {len(subject.game.x)} {subject.game_kind} with "
            f"PGD-{self.setting.payoff.steps}",
        )


def attackers(
    subject: MultiExitSubject, game: ExitGame, defender: Defender, exit_attack: ExitAttack
) -> dict[str, Adversary]:
    """Return the four evaluations of Table 1 by the paper's names.

    Args:
        subject: the attacked network.
        game: its exit game.
        defender: the attacked inference strategy.
        exit_attack: makes a partial attack on a set of exits.
    """
    return {
        "Single attack": exit_attack((subject.exits,)),
        "Average attack": exit_attack(subject.everything),
        "Max-average attack": max_average(exit_attack, subject.exits),
        "AIMER": aimer_attack(game, defender.known, exit_attack),
    }


def aimer_attack(game: ExitGame, known: Tensor, exit_attack: ExitAttack) -> Adversary:
    """Return AIMER: the partial attack on the exits of the game's best response (Eq. 6-7).

    If several best responses tie, one is drawn for each example. EoT-PGD needs no best response: it
    attacks the expected loss of the strategy itself.

    Args:
        game: the exit game.
        known: [D] the defender's strategy as the attacker knows it.
        exit_attack: makes a partial attack on a set of exits.
    """
    if isinstance(exit_attack, EoTPGD):
        return exit_attack.on_strategy(game.subsets, known)
    response = game.best_response(known).tolist()
    tied = [
        (target, probability)
        for target, probability in zip(game.targets, response, strict=True)
        if probability > 0 and target is not None
    ]
    if len(tied) == 1:
        return exit_attack(tied[0][0])
    attacks = tuple(exit_attack(target) for target, _ in tied)
    return Drawn("aimer", attacks, tuple(probability for _, probability in tied))


def _gate_answer(strategy: Strategy) -> Answer:
    def answer(trace: Trace) -> Tensor:
        logits = trace.logits
        return mean_logits(logits, strategy.pick(logits, Context.seeded(0, logits.shape[1])))

    return answer
