"""The payoff matrix and the solution of the game."""

from __future__ import annotations

from saddlepoint.defenses import subset_name
from saddlepoint.games.reports.heatmap import Matrix, heatmap
from saddlepoint.games.runs.record import GameRecord, best_pure, format_mix, support
from saddlepoint.phrases import agree, count, count_of, points
from saddlepoint.reports.context import Section
from saddlepoint.reports.document import facts, legend, muted, percent
from saddlepoint.reports.markup import tag

# Columns drawn. A larger game is reduced to the played columns and the best pure strategies.
_MAX_COLUMNS = 128


def payoff(record: GameRecord) -> Section:
    """Show the payoff matrix with the equilibrium strategies on its margins."""
    columns = _drawn_columns(record)
    explanation = (
        f"Accuracy on the {count(record.built_on, 'image')} of the game. The attacker attacks the "
        "exits of a row; the defender predicts by the mean logits of the exits of a column. Darker "
        "cells have higher accuracy, shaded by rank. A frame marks the cells in which the attacker "
        f"attacks exactly the exits that the defender uses. In "
        f"{count_of(record.beaten, record.matched, 'such column')} the accuracy under another row "
        "is lower than under the matched one, against Assumption 3.5 of Xu et al."
    )
    hidden = len(record.subsets) - len(columns)
    omitted = [
        muted(
            f"{count(hidden, 'column')} that {agree(hidden, 'is', 'are')} not played "
            f"{agree(hidden, 'is', 'are')} omitted; game.json has all."
        )
    ]
    key = legend(
        primary="the defender's probability of a column",
        secondary="the attacker's probability of a row",
    )
    figure = heatmap(_matrix(record, columns), title="Payoff matrix")
    return Section(
        "Payoff matrix",
        (
            tag("div", key, figure, class_="card"),
            muted(explanation),
            *(omitted if hidden else []),
            facts(_solution(record)),
        ),
    )


def _drawn_columns(record: GameRecord) -> list[int]:
    """Return all columns, or those played and the best pure ones if there are too many."""
    columns = list(range(len(record.subsets)))
    if len(columns) <= _MAX_COLUMNS:
        return columns
    important = dict.fromkeys([*support(record.equilibrium.mix), *best_pure(record)])
    return sorted(list(important)[:_MAX_COLUMNS])


def _matrix(record: GameRecord, columns: list[int]) -> Matrix:
    matched = frozenset(
        (a, k)
        for a, target in enumerate(record.targets)
        for k, d in enumerate(columns)
        if target == record.subsets[d]
    )
    return Matrix(
        accuracies=record.payoff[:, columns].tolist(),
        rows=[row.name for row in record.rows],
        columns=[record.columns[d] for d in columns],
        attacker=record.attacker,
        defender=[record.equilibrium.mix[d] for d in columns],
        matched=matched,
    )


def _solution(record: GameRecord) -> dict[str, str]:
    """Return the solution of the game as names and values."""
    rows = [row.name for row in record.rows]
    columns = record.columns
    mismatch = "not defined: a row attacks no fixed set of exits"
    if record.mismatch is not None:
        mismatch = f"{record.mismatch:.3f}"
    values = {
        "value": f"{record.value}; duality gap {record.equilibrium.gap:.1e}",
        "NEED's strategy": format_mix(record.equilibrium.mix, columns),
        "attacker's strategy": format_mix(record.attacker, rows),
        "AIMER's best response": format_mix(record.response, rows),
        "mismatch rate R_mis": mismatch,
        "best pure strategy": f"{subset_name(record.pure)}, {percent(record.pure_value)}",
        "game with an attack per image": (
            f"{percent(record.per_example.value)} with the strategy "
            f"{format_mix(record.per_example.mix, columns)}; "
            f"optimal within {record.per_example.gap:.1e}"
        ),
    }
    if record.exploitability is not None:
        reached = points(record.exploitability, 2)
        values["value against partial attacks"] = (
            f"{percent(record.partial_value)}, {count(record.partial_attacks, 'attack')}; with "
            f"attacks on the expected loss {percent(record.value.value)}"
        )
        values["exploitability"] = f"{reached} when the double oracle stopped"
    return values
