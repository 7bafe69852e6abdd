"""What every attack promises, whoever wrote it: one table of attacks, one list of promises."""

from __future__ import annotations

import pytest
import torch
from tests.problems import Centring, Noisy, Static, smooth, uniform
from tests.roster import INF, Entry, each
from torch import Tensor

from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.oracle import BudgetExceeded
from saddlepoint.attacks.spaces import Ball
from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.evaluation import AttackContext, Direct, Threat
from saddlepoint.evaluation.referee import play
from saddlepoint.gradients import EoT

N = 64
SHAPE = (3, 4, 4)
RADIUS = {INF: 0.1, 2: 0.4, 1: 1.5}
NET = smooth(1, inputs=48)
X = (uniform(0, N, *SHAPE) * 1.2 - 0.1).clamp(0, 1)  # one coordinate in six stands at a wall
Y = NET(X).argmax(1)


def move(
    entry: Entry,
    p: float,
    defense: Defense,
    n: int = 8,
    x: Tensor = X,
    y: Tensor = Y,
    seed: int = 0,
) -> tuple[AttackResult, AttackContext]:
    turn = AttackContext.open(Threat(Ball(p, RADIUS[p])), torch.arange(n), seed)
    return Direct(entry.name, entry.attack, loss=entry.loss).move(turn, defense, x[:n], y[:n]), turn


@each()
def test_stays_in_the_set(entry: Entry, p: float) -> None:
    found, turn = move(entry, p, Static(NET), N)
    for x in found.point, found.max_loss_point:
        assert x.shape == X.shape
        assert x.dtype == X.dtype
        assert not x.requires_grad
        assert turn.threat.space.contains(x, X).all()


@each()
def test_leaves_its_input_alone(entry: Entry, p: float) -> None:
    x = X[:8].clone()
    state = torch.random.get_rng_state()
    move(entry, p, Static(NET), x=x)
    assert torch.equal(x, X[:8])
    assert torch.equal(torch.random.get_rng_state(), state)  # nor does it toss anybody else's coins


@each()
def test_costs_what_it_says(entry: Entry, p: float) -> None:
    """`calls` readings and slopes, each as many passes as the estimator takes."""
    for estimator in (EoT(1), EoT(3)):
        turn = AttackContext.open(Threat(Ball(p, RADIUS[p])), torch.arange(8), 0)
        Direct(entry.name, entry.attack, loss=entry.loss, estimator=estimator).move(
            turn, Noisy(NET), X[:8], Y[:8]
        )
        most = entry.attack.calls * estimator.draws
        assert (
            (turn.meter.forward == most).all()
            if entry.passes
            else (turn.meter.forward <= most).all()
        )


@each()
@pytest.mark.parametrize("queries", [1, 2, 4])
def test_never_spends_more_than_the_threat_allows(entry: Entry, p: float, queries: int) -> None:
    turn = AttackContext.open(Threat(Ball(p, RADIUS[p]), queries=queries), torch.arange(8), 0)
    spent = 0

    class Counting(Static):
        def trace(self, x: Tensor, ctx: Context) -> Trace:
            nonlocal spent
            spent += len(x)
            return super().trace(x, ctx)

    try:
        Direct(entry.name, entry.attack, loss=entry.loss).move(turn, Counting(NET), X[:8], Y[:8])
    except BudgetExceeded:
        assert entry.attack.calls > queries
    assert (turn.meter.forward <= queries).all()
    assert spent == turn.meter.forward.sum()


@each()
def test_is_a_function_of_its_seed(entry: Entry, p: float) -> None:
    first, again, other = (move(entry, p, Noisy(NET), seed=seed)[0] for seed in (0, 0, 1))
    assert torch.equal(first.point, again.point)
    assert torch.equal(first.max_loss_point, again.max_loss_point)
    if not entry.deterministic:
        assert (first.max_loss_point != other.max_loss_point).flatten(1).any(1).all()


@each()
def test_does_not_see_the_order_of_rows(entry: Entry, p: float) -> None:
    """Coins belong to examples. Sums of 48 products round at 1e-15 with the place of a row; ten steps of a net with slope below 10
    carry that to 1e-12 at most."""
    order = torch.arange(16).flip(0)
    threat = Threat(Ball(p, RADIUS[p]))
    adversary = Direct(entry.name, entry.attack, loss=entry.loss)
    plain = play(Noisy(NET), adversary, X[:16], Y[:16], threat)
    turned = play(Noisy(NET), adversary, X[order], Y[order], threat, ids=order)
    torch.testing.assert_close(turned.points, plain.points[order], rtol=0, atol=1e-11)
    assert torch.equal(turned.correct, plain.correct[:, order])


@each()
def test_does_to_a_row_alone_what_it_does_to_it_among_others(entry: Entry, p: float) -> None:
    """On a defense that tosses coins: a batch of 64 and sixteen batches of one; tolerance as above."""
    threat = Threat(Ball(p, RADIUS[p]))
    adversary = Direct(entry.name, entry.attack, loss=entry.loss)
    together, alone = (
        play(Noisy(NET), adversary, X[:n], Y[:n], threat, batch_size=size)
        for n, size in ((N, N), (16, 1))
    )
    torch.testing.assert_close(alone.points, together.points[:16], rtol=0, atol=1e-11)
    assert torch.equal(alone.correct, together.correct[:, :16])
    assert torch.equal(alone.forward, together.forward[:16])


