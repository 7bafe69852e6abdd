"""Properties of every attack in the table of attacks."""

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
X = (uniform(0, N, *SHAPE) * 1.2 - 0.1).clamp(
    0, 1
)  # one coordinate in six lies on the boundary of the box
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
    context = AttackContext.open(Threat(Ball(p, RADIUS[p])), torch.arange(n), seed)
    adversary = Direct(entry.name, entry.attack, loss=entry.loss)
    return adversary.move(context, defense, x[:n], y[:n]), context


@each()
def test_points_are_in_the_perturbation_set(entry: Entry, p: float) -> None:
    found, context = move(entry, p, Static(NET), N)
    for x in found.point, found.max_loss_point:
        assert x.shape == X.shape
        assert x.dtype == X.dtype
        assert not x.requires_grad
        assert context.threat.space.contains(x, X).all()


@each()
def test_inputs_and_global_generators_are_unchanged(entry: Entry, p: float) -> None:
    x = X[:8].clone()
    state = torch.random.get_rng_state()
    move(entry, p, Static(NET), x=x)
    assert torch.equal(x, X[:8])
    assert torch.equal(torch.random.get_rng_state(), state)


@each()
def test_the_stated_number_of_calls_is_exact(entry: Entry, p: float) -> None:
    """`calls` evaluations and gradients, each with as many passes as the estimator needs."""
    for estimator in (EoT(1), EoT(3)):
        context = AttackContext.open(Threat(Ball(p, RADIUS[p])), torch.arange(8), 0)
        Direct(entry.name, entry.attack, loss=entry.loss, estimator=estimator).move(
            context, Noisy(NET), X[:8], Y[:8]
        )
        most = entry.attack.calls * estimator.draws
        assert (context.meter.forward <= most).all()
        if entry.passes:
            assert (context.meter.forward == most).all()


@each()
@pytest.mark.parametrize("queries", [1, 2, 4])
def test_the_query_budget_is_never_exceeded(entry: Entry, p: float, queries: int) -> None:
    context = AttackContext.open(Threat(Ball(p, RADIUS[p]), queries=queries), torch.arange(8), 0)
    spent = 0

    class Counting(Static):
        def trace(self, x: Tensor, ctx: Context) -> Trace:
            nonlocal spent
            spent += len(x)
            return super().trace(x, ctx)

    try:
        Direct(entry.name, entry.attack, loss=entry.loss).move(context, Counting(NET), X[:8], Y[:8])
    except BudgetExceeded:
        assert entry.attack.calls > queries
    assert (context.meter.forward <= queries).all()
    assert spent == context.meter.forward.sum()


@each()
def test_points_are_a_function_of_the_seed(entry: Entry, p: float) -> None:
    first, again, other = (move(entry, p, Noisy(NET), seed=seed)[0] for seed in (0, 0, 1))
    assert torch.equal(first.point, again.point)
    assert torch.equal(first.max_loss_point, again.max_loss_point)
    if not entry.deterministic:
        assert (first.max_loss_point != other.max_loss_point).flatten(1).any(1).all()


@each()
def test_points_do_not_depend_on_the_order_of_rows(entry: Entry, p: float) -> None:
    """Random keys belong to examples.

    Sums of 48 products have rounding errors of 1e-15 that depend on the position of a row; ten
    steps of a net with a slope below 10 amplify them to 1e-12 at most.
    """
    order = torch.arange(16).flip(0)
    threat = Threat(Ball(p, RADIUS[p]))
    adversary = Direct(entry.name, entry.attack, loss=entry.loss)
    plain = play(Noisy(NET), adversary, X[:16], Y[:16], threat)
    turned = play(Noisy(NET), adversary, X[order], Y[order], threat, ids=order)
    torch.testing.assert_close(turned.points, plain.points[order], rtol=0, atol=1e-11)
    assert torch.equal(turned.correct, plain.correct[:, order])


@each()
def test_points_of_a_row_do_not_depend_on_other_rows(entry: Entry, p: float) -> None:
    """A randomized defense, a batch of 64 and sixteen batches of one; tolerance as above."""
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
def test_clean_copies_are_never_returned(entry: Entry, p: float) -> None:
    """Neither for robust rows nor for rows that are misclassified without an attack.

    The points may be evaluated on another model.
    """
    wrong_labels = torch.where(torch.arange(N) % 2 == 0, Y, (Y + 1) % 4)
    found, _ = move(entry, p, Static(NET), N, y=wrong_labels)
    for x in found.point, found.max_loss_point:
        assert (x != X).flatten(1).any(1).all()


