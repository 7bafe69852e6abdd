"""Three defenses under six gradients: Final, Early and Ensemble against both estimators at final, intermediate and all states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.evaluation import Adversary, Episode
from saddlepoint.evaluation.bootstrap import Estimate, bootstrap
from saddlepoint.gradients import Phantom
from saddlepoint.papers.deq import published
from saddlepoint.papers.deq.experiment import Lab, States, Subject, accuracy, percent, stacked
from saddlepoint.papers.deq.gradients import (
    Gradient,
    adjoint_ensemble,
    adjoint_final,
    unrolled_ensemble,
    unrolled_final,
)
from saddlepoint.papers.deq.states import label
from saddlepoint.papers.result import Cell, Row
from saddlepoint.papers.runner import Images
from saddlepoint.zoo.deq import EarlyState, FinalState, MeanState

LOWEST = "lowest column"
WORST = "worst per image (ours)"
COLUMNS = ("clean", *published.ATTACKS, LOWEST, WORST, "residual")
NOTES = (
    "lowest column: the smallest accuracy over the six attacks, by which the paper measures a defense; the largest of these is the "
    "network's robustness. Worst per image: an attacker who sends each image the strongest of the six",
    "Intermediate: the candidate that hurts the early state most on held-out images. Ensemble: the sum over all states (Eq. 17), "
    "where the released code weighs the states 8, 7, ..., 1; unrolled with the intermediate attack's k and damping",
    "Final: at the solver's best state, by the adjoint process to its end, or by unrolling",
)

Send = Callable[[Gradient], Adversary]


@dataclass(frozen=True)
class Grid:
    """One network: its defenses, the gradients chosen against it, and all its states."""

    lab: Lab
    subject: Subject
    states: States
    early: EarlyState
    gradients: Mapping[str, Gradient]  # by the columns of the tables

    @classmethod
    def of(cls, lab: Lab, name: str) -> Grid:
        subject = lab.subject(name)
        early = lab.early(subject)
        walking, unrolling = (
            lab.strongest(subject, some, early) for some in lab.candidates(subject)
        )
        rule = unrolling.rule
        assert isinstance(rule, Phantom)
        found = (
            adjoint_final(),
            walking,
            adjoint_ensemble(subject.net),
            unrolled_final(subject.net, max(lab.setting.unrolled)),
            unrolling,
            unrolled_ensemble(subject.net, rule.steps, rule.damping),
        )
        return cls(
            lab,
            subject,
            lab.states(subject),
            early,
            dict(zip(published.ATTACKS, found, strict=True)),
        )

    @property
    def names(self) -> dict[str, str]:
        """Views by the names of the defenses."""
        return dict(
            zip(published.DEFENSES, (FinalState.name, self.early.name, MeanState.name), strict=True)
        )

    def correct(self, send: Send, images: Images | None = None) -> Tensor:
        """[A, D, N] the six attacks on the three defenses, on all test images or on these."""
        return stacked(self.subject, self.episodes(send, images), list(self.names.values()))

    def episodes(self, send: Send, images: Images | None = None) -> list[Episode]:
        return self.lab.play(
            self.subject,
            [send(one) for one in self.gradients.values()],
            images or self.subject.test,
        )

    def rows(
        self, correct: Tensor, papers: Mapping[str, Sequence[float]], more: tuple[str, ...] = ()
    ) -> list[Row]:
        """A row per defense: clean, the six attacks, what is left under the strongest, and how far from a fixed point it is."""
        rows = []
        for d, (defense, name) in enumerate(self.names.items()):
            paper: Sequence[float | None] = papers.get(defense, (None,) * len(published.ATTACKS))
            shown = f"{defense} ({label(name)})" if defense == "Early" else defense
            right = self.subject.right(self.states.clean, name)[: correct.shape[-1]]
            clean = accuracy(right, published.CLEAN.get(self.subject.name, {}).get(defense))
            attacked = [
                accuracy(one, figure) for one, figure in zip(correct[:, d], paper, strict=True)
            ]
            known = [figure for figure in paper if figure is not None]
            least = percent(lowest(correct[:, d]), min(known) if known else None)
            worst = accuracy(correct[:, d].amin(0))
            cells: tuple[Cell | None, ...] = (clean, *attacked, least, worst, self.states.far(name))
            rows.append(Row((self.subject.title, shown, *more), cells))
        return rows

    def findings(self, correct: Tensor, attack: str) -> list[str]:
        """The network's robustness with its interval, who decides it, and whether robustness accumulated."""
        found = robustness(correct)
        left = correct.mean(-1)  # [A, D]
        d = int(left.amin(0).argmax())
        paper = published.robustness(self.subject.name)
        beside = f"; the paper's figures give {paper:.2f} %" if paper is not None else ""
        defense = published.DEFENSES[d]
        decisive = published.ATTACKS[int(left[:, d].argmin()) % len(published.ATTACKS)]
        named = {
            column: one.name for column, one in self.gradients.items() if "Intermediate" in column
        }
        chosen = ", ".join(f"{column} is {name}" for column, name in named.items())
        return [
            f"{self.subject.title}, {attack}: the robustness, max over defenses of min over attacks, is {found}, by the defense "
            f"{defense} under {decisive}{beside}.",
            f"{self.subject.title}: the early state is {label(self.early.name)}; {chosen}.",
            self.states.accumulation(self.early),
        ]


def lowest(correct: Tensor) -> Estimate:
    """min_a mean_n of [A, N], with its interval over images."""
    return bootstrap(lambda rows: float(correct[:, rows].mean(-1).amin()), correct.shape[-1])


def robustness(correct: Tensor) -> Estimate:
    """max_d min_a mean_n of [A, D, N], with its interval over images: the best defense under its strongest attack (Sec. 6.2)."""
    return bootstrap(
        lambda rows: float(correct[:, :, rows].mean(-1).amin(0).amax()), correct.shape[-1]
    )


def with_pgd(lab: Lab) -> Send:
    return lambda one: one.pgd(lab.setting.pgd)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Several kinds of attack as one list."""
    return torch.cat(list(parts))