@each()
def test_never_returns_a_clean_copy(entry: Entry, p: float) -> None:
    """Neither where the attack fails nor where the point was wrong from the start: it may be scored on another function."""
    wrong_from_the_start = torch.where(torch.arange(N) % 2 == 0, Y, (Y + 1) % 4)
    found, _ = move(entry, p, Static(NET), N, y=wrong_from_the_start)
    for x in found.point, found.max_loss_point:
        assert (x != X).flatten(1).any(1).all()


@each()
def test_never_returns_a_clean_copy_even_where_every_move_is_for_the_worse(
    entry: Entry, p: float
) -> None:
    def hill(
        x: Tensor,
    ) -> Tensor:  # four logits; the margin of class 0 is highest at X, but for a slope of 1e-3
        off = (x - X[:8]).flatten(1)
        wrong = 1e-3 * off.sum(1) - off.square().sum(1) - 1
        return torch.stack([torch.zeros_like(wrong), wrong, wrong - 1, wrong - 2], 1)

    found, _ = move(entry, p, Static(hill), y=torch.zeros(N, dtype=torch.long))
    for x in found.point, found.max_loss_point:
        assert (x != X[:8]).flatten(1).any(1).all()


@each()
def test_returns_the_best_it_saw(entry: Entry, p: float) -> None:
    """The peak has the highest value of all points asked about inside the set, the center apart; the point fools if any did.

    Row by row, so that a row which has left is not missed.
    """
    space = Ball(p, RADIUS[p])
    for i in range(8):
        x = X[i : i + 1]
        y = Y[i : i + 1]
        seen: list[tuple[float, bool]] = []

        class Recording(Static):
            def trace(self, v: Tensor, ctx: Context) -> Trace:
                trace = super().trace(v, ctx)
                if space.contains(v, x).all() and (v != x).any():  # noqa: B023
                    z = trace.last.detach()
                    seen.append((entry.loss(z, y).item(), bool(z.argmax(1) != y)))  # noqa: B023
                return trace

        found, _ = move(entry, p, Recording(NET), n=1, x=x, y=y)
        assert bool(NET(found.point).argmax(1) != y) == any(fooled for _, fooled in seen)
        if entry.attack.needs != "decision":
            highest = max(value for value, _ in seen)
            assert entry.loss(NET(found.max_loss_point), y).item() == pytest.approx(
                highest, rel=0, abs=1e-12
            )


@each()
def test_answers_for_whole_batches_where_rows_are_coupled(entry: Entry, p: float) -> None:
    if not entry.coupled:
        pytest.skip("declared not to work on coupled defenses")
    asked: list[Tensor] = []

    class Recording(Centring):
        def trace(self, x: Tensor, ctx: Context) -> Trace:
            asked.append(x.detach())
            return super().trace(x, ctx)

    found, turn = move(entry, p, Recording(NET))
    for x in found.point, found.max_loss_point:
        assert turn.threat.space.contains(x, X[:8]).all()
        assert any(torch.equal(x, whole) for whole in asked)


@each()
def test_takes_vectors_as_well_as_images(entry: Entry, p: float) -> None:
    if entry.images:
        pytest.skip("declared to need images")
    images, _ = move(entry, p, Static(NET))
    vectors, turn = move(entry, p, Static(NET), x=X.flatten(1))
    assert vectors.point.shape == (8, 48)
    assert turn.threat.space.contains(vectors.point, X[:8].flatten(1)).all()
    if entry.attack.needs == "gradient":  # others may use the layout
        torch.testing.assert_close(vectors.point, images.point.flatten(1), rtol=0, atol=1e-11)


@each()
def test_a_gradient_that_is_no_number_stops_its_own_row_and_no_other(
    entry: Entry, p: float
) -> None:
    class Sick(Static):
        def trace(self, x: Tensor, ctx: Context) -> Trace:
            z = super().trace(x, ctx).last
            zero = (x[:1] - x[:1].detach()).flatten(1).sum(1)
            # The root has an infinite slope at zero, and 0 times that is no number.
            return Trace((View("final", torch.cat([z[:1] + 0 * zero.sqrt(), z[1:]])),))

    found, turn = move(entry, p, Sick(NET))
    assert turn.threat.space.contains(found.point, X[:8]).all()
    torch.testing.assert_close(
        found.point[1:], move(entry, p, Static(NET))[0].point[1:], rtol=0, atol=0
    )


@each()
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_answers_in_another_type_do_not_change_that_of_the_points(
    entry: Entry, p: float, dtype: torch.dtype
) -> None:
    class Retyped(Static):
        def trace(self, x: Tensor, ctx: Context) -> Trace:
            assert x.dtype == torch.float32
            return Trace((View("final", super().trace(x.double(), ctx).last.to(dtype)),))

    found, turn = move(entry, p, Retyped(NET), x=X.float())
    assert found.point.dtype == found.max_loss_point.dtype == torch.float32
    assert turn.threat.space.contains(found.point, X[:8].float()).all()
