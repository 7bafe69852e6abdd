"""Rejection: how close each output is to a rejection, and the tradeoff over thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attacks.losses import misclassified


def no_rejections() -> Tensor:
    """The rejection rates of a defense that cannot reject: an empty tensor, [2, 0, 0]."""
    return torch.zeros(2, 0, 0, dtype=torch.float64)


def no_rejection_scores() -> Tensor:
    """The rejection scores of a defense that cannot reject: an empty tensor, [4, 0, 0, 0]."""
    return torch.zeros(4, 0, 0, 0, dtype=torch.float64)


def rejection_scores(logits: Tensor, y: Tensor) -> Tensor:
    """How close each output is to a rejection, and whether its top class is wrong.

    Args:
        logits: [..., N, C + 1]; the last column is "reject".
        y: labels, [N].

    Returns:
        [2, ..., N]: z_reject - max_c z_c, which is positive where the defense rejects; and 1 where
        the class with the highest logit is wrong, else 0.
    """
    classes = logits[..., :-1]
    lead = logits[..., -1] - classes.amax(-1)
    return torch.stack([lead, misclassified(classes, y).to(logits)]).double()


@dataclass(frozen=True)
class RejectionCurve:
    """Rejection and error rates by threshold.

    `error` and `rejected_normal` over `rejected` are Fig. 1 of Chen et al. 2022. Both rejection
    rates decrease as the threshold increases.
    """

    thresholds: tuple[float, ...]  # [T] increasing
    rejected: tuple[float, ...]  # [T] rejected fraction of the test batch
    rejected_normal: tuple[float, ...]  # [T] rejected fraction of normal images: rej_U(S) of Eq. 1
    error: tuple[float, ...]  # [T] errors among accepted images, 0 if none; as in the released code
    error_of_all: tuple[float, ...]  # [T] accepted errors over the batch size: err_U'(F|S) of Eq. 1


def rejection_tradeoff(
    scores: Tensor,
    wrong: Tensor,
    normal: Tensor,
    cuts: Sequence[float],
    thresholds: Sequence[float],
) -> RejectionCurve:
    """Rejection and error rates of a test batch for several thresholds.

    An image is rejected where its score exceeds the cut. A NaN score rejects nothing.

    Args:
        scores: rejection scores of the test batch, [N].
        wrong: whether the top class of each test image is wrong, [N] bool.
        normal: rejection scores of normal images, [M].
        cuts: scores at which to reject, [T].
        thresholds: the labels of the cuts on the curve, [T].
    """
    cut = torch.tensor(cuts, dtype=torch.float64, device=scores.device)[:, None]  # [T, 1]
    accepted = ~(scores > cut)  # [T, N]
    mistakes = (accepted & wrong).sum(1).double()
    answered = accepted.sum(1)
    return RejectionCurve(
        thresholds=tuple(thresholds),
        rejected=tuple((1 - answered / len(scores)).tolist()),
        rejected_normal=tuple((normal > cut).double().mean(1).tolist()),
        error=tuple((mistakes / answered.clamp(min=1)).tolist()),
        error_of_all=tuple((mistakes / len(scores)).tolist()),
    )
