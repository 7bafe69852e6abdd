"""Beyond the paper: the full 127 x 127 game of a seven-exit network, and its double oracle."""

from __future__ import annotations

from collections.abc import Callable

import torch

from saddlepoint.attacks.pgd import PGD
from saddlepoint.games.matrix import least_per_example
from saddlepoint.games.payoffs import ExitGame
from saddlepoint.papers.multi_exit import figure_6, out_of_sample
from saddlepoint.papers.multi_exit.experiment import MultiExitExperiment, MultiExitSubject
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Row, Table

_MAX_STEPS = 10  # PGD steps; limits the cost of 127 rows on two sets of images
_BOOTSTRAP_DRAWS = 100


def run(request: Request) -> Result:
    """Play the full game and the double oracle, and repeat Figure 6 and the out-of-sample test."""
    experiment = MultiExitExperiment.open(request)
    subject = experiment.reduced_subject(experiment.subject("seven"))
    attack = PGD(
        min(_MAX_STEPS, experiment.setting.payoff.steps), experiment.setting.payoff.step_size
    )
    game = experiment.game(subject, attack=attack)
    test_game = experiment.game(subject, subject.test, attack=attack)
    oracle_game = experiment.game(subject, attack=attack, double_oracle=True)
    study = figure_6.study(experiment, subject, game, test_game, attack)
    comparison = out_of_sample.compare_strategies(experiment, subject, game, test_game, attack)
    values = _values(experiment, subject, game)
    oracle = _oracle(subject, game, oracle_game)
    return experiment.result(
        "seven-exits",
        [values, oracle, study.table, comparison.table],
        subjects=[subject],
        notes=[
            f"all games use PGD-{attack.steps}",
            *figure_6.NOTES,
            *out_of_sample.NOTES,
        ],
        findings=[*_findings(game, oracle_game), *study.findings, *comparison.findings],
        charts=[study.plot],
        repeats=1,
    )


def _values(experiment: MultiExitExperiment, subject: MultiExitSubject, game: ExitGame) -> Table:
    """Accuracy of each strategy on the game's images under two attackers.

    The first uses one row for all images. The second chooses a row per image.
    """
    rows = []
    for name, s in out_of_sample.strategies(game).items():

        def worst_row(g: ExitGame, s: torch.Tensor = s) -> float:
            return float(g.accuracy(s).amin())

        def worst_per_image(g: ExitGame, s: torch.Tensor = s) -> float:
            return float(least_per_example(g.correct, s).mean())

        cells = tuple(
            _interval(game, statistic, experiment.request.seed)
            for statistic in (worst_row, worst_per_image)
        )
        rows.append(Row((name,), cells))
    return Table(
        "On the game's own images: accuracy, %",
        ("strategy",),
        ("one attack for all images", "one attack per image"),
        tuple(rows),
        len(subject.game.x),
    )


def _interval(game: ExitGame, statistic: Callable[[ExitGame], float], seed: int) -> Cell:
    found = game.interval(statistic, draws=_BOOTSTRAP_DRAWS, seed=seed)
    return Cell((100 * found.value,), interval=(100 * found.low, 100 * found.high))


def _oracle(subject: MultiExitSubject, game: ExitGame, oracle_game: ExitGame) -> Table:
    """The full game beside the smaller game of the double oracle."""
    full = game.equilibrium()
    found = oracle_game.equilibrium()
    partial = _partial_attacks(oracle_game)
    numbers = {
        "partial attacks in the full game": len(game.targets),
        "partial attacks in the double oracle's game": partial,
        "expected-loss attacks in the double oracle's game": len(oracle_game.targets) - partial,
        "value of the full game, %": 100 * full.value,
        "value of the double oracle's game against partial attacks, %": 100
        * oracle_game.partial_value(),
        "value of the double oracle's game with expected-loss attacks, %": 100 * found.value,
        "accuracy of the double oracle's mix in the full game, %": 100
        * float(game.accuracy(found.defender).amin()),
        "columns to which NEED gives positive probability": len(full.support),
    }
    rows = tuple(Row((name,), (Cell((float(value),)),)) for name, value in numbers.items())
    return Table("The double oracle and the full game", ("",), ("",), rows, len(subject.game.x))


def _findings(game: ExitGame, oracle_game: ExitGame) -> list[str]:
    full = game.value()
    partial = 100 * (oracle_game.partial_value() - full)
    enlarged = 100 * (oracle_game.value() - full)
    return [
        f"The double oracle attacks {_partial_attacks(oracle_game)} of {len(game.targets)} sets of "
        f"exits. Against partial attacks its value minus that of the full game is {partial:+.2f} "
        "points. With expected-loss attacks, which are not in the full game, the difference is "
        f"{enlarged:+.2f} points.",
    ]


def _partial_attacks(game: ExitGame) -> int:
    """Number of rows that attack a set of exits; the others attack an expected loss."""
    return sum(target is not None for target in game.targets)
