"""The outcomes of an evaluation: correct[adversary, answer, example]. Every table reduces it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from saddlepoint.attacks.spaces import Ball
from saddlepoint.defenses import Answer, Defense, Unit
from saddlepoint.evaluation.adversary import Adversary
from saddlepoint.evaluation.episode import Episode
from saddlepoint.evaluation.referee import Progress, play
from saddlepoint.evaluation.threat import Threat
from saddlepoint.phrases import count, percent

# Tensors of all episodes that share memory: many small ones take more than their numbers.
_STACKED = ("correct", "answered", "margin", "size", "copies", "forward", "backward")
_OFTEN_EMPTY = ("points", "answered", "loss_curve", "rejected", "rejection_scores")


@dataclass(frozen=True, repr=False)
class Outcomes:
    """The fraction of correct outputs for every adversary, answer and example.

    Args:
        adversaries: names of the adversaries, [A].
        answers: names of the answers, [D].
        correct: fraction of random draws with a correct output, [A, D, N] in [0, 1].
        chosen: the same over other draws, [A, D, N]: the strongest adversary is selected on these.
            It equals `correct` for deterministic defenses and for randomness that is known.
        batch: number of the batch of each example, [N].
        unit: the examples that have to be compared together.
        episodes: the evaluation of each adversary, [A]; may be empty.
    """

    adversaries: tuple[str, ...]
    answers: tuple[str, ...]
    correct: Tensor
    chosen: Tensor
    batch: Tensor
    unit: Unit
    episodes: tuple[Episode, ...] = ()

    def __repr__(self) -> str:
        accuracies = ", ".join(
            f"{name} {percent(float(accuracy.min()))}"
            for name, accuracy in zip(self.adversaries, self.accuracy(), strict=True)
        )
        answers = count(len(self.answers), "answer")
        return f"<Outcomes of {count(len(self.batch), 'image')}, {answers}: {accuracies}>"

    @classmethod
    def of(cls, episodes: Sequence[Episode], answers: tuple[str, ...], unit: Unit) -> Outcomes:
        """The outcomes of several adversaries on the same examples."""
        # Where each adversary searched for its own order, their batches differ, so only whole
        # streams can be compared.
        if unit == "batch" and any(not torch.equal(e.batch, episodes[0].batch) for e in episodes):
            unit = "stream"
        stacked = {name: torch.stack([getattr(e, name) for e in episodes]) for name in _STACKED}
        correct = stacked["correct"]
        same = all(torch.equal(e.chosen, e.correct) for e in episodes)
        chosen = correct if same else torch.stack([e.chosen for e in episodes])
        if not same:
            stacked["chosen"] = chosen
        return cls(
            adversaries=tuple(e.adversary for e in episodes),
            answers=answers,
            correct=correct,
            chosen=chosen,
            batch=episodes[0].batch,
            unit=unit,
            episodes=tuple(
                _sharing(e, episodes[0], {name: stack[a] for name, stack in stacked.items()})
                for a, e in enumerate(episodes)
            ),
        )

    def only(self, which: Sequence[int]) -> Outcomes:
        """The outcomes of some of the adversaries, given by their indices."""
        return Outcomes(
            tuple(self.adversaries[a] for a in which),
            self.answers,
            self.correct[list(which)],
            self.chosen[list(which)],
            self.batch,
            self.unit,
            tuple(self.episodes[a] for a in which) if self.episodes else (),
        )

    def accuracy(self) -> Tensor:
        """The accuracy of each answer under each adversary, [A, D]."""
        return accuracy_of(self.correct)

    def payoff(self) -> Tensor:
        """The attacker's payoff, which is the error rate of the defender, [A, D]."""
        return 1 - self.accuracy()

    def strongest(self) -> Tensor:
        """The index of the strongest adversary for each answer and example, [D, N].

        All rows of a unit (batch or stream) have the same adversary, since they depend on each
        other. It is selected on the draws of `chosen`: the minimum of several noisy numbers is
        biased, so the selection must not use the draws that count. Ties are broken by the largest
        margin, so that a robust example keeps the point that came closest to success instead of a
        clean copy.
        """
        positions = torch.arange(len(self.batch), device=self.batch.device)
        groups = {"example": positions, "batch": self.batch, "stream": torch.zeros_like(self.batch)}
        group = groups[self.unit].to(self.chosen.device)  # [N]
        empty = self.chosen.new_zeros(*self.chosen.shape[:2], int(group.amax()) + 1)  # [A, D, G]
        correct = empty.index_add(2, group, self.chosen)
        margin = empty.index_add(2, group, self._margins())
        return torch.where(correct == correct.amin(0), margin, -torch.inf).argmax(0)[:, group]

    def _margins(self) -> Tensor:  # [A, D, N]
        if not self.episodes:
            return torch.zeros_like(self.chosen)
        margins = torch.stack([episode.margin for episode in self.episodes]).to(self.chosen)
        # NaN outputs count as the worst errors. The value is finite after summation over examples.
        return margins.nan_to_num(nan=torch.finfo(margins.dtype).max / len(self.batch))

    def worst_case_per_example(self) -> Tensor:
        """The fraction of correct draws under the strongest adversary, [D, N]."""
        return self.correct.gather(0, self.strongest()[None])[0]

    def worst_case(self) -> Tensor:
        """The robust accuracy of each answer under the strongest adversary of every unit, [D]."""
        return self.worst_case_per_example().mean(-1)


