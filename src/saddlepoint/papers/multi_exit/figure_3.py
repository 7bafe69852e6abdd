"""Figure 3: accuracy for every pair of attacked exits and exits that the defender uses."""

from __future__ import annotations

from saddlepoint.defenses import Subset, intervals, subset_name
from saddlepoint.games.payoffs import ExitGame
from saddlepoint.papers.multi_exit.experiment import MultiExitExperiment
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, HeatMap, Result, Row, Table

REMARKS = {
    "3.1": "a proper subset of the defender's exits",
    "3.2": "a proper superset of the defender's exits",
    "3.3": "disjoint from the defender's exits",
    "3.4": "some of the defender's exits and some others",
}


def run(request: Request) -> Result:
    """Reproduce Figure 3 and count the pairs that contradict Remarks 3.1 to 3.4.

    The figure shows only sets of consecutive exits; the remarks are checked on all sets.
    """
    experiment = MultiExitExperiment.open(request)
    subject = experiment.subject("resnet-18")
    game = experiment.game(subject)
    sets = intervals(subject.exits)
    rows = [game.targets.index(exits) for exits in sets]
    columns = [game.subsets.index(exits) for exits in sets]
    values = tuple(tuple(row) for row in (100 * game.payoff[rows][:, columns]).tolist())
    names = tuple(map(subset_name, sets))
    table = Table(
        "Accuracy, %: attacked exits in the rows, the defender's exits in the columns",
        ("attacked exits",),
        names,
        tuple(
            Row((name,), tuple(Cell((v,)) for v in row))
            for name, row in zip(names, values, strict=True)
        ),
        len(subject.game.x),
        digits=1,
    )
    heat_map = HeatMap(
        "figure-3", table.title, names, names, values, "attacked exits", "the defender's exits"
    )
    remarks = _remarks(game)
    return experiment.result(
        "figure-3",
        [table, remarks],
        subjects=[subject],
        findings=_findings(remarks, game),
        charts=[heat_map],
        repeats=1,
    )


def _remarks(game: ExitGame) -> Table:
    """Count, per remark, the pairs of different exit sets and those that contradict the remark.

    All sets count, also those that are not consecutive.
    """
    counts = {name: [0, 0] for name in REMARKS}
    for d, answering in enumerate(game.subsets):
        matched = float(game.payoff[game.targets.index(answering), d])
        for a, attacked in enumerate(game.targets):
            if attacked is not None and attacked != answering:
                name = remark(attacked, answering)
                counts[name][0] += 1
                counts[name][1] += float(game.payoff[a, d]) < matched
    rows = [
        Row((name, REMARKS[name]), (Cell((pairs,)), Cell((contradicting,))))
        for name, (pairs, contradicting) in counts.items()
    ]
    return Table(
        "Pairs in which the mismatched attack is stronger than the matched attack",
        ("remark", "attacked exits"),
        ("pairs", "pairs that contradict the remark"),
        tuple(rows),
        len(game.outcomes.batch),
        digits=0,
    )


def remark(attacked: Subset, answering: Subset) -> str:
    """Number of the paper's remark about this kind of mismatch.

    Args:
        attacked: exits that the attacker targets.
        answering: exits that the defender uses; different from `attacked`.

    Returns:
        "3.1", "3.2", "3.3" or "3.4", a key of `REMARKS`.
    """
    a = set(attacked)
    d = set(answering)
    if a < d:
        return "3.1"
    if a > d:
        return "3.2"
    return "3.4" if a & d else "3.3"


def _findings(remarks: Table, game: ExitGame) -> list[str]:
    sentences = []
    for row in remarks.rows:
        pairs, contradicting = (int(cell.mean) for cell in row.cells if cell)
        sentences.append(
            f"Remark {row.labels[0]} (attacked exits: {row.labels[1]}) is contradicted in "
            f"{contradicting} of {pairs} pairs."
        )
    beaten = game.beaten_matches()
    return [
        *sentences,
        f"In {beaten} of {len(game.subsets)} columns a mismatched attack is stronger than the "
        "matched attack, contrary to Assumption 3.5.",
    ]
