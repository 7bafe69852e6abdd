"""Beyond the paper: NEED on test images that were not used to compute it, under stronger attackers.

One attacker knows the defender's mixed strategy and maximizes its expected loss. Another chooses
the strongest attack per image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attacks.pgd import PGD
from saddlepoint.defenses import exit_name, subset_name
from saddlepoint.evaluation import FixedPoints
from saddlepoint.evaluation.bootstrap import Estimate, mean_of
from saddlepoint.games.exit_attacks import AttackSettings
from saddlepoint.games.matrix import least_per_example
from saddlepoint.games.payoffs import ExitGame
from saddlepoint.papers.multi_exit import published
from saddlepoint.papers.multi_exit.experiment import (
    MultiExitExperiment,
    MultiExitSubject,
    attackers,
)
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Row, Table

NETWORKS = ("resnet-18", "vgg-16")
ATTACKERS = (
    "worst row, game's images",
    "AIMER",
    "expected-loss attack",
    "strongest attack per image",
)
_BEST_FIXED = "best fixed exit set"
_PER_IMAGE = "per-image mix"
NOTES = (
    "worst row, game's images: the lowest accuracy of the strategy over the rows of the game, on "
    "the images that built the game; all other columns use test images, which were not used for it",
    "strongest attack per image: the attacker chooses, for every image, the strongest of all "
    "partial attacks and the expected-loss attack",
    f"{_BEST_FIXED} and {_PER_IMAGE}: the best single set of exits and the best mixed strategy "
    "against the attacker that chooses per image, computed on the game's images",
)


def run(request: Request) -> Result:
    """Compare NEED with other strategies on test images.

    A further table compares AutoAttack's points of highest loss with its output with clean copies.
    """
    experiment = MultiExitExperiment.open(request)
    tables = list[Table]()
    findings = list[str]()
    subjects = list[MultiExitSubject]()
    for name in NETWORKS:
        subject = experiment.subject(name)
        game = experiment.game(subject)
        test_game = experiment.game(subject, subject.test)
        comparison = compare_strategies(experiment, subject, game, test_game)
        tables.append(comparison.table)
        findings += comparison.findings
        subjects.append(subject)
    clean_copies = _clean_copies_table(experiment, subjects[0])
    return experiment.result(
        "out-of-sample",
        [*tables, clean_copies],
        subjects=subjects,
        notes=[*NOTES, experiment.setting.budgets],
        findings=[*findings, *gaps(clean_copies)],
    )


@dataclass(frozen=True)
class StrategyComparison:
    """Accuracy of the strategies of one network under increasingly informed attackers."""

    table: Table
    findings: tuple[str, ...]


def strategies(game: ExitGame) -> dict[str, Tensor]:
    """The compared defender strategies, each computed on the game's images.

    Args:
        game: the exit game of a network.

    Returns:
        [D] probabilities over the game's columns, by the name of the strategy.
    """
    worst_case = torch.stack(
        [least_per_example(game.correct, game.one_hot(s)).mean() for s in game.subsets]
    )
    return {
        "NEED": game.equilibrium().defender,
        _BEST_FIXED: game.one_hot(game.subsets[int(worst_case.argmax())]),
        _PER_IMAGE: game.per_example().defender,
        "all exits": game.one_hot(tuple(range(1, game.exits + 1))),
        "last exit": game.one_hot((game.exits,)),
    }


def compare_strategies(
    experiment: MultiExitExperiment,
    subject: MultiExitSubject,
    game: ExitGame,
    test_game: ExitGame,
    attack: PGD | None = None,
) -> StrategyComparison:
    """Evaluate all strategies of `strategies(game)` under all attackers.

    Args:
        experiment: the experiment.
        subject: the network and its images.
        game: the game on the held-out images, which determines strategies and AIMER's row.
        test_game: the same game on the test images.
        attack: PGD of the attacks; None: the payoff attack of the scale.

    Returns:
        One table and the findings.
    """
    settings = AttackSettings(
        tuple(map(exit_name, subject.everything)), attack or experiment.setting.payoff
    )
    mixes = strategies(game)
    correct = {
        name: _correct(experiment, subject, game, test_game, settings, s)
        for name, s in mixes.items()
    }
    mismatched = (
        f"{subject.name}: a mismatched attack is stronger than the matched attack in "
        f"{game.beaten_matches()} of {len(game.subsets)} columns on the game's images and in "
        f"{test_game.beaten_matches()} on test images, contrary to Assumption 3.5."
    )
    return StrategyComparison(
        _table(subject, game, mixes, correct),
        (mismatched, *differences(subject.name, mixes, correct)),
    )


def _correct(
    experiment: MultiExitExperiment,
    subject: MultiExitSubject,
    game: ExitGame,
    test_game: ExitGame,
    settings: AttackSettings,
    s: Tensor,
) -> dict[str, Tensor]:
    """[N] probability of a correct prediction of the mix s [D] on test images, by attacker."""
    clean, attacked = experiment.play(
        subject,
        [FixedPoints(), settings.on_expected_loss(game.subsets, s)],
        subject.test,
        seed=experiment.request.seed,
    )
    count = len(game.subsets)
    rows = torch.einsum("d,adn->an", s, test_game.correct.double())  # [A, N]
    expected = s @ attacked.correct[:count].double()
    values = (game.best_response(s) @ rows, expected, torch.minimum(rows.amin(0), expected))
    return {
        "clean": s @ clean.correct[:count].double(),
        **dict(zip(ATTACKERS[1:], values, strict=True)),
    }


def _table(
    subject: MultiExitSubject,
    game: ExitGame,
    mixes: Mapping[str, Tensor],
    correct: Mapping[str, Mapping[str, Tensor]],
) -> Table:
    """One row per strategy: clean, worst row on the game's images, then the other attackers."""
    rows = []
    for name, s in mixes.items():
        worst_row = Cell((100 * float(game.accuracy(s).amin()),))
        clean, *attacked = (_cell(mean_of(values)) for values in correct[name].values())
        label = (
            f"{name} ({subset_name(game.subsets[int(s.argmax())])})"
            if name == _BEST_FIXED
            else name
        )
        rows.append(Row((label,), (clean, worst_row, *attacked)))
    return Table(
        f"{subject.name}, {subject.data}: accuracy, %, under increasingly informed attackers",
        ("strategy",),
        ("clean", *ATTACKERS),
        tuple(rows),
        len(subject.test.x),
        digits=1,
    )