def _sharing(episode: Episode, first: Episode, views: Mapping[str, Tensor]) -> Episode:
    """The episode with tensors that others have as well: many small ones take much memory.

    Args:
        episode: the episode.
        first: the first episode on the same examples.
        views: its tensors as views; `correct` is also `chosen`, unless that is given.
    """
    batch = _shared(episode.batch, first.batch)
    tensors = {"chosen": views["correct"], **views, "batch": batch}
    for name in _OFTEN_EMPTY:
        if not getattr(episode, name).numel():
            tensors[name] = _shared(getattr(episode, name), getattr(first, name))
    return replace(episode, **tensors)  # type: ignore[arg-type]


def _shared(tensor: Tensor, other: Tensor) -> Tensor:
    """The other tensor, if both are equal."""
    return other if tensor.dtype == other.dtype and torch.equal(tensor, other) else tensor


def accuracy_of(correct: Tensor) -> Tensor:
    """The mean over examples, [A, D], of fractions or of bool values, [A, D, N]."""
    if correct.is_floating_point():
        return correct.mean(-1)
    # One adversary at a time: a floating-point copy of bool values takes eight times their memory.
    return torch.stack([rows.double().mean(-1) for rows in correct])


def evaluate(
    defense: Defense,
    adversaries: Sequence[Adversary],
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat | Ball,
    answers: Mapping[str, Answer] | None = None,
    seed: int = 0,
    batch_size: int = 128,
    progress: Progress | None = None,
) -> Outcomes:
    """Evaluate a defense under several adversaries.

    Args:
        defense: the defense.
        adversaries: at least one adversary; each attacks all examples.
        x: clean inputs, [N, ...].
        y: labels, [N].
        threat: the threat model, or only its perturbation set.
        answers: the outputs to evaluate, by name; None: the answer of the defense, named "final".
        seed: seed of all random keys.
        batch_size: examples per batch.
        progress: called with the number of examples after every batch.

    Returns:
        The outcomes of all adversaries, answers and examples.

    Raises:
        ValueError: there are no adversaries, or inputs or labels are invalid.
        PermissionError: an adversary needs more access than is granted.
    """
    if not adversaries:
        raise ValueError("evaluate needs at least one adversary, such as `Direct('pgd', PGD())`.")
    threat = threat if isinstance(threat, Threat) else Threat(threat)
    episodes = [
        play(
            defense,
            adversary,
            x,
            y,
            threat,
            answers=answers,
            seed=seed,
            batch_size=batch_size,
            progress=progress,
        )
        for adversary in adversaries
    ]
    return Outcomes.of(episodes, ("final",) if answers is None else tuple(answers), defense.unit)
