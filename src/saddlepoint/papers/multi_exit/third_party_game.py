"""Beyond the paper: the game of a seven-exit network that others trained, at scale real.

Strategies and AIMER's rows are computed on the images of the game. All accuracies and effects are
measured on other images, with intervals over them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

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
from saddlepoint.papers.multi_exit.out_of_sample import strategies
from saddlepoint.papers.multi_exit.third_party import triple_wins
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, HeatMap, Result, Row, Table

EFFECTS = "Effects on images that the game has not seen, points"
NEED = "NEED"
_AIMER = "AIMER, one attack for all images"
_PER_IMAGE = "strongest attack per image"
_SHOWN = ((1, 2), (3, 4), (5, 7), (1, 4), (4, 7), (1, 7))  # first and last exit, in the heat map


@dataclass(frozen=True)
class _Scored:
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


def run(request: Request) -> Result:
    """Play the game on 500 images and score attackers and strategies on 500 others."""
    experiment = MultiExitExperiment.open(request)
    subject = triple_wins(experiment)
    game = experiment.game(subject)
    test_game = experiment.game(subject, subject.test)
    scored = _Scored(game, test_game, _max_average(experiment, subject, test_game))
    mixes = strategies(game)
    effects = _effects(scored, mixes)
    payoff = experiment.setting.payoff
    result = experiment.result(
        "seven-exits",
        [
            _exits_table(scored),
            _evaluations_table(scored),
            _strategies_table(scored, mixes),
            _effects_table(effects, len(subject.test.x)),
        ],
        subjects=[subject],
        notes=[
            f"{len(game.targets)} attacks on neighboring exits x {len(game.subsets)} sets of exits "
            f"that answer; PGD with {payoff.steps} steps of decreasing length from the clean image",
            "the game's images and the scored images are test images of CIFAR-10, and disjoint",
            "max-average attack: of the attacks on single exits, the point with the highest loss "
            "averaged over all exits, per image",
            f"{_PER_IMAGE}: of all attacks of the game",
            "the accuracy of a mixed strategy is its exact expectation, not a simulation",
        ],
        findings=[*_assumption(scored), *(_sentence(*one) for one in effects.items())],
        charts=[_heat_map(scored)],
        repeats=1,
    )
    title = (
        f"The game on seven exits: {len(game.targets)} attacks x {len(game.subsets)} sets (ours)"
    )
    return replace(result, title=title)


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


def _exits_table(scored: _Scored) -> Table:
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


def _evaluations_table(scored: _Scored) -> Table:
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


def _strategies_table(scored: _Scored, mixes: Mapping[str, Tensor]) -> Table:
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
        f"{_AIMER}, %",
        f"{_PER_IMAGE}, %",
    )
    n = scored.test_game.correct.shape[-1]
    title = "Strategies of the defender: accuracy"
    return Table(title, ("strategy", "exits"), columns, tuple(rows), n, digits=2)


def _effects(scored: _Scored, mixes: Mapping[str, Tensor]) -> dict[str, Estimate]:
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


def _effects_table(effects: Mapping[str, Estimate], n: int) -> Table:
    rows = [Row((name,), (estimate_cell(found),)) for name, found in effects.items()]
    return Table(EFFECTS, ("difference of accuracies",), ("points",), tuple(rows), n, digits=1)


def _sentence(name: str, found: Estimate) -> str:
    verdict = by_interval(
        found.low, found.high, above="", below="", inconclusive=", not significant"
    )
    return f"{name[0].upper()}{name[1:]}: {difference_text(found)}{verdict}."


def _assumption(scored: _Scored) -> list[str]:
    """Count the sets of exits on which a mismatched attack is stronger than the matched one."""
    attacked = [target for target in scored.game.targets if target in scored.game.subsets]
    games = {"the game's images": scored.game, "other images": scored.test_game}
    sentences = []
    for images, game in games.items():
        beaten = game.beaten_matches()
        verdict = "contrary to" if beaten else "as in"
        sentences.append(
            f"A mismatched attack is stronger than the matched attack on {beaten} of "
            f"{len(attacked)} sets of neighboring exits on {images}, {verdict} Assumption 3.5."
        )
    return sentences


def _heat_map(scored: _Scored) -> HeatMap:
    """The payoffs of single exits and some runs of neighboring exits, on the game's images."""
    singles = [(k,) for k in range(1, scored.exits + 1)]
    sets = [*singles, *(tuple(range(first, last + 1)) for first, last in _SHOWN)]
    names = tuple(str(s[0]) if len(s) == 1 else f"{s[0]}-{s[-1]}" for s in sets)
    rows = [scored.game.targets.index(s) for s in sets]
    columns = [scored.game.subsets.index(s) for s in sets]
    values = 100 * scored.game.payoff[rows][:, columns]
    return HeatMap(
        "triple-wins-payoffs",
        "triple-wins, cifar10: accuracy, %",
        names,
        names,
        tuple(tuple(row) for row in values.tolist()),
        "attacked exits",
        "the defender's exits",
    )
