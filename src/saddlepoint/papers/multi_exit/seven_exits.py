"""Beyond the paper: a network with seven exits, its whole game of 127 x 127, and what the double oracle needs of it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from saddlepoint.attacks.pgd import PGD
from saddlepoint.games.exit_game import ExitGame
from saddlepoint.games.matrix import least_per_example
from saddlepoint.papers.multi_exit import figure_6
from saddlepoint.papers.multi_exit import out_of_sample as honest
from saddlepoint.papers.multi_exit.experiment import Lab, Subject
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Row, Table

_STEPS = 10  # at most: 127 rows on two sets of images
_DRAWS = 100


def run(request: Request) -> Result:
    lab = Lab.open(request)
    subject = lab.few(lab.subject("seven"))
    attack = PGD(min(_STEPS, lab.setting.payoff.steps), lab.setting.payoff.step_size)
    game = lab.game(subject, attack=attack)
    fresh = lab.game(subject, subject.test, attack=attack)
    few = lab.game(subject, attack=attack, double_oracle=True)
    study = figure_6.study(lab, subject, game, fresh, attack)
    exposed = honest.exposure(lab, subject, game, fresh, attack)
    values = _values(lab, subject, game)
    oracle = _oracle(subject, game, few)
    return lab.result(
        "seven-exits",
        [values, oracle, study.table, exposed.table],
        subjects=[subject],
        notes=[
            f"all games here are played with PGD-{attack.steps}",
            *figure_6.NOTES,
            *honest.NOTES,
        ],
        findings=[*_told(game, few), *study.findings, *exposed.findings],
        charts=[study.cloud],
        repeats=1,
    )


def _values(lab: Lab, subject: Subject, game: ExitGame) -> Table:
    """What strategies are worth on the game's own images, to an attacker with one row for all and to one with a row per image."""
    rows = []
    for name, s in honest.strategies(game).items():

        def one(g: ExitGame, s: torch.Tensor = s) -> float:
            return float(g.accuracy(s).amin())

        def each(g: ExitGame, s: torch.Tensor = s) -> float:
            return float(least_per_example(g.correct, s).mean())

        rows.append(
            Row(
                (name,),
                (_interval(game, one, lab.request.seed), _interval(game, each, lab.request.seed)),
            )
        )
    return Table(
        "On the game's own images: accuracy, %", ("strategy",), ("one attack for all images", "an attack per image"), tuple(rows),
        len(subject.game.x),
    )  # fmt: skip


def _interval(game: ExitGame, statistic: Callable[[ExitGame], float], seed: int) -> Cell:
    found = game.interval(statistic, draws=_DRAWS, seed=seed)
    return Cell((100 * found.value,), interval=(100 * found.low, 100 * found.high))


def _oracle(subject: Subject, game: ExitGame, few: ExitGame) -> Table:
    full = game.equilibrium()
    found = few.equilibrium()
    partial = sum(target is not None for target in few.targets)
    numbers = {
        "partial attacks played, all rows": len(game.targets),
        "partial attacks played, double oracle": partial,
        "expected-loss attacks played, double oracle": len(few.targets) - partial,
        "value of the game with all rows, %": 100 * full.value,
        "value of the double oracle's game, %": 100 * found.value,
        "its mix against all rows, %": 100 * float(game.accuracy(found.defender).amin()),
        "columns that NEED plays": len(full.support),
    }
    rows = tuple(Row((name,), (Cell((float(value),)),)) for name, value in numbers.items())
    return Table("The double oracle against the full game", ("",), ("",), rows, len(subject.game.x))


def _told(game: ExitGame, few: ExitGame) -> list[str]:
    full = game.equilibrium()
    found = few.equilibrium()
    partial = sum(target is not None for target in few.targets)
    apart = 100 * (found.value - full.value)
    return [
        f"The double oracle attacks {partial} of {len(game.targets)} sets of exits and finds a value {apart:+.2f} points from that "
        "of the full game; its rows include attacks on an expected loss, which the full game has not, so it may find less.",
    ]
