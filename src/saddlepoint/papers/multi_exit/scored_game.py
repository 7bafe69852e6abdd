"""A game that was computed on some images and is scored on others, with intervals over these.

Strategies and AIMER's rows are computed on the images of the game. All accuracies and effects are
measured on other images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.defenses import Subset, subset_name
from saddlepoint.defenses.gates import exit_logits
from saddlepoint.evaluation.bootstrap import Estimate, mean_of
from saddlepoint.games.payoffs import ExitGame
from saddlepoint.papers.cells import by_interval, difference_text, estimate_cell
from saddlepoint.papers.multi_exit import published
from saddlepoint.papers.multi_exit.experiment import MultiExitExperiment, MultiExitSubject
from saddlepoint.papers.result import Cell, HeatMap, Row, Table

EFFECTS = "Effects on images that the game has not seen, points"
NEED = "NEED"
AIMER = "AIMER, one attack for all images"
PER_IMAGE = "strongest attack per image"
MAX_AVERAGE_NOTE = (
    "max-average attack: of the attacks on single exits, the point with the highest loss "
    "averaged over all exits, per image"
)
NOTES = (
    MAX_AVERAGE_NOTE,
    f"{PER_IMAGE}: of all attacks of the game",
    "the accuracy of a mixed strategy is its exact expectation, not a simulation",
)


@dataclass(frozen=True)
class ScoredGame:
    """The game, and the outcomes of its attacks on other images."""

    game: ExitGame
    test_game: ExitGame
    max_average: Tensor  # [D, N] outcomes of the max-average attack on the other images

    @property
    def exits(self) -> int:
        """Number of exits."""
        return self.game.exits

    def rows(self, strategy: Tensor) -> Tensor:
        """[A, N] probability of a correct answer of a mixed strategy [D] under each row."""
        return torch.einsum("d,adn->an", strategy, self.test_game.correct.double())

    def attacked(self, strategy: Tensor, target: Subset) -> Tensor:
        """[N] the same under the attack on these exits."""
        return self.rows(strategy)[self.game.targets.index(target)]

    def aimer(self, strategy: Tensor) -> Tensor:
        """[N] the same under AIMER: the best response on the game's images."""
        return self.game.best_response(strategy) @ self.rows(strategy)

    def per_image(self, strategy: Tensor) -> Tensor:
        """[N] the same under an attacker that chooses the strongest row per image."""
        return self.rows(strategy).amin(0)

    def evaluations(self, strategy: Tensor) -> dict[str, Tensor]:
        """[N] the same under the four evaluations of Table 1."""
        everything = tuple(range(1, self.exits + 1))
        found = (
            self.attacked(strategy, (self.exits,)),
            self.attacked(strategy, everything),
            strategy @ self.max_average.double(),
            self.aimer(strategy),
        )
        return dict(zip(published.EVALUATIONS, found, strict=True))


def score(experiment: MultiExitExperiment, subject: MultiExitSubject) -> ScoredGame:
    """Play the game on its images and run its attacks on the other images."""
    game = experiment.game(subject)
    test_game = experiment.game(subject, subject.test)
    return ScoredGame(game, test_game, _max_average(experiment, subject, test_game))


def _max_average(
    experiment: MultiExitExperiment, subject: MultiExitSubject, game: ExitGame
) -> Tensor:
    """[D, N] outcomes of the max-average attack (Eq. 3), from the attacks on single exits."""
    y = subject.test.y
    rows = [game.targets.index((number,)) for number in subject.everything]
    losses = []
    for row in rows:
        points = game.outcomes.episodes[row].points
        logits = exit_logits(subject.base, points, batch_size=experiment.setting.batch)
        losses.append(cross_entropy(logits, y).mean(0))  # [N]
    chosen = torch.stack(losses).argmax(0)  # [N]
    return game.correct[torch.tensor(rows)[chosen], :, torch.arange(len(y))].T


