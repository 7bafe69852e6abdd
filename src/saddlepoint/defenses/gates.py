"""Dynamic inference: the first exit that is sure enough answers. What that costs, and how often each exit is used.

A gate may answer with any exit, and answers with one; the last exit always answers if nobody did before. Thresholds are set on data
of their own, a split of the training set: set on the test set they are tuned on what they are judged by.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from saddlepoint.defenses.base import Defense
from saddlepoint.defenses.context import Context
from saddlepoint.defenses.multi_exit import MultiExit, Strategy, Subset, membership, subset_name


@dataclass(frozen=True)
class Confident:
    """The first exit k with max_c softmax(z_k)_c >= T_k: MSDNet's rule (Huang et al. 2018), one threshold for each but the last."""

    thresholds: tuple[float, ...]
    random: bool = False

    @classmethod
    def calibrated(cls, logits: Tensor, *, ratio: float = 1.0) -> Confident:
        """Thresholds from logits [L, N, C] of clean data, by which a share proportional to ratio^k leaves at exit k.

        T_k is the confidence of the floor(N share_k)-th surest of those that are left, as in MSDNet's code, whose ratios go from 0
        to 2; below 1 most leave early. Equally sure examples leave together.
        """
        exits, n = logits.shape[:2]
        counts = [math.floor(n * share + 1e-9) for share in _shares(ratio, exits)]
        return cls(_cuts(confidence(logits), counts[:-1], reached=True))

    def pick(self, logits: Tensor, ctx: Context) -> Tensor:  # noqa: ARG002
        return _first(confidence(logits)[:-1] >= _column(self.thresholds, logits))


