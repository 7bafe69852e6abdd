"""Beyond the paper: the game of a seven-exit network that others trained, at scale real.

Strategies and AIMER's rows are computed on the images of the game. All accuracies and effects are
measured on other images, with intervals over them.
"""

from __future__ import annotations

from dataclasses import replace

from saddlepoint.papers.multi_exit.experiment import MultiExitExperiment
from saddlepoint.papers.multi_exit.out_of_sample import strategies
from saddlepoint.papers.multi_exit.scored_game import (
    NOTES,
    effects_of,
    effects_table,
    evaluations_table,
    exits_table,
    findings,
    heat_map,
    score,
    strategies_table,
)
from saddlepoint.papers.multi_exit.third_party import triple_wins, with_all_rows
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result

_SHOWN = ((1, 2), (3, 4), (5, 7), (1, 4), (4, 7), (1, 7))  # first and last exit, in the heat map


def run(request: Request) -> Result:
    """Play the game on 500 images and score attackers and strategies on 500 others."""
    experiment = with_all_rows(MultiExitExperiment.open(request))
    subject = triple_wins(experiment)
    scored = score(experiment, subject)
    game = scored.game
    mixes = strategies(game)
    effects = effects_of(scored, mixes)
    steps = experiment.setting.payoff.steps
    result = experiment.result(
        "seven-exits",
        [
            exits_table(scored),
            evaluations_table(scored),
            strategies_table(scored, mixes),
            effects_table(effects, len(subject.test.x)),
        ],
        subjects=[subject],
        notes=[
            f"{len(game.targets)} attacks, one on every set of exits, x {len(game.subsets)} sets "
            f"of exits that answer; PGD with {steps} steps of decreasing length from the "
            "clean image",
            "the lengths of the steps were chosen on 100 of the scored images",
            "the game's images and the scored images are test images of CIFAR-10, and disjoint",
            *NOTES,
        ],
        findings=findings(scored, effects),
        charts=[heat_map(scored, subject, _SHOWN)],
        repeats=1,
    )
    title = (
        f"The game on seven exits: {len(game.targets)} attacks x {len(game.subsets)} sets (ours)"
    )
    return replace(result, title=title)
