"""Loss curves: all evaluations are recorded, recording changes nothing, and batches add up."""

from __future__ import annotations

import math

import pytest
import torch
from tests.problems import normal, uniform

from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.fmn import FMN
from saddlepoint.attacks.history import (
    POINTS,
    History,
    RecordingOracle,
    merge_loss_curves,
    no_loss_curve,
)
from saddlepoint.attacks.losses import cross_entropy, margin
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.rays import RayS
from saddlepoint.attacks.spaces import Linf
from saddlepoint.attacks.square import Square
from saddlepoint.defenses import Defense, Plain, Trace, View
from saddlepoint.evaluation import Cascade, Direct, FixedPoints, Restarts, Threat
from saddlepoint.evaluation.referee import play

N = 24
D = 6
W = normal(0, D, 4)
X = 0.3 + 0.4 * uniform(1, N, D)
SPACE = Linf(0.02)


class Net(torch.nn.Module):
    """A nonlinear net, so that one step is not enough."""

    def forward(self, x):
        return torch.tanh(3 * (x - 0.5)) @ W


NET = Plain(Net())
Y = Net()(X).argmax(1)
Y = torch.where(
    torch.arange(N) % 6 == 0, (Y + 1) % 4, Y
)  # every sixth is misclassified without an attack


def episode(adversary, space=SPACE, defense=NET, **options):
    return play(defense, adversary, X, Y, Threat(space), **options)


def direct(attack, **options):
    return Direct("attack", attack, **options)


def reference(calls, rows):
    """The loss curve by its definition; calls are (row, used, value, success)."""
    end = max(used for _, used, _, _ in calls)
    stride = max(2 ** math.ceil(math.log2(end / POINTS)), 1)
    table = []
    for k in range(1, math.ceil(end / stride) + 1):
        evaluations = [
            [(v, s) for r, used, v, s in calls if r == row and used <= k * stride]
            for row in range(rows)
        ]
        evaluated_rows = [one for one in evaluations if one]
        values = [
            max(v for v, _ in one) for one in evaluated_rows if max(v for v, _ in one) > -math.inf
        ]
        table.append(
            [
                min(k * stride, end),
                len(evaluated_rows),
                sum(max(s for _, s in one) for one in evaluated_rows),
                len(values),
                sum(values),
            ]
        )
    return torch.tensor(table, dtype=torch.float64).T


@pytest.mark.parametrize("end", [1, 63, 64, 65, 128, 129, 700])
def test_the_loss_curve_is_the_best_value_of_each_row_at_every_stride(end):
    generator = torch.Generator().manual_seed(end)
    history = History(3)
    calls = []
    used = torch.zeros(3, dtype=torch.long)
    while int(used.amax()) < end:
        rows = (
            torch.rand(3, generator=generator)
            .argsort()[: int(torch.randint(1, 4, (), generator=generator))]
            .sort()
            .values
        )
        used[rows] = (used[rows] + torch.randint(1, 9, (len(rows),), generator=generator)).clamp(
            max=end
        )
        value = torch.randn(len(rows), generator=generator, dtype=torch.float64)
        success = (value > 1).double()
        value = torch.where(value < -1, -torch.inf, value)
        history.record("one", rows, used[rows], value, success)
        calls += zip(
            rows.tolist(), used[rows].tolist(), value.tolist(), success.tolist(), strict=True
        )
    found = history.loss_curve()
    assert found.shape[1] <= POINTS
    # Sums of at most 3 numbers of size 4.
    torch.testing.assert_close(found, reference(calls, 3), rtol=0, atol=1e-12)


@pytest.mark.parametrize("batch_size", [4, 10])
@pytest.mark.parametrize(
    "attack", [PGD(10), APGD(70), Square(90), RayS(60)], ids=lambda a: type(a).__name__
)
def test_the_loss_curve_does_not_depend_on_the_batch_size(attack, batch_size):
    whole, parts = (episode(direct(attack), batch_size=size).loss_curve for size in (N, batch_size))
    # Sums over 24 values of size 5, which may round differently in another batch.
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-9)


def test_curves_of_different_lengths_are_merged_at_the_longer_stride():
    short = History(2)
    long = History(1)
    for k in range(1, 4):
        short.record(
            "one",
            torch.arange(2),
            torch.full((2,), k),
            torch.tensor([k, 2.0 * k]),
            torch.tensor([0.0, 1.0]),
        )
    for k in range(1, 131):
        long.record(
            "one",
            torch.zeros(1, dtype=torch.long),
            torch.tensor([k]),
            torch.tensor([float(k)]),
            torch.tensor([k > 100.0]),
        )
    found = merge_loss_curves([short.loss_curve(), no_loss_curve(), long.loss_curve()])
    # 130 passes in at most 64 bins: a stride of 4.
    passes = torch.arange(4, 136, 4, dtype=torch.float64).clamp(max=130)
    assert torch.equal(found[0], passes)
    assert torch.equal(found[1], torch.full_like(passes, 3))
    assert torch.equal(found[2], 1 + (passes > 100).double())
    assert torch.equal(found[4], 3 + 6 + passes)
    assert torch.equal(merge_loss_curves([found]), found)
    assert torch.equal(merge_loss_curves([no_loss_curve()]), no_loss_curve())