@dataclass(frozen=True)
class LowEntropy:
    """The first exit k with H_k < T_k, where H = -sum_c p_c log(p_c + 1e-5): the rule of Hu et al. 2020, without their hand shifts.

    Their released code sets thresholds on the test set and then moves them by hand (by -0.05 to -0.25 for one net, by factors of 3
    and 4 for another); here they come from the split that they are given and stay.
    """

    thresholds: tuple[float, ...]
    random: bool = False

    @classmethod
    def calibrated(cls, logits: Tensor) -> LowEntropy:
        """Thresholds by which floor(N / L) of those that are left leave at each exit, given logits [L, N, C] of clean data."""
        exits, n = logits.shape[:2]
        cuts = _cuts(-entropy(logits), [n // exits] * (exits - 1), reached=False)
        return cls(tuple(-cut for cut in cuts))

    def pick(self, logits: Tensor, ctx: Context) -> Tensor:  # noqa: ARG002
        return _first(entropy(logits)[:-1] < _column(self.thresholds, logits))


def confidence(logits: Tensor) -> Tensor:
    """[..., C] -> [...]: the largest softmax probability."""
    return logits.softmax(-1).amax(-1)


def entropy(logits: Tensor) -> Tensor:
    """[..., C] -> [...]: -sum p log(p + 1e-5)."""
    p = logits.softmax(-1)
    return -(p * (p + 1e-5).log()).sum(-1)


def exit_logits(defense: MultiExit, x: Tensor, *, batch_size: int = 256) -> Tensor:
    """[L, N, C]: what all exits say, without gradients."""
    with torch.no_grad():
        parts = [
            defense.trace(part, Context.seeded(0, len(part))).logits
            for part in torch.split(x, batch_size)
        ]
    return torch.cat(parts, dim=1)


def average_cost(
    strategy: Strategy, logits: Tensor, costs: Sequence[float], ctx: Context | None = None
) -> float:
    """What an example costs on average, given the logits [L, N, C] of all exits on it and the cost of reaching each exit.

    `costs[k - 1]` counts everything up to and including exit k, earlier exits too: an answer costs what its deepest exit does.
    `ctx` holds the coins of a strategy that draws; by default those of seed 0.
    """
    _refuse_costs(costs, len(logits))
    picked = strategy.pick(logits, ctx or Context.seeded(0, logits.shape[1]))  # [N, L]
    return float(torch.tensor(costs, dtype=torch.float64)[_deepest(picked).cpu()].mean())


def ratio_for(costs: Sequence[float], budget: float) -> float:
    """The ratio q with sum_k q^k c_k / sum_k q^k = budget: how an average cost becomes shares of exits (Huang et al. 2018).

    `Confident.calibrated(logits, ratio=ratio_for(costs, budget))` spends `budget` on average on the data it is calibrated on, up to
    the rounding of N share_k; `average_cost` says what it spends elsewhere.
    """
    _refuse_costs(costs, len(costs))
    if not costs[0] < budget < costs[-1]:
        raise ValueError(
            f"an average cost of {budget:g} cannot be had: it must lie between those of the first and the last exit, {costs[0]:g} "
            f"and {costs[-1]:g}. At either end use Static((k,))."
        )
    low = -60.0
    high = 60.0  # of log q: exp(60) in front of the last exit is as good as always
    for _ in range(200):  # halving 120 two hundred times is below the last bit
        middle = (low + high) / 2
        spent = sum(
            share * cost
            for share, cost in zip(_shares(math.exp(middle), len(costs)), costs, strict=True)
        )
        low, high = (middle, high) if spent < budget else (low, middle)
    return math.exp((low + high) / 2)


def frequencies(defense: Defense, x: Tensor, subsets: Sequence[Subset], ctx: Context) -> Tensor:
    """[S] how often each subset answers on these inputs.

    On inputs from an average attack: what stands in for the strategy of a defender whose choice depends on the input (Xu et al.,
    Sec. 3.3). It is a marginal; which example leaves where is lost in it.
    """
    if not isinstance(defense, MultiExit):
        raise TypeError(
            f"frequencies needs a MultiExit, whose strategy picks exits; got {type(defense).__name__}."
        )
    with torch.no_grad():
        logits = defense.trace(x, ctx).logits
        picked = defense.strategy.pick(logits, ctx)  # [N, L]
    same = (picked[:, None].cpu() == membership(subsets, len(logits)).bool()).all(2)  # [N, S]
    if not same.any(1).all():
        stray = picked[int((~same.any(1)).nonzero()[0])].nonzero()[:, 0] + 1
        raise ValueError(
            f"exits {subset_name(tuple(stray.tolist()))} answered, which are none of the {len(subsets)} subsets given. Give all "
            "that the strategy may pick: the single exits for a gate, `mix.subsets` for a mix."
        )
    return same.double().mean(0)


def _shares(ratio: float, exits: int) -> list[float]:
    """q^k / sum_j q^j, k = 1 ... L; in logarithms, so that no power overflows."""
    if not (ratio > 0 and math.isfinite(ratio)):
        raise ValueError(
            f"the ratio between the shares of neighboring exits must be a finite number above 0, got {ratio}."
        )
    return (torch.arange(exits, dtype=torch.float64) * math.log(ratio)).softmax(0).tolist()


def _cuts(sure: Tensor, counts: Sequence[int], *, reached: bool) -> tuple[float, ...]:
    """For each exit but the last the cut that lets `counts[k]` of those that are left go, the surest first; `sure` is [L, N].

    An example goes if it is sure enough to reach the cut, or, with `reached=False`, to exceed it.
    """
    cuts = []
    left = torch.ones_like(sure[0], dtype=torch.bool)
    for row, count in zip(sure, counts, strict=False):
        order = row[left].sort(descending=True).values
        if reached:
            cut = (
                float(order[min(count, len(order)) - 1]) if count and len(order) else math.inf
            )  # nobody is that sure
        else:
            cut = float(order[count]) if count < len(order) else -math.inf  # everybody is
        left = left & ~(row >= cut if reached else row > cut)
        cuts.append(cut)
    return tuple(cuts)


def _first(sure: Tensor) -> Tensor:
    """[L - 1, N] bool -> [N, L] bool: the first that is sure, else the last."""
    sure = torch.cat([sure, sure.new_ones(1, sure.shape[1])])
    return torch.nn.functional.one_hot(sure.int().argmax(0), len(sure)).bool()


def _column(thresholds: tuple[float, ...], logits: Tensor) -> Tensor:
    """[L - 1, 1], in double: a threshold is a value that was seen, and must not move when it is rounded."""
    if len(thresholds) != len(logits) - 1:
        raise ValueError(
            f"a gate needs a threshold for every exit but the last, {len(logits) - 1} for {len(logits)} exits, "
            f"got {len(thresholds)}. Calibrate it on logits of this network."
        )
    return torch.tensor(thresholds, dtype=torch.float64, device=logits.device)[:, None]


def _deepest(picked: Tensor) -> Tensor:
    """[N, L] -> [N] the last exit picked, counted from 0."""
    exits = picked.shape[1]
    return exits - 1 - picked.flip(1).int().argmax(1)


def _refuse_costs(costs: Sequence[float], exits: int) -> None:
    if len(costs) != exits or any(later <= earlier for earlier, later in pairwise(costs)):
        raise ValueError(
            f"expected {exits} costs, one per exit and each with all that came before it, so increasing; got {list(costs)}."
        )
