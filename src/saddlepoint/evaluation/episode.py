"""The record of one adversary against one defense."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from saddlepoint.attacks.history import merge_loss_curves, no_loss_curve
from saddlepoint.evaluation.rejection import no_rejection_scores, no_rejections
from saddlepoint.phrases import count, percent

_NOT_TENSORS = ("adversary", "seconds")
_NOT_PER_EXAMPLE = (*_NOT_TENSORS, "loss_curve")


@dataclass(frozen=True, repr=False)
class Episode:
    """One adversary against one defense on all examples, as the referee recorded it.

    D is the number of answers (columns), S the number of random draws.
    """

    adversary: str  # its name
    points: Tensor  # [N, ...] proposed points
    correct: Tensor  # [D, N] fraction of draws with a correct output
    # [D, N] the same over the draws on which the strongest adversary is selected. These are other
    # draws, unless the attacker knows the randomness.
    chosen: Tensor
    answered: Tensor  # [D, N] most frequent class over the draws of `correct`; C is a rejection
    margin: Tensor  # [D, N] mean margin over the same draws; positive where the output is wrong
    batch: Tensor  # [N] number of the batch of each example
    size: Tensor  # [N] norm of the perturbation, in the norm of the threat model
    copies: Tensor  # [N] bool: the proposed point is the clean image
    forward: Tensor  # [N] forward passes of the adversary
    backward: Tensor  # [N] backward passes of the adversary
    seconds: float  # wall-clock time
    # [5, K] how the objective increased, summed over examples: `History.loss_curve`
    loss_curve: Tensor = field(default_factory=no_loss_curve)
    # [2, D, N] fraction of draws that reject the point, which counts as correct, and fraction that
    # would reject the clean image instead. The mean of the latter is rej_U(S) of Goldwasser et al.
    # 2020. [2, 0, 0] for a defense that cannot reject.
    rejected: Tensor = field(default_factory=no_rejections)
    # [4, S, D, N] `rejection_scores` of each of these draws, at the point and then at the clean
    # image. [4, 0, 0, 0] for a defense that cannot reject.
    rejection_scores: Tensor = field(default_factory=no_rejection_scores)

    def __repr__(self) -> str:
        accuracy = percent(float(self.correct.mean(1).min()))
        return f"<Episode of {self.adversary}, {count(len(self.batch), 'image')}: {accuracy}>"

    def without_points(self) -> Episode:
        """The same episode without its points, which take most of the memory."""
        return replace(self, points=self.points[:, :0].clone())

    def to(self, device: str | torch.device) -> Episode:
        """The same episode with all tensors on a device."""
        tensors = {
            f.name: getattr(self, f.name).to(device)
            for f in fields(self)
            if f.name not in _NOT_TENSORS
        }
        return replace(self, **tensors)

    def __getitem__(self, rows: Tensor) -> Episode:
        """The episode of some examples, or with its examples in another order.

        The loss curve stays that of all examples.
        """
        n = len(self.batch)
        selected = {}
        for f in fields(self):
            if f.name in _NOT_PER_EXAMPLE:
                continue
            value = getattr(self, f.name)
            if f.name == "points":
                selected[f.name] = value[rows]
            elif value.shape[-1] == n:
                selected[f.name] = value[..., rows]
        return replace(self, **selected)

    @classmethod
    def joined(cls, parts: Sequence[Episode]) -> Episode:
        """The episodes of one adversary on several batches as one episode."""
        counts = [int(p.batch.amax()) + 1 for p in parts]
        before = [sum(counts[:k]) for k in range(len(parts))]
        correct = torch.cat([p.correct for p in parts], dim=1)
        chosen = correct
        if any(p.chosen is not p.correct for p in parts):
            chosen = torch.cat([p.chosen for p in parts], dim=1)
        return cls(
            adversary=parts[0].adversary,
            points=torch.cat([p.points for p in parts]),
            correct=correct,
            chosen=chosen,
            answered=torch.cat([p.answered for p in parts], dim=1),
            margin=torch.cat([p.margin for p in parts], dim=1),
            batch=torch.cat([p.batch + offset for p, offset in zip(parts, before, strict=True)]),
            size=torch.cat([p.size for p in parts]),
            copies=torch.cat([p.copies for p in parts]),
            forward=torch.cat([p.forward for p in parts]),
            backward=torch.cat([p.backward for p in parts]),
            seconds=sum(p.seconds for p in parts),
            loss_curve=merge_loss_curves([p.loss_curve for p in parts]),
            rejected=torch.cat([p.rejected for p in parts], dim=2),
            rejection_scores=torch.cat([p.rejection_scores for p in parts], dim=3),
        )