def exits_table(scored: ScoredGame) -> Table:
    """Each exit alone: clean, under the matched attack and under attacks on the other exits."""
    assert scored.test_game.clean is not None
    rows = []
    for number in range(1, scored.exits + 1):
        one = scored.game.one_hot((number,))
        others = [k for k in range(1, scored.exits + 1) if k != number]
        mismatched = torch.stack([scored.attacked(one, (k,)) for k in others])
        clean = one @ scored.test_game.clean.double()
        cells = (
            estimate_cell(mean_of(clean)),
            estimate_cell(mean_of(scored.attacked(one, (number,)))),
            estimate_cell(mean_of(mismatched.mean(0))),
            Cell((100 * float(mismatched.mean(1).amax()),)),
        )
        rows.append(Row((str(number),), cells))
    columns = (
        "clean",
        "matched attack",
        "attacks on single other exits, mean",
        "weakest of them",
    )
    n = scored.test_game.correct.shape[-1]
    return Table("Single exits: accuracy, %", ("exit",), columns, tuple(rows), n, digits=1)


def evaluations_table(scored: ScoredGame) -> Table:
    """The four evaluations of Table 1 for fixed and random defenders."""
    everything = tuple(range(1, scored.exits + 1))
    one_hot = scored.game.one_hot
    defenders = {
        "Static (3rd exit)": one_hot((3,)),
        "Random (3rd or 5th)": (one_hot((3,)) + one_hot((5,))) / 2,
        "Last exit": one_hot((scored.exits,)),
        "All exits": one_hot(everything),
    }
    rows = [
        Row(
            (name,),
            tuple(estimate_cell(mean_of(v)) for v in scored.evaluations(strategy).values()),
        )
        for name, strategy in defenders.items()
    ]
    n = scored.test_game.correct.shape[-1]
    title = "Four evaluations of a defender: accuracy, %"
    return Table(title, ("defense",), published.EVALUATIONS, tuple(rows), n, digits=1)


def strategies_table(scored: ScoredGame, mixes: Mapping[str, Tensor]) -> Table:
    """Strategies that were computed on the game's images, under both attackers."""
    game = scored.game
    assert scored.test_game.clean is not None
    rows = []
    for name, s in mixes.items():
        cells = (
            Cell((game.mismatch(game.best_response(s), s),)),
            estimate_cell(mean_of(s @ scored.test_game.clean.double())),
            Cell((100 * float(game.accuracy(s).amin()),)),
            estimate_cell(mean_of(scored.aimer(s))),
            estimate_cell(mean_of(scored.per_image(s))),
        )
        support = int((s > 1e-6).sum())
        label = subset_name(game.subsets[int(s.argmax())]) if support == 1 else f"{support} sets"
        rows.append(Row((name, label), cells))
    columns = (
        "R_mis",
        "clean, %",
        "worst row, game's images, %",
        f"{AIMER}, %",
        f"{PER_IMAGE}, %",
    )
    n = scored.test_game.correct.shape[-1]
    title = "Strategies of the defender: accuracy"
    return Table(title, ("strategy", "exits"), columns, tuple(rows), n, digits=2)


