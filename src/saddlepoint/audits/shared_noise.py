"""Evaluation of noise that all images of a batch share: as many draws as its variance requires."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from saddlepoint.evaluation import Episode

LARGEST_ERROR = 0.01  # standard error of an accuracy over draws
PARTS = 8  # evaluations before the variance between them is estimated
# The accuracy of one draw varies by at most 1/2, so these give a standard error of 0.01.
MOST_DRAWS = 2500


def until_precise(evaluate: Callable[[int], Episode], draws: int, error: float) -> Episode:
    """Repeat an evaluation with new draws until the standard error of its accuracy is small.

    Images that share their noise are right or wrong together, so their errors do not average out.
    The standard error is s / sqrt(K), where s is the standard deviation of the accuracies of K
    evaluations with different draws.

    Args:
        evaluate: from the number of an evaluation to its episode; `correct` and `chosen` are
            means over different draws.
        draws: draws of each of the two.
        error: the standard error to reach; at most `MOST_DRAWS` draws are used.
    """
    parts: list[Episode] = []
    while True:
        parts.append(evaluate(len(parts)))
        enough = 2 * draws * len(parts) >= MOST_DRAWS
        if len(parts) >= PARTS and (enough or standard_error(parts) <= error):
            return _mean(parts)


def standard_error(parts: Sequence[Episode]) -> float:
    """The standard error of the mean accuracy of evaluations with different draws."""
    means = torch.cat([torch.stack([p.correct.mean(), p.chosen.mean()]) for p in parts]).double()
    return float(means.std()) / math.sqrt(len(means))


def _mean(parts: Sequence[Episode]) -> Episode:
    """One episode over the draws of all parts."""
    correct = torch.stack([(p.correct + p.chosen) / 2 for p in parts]).mean(0)
    return replace(
        parts[0],
        correct=correct,
        chosen=correct.clone(),  # a cell stores no two tensors with the same memory
        answered=torch.stack([p.answered for p in parts]).mode(0).values,
        margin=torch.stack([p.margin for p in parts]).mean(0),
        rejected=torch.stack([p.rejected for p in parts]).mean(0),
        rejection_scores=torch.cat([p.rejection_scores for p in parts], dim=1),
        seconds=sum(p.seconds for p in parts),
    )
