"""Early-exit gates: strategies that select the first sufficiently confident exit, and their cost.

A gate selects one exit per example, the last one if no earlier exit is confident enough. Calibrate
thresholds on a held-out split of the training set: thresholds tuned on the test set bias the
evaluation on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from saddlepoint import phrases
from saddlepoint.defenses.base import Defense
from saddlepoint.defenses.context import Context
from saddlepoint.defenses.multi_exit import MultiExit, Strategy, Subset, membership, subset_name


@dataclass(frozen=True)
class Confident:
    """Selects the first exit k with max_c softmax(z_k)_c >= T_k, the rule of MSDNet.

    Huang et al. 2018.

    Args:
        thresholds: T_k for every exit but the last.
        random: the selection is deterministic; leave it False.
    """

    thresholds: tuple[float, ...]
    random: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.thresholds, int | float):
            raise TypeError(
                f"Confident needs one threshold for every exit but the last, got "
                f"{self.thresholds!r}. For three exits: Confident(({self.thresholds!r}, "
                f"{self.thresholds!r}))."
            )

    @classmethod
    def calibrated(cls, logits: Tensor, *, ratio: float = 1.0) -> Confident:
        """Set thresholds such that a share proportional to ratio^k of the examples uses exit k.

        T_k is the confidence of the floor(N share_k)-th most confident of the remaining examples,
        as in the code of MSDNet, which uses ratios from 0 to 2. Examples of equal confidence use
        the same exit.

        Args:
            logits: logits of all exits on clean data, [L, N, C].
            ratio: ratio of the shares of neighboring exits, more than 0; default 1. Below 1 most
                examples exit early.
        """
        exits, n = logits.shape[:2]
        counts = [math.floor(n * share + 1e-9) for share in _shares(ratio, exits)]
        return cls(_thresholds(confidence(logits), counts[:-1], inclusive=True))

    def pick(self, logits: Tensor, ctx: Context) -> Tensor:  # noqa: ARG002
        return _first(confidence(logits)[:-1] >= _as_column(self.thresholds, logits))


@dataclass(frozen=True)
class LowEntropy:
    """Selects the first exit k with H_k < T_k, where H = -sum_c p_c log(p_c + 1e-5).

    The rule of Hu et al. 2020. Their released code sets thresholds on the test set and then shifts
    them by hand (by -0.05 to -0.25 for one network, by factors of 3 and 4 for another). Here they
    are set on the given data and not shifted.

    Args:
        thresholds: T_k for every exit but the last.
        random: the selection is deterministic; leave it False.
    """

    thresholds: tuple[float, ...]
    random: bool = False

    @classmethod
    def calibrated(cls, logits: Tensor) -> LowEntropy:
        """Set thresholds such that floor(N / L) of the remaining examples use each exit.

        Args:
            logits: logits of all exits on clean data, [L, N, C].
        """
        exits, n = logits.shape[:2]
        negative = _thresholds(-entropy(logits), [n // exits] * (exits - 1), inclusive=False)
        return cls(tuple(-threshold for threshold in negative))

    def pick(self, logits: Tensor, ctx: Context) -> Tensor:  # noqa: ARG002
        return _first(entropy(logits)[:-1] < _as_column(self.thresholds, logits))


def confidence(logits: Tensor) -> Tensor:
    """The largest softmax probability, [..., C] -> [...]."""
    return logits.softmax(-1).amax(-1)


def entropy(logits: Tensor) -> Tensor:
    """The entropy -sum_c p_c log(p_c + 1e-5) of the softmax, [..., C] -> [...]."""
    p = logits.softmax(-1)
    return -(p * (p + 1e-5).log()).sum(-1)


def exit_logits(defense: MultiExit, x: Tensor, *, batch_size: int = 256) -> Tensor:
    """The logits of all exits, [L, N, C], without gradients.

    Args:
        defense: the multi-exit network.
        x: inputs, [N, ...].
        batch_size: inputs per forward pass; default 256.
    """
    with torch.no_grad():
        parts = [
            defense.trace(part, Context.seeded(0, len(part))).logits
            for part in torch.split(x, batch_size)
        ]
    return torch.cat(parts, dim=1)


def average_cost(
    strategy: Strategy, logits: Tensor, costs: Sequence[float], ctx: Context | None = None
) -> float:
    """The average cost per example of a strategy.

    Args:
        strategy: selects exits.
        logits: logits of all exits, [L, N, C].
        costs: cost of each exit, in any unit, including all that is computed before it. They
            increase. An example costs as much as the deepest exit selected for it.
        ctx: random keys of a randomized strategy; default those of seed 0.

    Raises:
        ValueError: the costs do not fit the exits or do not increase.
    """
    _check_costs(costs, len(logits))
    picked = strategy.pick(logits, ctx or Context.seeded(0, logits.shape[1]))  # [N, L]
    return float(torch.tensor(costs, dtype=torch.float64)[_deepest(picked).cpu()].mean())


def ratio_for(costs: Sequence[float], budget: float) -> float:
    """The ratio q with sum_k q^k c_k / sum_k q^k = budget (Huang et al. 2018).

    `Confident.calibrated(logits, ratio=ratio_for(costs, budget))` costs `budget` on average on the
    data of its calibration, up to the rounding of N share_k. `average_cost` measures its cost on
    other data.

    Args:
        costs: cost c_k of each exit, including all that is computed before it; they increase.
        budget: the average cost per example, between the first and the last cost.

    Raises:
        ValueError: the costs do not increase, or the budget is not between the first and the last.
    """
    _check_costs(costs, len(costs))
    if not costs[0] < budget < costs[-1]:
        raise ValueError(
            f"an average cost of {budget:g} is impossible: it must lie between the costs of the "
            f"first and the last exit, {costs[0]:g} and {costs[-1]:g}. At either end use "
            "Static((k,))."
        )
    # Bisection over log q. At 60 the last exit is always used, up to rounding.
    low = -60.0
    high = 60.0
    for _ in range(200):  # halving 120 two hundred times is below the last bit
        middle = (low + high) / 2
        shares = _shares(math.exp(middle), len(costs))
        average = sum(share * cost for share, cost in zip(shares, costs, strict=True))
        if average < budget:
            low = middle
        else:
            high = middle
    return math.exp((low + high) / 2)


def frequencies(defense: Defense, x: Tensor, subsets: Sequence[Subset], ctx: Context) -> Tensor:
    """How often each subset of exits is selected, [S].

    Measured on inputs from an average attack, it replaces the mixed strategy of a defender with a
    choice that depends on the input (Xu et al., Sec. 3.3). It is a marginal distribution: which
    example uses which exit is lost.

    Args:
        defense: a `MultiExit`.
        x: inputs, [N, ...].
        subsets: all subsets that the strategy may select.
        ctx: random keys.

    Raises:
        TypeError: the defense is not a `MultiExit`.
        ValueError: the strategy selected exits that are not among `subsets`.
    """
    if not isinstance(defense, MultiExit):
        raise TypeError(
            "frequencies needs a MultiExit with a strategy that selects exits; "
            f"got {type(defense).__name__}."
        )
    with torch.no_grad():
        logits = defense.trace(x, ctx).logits
        picked = defense.strategy.pick(logits, ctx)  # [N, L]
    same = (picked[:, None].cpu() == membership(subsets, len(logits)).bool()).all(2)  # [N, S]
    if not same.any(1).all():
        other = picked[int((~same.any(1)).nonzero()[0])].nonzero()[:, 0] + 1
        raise ValueError(
            f"exits {subset_name(tuple(other.tolist()))} were selected, which are none of the "
            f"{phrases.count(len(subsets), 'subset')} given. Pass all that the strategy may "
            "select: the single exits for a gate, `mix.subsets` for a mix."
        )
    return same.double().mean(0)


def _shares(ratio: float, exits: int) -> list[float]:
    """q^k / sum_j q^j for k = 1 ... L, computed in logarithms so that no power overflows."""
    if not (ratio > 0 and math.isfinite(ratio)):
        raise ValueError(
            "the ratio between the shares of neighboring exits must be a finite number above 0, "
            f"got {ratio}."
        )
    return (torch.arange(exits, dtype=torch.float64) * math.log(ratio)).softmax(0).tolist()


def _thresholds(
    confidences: Tensor, counts: Sequence[int], *, inclusive: bool
) -> tuple[float, ...]:
    """One threshold for each exit but the last.

    Args:
        confidences: [L, N].
        counts: how many of the remaining examples each exit takes, the most confident first.
        inclusive: an example exits if its confidence reaches the threshold; False: if it exceeds
            the threshold.
    """
    thresholds = []
    remaining = torch.ones_like(confidences[0], dtype=torch.bool)
    for row, count in zip(confidences, counts, strict=False):
        order = row[remaining].sort(descending=True).values
        if inclusive:
            index = min(count, len(order)) - 1
            threshold = float(order[index]) if count and len(order) else math.inf  # none exits
        else:
            threshold = float(order[count]) if count < len(order) else -math.inf  # all exit
        remaining = remaining & ~(row >= threshold if inclusive else row > threshold)
        thresholds.append(threshold)
    return tuple(thresholds)


def _first(confident: Tensor) -> Tensor:
    """The first confident exit, else the last: [L - 1, N] bool -> [N, L] bool."""
    confident = torch.cat([confident, confident.new_ones(1, confident.shape[1])])
    return torch.nn.functional.one_hot(confident.int().argmax(0), len(confident)).bool()


def _as_column(thresholds: tuple[float, ...], logits: Tensor) -> Tensor:
    """[L - 1, 1] float64: a threshold equals a measured confidence and must not be rounded."""
    if len(thresholds) != len(logits) - 1:
        raise ValueError(
            f"a gate needs a threshold for every exit but the last, {len(logits) - 1} for "
            f"{phrases.count(len(logits), 'exit')}, got {len(thresholds)}. Calibrate it on logits "
            "of this network."
        )
    return torch.tensor(thresholds, dtype=torch.float64, device=logits.device)[:, None]


def _deepest(picked: Tensor) -> Tensor:
    """The deepest selected exit, counted from 0: [N, L] -> [N]."""
    exits = picked.shape[1]
    return exits - 1 - picked.flip(1).int().argmax(1)


def _check_costs(costs: Sequence[float], exits: int) -> None:
    if len(costs) != exits or any(later <= earlier for earlier, later in pairwise(costs)):
        raise ValueError(
            f"expected {phrases.count(exits, 'cost')}, one per exit and each including all that is "
            f"computed before it, so increasing; got {list(costs)}."
        )
