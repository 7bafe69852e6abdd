"""Table 1: a network with a solver that does not converge.

It is attacked with the exact gradient, with the unrolled gradient, and without gradients.
"""

from __future__ import annotations

from torch import Tensor

from saddlepoint.attacks.losses import margin
from saddlepoint.evaluation import Direct, MaxLossPoint
from saddlepoint.evaluation.bootstrap import mean_of
from saddlepoint.papers.cells import accuracy_cell, by_interval, difference_text
from saddlepoint.papers.deq import published
from saddlepoint.papers.deq.experiment import DEQExperiment
from saddlepoint.papers.deq.gradients import Gradient, ready_made, unrolled_final
from saddlepoint.papers.deq.states import StateResults
from saddlepoint.papers.deq.three_ways import GradientAttacks, Profile, effects_table
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result, Row, Table
from saddlepoint.zoo.deq import FinalState

COLUMNS = ("clean", "PGD-10", "PGD-1000", "Square", "residual")
EXACT = "exact"
UNROLLED = "unrolled"


def run(request: Request) -> Result:
    """Reproduce Table 1."""
    experiment = DEQExperiment.open(request)
    subject = experiment.subject("exact-short")
    states = experiment.states(subject)
    steps = max(experiment.setting.unrolled)
    gradients = {EXACT: ready_made(subject.net), UNROLLED: unrolled_final(subject.net, steps)}
    correct = _attack(experiment, states, gradients)
    rows = tuple(_row(states, correct, name) for name in gradients)
    attacks = GradientAttacks(Profile(states, experiment.early(subject)), correct)
    title = "Accuracy of the final state, %"
    table = Table(title, ("network", "gradient"), COLUMNS, rows, len(subject.test.x))
    return experiment.result(
        "table-1",
        [table, states.table(), effects_table(attacks.effects)],
        states=[states],
        notes=[
            f"unrolled gradient: {steps} steps with damping 0.5 from the state at which the "
            "solver ended"
        ],
        findings=[
            *masking(correct),
            _smallest_residual(states),
            states.accumulation(attacks.profile.early),
        ],
    )


def _attack(
    experiment: DEQExperiment, states: StateResults, gradients: dict[str, Gradient]
) -> dict[str, Tensor]:
    """Return the correct predictions [N] of the final state by attack."""
    subject = states.subject
    setting = experiment.setting
    final = FinalState.name
    square = MaxLossPoint(Direct("square", setting.square, margin, keep=frozenset({final})))
    (episode,) = experiment.play(subject, [square], subject.test)
    correct = {"Square": subject.correct(episode, final)}
    for name, gradient in gradients.items():
        attacks = [gradient.pgd(setting.pgd), gradient.pgd(setting.long)]
        short, long = experiment.play(subject, attacks, subject.test)
        correct[f"PGD-10, {name}"] = subject.correct(short, final)
        correct[f"PGD-1000, {name}"] = subject.correct(long, final)
    return correct


def _row(states: StateResults, correct: dict[str, Tensor], name: str) -> Row:
    """Make the row of one gradient; numbers without gradients are shown once, as in the paper."""
    subject = states.subject
    papers = published.TABLE_1[name]
    attacked = (
        accuracy_cell(correct[f"PGD-10, {name}"], papers[0]),
        accuracy_cell(correct[f"PGD-1000, {name}"], papers[1]),
    )
    if name != EXACT:
        return Row((subject.title, name), (None, *attacked, None, None))
    clean = subject.correct(states.clean, FinalState.name)
    cells = (
        accuracy_cell(clean, published.TABLE_1_CLEAN),
        *attacked,
        accuracy_cell(correct["Square"], published.TABLE_1_SQUARE),
        states.residual_cell(FinalState.name),
    )
    return Row((subject.title, name), cells)


def masking(correct: dict[str, Tensor]) -> list[str]:
    """Say whether other attacks break images that the exact gradient does not break.

    Args:
        correct: correct predictions [N] by attack, all on the same images.
    """
    texts = []
    for other in ("PGD-10, unrolled", "PGD-1000, unrolled", "Square"):
        exact = "PGD-1000, exact" if "1000" in other else "PGD-10, exact"
        difference = mean_of(correct[exact] - correct[other])
        verdict = by_interval(
            difference.low,
            difference.high,
            above="the exact gradient is masked",
            below="the exact gradient is stronger",
            inconclusive="no masking that is detectable on these images",
        )
        accuracies = " and ".join(
            f"{100 * float(correct[name].mean()):.1f} % under {name}" for name in (exact, other)
        )
        texts.append(
            f"The accuracy is {accuracies}, a difference of {difference_text(difference)}: "
            f"{verdict}."
        )
    return texts


def _smallest_residual(states: StateResults) -> str:
    medians = (
        float(residual.median())
        for name, residual in states.residual.items()
        if name.startswith("solve/")
    )
    return (
        f"The smallest median residual of a solver state is {min(medians):.2g}; in the paper all "
        "are above 0.75."
    )
