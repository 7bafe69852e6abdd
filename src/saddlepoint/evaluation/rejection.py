"""What refusing costs and buys: how near every answer is to a refusal, and what other thresholds would have made of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attacks.losses import fooled


def no_rejection_scores() -> Tensor:
    """The scores of a defense that refuses nothing."""
    return torch.zeros(4, 0, 0, 0, dtype=torch.float64)


def scored(logits: Tensor, y: Tensor) -> Tensor:
    """[..., N, C + 1] -> [2, ..., N]: z_reject - max_c z_c, a refusal where positive; and is the foremost class wrong, 0 or 1?"""
    classes = logits[..., :-1]
    return torch.stack([logits[..., -1] - classes.amax(-1), fooled(classes, y).to(logits)]).double()


@dataclass(frozen=True)
class RejectionCurve:
    """What refusing costs and buys, by threshold: Fig. 1 of Chen et al. 2022 is `error` and `rejected_normal` over `rejected`.

    Both shares of refusals fall from left to right, as the threshold rises.
    """

    thresholds: tuple[float, ...]  # [T] rising
    rejected: tuple[float, ...]  # [T] share of the test batch that is refused
    rejected_normal: tuple[
        float, ...
    ]  # [T] share of its ordinary images that is refused: rej_U(S) of Eq. 1
    error: tuple[
        float, ...
    ]  # [T] share of mistakes among those that are answered, 0 where none is: as the released code counts
    error_of_all: tuple[
        float, ...
    ]  # [T] mistakes that are answered, as a share of the whole batch: err_U'(F|S) of Eq. 1


def rejection_tradeoff(
    scores: Tensor,
    wrong: Tensor,
    normal: Tensor,
    cuts: Sequence[float],
    thresholds: Sequence[float],
) -> RejectionCurve:
    """The curve of a test batch by scores [N] and bool [N], and of ordinary images by scores [M]; refused is what exceeds a cut.

    A threshold is what its cut is called. A score that is not a number refuses nothing.
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
