"""Figure 3: accuracy for every pair of attacked exits and exits that the defender uses."""

from __future__ import annotations

from saddlepoint.defenses import Subset, intervals, subset_name
from saddlepoint.games.payoffs import ExitGame
from saddlepoint.papers.multi_exit.experiment import MultiExitExperiment, MultiExitSubject
from saddlepoint.papers.multi_exit.third_party import triple_wins, with_all_rows
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, HeatMap, Result, Row, Table

REMARKS = {
    "3.1": "a proper subset of the defender's exits",
    "3.2": "a proper superset of the defender's exits",
    "3.3": "disjoint from the defender's exits",
    "3.4": "some of the defender's exits and some others",
}

_LONG = 10  # sets of exits; with more of them, names are short


def run(request: Request) -> Result:
    """Reproduce Figure 3 and count the pairs that contradict Remarks 3.1 to 3.4.

    The figure shows only sets of consecutive exits; the remarks are checked on all sets.
    """
    experiment = MultiExitExperiment.open(request)
    return _figure(experiment, experiment.subject("resnet-18"))


def run_real(request: Request) -> Result:
    """Show the same for the third-party network."""
    experiment = with_all_rows(MultiExitExperiment.open(request))
    return _figure(experiment, triple_wins(experiment))


def _figure(experiment: MultiExitExperiment, subject: MultiExitSubject) -> Result:
    game = experiment.game(subject)
    sets = intervals(subject.exits)
    rows = [game.targets.index(exits) for exits in sets]
    columns = [game.subsets.index(exits) for exits in sets]
    values = tuple(tuple(row) for row in (100 * game.payoff[rows][:, columns]).tolist())
    short = len(sets) > _LONG
    names = tuple(_range(s) if short else subset_name(s) for s in sets)
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
    suffix = "-real" if experiment.request.scale == "real" else ""
    heat_map = HeatMap(
        f"figure-3{suffix}",
        table.title,
        names,
        names,
        values,
        "attacked exits",
        "the defender's exits",
    )
    remarks = _remarks(game)
    return experiment.result(
        "figure-3",
        [table, remarks],
        subjects=[subject],
        findings=_findings(remarks, game),
        charts=[] if short else [heat_map],  # a map of hundreds of numbers cannot be read
        repeats=1,
    )


def _range(exits: Subset) -> str:
    """Name neighboring exits by the first and the last: (2, 3, 4) -> "2-4"."""
    return str(exits[0]) if len(exits) == 1 else f"{exits[0]}-{exits[-1]}"


def _remarks(game: ExitGame) -> Table:
    """Count, per remark, the pairs of different exit sets and those that contradict the remark.

    All sets with a matched attack count, also those that are not consecutive.
    """
    counts = {name: [0, 0] for name in REMARKS}
    for d, answering in enumerate(game.subsets):
        if answering not in game.targets:  # no matched attack was run
            continue
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
    matched = sum(subset in game.targets for subset in game.subsets)
    return [
        *sentences,
        f"In {beaten} of {matched} columns a mismatched attack is stronger than the "
        "matched attack, contrary to Assumption 3.5.",
    ]