def effects_of(scored: ScoredGame, mixes: Mapping[str, Tensor]) -> dict[str, Estimate]:
    """Differences of accuracies on the same images, by what is subtracted from what."""
    numbers = range(1, scored.exits + 1)
    singles = {k: scored.game.one_hot((k,)) for k in numbers}
    matched = torch.stack([scored.attacked(singles[k], (k,)) for k in numbers]).mean(0)
    mismatched = torch.stack(
        [scored.attacked(singles[k], (j,)) for k in numbers for j in numbers if j != k]
    ).mean(0)
    third = scored.evaluations(singles[3])
    need = mixes[NEED]
    mix = mixes["per-image mix"]
    fixed, last, everything = (
        mixes[name] for name in ("best fixed exit set", "last exit", "all exits")
    )
    pairs = {
        "single exits: attacks on another exit minus the matched attack": (mismatched, matched),
        **{
            f"third exit: {name.lower()} minus AIMER": (third[name], third["AIMER"])
            for name in published.EVALUATIONS[:-1]
        },
        "one attack for all images: NEED minus the last exit": (
            scored.aimer(need),
            scored.aimer(last),
        ),
        "one attack for all images: NEED minus the best fixed set": (
            scored.aimer(need),
            scored.aimer(fixed),
        ),
        "NEED: one attack for all images minus the strongest attack per image": (
            scored.aimer(need),
            scored.per_image(need),
        ),
        "last exit: matched attack minus the strongest attack per image": (
            scored.attacked(last, (scored.exits,)),
            scored.per_image(last),
        ),
        "strongest attack per image: all exits minus the last exit": (
            scored.per_image(everything),
            scored.per_image(last),
        ),
        "strongest attack per image: NEED minus all exits": (
            scored.per_image(need),
            scored.per_image(everything),
        ),
        "strongest attack per image: NEED minus the best fixed set": (
            scored.per_image(need),
            scored.per_image(fixed),
        ),
        "strongest attack per image: per-image mix minus NEED": (
            scored.per_image(mix),
            scored.per_image(need),
        ),
    }
    return {name: mean_of(first - second) for name, (first, second) in pairs.items()}


def effects_table(effects: Mapping[str, Estimate], n: int) -> Table:
    rows = [Row((name,), (estimate_cell(found),)) for name, found in effects.items()]
    return Table(EFFECTS, ("difference of accuracies",), ("points",), tuple(rows), n, digits=1)


def findings(scored: ScoredGame, effects: Mapping[str, Estimate]) -> list[str]:
    """State where mismatched attacks are stronger, and each effect with its interval."""
    return [*assumption(scored), *(sentence(*one) for one in effects.items())]


def sentence(name: str, found: Estimate) -> str:
    verdict = by_interval(
        found.low, found.high, above="", below="", inconclusive=", not significant"
    )
    return f"{name[0].upper()}{name[1:]}: {difference_text(found)}{verdict}."


def assumption(scored: ScoredGame) -> list[str]:
    """Count the sets of exits on which a mismatched attack is stronger than the matched one."""
    attacked = [target for target in scored.game.targets if target in scored.game.subsets]
    games = {"the game's images": scored.game, "other images": scored.test_game}
    kind = (
        "sets of exits"
        if len(attacked) == len(scored.game.subsets)
        else "sets of neighboring exits"
    )
    sentences = []
    for images, game in games.items():
        beaten = game.beaten_matches()
        verdict = "contrary to" if beaten else "as in"
        sentences.append(
            f"A mismatched attack is stronger than the matched attack on {beaten} of "
            f"{len(attacked)} {kind} on {images}, {verdict} Assumption 3.5."
        )
    return sentences


def heat_map(
    scored: ScoredGame, subject: MultiExitSubject, runs: Sequence[tuple[int, int]]
) -> HeatMap:
    """The payoffs of single exits and some runs of neighboring exits, on the game's images.

    Args:
        scored: the game.
        subject: its network.
        runs: first and last exit of each run of exits that is shown.
    """
    singles = [(k,) for k in range(1, scored.exits + 1)]
    sets = [*singles, *(tuple(range(first, last + 1)) for first, last in runs)]
    names = tuple(str(s[0]) if len(s) == 1 else f"{s[0]}-{s[-1]}" for s in sets)
    rows = [scored.game.targets.index(s) for s in sets]
    columns = [scored.game.subsets.index(s) for s in sets]
    values = 100 * scored.game.payoff[rows][:, columns]
    return HeatMap(
        f"{subject.name.lower().replace(' ', '-')}-payoffs",
        f"{subject.name}, {subject.data}: accuracy, %",
        names,
        names,
        tuple(tuple(row) for row in values.tolist()),
        "attacked exits",
        "the defender's exits",
    )
