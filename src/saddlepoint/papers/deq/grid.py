"""Three defenses under six gradients.

The defenses answer with the final state, an early state, or the ensemble of states. The gradients
are those of both estimators at the final state, at an intermediate state, and at all states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.evaluation import Adversary, Episode
from saddlepoint.evaluation.bootstrap import Estimate, bootstrap, mean_of
from saddlepoint.gradients import Phantom
from saddlepoint.papers.cells import accuracy_cell, difference_text, estimate_cell
from saddlepoint.papers.deq import published
from saddlepoint.papers.deq.experiment import DEQExperiment, stack_correct
from saddlepoint.papers.deq.gradients import (
    Gradient,
    adjoint_at,
    adjoint_ensemble,
    adjoint_final,
    unrolled_ensemble,
    unrolled_final,
)
from saddlepoint.papers.deq.states import StateResults, label
from saddlepoint.papers.deq.subjects import DEQSubject
from saddlepoint.papers.result import Row
from saddlepoint.papers.runner import Images
from saddlepoint.zoo.deq import EarlyState, FinalState, MeanState

LOWEST = "minimum over attacks"
WORST = "worst case per image (ours)"
COLUMNS = ("clean", *published.ATTACKS, LOWEST, WORST, "residual")
# The adjoint process with the loss of z_1 instead of z_0 in its first step, beside the paper's.
OURS = ("adjoint Intermediate without z_0 (ours)", "adjoint Ensemble without z_0 (ours)")
OURS_NOTE = (
    "adjoint columns: the loss of z_0 enters the first step, as in Eq. 9. Without z_0 (ours) the "
    "loss of z_1 is used there instead, at the same states; this is not the paper's process"
)
NOTES = (
    "minimum over attacks: the smallest accuracy over the six attacks, by which the paper measures "
    "a defense; the largest of these over the defenses is the robustness of the network. Worst "
    "case per image: the strongest of the six attacks is chosen for each image",
    "Intermediate: the candidate that is strongest on the early state on held-out images. "
    "Ensemble: the sum over all states (Eq. 17), where the released code has the weights 8, 7, "
    "..., 1; unrolled with k and damping of the intermediate attack",
    "Final: at the solver's best state, by the complete adjoint process, or by unrolling",
)

MakeAttack = Callable[[Gradient], Adversary]


@dataclass(frozen=True)
class Grid:
    """One network with its defenses, the gradients selected against it, and its states."""

    experiment: DEQExperiment
    subject: DEQSubject
    states: StateResults
    early: EarlyState
    gradients: Mapping[str, Gradient]  # by column of the tables
    ours: Mapping[str, Gradient]  # by column of `OURS`

    @classmethod
    def of(cls, experiment: DEQExperiment, name: str) -> Grid:
        """Select the early state and the intermediate gradients of the network of this name."""
        subject = experiment.subject(name)
        early = experiment.early(subject)
        adjoint, unrolled = (
            experiment.strongest(subject, gradients, early)
            for gradients in experiment.candidates(subject)
        )
        rule = unrolled.rule
        assert isinstance(rule, Phantom)
        gradients = (
            adjoint_final(),
            adjoint,
            adjoint_ensemble(subject.net),
            unrolled_final(subject.net, max(experiment.setting.unrolled)),
            unrolled,
            unrolled_ensemble(subject.net, rule.steps, rule.damping),
        )
        by_column = dict(zip(published.ATTACKS, gradients, strict=True))
        assert isinstance(adjoint.state, EarlyState)
        without_start = (
            adjoint_at(adjoint.state.n, start=False),
            adjoint_ensemble(subject.net, start=False),
        )
        ours = dict(zip(OURS, without_start, strict=True))
        return cls(experiment, subject, experiment.states(subject), early, by_column, ours)

    @property
    def names(self) -> dict[str, str]:
        """The view of each defense."""
        views = (FinalState.name, self.early.name, MeanState.name)
        return dict(zip(published.DEFENSES, views, strict=True))

    def correct(self, make: MakeAttack, images: Images | None = None) -> Tensor:
        """Return the correct predictions [A, D, N] of the defenses under the six attacks.

        Args:
            make: makes an attack of a gradient.
            images: attacked images; default: all test images.
        """
        episodes = self.episodes(make, images)
        return stack_correct(self.subject, episodes, list(self.names.values()))

    def correct_ours(self, make: MakeAttack) -> Tensor:
        """Return the correct predictions [2, D, N] under the attacks of `OURS` on all images."""
        attacks = [make(gradient) for gradient in self.ours.values()]
        episodes = self.experiment.play(self.subject, attacks, self.subject.test)
        return stack_correct(self.subject, episodes, list(self.names.values()))

    def rows_with_ours(
        self, correct: Tensor, ours: Tensor, papers: Mapping[str, Sequence[float]]
    ) -> list[Row]:
        """Make one row per defense, with the columns of `OURS` at the end.

        Args:
            correct: [A, D, N] correct predictions under the six attacks.
            ours: [2, D, N] correct predictions under the attacks of `OURS`.
            papers: the paper's numbers by defense, one per attack.
        """
        return [
            Row(row.labels, (*row.cells, *(accuracy_cell(attacked) for attacked in ours[:, d])))
            for d, row in enumerate(self.rows(correct, papers))
        ]

    def stronger_variant(self, correct: Tensor, ours: Tensor) -> list[str]:
        """Compare each adjoint attack of the paper with the same attack without z_0.

        Args:
            correct: [A, D, N] correct predictions under the six attacks.
            ours: [2, D, N] correct predictions under the attacks of `OURS`.
        """
        texts = []
        for column, attacked in zip(OURS, ours, strict=True):
            paper = column.partition(" without")[0]
            before = correct[published.ATTACKS.index(paper)]
            differences = ", ".join(
                f"{defense} {difference_text(mean_of(attacked[d] - before[d]))}"
                for d, defense in enumerate(published.DEFENSES)
            )
            texts.append(
                f"{self.subject.title}: accuracy under {column} minus that under {paper}: "
                f"{differences}."
            )
        return texts

    def episodes(self, make: MakeAttack, images: Images | None = None) -> list[Episode]:
        """Run the six attacks; arguments as in `correct`."""
        attacks = [make(gradient) for gradient in self.gradients.values()]
        return self.experiment.play(self.subject, attacks, images or self.subject.test)

    def rows(
        self,
        correct: Tensor,
        papers: Mapping[str, Sequence[float]],
        extra_labels: tuple[str, ...] = (),
    ) -> list[Row]:
        """Make one row per defense.

        Args:
            correct: [A, D, N] correct predictions.
            papers: the paper's numbers by defense, one per attack.
            extra_labels: further labels of the rows.
        """
        return [
            self._row(correct[:, d], defense, papers.get(defense), extra_labels)
            for d, defense in enumerate(self.names)
        ]

    def _row(
        self,
        correct: Tensor,  # [A, N]
        defense: str,
        paper: Sequence[float] | None,
        extra_labels: tuple[str, ...],
    ) -> Row:
        name = self.names[defense]
        numbers: Sequence[float | None] = paper or (None,) * len(published.ATTACKS)
        clean = self.subject.correct(self.states.clean, name)[: correct.shape[-1]]
        cells = (
            accuracy_cell(clean, published.CLEAN.get(self.subject.reported, {}).get(defense)),
            *(
                accuracy_cell(attacked, number)
                for attacked, number in zip(correct, numbers, strict=True)
            ),
            estimate_cell(lowest(correct), min(paper) if paper else None),
            accuracy_cell(correct.amin(0)),
            self.states.residual_cell(name),
        )
        title = f"{defense} ({label(name)})" if defense == "Early" else defense
        return Row((self.subject.title, title, *extra_labels), cells)

    def findings(self, correct: Tensor, attack: str) -> list[str]:
        """Say how robust the network is, which attack determines it, and what was selected.

        Args:
            correct: [A, D, N] correct predictions; A is a multiple of six.
            attack: name of the attack for the text.
        """
        title = self.subject.title
        accuracies = correct.mean(-1)  # [A, D]
        d = int(accuracies.amin(0).argmax())
        strongest = published.ATTACKS[int(accuracies[:, d].argmin()) % len(published.ATTACKS)]
        paper = published.robustness(self.subject.reported)
        reported = f"; the paper's numbers give {paper:.2f} %" if paper is not None else ""
        selected = ", ".join(
            f"{column} is {gradient.name}"
            for column, gradient in self.gradients.items()
            if "Intermediate" in column
        )
        return [
            f"{title}, {attack}: the robustness, max over defenses of min over attacks, is "
            f"{robustness(correct)}, of the defense {published.DEFENSES[d]} under "
            f"{strongest}{reported}.",
            f"{title}: the early state is {label(self.early.name)}; {selected}.",
            self.states.accumulation(self.early),
        ]


def lowest(correct: Tensor) -> Estimate:
    """Return min_a mean_n of [A, N] with its interval over images."""
    return bootstrap(lambda rows: float(correct[:, rows].mean(-1).amin()), correct.shape[-1])


def robustness(correct: Tensor) -> Estimate:
    """Return max_d min_a mean_n of [A, D, N] with its interval over images (Sec. 6.2).

    This is the accuracy of the best defense under its strongest attack.
    """
    return bootstrap(
        lambda rows: float(correct[:, :, rows].mean(-1).amin(0).amax()), correct.shape[-1]
    )


def with_pgd(experiment: DEQExperiment) -> MakeAttack:
    """Return a function that makes PGD-10 of a gradient."""
    return lambda gradient: gradient.pgd(experiment.setting.pgd)


def join_attacks(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate results [A, D, N] of several kinds of attack."""
    return torch.cat(list(parts))
