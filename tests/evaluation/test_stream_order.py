"""The order of a stream: sorted by label, or searched by the attacker."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.evaluation.stream_problem import NET, PGD3, SPACE, ZERO, N, X, Y
from tests.problems import Transductive, uniform
from torch import Tensor, nn

from saddlepoint.attacks.spaces import Linf
from saddlepoint.audits.cells import Job
from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.evaluation import (
    FixedPoints,
    NaturalOrder,
    SortedByLabel,
    Threat,
    WorstCaseOrder,
    evaluate,
)
from saddlepoint.evaluation.referee import play


@pytest.mark.parametrize("n", [64, 50])
def test_sorting_by_label_permutes_every_window_and_sorts_its_labels(n: int) -> None:
    y = (7 * torch.arange(n)) % 5
    order = SortedByLabel(16).arrange(y, lambda _: 0.0)
    assert torch.equal(order.sort().values, torch.arange(n))
    for start in range(0, n, 16):
        window = slice(start, min(start + 16, n))
        assert torch.equal(order[window].sort().values, torch.arange(n)[window])
        first = y[order[window]][:8]
        second = y[order[window]][8:]
        assert not len(second) or second.amin() >= first.amax()
    same = order.reshape(-1)[y[order] == y[order[0]]]
    assert torch.equal(same[:3], same[:3].sort().values)  # equal labels keep their order


def test_the_record_of_a_sorted_stream_is_in_the_order_of_the_inputs() -> None:
    threat = Threat(SPACE, order=SortedByLabel(12))
    defense = Transductive(NET, ZERO)
    episode = play(defense, PGD3, X, Y, threat, batch_size=6)
    order = threat.order.arrange(Y, lambda _: 0.0)
    ordered = play(defense, PGD3, X[order], Y[order], Threat(SPACE), ids=order, batch_size=6)
    for name in ("points", "batch", "size", "copies", "forward"):
        assert torch.equal(getattr(episode, name)[order], getattr(ordered, name))
    assert torch.equal(episode.correct[:, order], ordered.correct)
    assert threat.space.contains(episode.points, X).all()
    job = Job(defense, X, Y, threat, 0, 6)
    assert [len(rows) for rows in job.groups] == [12, 12]
    parts = torch.cat([job.play(PGD3, rows).points for rows in job.groups])
    assert torch.equal(parts, episode.points)


class Balancing(Defense):
    """Subtracts the mean logits of its batch, which assumes balanced classes."""

    coupled = True

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        logits = 4 * x[:, :3] - 2
        return Trace((View("final", logits - logits.mean(0)),))


def test_the_worst_case_order_has_at_least_as_many_errors_as_its_starting_orders() -> None:
    """Three classes, one pixel each: mixed batches are classified correctly, sorted ones not."""
    y = torch.arange(24) % 3
    x = 0.4 + 0.2 * nn.functional.one_hot(y, 3).double() + 0.01 * uniform(3, 24, 3)
    wrong = {}
    for order in (NaturalOrder(), SortedByLabel(24), WorstCaseOrder(24, tries=6)):
        wrong[str(order)] = 1 - float(
            play(
                Balancing(), FixedPoints(), x, y, Threat(Linf(0.0), order=order), batch_size=8
            ).correct.mean()
        )
    natural, sorted_, searched = wrong.values()
    assert natural == 0
    assert 0 < sorted_ <= searched
    found = WorstCaseOrder(24, tries=6).arrange(
        y, lambda order: float((order.view(3, 8).sum(1) - 92).abs().sum())
    )
    assert torch.equal(found.sort().values, torch.arange(24))


def test_the_search_maximizes_the_error_count() -> None:
    """The errors of this test: positions with another example than in the natural order."""

    def count_errors(order: Tensor) -> float:
        return float((order != torch.arange(32)).sum())

    y = torch.zeros(32, dtype=torch.long)  # sorting changes nothing
    few, many = (
        count_errors(WorstCaseOrder(16, tries=t).arrange(y, count_errors)) for t in (1, 40)
    )
    assert 0 < few < many
    order = WorstCaseOrder(16, tries=40).arrange(y, count_errors)
    assert (order[:16] < 16).all()
    assert torch.equal(order, WorstCaseOrder(16, tries=40).arrange(y, count_errors))


def test_adversaries_with_different_orders_are_compared_by_whole_streams() -> None:
    y = torch.arange(24) % 3
    x = 0.4 + 0.2 * nn.functional.one_hot(y, 3).double() + 0.01 * uniform(3, 24, 3)
    still = FixedPoints()
    noisy = FixedPoints("moved", (x + 0.05).clamp(max=1))
    outcomes = evaluate(
        Balancing(),
        [still, noisy],
        x,
        y,
        threat=Threat(Linf(0.1), order=WorstCaseOrder(24, tries=2)),
        batch_size=8,
    )
    same = all(torch.equal(e.batch, outcomes.batch) for e in outcomes.episodes)
    assert outcomes.unit == ("batch" if same else "stream")
    shuffled = replace(outcomes.episodes[1], batch=outcomes.episodes[1].batch.flip(0))
    assert type(outcomes).of([outcomes.episodes[0], shuffled], ("final",), "batch").unit == "stream"


def test_streams_that_cannot_be_ordered_raise_errors_before_any_attack() -> None:
    defense = Transductive(NET, ZERO)
    with pytest.raises(
        ValueError,
        match=r"24 examples is shorter than one batch of 128, so its order has no effect",
    ):
        play(defense, PGD3, X, Y, Threat(SPACE, order=SortedByLabel(256)))
    with pytest.raises(
        ValueError, match=r"window of 20 examples is not a multiple of the batch size 6.*window=18"
    ):
        play(defense, PGD3, X, Y, Threat(SPACE, order=SortedByLabel(20)), batch_size=6)
    with pytest.raises(ValueError, match=r"needs a label for every example, but 2 of 24 have none"):
        play(
            defense,
            FixedPoints(),
            X,
            torch.where(torch.arange(N) < 2, -1, Y),
            Threat(SPACE, order=SortedByLabel(12)),
            batch_size=6,
        )
