"""Early-exit gates: which exit each example uses, the average cost, exit frequencies."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from tests.problems import normal, uniform
from torch import Tensor, nn

from saddlepoint.defenses import (
    Confident,
    Context,
    LowEntropy,
    Mix,
    MultiExit,
    Plain,
    Static,
    all_subsets,
    average_cost,
    exit_logits,
    frequencies,
    ratio_for,
)
from saddlepoint.defenses.gates import confidence, entropy
from saddlepoint.rng import Keys

L = 4
N = 1000
C = 5
LOGITS = 3 * normal(0, L, N, C)
SINGLES = tuple((k,) for k in range(1, L + 1))


class Heads(nn.Module):
    """A network with inputs that are logits: those of exit k are row k of x."""

    def forward(self, x: Tensor) -> list[Tensor]:
        return list(x.unbind(1))


def seeded(n: int = N, seed: int = 0) -> Context:
    return Context.seeded(seed, n)


def two_exits(p: float, q: float) -> Tensor:
    """[2, 1, 2] logits of two exits that give the first class the probabilities p and q."""
    return torch.tensor([[[math.log(v / (1 - v)), 0.0]] for v in (p, q)], dtype=torch.float64)


def test_the_first_exit_that_reaches_its_threshold_is_selected() -> None:
    gate = Confident((0.9, 0.8, 0.7))
    picked = gate.pick(LOGITS, seeded())
    for row, confidences in zip(picked, confidence(LOGITS).T.tolist(), strict=True):
        want = next(
            (
                k
                for k, (s, t) in enumerate(zip(confidences, gate.thresholds, strict=False))
                if s >= t
            ),
            L - 1,
        )
        assert row.nonzero().tolist() == [[want]]


def test_confidence_may_equal_its_threshold_and_entropy_must_be_below() -> None:
    z = two_exits(0.75, 0.5)
    at = float(confidence(z)[0, 0])
    h = float(entropy(z)[0, 0])
    assert h == pytest.approx(
        -(0.75 * math.log(0.75 + 1e-5) + 0.25 * math.log(0.25 + 1e-5)), rel=1e-14
    )
    cases: list[tuple[Confident | LowEntropy, list[bool]]] = [
        (Confident((at,)), [True, False]),
        (Confident((math.nextafter(at, 1),)), [False, True]),
        (LowEntropy((h,)), [False, True]),
        (LowEntropy((math.nextafter(h, 1),)), [True, False]),
    ]
    for gate, want in cases:
        assert gate.pick(z, seeded(1)).tolist() == [want]


@pytest.mark.parametrize("gate", [Confident((2.0,) * (L - 1)), LowEntropy((-1.0,) * (L - 1))])
def test_the_last_exit_is_selected_if_no_earlier_one_is_confident(
    gate: Confident | LowEntropy,
) -> None:
    for logits in (LOGITS, LOGITS.new_full(LOGITS.shape, torch.nan)):
        assert torch.equal(gate.pick(logits, seeded()), Static((L,)).pick(logits, seeded()))


@pytest.mark.parametrize("gate", [Confident(()), LowEntropy(())])
def test_a_network_with_one_exit_always_uses_it(gate: Confident | LowEntropy) -> None:
    assert gate.pick(LOGITS[:1], seeded()).all()
    assert type(gate).calibrated(LOGITS[:1]) == gate


def test_the_selection_of_a_row_does_not_depend_on_its_batch() -> None:
    gate = Confident.calibrated(LOGITS)
    together = gate.pick(LOGITS, seeded())
    assert torch.equal(
        together[:10], torch.cat([gate.pick(LOGITS[:, [i]], seeded(1)) for i in range(10)])
    )


@pytest.mark.parametrize("ratio", [0.2, 0.5, 1.0, 1.7])
def test_shares_of_exits_follow_the_powers_of_the_ratio(ratio: float) -> None:
    """Exactly floor(N share_k) use each exit but the last, as no two confidences are equal."""
    gate = Confident.calibrated(LOGITS, ratio=ratio)
    powers = [ratio**k for k in range(1, L + 1)]
    want = [math.floor(N * p / sum(powers) + 1e-9) for p in powers[:-1]]
    assert gate.pick(LOGITS, seeded()).sum(0).tolist() == [*want, N - sum(want)]


def test_thresholds_give_similar_shares_on_held_out_data() -> None:
    """The difference of two shares has the standard deviation sqrt(2 p (1 - p) / 2000).

    Four of them are below 0.063.
    """
    logits = 3 * normal(4, L, 4000, C)
    gate = Confident.calibrated(logits[:, :2000], ratio=0.8)
    calibration, held_out = (
        gate.pick(part, seeded(2000)).double().mean(0) for part in logits.split(2000, dim=1)
    )
    assert (calibration - held_out).abs().amax() < 0.063


def test_entropy_gives_every_exit_an_equal_part_and_the_last_the_rest() -> None:
    for n in (N, 999, 5):
        logits = LOGITS[:, :n]
        counts = LowEntropy.calibrated(logits).pick(logits, seeded(n)).sum(0).tolist()
        assert counts == [n // L] * (L - 1) + [n - (L - 1) * (n // L)]


def test_calibration_in_single_precision_gives_exact_shares() -> None:
    logits = LOGITS.float()
    counts = Confident.calibrated(logits).pick(logits, seeded()).sum(0)
    assert counts.tolist() == [N // L] * L


def test_examples_of_equal_confidence_use_the_same_exit() -> None:
    same = LOGITS[:, :1].expand(-1, 8, -1)
    assert Confident.calibrated(same).pick(same, seeded(8)).sum(0).tolist() == [8, 0, 0, 0]
    # The entropy must be strictly below the threshold, which equal examples are not.
    assert LowEntropy.calibrated(same).pick(same, seeded(8)).sum(0).tolist() == [0, 0, 0, 8]


COSTS = (1.0, 3.0, 4.0, 9.0)


def test_the_cost_is_that_of_the_deepest_selected_exit() -> None:
    for k in range(1, L + 1):
        assert average_cost(Static((k,)), LOGITS, COSTS) == COSTS[k - 1]
    assert average_cost(Static((1, 3)), LOGITS, COSTS) == 4.0


def test_the_cost_of_a_mix_follows_its_random_draws() -> None:
    mix = Mix(((1,), (2, 4)), (0.25, 0.75))
    ctx = seeded(seed=3)
    shares = frequencies(
        MultiExit(Heads(), mix), LOGITS.transpose(0, 1), mix.subsets, seeded(seed=3)
    )
    assert average_cost(mix, LOGITS, COSTS, ctx) == pytest.approx(
        float(shares @ torch.tensor([1.0, 9.0]).double()), rel=1e-12
    )


@pytest.mark.parametrize("budget", [1.001, 2.0, 4.25, 6.0, 8.9])
def test_a_budget_determines_the_ratio_and_is_met(budget: float) -> None:
    """Rounding delays at most one example per exit: (L - 1) / N times the cost range is 0.024."""
    ratio = ratio_for(COSTS, budget)
    powers = [ratio**k for k in range(L)]
    assert sum(p * c for p, c in zip(powers, COSTS, strict=True)) / sum(powers) == pytest.approx(
        budget, rel=1e-12
    )
    cost = average_cost(Confident.calibrated(LOGITS, ratio=ratio), LOGITS, COSTS)
    assert budget - 1e-9 <= cost < budget + 0.024


def test_equal_shares_cost_the_mean_of_the_costs() -> None:
    assert ratio_for(COSTS, sum(COSTS) / L) == pytest.approx(1, rel=1e-12)


def test_frequencies_count_the_selected_subsets() -> None:
    gate = Confident.calibrated(LOGITS, ratio=0.5)
    x = LOGITS.transpose(0, 1)
    found = frequencies(MultiExit(Heads(), gate), x, all_subsets(L), seeded())
    assert torch.equal(found[:L], gate.pick(LOGITS, seeded()).double().mean(0))
    assert found[L:].sum() == 0
    assert torch.equal(found[:L], frequencies(MultiExit(Heads(), gate), x, SINGLES, seeded()))
    assert torch.equal(exit_logits(MultiExit(Heads()), x, batch_size=300), LOGITS)


def test_a_mix_draws_by_its_probabilities_and_per_example() -> None:
    """20000 draws: each frequency within four standard deviations sqrt(p (1 - p) / 20000)."""
    n = 20000
    mix = Mix(((1,), (1, 3), (2, 3, 4)), (0.2, 0.5, 0.3))
    x = uniform(0, n, L, C)
    found = frequencies(MultiExit(Heads(), mix), x, mix.subsets, seeded(n))
    p = torch.tensor(mix.probabilities, dtype=torch.float64)
    assert ((found - p).abs() < 4 * (p * (1 - p) / n).sqrt()).all()

    logits = x.transpose(0, 1)
    ids = torch.arange(n)
    whole = mix.pick(logits, Context(Keys.of(5, ids)))
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))[:50]
    assert torch.equal(mix.pick(logits[:, order], Context(Keys.of(5, ids[order]))), whole[order])
    for i in order[:5].tolist():
        assert torch.equal(mix.pick(logits[:, [i]], Context(Keys.of(5, ids[[i]]))), whole[[i]])


X = LOGITS.transpose(0, 1)


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: Confident((0.5,)).pick(LOGITS, seeded()), "3 for 4 exits, got 1"),
        (lambda: LowEntropy((0.5,) * 4).pick(LOGITS, seeded()), "3 for 4 exits, got 4"),
        (lambda: Confident.calibrated(LOGITS, ratio=0.0), "above 0, got 0"),
        (lambda: Static((5,)).pick(LOGITS, seeded()), "from 1 to 4"),
        (lambda: Mix(((),), (1.0,)).pick(LOGITS, seeded()), "must not be empty"),
        (lambda: Mix(((1,), (2,)), (0.5, 0.6)), "a sum of 1.1"),
        (lambda: Mix(((1,), (2,)), (1.0,)), "1 for 2"),
        (
            lambda: ratio_for(COSTS, 9.5),
            "between the costs of the first and the last exit, 1 and 9",
        ),
        (lambda: ratio_for((1.0, 1.0, 2.0), 1.5), "increasing"),
        (lambda: average_cost(Static(), LOGITS, (1.0, 2.0)), "expected 4 costs"),
        (
            lambda: frequencies(MultiExit(Heads(), Static((1, 2))), X, SINGLES, seeded()),
            r"exits 1\+2 were selected",
        ),
    ],
)
def test_invalid_arguments_raise_errors(attempt: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attempt()


def test_frequencies_of_a_network_without_exits_raise_an_error() -> None:
    with pytest.raises(TypeError, match="needs a MultiExit"):
        frequencies(Plain(nn.Identity()), X, SINGLES, seeded())


def test_a_single_threshold_is_no_strategy():
    with pytest.raises(TypeError, match="one threshold for every exit but the last"):
        Confident(0.9)
    with pytest.raises(TypeError, match="a strategy that selects an exit"):
        MultiExit(nn.Identity(), 0.9)