@pytest.mark.parametrize("coupled", [False, True])
def test_the_last_point_of_the_curve_is_the_result_of_the_attack(coupled):
    """PGD keeps its point of highest loss: the last sum of values is that of these points."""
    defense = Plain(Net(), coupled=coupled)
    found = play(defense, direct(PGD(15), loss=margin), X, Y, Threat(SPACE))
    highest = _ProposesMaxLossPoint(direct(PGD(15), loss=margin))
    at = margin(Net()(play(defense, highest, X, Y, Threat(SPACE)).points), Y)
    assert float(found.loss_curve[4, -1]) == pytest.approx(float(at.sum()), abs=1e-12)
    assert int(found.loss_curve[1, -1]) == N
    if coupled:  # the share misclassified in one batch; independent rows may differ in time
        assert float(found.loss_curve[2, -1]) == pytest.approx(float((at > 0).sum()), abs=1e-12)
    assert (found.loss_curve[4].diff() >= 0).all()


class _ProposesMaxLossPoint(Direct):
    """Proposes the point of highest loss."""

    def __init__(self, inner):
        super().__init__(inner.name, inner.attack, inner.loss)

    def move(self, context, defense, x, y):
        max_loss_point = super().move(context, defense, x, y).max_loss_point
        return type("Both", (), {"point": max_loss_point})


def test_rows_that_stop_early_keep_their_values():
    early, late = (episode(direct(PGD(20), stop_at_success=stop)) for stop in (True, False))
    assert torch.equal(early.loss_curve[2], late.loss_curve[2])
    assert torch.equal(early.loss_curve[1], late.loss_curve[1])
    assert early.forward.sum() < late.forward.sum()
    assert early.loss_curve[4, -1] < late.loss_curve[4, -1]  # the loss does not increase further


def test_points_outside_the_set_are_recorded_without_value_and_success():
    """FMN evaluates points outside the set; its successes inside are those of its last points."""
    found = episode(direct(FMN(30)))
    inside = int((found.correct[0] == 0).sum())
    assert int(found.loss_curve[2, -1]) == inside
    outside = {}

    class Wide(RecordingOracle):
        def _record(self, x, evaluation):
            outside[int(self.inner.meter.forward[0])] = int((~self.region.contains(x)).sum())
            super()._record(x, evaluation)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("saddlepoint.evaluation.direct.RecordingOracle", Wide)
        again = episode(direct(FMN(30)))
    assert max(outside.values()) > N // 4  # points outside occur
    assert torch.equal(again.loss_curve, found.loss_curve)


def test_decisions_are_recorded_without_values_but_with_successes():
    found = episode(direct(RayS(80))).loss_curve
    assert (found[3:] == 0).all()
    assert int(found[2, -1]) > 4


def test_values_of_a_second_objective_are_not_mixed_with_those_of_the_first():
    alone = episode(direct(PGD(5), loss=cross_entropy)).loss_curve
    pair = episode(
        Cascade(
            "both",
            (direct(PGD(5), loss=cross_entropy), direct(PGD(60, step_size=0.02), loss=margin)),
        )
    ).loss_curve
    stride = int(pair[0, 0])
    assert stride == 2  # 6 and 61 evaluations, and those of the cascade
    assert torch.equal(pair[4, 2:], alone[4, -1].expand(pair.shape[1] - 2))
    assert pair[2, -1] >= alone[2, -1]


def test_restarts_of_one_objective_continue_the_curve():
    once, thrice = (episode(Restarts(direct(PGD(5)), times=times)).loss_curve for times in (1, 3))
    # 24 values of size 1, added in another order.
    torch.testing.assert_close(thrice[:, : once.shape[1]], once, rtol=0, atol=1e-12)
    assert thrice.shape[1] > once.shape[1]
    assert (thrice[4].diff() >= 0).all()


def test_an_adversary_without_queries_has_no_loss_curve():
    assert torch.equal(episode(FixedPoints()).loss_curve, no_loss_curve())


class PartlyNaN(Defense):
    """Returns NaN on half of the points."""

    def trace(self, x, ctx):
        z = Net()(x)
        return Trace((View("final", torch.where(x[:, :1] > 0.5, torch.nan, z)),))


def test_nan_outputs_have_no_value_and_count_as_misclassified():
    found = episode(direct(Square(20)), defense=PartlyNaN()).loss_curve
    assert found.isfinite().all()
    assert found[3, -1] < found[1, -1] == N


@pytest.mark.parametrize(
    "attack", [PGD(10), APGD(20), Square(40), FMN(8)], ids=lambda a: type(a).__name__
)
@pytest.mark.parametrize("stop", [False, True])
def test_recording_changes_nothing(attack, stop):
    recorded = episode(direct(attack, stop_at_success=stop))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordingOracle, "_record", lambda self, x, evaluation: None)
        plain = episode(direct(attack, stop_at_success=stop))
    assert plain.loss_curve.shape[1] == 0 < recorded.loss_curve.shape[1]
    for name in ("points", "correct", "margin", "forward", "backward"):
        assert torch.equal(getattr(recorded, name), getattr(plain, name))
