"""Table 4: cost of the max-average attack and of AIMER, in time and in passes."""

from __future__ import annotations

from collections.abc import Sequence

from saddlepoint.evaluation import Episode
from saddlepoint.games.payoffs import ExitGame
from saddlepoint.papers.multi_exit.experiment import (
    MultiExitExperiment,
    MultiExitSubject,
    attackers,
)
from saddlepoint.papers.multi_exit.published import TABLE_4_AIMER, TABLE_4_MAX_AVERAGE
from saddlepoint.papers.multi_exit.third_party import triple_wins
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Row, Table

COLUMNS = ("Max-average, ms", "AIMER, ms", "Max-average, passes", "AIMER, passes")


def run(request: Request) -> Result:
    """Reproduce Table 4.

    The attacks are those of the first row of Table 1. If both tables use the same folder, the
    stored episodes are reused.
    """
    experiment = MultiExitExperiment.open(request)
    return _measure(experiment, experiment.subject("resnet-18"))


def run_real(request: Request) -> Result:
    """Measure the cost of both evaluations on the third-party network."""
    experiment = MultiExitExperiment.open(request)
    return _measure(experiment, triple_wins(experiment))


def _measure(experiment: MultiExitExperiment, subject: MultiExitSubject) -> Result:
    game = experiment.game(subject)
    n = len(experiment.reduced_images(subject).x)
    rows = _rows(experiment, subject, game)
    preparation = (
        Cell((1000 * sum(e.seconds for e in game.outcomes.episodes),)),
        Cell((count_passes(game.outcomes.episodes),)),
    )
    rows += _totals(experiment, subject, rows, *preparation)
    table = Table("Cost", ("measurement",), COLUMNS, tuple(rows), n)
    notes = (
        experiment.setting.budgets,
        "passes: forward plus backward passes of a single image",
        f"complete evaluation: {len(experiment.setting.attacks)} attacks on {n} images, "
        f"{experiment.setting.repeats} times, including the preparation; the paper has 6 attacks, "
        "10000 images and 5 repeats",
        "the defender uses the third exit, as in the first rows of Table 1",
    )
    return experiment.result(
        "table-4", [table], subjects=[subject], notes=notes, findings=_findings(table)
    )


def _rows(experiment: MultiExitExperiment, subject: MultiExitSubject, game: ExitGame) -> list[Row]:
    """Cost per image of each attack."""
    defender = experiment.defender(subject, game, (3,))
    images = experiment.reduced_images(subject)
    n = len(images.x)
    rows = []
    for attack, exit_attack in experiment.setting.attacks.items():
        adversaries = attackers(subject, game, defender, exit_attack)
        pair = [adversaries["Max-average attack"], adversaries["AIMER"]]
        repeats = [experiment.play(subject, pair, images, seed=seed) for seed in experiment.seeds]
        times = [tuple(1000 * repeat[k].seconds / n for repeat in repeats) for k in (0, 1)]
        passes = [tuple(count_passes(repeat[k : k + 1]) / n for repeat in repeats) for k in (0, 1)]
        cells = (
            Cell(times[0], TABLE_4_MAX_AVERAGE[attack]),
            Cell(times[1], TABLE_4_AIMER.get(attack)),
            Cell(passes[0]),
            Cell(passes[1]),
        )
        rows.append(Row((f"One image, {experiment.setting.name(attack)}",), cells))
    return rows


def count_passes(episodes: Sequence[Episode]) -> float:
    """Total number of forward and backward passes, counted per image."""
    return sum(float(e.forward.sum() + e.backward.sum()) for e in episodes)


def _totals(
    experiment: MultiExitExperiment,
    subject: MultiExitSubject,
    rows: list[Row],
    ms: Cell,
    passes: Cell,
) -> list[Row]:
    """PartialPGD for the preparation and for the complete evaluation.

    `ms` (milliseconds) and `passes` are the cost of the game. Only AIMER needs this preparation.
    """
    count = len(experiment.reduced_images(subject).x) * experiment.setting.repeats
    sums = [count * sum(cell.mean for row in rows if (cell := row.cells[k])) for k in range(4)]
    none = Cell((0.0,), TABLE_4_MAX_AVERAGE["Pre-processing"])
    complete = (
        Cell((sums[0],), TABLE_4_MAX_AVERAGE["Complete evaluation"]),
        Cell((sums[1] + ms.mean,), TABLE_4_AIMER["Complete evaluation"]),
        Cell((sums[2],)),
        Cell((sums[3] + passes.mean,)),
    )
    preparation = Cell(ms.values, TABLE_4_AIMER["Pre-processing"])
    return [
        Row(("Pre-processing",), (none, preparation, Cell((0.0,)), passes)),
        Row(("Complete evaluation",), complete),
    ]


def _findings(table: Table) -> list[str]:
    complete = table.rows[-1].cells
    single = table.rows[:-2]
    ratio = [
        first.mean / second.mean
        for first, second in (complete[:2], complete[2:4])
        if first is not None and second is not None
    ]
    each = [
        row.cells[2].mean / row.cells[3].mean for row in single if row.cells[2] and row.cells[3]
    ]
    paper = TABLE_4_MAX_AVERAGE["Complete evaluation"] / TABLE_4_AIMER["Complete evaluation"]
    return [
        "The complete evaluation with the max-average attack takes "
        f"{ratio[0]:.2f} times the time of AIMER and {ratio[1]:.2f} times its passes; the paper "
        f"reports {paper:.2f} times the time.",
        f"For one image, the max-average attack takes {min(each):.2f} to {max(each):.2f} times the "
        "passes of AIMER.",
    ]