def _cell(found: Estimate) -> Cell:
    return Cell((100 * found.value,), interval=(100 * found.low, 100 * found.high))


def differences(
    network: str,
    mixes: Mapping[str, Tensor],
    correct: Mapping[str, Mapping[str, Tensor]],
) -> list[str]:
    """NEED minus every other strategy on the same images, with 95 % intervals.

    Args:
        network: name of the network.
        mixes: [D] probabilities by strategy; one is "NEED".
        correct: [N] probability of a correct prediction by strategy and attacker.

    Returns:
        One sentence per strategy that equals NEED, then one per other strategy and attacker.
    """
    others = [name for name in mixes if name != "NEED"]
    same = [name for name in others if torch.allclose(mixes[name], mixes["NEED"], atol=1e-6)]
    sentences = [f"{network}: NEED and {name} are the same strategy." for name in same]
    for attacker in ATTACKERS[1:]:
        for other in others:
            if other not in same:
                found = mean_of(correct["NEED"][attacker] - correct[other][attacker])
                significant = found.low > 0 or found.high < 0
                remark = "" if significant else ", not significant"
                sentences.append(
                    f"{network}, {attacker}: NEED minus {other} is "
                    f"{100 * found.value:+.1f} points ({100 * found.low:+.1f} to "
                    f"{100 * found.high:+.1f}){remark}."
                )
    return sentences


def _clean_copies_table(experiment: MultiExitExperiment, subject: MultiExitSubject) -> Table:
    """The static case of Table 1 with two outputs of AutoAttack.

    The attack of `experiment.setting.attacks` returns the points of highest loss. The published
    code of AutoAttack returns a copy of the clean image wherever the attack does not succeed.
    """
    game = experiment.game(subject)
    images = experiment.reduced_images(subject)
    defender = experiment.defender(subject, game, (3,))
    setting = experiment.setting
    steps = setting.name("PGD-100")
    copying = f"{setting.name('AutoAttack')}, clean copies"
    exit_attacks = {
        steps: setting.attacks["PGD-100"],
        f"{setting.name('AutoAttack')}, highest loss": setting.attacks["AutoAttack"],
        copying: setting.clean_copies_autoattack,
    }
    cells: dict[str, list[Cell | None]] = {name: [] for name in published.EVALUATIONS}
    papers = {steps: 2, copying: 5}
    for column, exit_attack in exit_attacks.items():
        adversaries = attackers(subject, game, defender, exit_attack)
        repeats = [
            experiment.play(subject, list(adversaries.values()), images, seed=seed)
            for seed in experiment.seeds
        ]
        for k, name in enumerate(adversaries):
            values = tuple(100 * float(defender.correct(repeat[k]).mean()) for repeat in repeats)
            paper = published.TABLE_1["static"][k][papers[column]] if column in papers else None
            cells[name].append(Cell(values, paper))
            if column == copying:
                copied = tuple(100 * float(repeat[k].copies.double().mean()) for repeat in repeats)
                cells[name].append(Cell(copied))
    return Table(
        f"{subject.name}, the defender uses the third exit: accuracy, %",
        ("evaluation",),
        (*exit_attacks, "clean copies among the points, %"),
        tuple(Row((name,), tuple(found)) for name, found in cells.items()),
        len(images.x),
    )


def gaps(table: Table) -> list[str]:
    """Difference between the max-average attack and AIMER in every accuracy column."""
    sentences = []
    for column in table.columns[:-1]:
        pair = [table.cell((name,), column) for name in ("Max-average attack", "AIMER")]
        papers = [cell.paper for cell in pair if cell.paper is not None]
        reported = f"; the paper reports {papers[0] - papers[1]:.2f}" if len(papers) == 2 else ""
        sentences.append(
            f"{column}: the accuracy under the max-average attack minus that under AIMER is "
            f"{pair[0].mean - pair[1].mean:+.2f} points{reported}."
        )
    return sentences
