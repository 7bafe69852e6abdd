"""Figure 3: accuracy for every run of neighboring exits attacked, and every one answering."""

from __future__ import annotations

from saddlepoint.defenses import Subset, intervals, subset_name
from saddlepoint.games.exit_game import ExitGame
from saddlepoint.papers.multi_exit.experiment import Lab
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Heat, Result, Row, Table

REMARKS = {
    "3.1": "fewer exits attacked than answer",
    "3.2": "more exits attacked than answer",
    "3.3": "only other exits attacked",
    "3.4": "some of the exits that answer and some others attacked",
}


def run(request: Request) -> Result:
    lab = Lab.open(request)
    subject = lab.subject("resnet-18")
    game = lab.game(subject)
    runs = intervals(subject.exits)
    rows = [game.targets.index(run) for run in runs]
    columns = [game.subsets.index(run) for run in runs]
    values = tuple(tuple(row) for row in (100 * game.payoff[rows][:, columns]).tolist())
    names = tuple(map(subset_name, runs))
    table = Table(
        "Accuracy, %: attacked exits down, answering exits across",
        ("attacked",),
        names,
        tuple(
            Row((name,), tuple(Cell((v,)) for v in row))
            for name, row in zip(names, values, strict=True)
        ),
        len(subject.game.x),
        digits=1,
    )
    heat = Heat("figure-3", table.title, names, names, values, "attacked", "answering")
    remarks = _remarks(game)
    return lab.result(
        "figure-3",
        [table, remarks],
        subjects=[subject],
        findings=_findings(remarks, game),
        charts=[heat],
        repeats=1,
    )


def _remarks(game: ExitGame) -> Table:
    """Over all pairs of different sets, also those that are no runs of neighbors."""
    counts = {remark: [0, 0] for remark in REMARKS}
    for d, answering in enumerate(game.subsets):
        matched = float(game.payoff[game.targets.index(answering), d])
        for a, attacked in enumerate(game.targets):
            if attacked is not None and attacked != answering:
                counts[remark(attacked, answering)][0] += 1
                counts[remark(attacked, answering)][1] += float(game.payoff[a, d]) < matched
    rows = [
        Row((name, REMARKS[name]), (Cell((pairs,)), Cell((against,))))
        for name, (pairs, against) in counts.items()
    ]
    return Table(
        "Pairs in which the mismatched attack is the stronger one", ("remark", "what is attacked"), ("pairs", "against the remark"),
        tuple(rows), len(game.outcomes.batch), digits=0,
    )  # fmt: skip


def remark(attacked: Subset, answering: Subset) -> str:
    """Which of the four kinds of mismatch this is."""
    a = set(attacked)
    d = set(answering)
    if a < d:
        return "3.1"
    if a > d:
        return "3.2"
    return "3.4" if a & d else "3.3"


def _findings(remarks: Table, game: ExitGame) -> list[str]:
    told = []
    for row in remarks.rows:
        pairs, against = (int(cell.mean) for cell in row.cells if cell)
        told.append(
            f"Remark {row.labels[0]} ({row.labels[1]}) fails in {against} of {pairs} pairs."
        )
    beaten = game.beaten_matches()
    return [
        *told,
        f"In {beaten} of {len(game.subsets)} columns some mismatched attack beats the matched one (Assumption 3.5).",
    ]