@each()
def test_clean_copies_are_not_returned_even_if_every_step_lowers_the_loss(
    entry: Entry, p: float
) -> None:
    def highest_at_x(x: Tensor) -> Tensor:
        """Four logits; the margin of class 0 is highest at X, except for a slope of 1e-3."""
        off = (x - X[:8]).flatten(1)
        wrong = 1e-3 * off.sum(1) - off.square().sum(1) - 1
        return torch.stack([torch.zeros_like(wrong), wrong, wrong - 1, wrong - 2], 1)

    found, _ = move(entry, p, Static(highest_at_x), y=torch.zeros(N, dtype=torch.long))
    for x in found.point, found.max_loss_point:
        assert (x != X[:8]).flatten(1).any(1).all()


@each()
def test_the_best_queried_points_are_returned(entry: Entry, p: float) -> None:
    """The max-loss point has the highest loss of all queried points of the set except the center.

    The other point is misclassified if any queried point is. Checked row by row, because an attack
    may stop querying a row.
    """
    space = Ball(p, RADIUS[p])
    for i in range(8):
        x = X[i : i + 1]
        y = Y[i : i + 1]
        queried: list[tuple[float, bool]] = []

        class Recording(Static):
            def trace(self, v: Tensor, ctx: Context) -> Trace:
                trace = super().trace(v, ctx)
                if space.contains(v, x).all() and (v != x).any():  # noqa: B023
                    z = trace.last.detach()
                    queried.append((entry.loss(z, y).item(), bool(z.argmax(1) != y)))  # noqa: B023
                return trace

        found, _ = move(entry, p, Recording(NET), n=1, x=x, y=y)
        assert bool(NET(found.point).argmax(1) != y) == any(wrong for _, wrong in queried)
        if entry.attack.needs != "decision":
            highest = max(value for value, _ in queried)
            assert entry.loss(NET(found.max_loss_point), y).item() == pytest.approx(
                highest, rel=0, abs=1e-12
            )


@each()
def test_points_of_coupled_rows_are_batches_that_were_queried(entry: Entry, p: float) -> None:
    if not entry.coupled:
        pytest.skip("declared not to work on coupled defenses")
    queried: list[Tensor] = []

    class Recording(Centring):
        def trace(self, x: Tensor, ctx: Context) -> Trace:
            queried.append(x.detach())
            return super().trace(x, ctx)

    found, context = move(entry, p, Recording(NET))
    for x in found.point, found.max_loss_point:
        assert context.threat.space.contains(x, X[:8]).all()
        assert any(torch.equal(x, whole) for whole in queried)


@each()
def test_vectors_are_attacked_like_images(entry: Entry, p: float) -> None:
    if entry.images:
        pytest.skip("declared to need images")
    images, _ = move(entry, p, Static(NET))
    vectors, context = move(entry, p, Static(NET), x=X.flatten(1))
    assert vectors.point.shape == (8, 48)
    assert context.threat.space.contains(vectors.point, X[:8].flatten(1)).all()
    if entry.attack.needs == "gradient":  # other attacks may use the image layout
        torch.testing.assert_close(vectors.point, images.point.flatten(1), rtol=0, atol=1e-11)


@each()
def test_a_nan_gradient_affects_no_other_row(entry: Entry, p: float) -> None:
    class NanGradient(Static):
        def trace(self, x: Tensor, ctx: Context) -> Trace:
            z = super().trace(x, ctx).last
            zero = (x[:1] - x[:1].detach()).flatten(1).sum(1)
            # The square root has an infinite derivative at zero, and 0 times infinity is NaN.
            return Trace((View("final", torch.cat([z[:1] + 0 * zero.sqrt(), z[1:]])),))

    found, context = move(entry, p, NanGradient(NET))
    assert context.threat.space.contains(found.point, X[:8]).all()
    torch.testing.assert_close(
        found.point[1:], move(entry, p, Static(NET))[0].point[1:], rtol=0, atol=0
    )


@each()
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_logits_of_another_dtype_do_not_change_the_dtype_of_the_points(
    entry: Entry, p: float, dtype: torch.dtype
) -> None:
    class Retyped(Static):
        def trace(self, x: Tensor, ctx: Context) -> Trace:
            assert x.dtype == torch.float32
            return Trace((View("final", super().trace(x.double(), ctx).last.to(dtype)),))

    found, context = move(entry, p, Retyped(NET), x=X.float())
    assert found.point.dtype == found.max_loss_point.dtype == torch.float32
    assert context.threat.space.contains(found.point, X[:8].float()).all()
