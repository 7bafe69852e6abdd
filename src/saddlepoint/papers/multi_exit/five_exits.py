"""Tables 1 and 2 and the game on one network with five exits.

At scale real, exits are attached to a robust network that others trained, and trained with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from saddlepoint.evaluation.bootstrap import mean_of
from saddlepoint.papers.budgets import counted
from saddlepoint.papers.cells import estimate_cell
from saddlepoint.papers.masking import mark_masked, masked_warnings
from saddlepoint.papers.multi_exit import attached, scored_game
from saddlepoint.papers.multi_exit.experiment import MultiExitExperiment, MultiExitSubject
from saddlepoint.papers.multi_exit.out_of_sample import strategies
from saddlepoint.papers.multi_exit.scored_game import (
    NEED,
    ScoredGame,
    effects_of,
    effects_table,
    evaluations_table,
    exits_table,
    heat_map,
    score,
    strategies_table,
)
from saddlepoint.papers.multi_exit.table_1 import CASES, EOT_NOTE, LABELS, evaluate, findings
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result, Row, Table

SINGLE = "single-exit network"
NEED_MINUS_SINGLE = "one attack for all images: NEED minus the single-exit network"
_SHOWN = ((1, 2), (3, 4), (4, 5), (1, 3), (3, 5), (1, 5))  # first and last exit, in the heat map


def run(request: Request) -> Result:
    """Evaluate the five exits of a network that is trained here, and its twin with one exit."""
    experiment = MultiExitExperiment.open(request)
    return _evaluate(experiment, experiment.subject("vgg-16"), experiment.subject("vgg-16 single"))


def run_real(request: Request) -> Result:
    """Evaluate a third-party network with attached exits, and the same network with one exit."""
    experiment = attached.open_experiment(request)
    many = attached.attached_subject(experiment, "PGD-AT")
    single = attached.attached_subject(experiment, "PGD-AT", single=True)
    return _evaluate(experiment, many, single, [attached.training_note()])


def _evaluate(
    experiment: MultiExitExperiment,
    many: MultiExitSubject,
    single: MultiExitSubject,
    notes: Sequence[str] = (),
) -> Result:
    scored = score(experiment, many)
    mixes = strategies(scored.game)
    twin = experiment.game(single, single.test)
    effects = effects_of(scored, mixes)
    effects[NEED_MINUS_SINGLE] = mean_of(scored.aimer(mixes[NEED]) - _attacked_twin(twin.correct))
    table = _attacks_table(experiment, many)
    weaker = experiment.setting.weaker
    assert twin.clean is not None
    defenders = strategies_table(scored, mixes)
    return experiment.result(
        "five-exits",
        [
            exits_table(scored),
            evaluations_table(scored),
            _with_twin(defenders, twin.clean[0].double(), _attacked_twin(twin.correct)),
            effects_table(effects, len(many.test.x)),
            table,
        ],
        subjects=[many, single],
        notes=[
            *notes,
            f"{len(scored.game.targets)} attacks, {_rows(scored)}, x {len(scored.game.subsets)} "
            "sets of exits that answer; PGD with "
            f"{counted(experiment.setting.payoff.steps, 'step')}",
            *scored_game.NOTES,
            f"{SINGLE}: under PGD on its only exit",
            experiment.setting.budgets,
            EOT_NOTE,
        ],
        findings=[
            *scored_game.findings(scored, effects),
            *findings(table),
        ],
        charts=[heat_map(scored, many, _SHOWN)],
        repeats=1,
        symptoms=masked_warnings(table, weaker),
    )


def _rows(scored: ScoredGame) -> str:
    every = len(scored.game.targets) == len(scored.game.subsets)
    return "on all sets of exits" if every else "on neighboring exits"


def _attacked_twin(correct: Tensor) -> Tensor:
    """[N] whether the only exit is correct under the only attack of its game [1, 1, N]."""
    return correct[0, 0].double()


def _with_twin(table: Table, clean: Tensor, attacked: Tensor) -> Table:
    """Append the network with one exit to the table of strategies."""
    found = estimate_cell(mean_of(attacked))
    cells = (None, estimate_cell(mean_of(clean)), None, found, found)
    return Table(
        table.title,
        table.labels,
        table.columns,
        (*table.rows, Row((SINGLE, "1"), cells)),
        table.n,
        digits=table.digits,
    )


def _attacks_table(experiment: MultiExitExperiment, subject: MultiExitSubject) -> Table:
    """Table 1 on this network: each defender under four evaluations and all attacks."""
    cases = {case.strategy: case for case in reversed(CASES)}  # one network: each strategy once
    rows = [row for case in reversed(cases.values()) for row in evaluate(experiment, subject, case)]
    table = Table(
        "Robust accuracy, %, by attack (Table 1)",
        LABELS,
        experiment.setting.columns,
        tuple(rows),
        experiment.setting.reduced_images,
    )
    return mark_masked(table, experiment.setting.weaker)
