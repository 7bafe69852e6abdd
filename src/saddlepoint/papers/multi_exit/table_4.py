"""Table 4: what the max-average attack and AIMER cost, in time and in passes."""

from __future__ import annotations

from collections.abc import Sequence

from saddlepoint.evaluation import Episode
from saddlepoint.papers.multi_exit import published
from saddlepoint.papers.multi_exit.experiment import Lab, Subject, attackers
from saddlepoint.papers.multi_exit.published import TABLE_4_AIMER, TABLE_4_MAX_AVERAGE
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Row, Table

COLUMNS = ("Max-average, ms", "AIMER, ms", "Max-average, passes", "AIMER, passes")


def run(request: Request) -> Result:
    """The cells are those of Table 1's first row: in the same folder nothing is attacked twice."""
    lab = Lab.open(request)
    subject = lab.subject("resnet-18")
    game = lab.game(subject)
    defender = lab.defender(subject, game, (3,))
    images = lab.swept(subject)
    rows = []
    n = len(images.x)
    for attack in published.ATTACKS:
        sent = attackers(subject, game, defender, lab.setting.attacks[attack])
        pair = [sent["Max-average attack"], sent["AIMER"]]
        repeats = [lab.play(subject, pair, images, seed=seed) for seed in lab.seeds]
        times = [tuple(1000 * repeat[k].seconds / n for repeat in repeats) for k in (0, 1)]
        passes = [tuple(spent(repeat[k : k + 1]) / n for repeat in repeats) for k in (0, 1)]
        paper = (TABLE_4_MAX_AVERAGE[attack], TABLE_4_AIMER.get(attack))
        cells = (
            Cell(times[0], paper[0]),
            Cell(times[1], paper[1]),
            Cell(passes[0]),
            Cell(passes[1]),
        )
        rows.append(Row((f"One image, {attack}",), cells))
    preparing = (
        Cell((1000 * sum(e.seconds for e in game.outcomes.episodes),)),
        Cell((spent(game.outcomes.episodes),)),
    )
    rows += _totals(lab, subject, rows, *preparing)
    table = Table("Cost", ("what",), COLUMNS, tuple(rows), n)
    notes = (
        lab.setting.budgets,
        "passes: forward and backward passes of one image, added up",
        f"complete: six attacks on {n} images, {lab.setting.repeats} times, with the preparation; the paper has 10000 and 5",
        "the defender answers with the third exit, as in the first rows of Table 1",
    )
    return lab.result(
        "table-4", [table], subjects=[subject], notes=notes, findings=_findings(table)
    )


def spent(episodes: Sequence[Episode]) -> float:
    """Forward and backward passes of single images."""
    return sum(float(e.forward.sum() + e.backward.sum()) for e in episodes)


def _totals(lab: Lab, subject: Subject, rows: list[Row], seconds: Cell, passes: Cell) -> list[Row]:
    """The preparation, and everything together: AIMER's includes the game, the max-average attack needs none."""
    count = len(lab.swept(subject).x) * lab.setting.repeats
    sums = [count * sum(cell.mean for row in rows if (cell := row.cells[k])) for k in range(4)]
    none = Cell((0.0,), TABLE_4_MAX_AVERAGE["Pre-processing"])
    complete = (
        Cell((sums[0],), TABLE_4_MAX_AVERAGE["Complete evaluation"]),
        Cell((sums[1] + seconds.mean,), TABLE_4_AIMER["Complete evaluation"]),
        Cell((sums[2],)),
        Cell((sums[3] + passes.mean,)),
    )
    prepared = Cell(seconds.values, TABLE_4_AIMER["Pre-processing"])
    return [
        Row(("Pre-processing",), (none, prepared, Cell((0.0,)), passes)),
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
        f"The complete evaluation by the max-average attack costs {ratio[0]:.2f} times AIMER's time and {ratio[1]:.2f} times its "
        f"passes; the paper's figures give {paper:.2f}.",
        f"For one image the ratio of passes is {min(each):.2f} to {max(each):.2f}.",
    ]
