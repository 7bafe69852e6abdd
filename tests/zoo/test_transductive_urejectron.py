"""URejectron: thresholds from refusing all to refusing nothing, two ways of counting errors, and what an attacker climbs."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from tests.zoo.transductive_problem import answers, context, digits, fingerprint, trained, two_way
from torch import Tensor, nn

from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Plain
from saddlepoint.evaluation import Direct, FixedPoints, Threat
from saddlepoint.evaluation.referee import play
from saddlepoint.training.recipe import Adam
from saddlepoint.zoo.transductive import (
    Distinguishing,
    SelectiveClassifier,
    URejectron,
    rejection_curve,
)
from saddlepoint.zoo.transductive.urejectron import log_odds

TEST = digits("test", 60)
SPACE = Linf(0.25)
QUICK = Distinguishing(build=two_way, epochs=40, optimizer=Adam(3e-3))
THRESHOLDS = (-0.1, 0.0, 0.1, 0.5, 0.9, 1.0)


class Told(nn.Module):
    """A discriminator that says P(asked about) = the first pixel, and a classifier that says 0 or 1 by the second."""

    def __init__(self, column: int) -> None:
        super().__init__()
        self.column = column

    def forward(self, x: Tensor) -> Tensor:
        p = x.flatten(1)[:, self.column].clamp(1e-9, 1 - 1e-9)
        return torch.stack([(1 - p).log(), p.log()], 1)


def _redacted(threshold: float) -> SelectiveClassifier:
    return SelectiveClassifier(Told(1), Told(0), threshold)


# h, and the class answered; all labels are 0, so that class 1 is a mistake
X = torch.tensor([[0.2, 0.1], [0.4, 0.9], [0.6, 0.9], [0.8, 0.1]], dtype=torch.float64)
Y = torch.zeros(4, dtype=torch.long)


def test_what_is_above_the_threshold_is_refused() -> None:
    for threshold, expected in {
        0.5: [0, 1, 2, 2],
        0.3: [0, 2, 2, 2],
        0.7: [0, 1, 1, 2],
        1.0: [0, 1, 1, 0],
        -0.1: [2] * 4,
    }.items():
        assert answers(_redacted(threshold), X).argmax(1).tolist() == expected


def test_both_ways_of_counting_errors() -> None:
    curve = rejection_curve(_redacted(0.5), X, Y, X[:2], thresholds=[0.0, 0.3, 0.5, 0.7, 1.0])
    assert curve.rejected == (1, 0.75, 0.5, 0.25, 0)
    assert curve.rejected_normal == (1, 0.5, 0, 0, 0)
    assert curve.error == pytest.approx((0, 0, 1 / 2, 2 / 3, 2 / 4))  # of those answered
    assert curve.error_of_all == (0, 0, 1 / 4, 2 / 4, 2 / 4)  # of the whole batch, Eq. 1


def test_the_referee_counts_as_the_first_equation_does() -> None:
    for threshold in (0.3, 0.5, 0.7):
        episode = play(_redacted(threshold), FixedPoints(), X[:, None, None], Y, Threat(SPACE))
        curve = rejection_curve(_redacted(threshold), X, Y, X, thresholds=[threshold])
        assert 1 - float(episode.correct.mean()) == pytest.approx(curve.error_of_all[0])
        assert float(episode.rejected[0].mean()) == pytest.approx(curve.rejected[0])
        assert float(episode.rejected[1].mean()) == pytest.approx(curve.rejected_normal[0])


@pytest.fixture(scope="module")
def adapted() -> tuple[SelectiveClassifier, Tensor, Tensor]:
    """Adapted to ordinary digits and to attacked ones, as the paper mixes them."""
    data = digits()
    points = play(
        Plain(trained()), Direct("pgd", PGD(steps=10)), TEST.x, TEST.y, Threat(SPACE)
    ).points
    mixed = torch.cat([TEST.x, points])
    y = torch.cat([TEST.y, TEST.y])
    return URejectron(trained(), data.x, training=QUICK).adapt(mixed, context(mixed)), mixed, y


def test_thresholds_from_refusing_all_to_refusing_nothing(
    adapted: tuple[SelectiveClassifier, Tensor, Tensor],
) -> None:
    redacted, mixed, y = adapted
    curve = rejection_curve(redacted, mixed, y, TEST.x, thresholds=THRESHOLDS)
    for k in (0, 1):  # nobody is answered: no error, by convention
        assert (
            curve.rejected[k],
            curve.rejected_normal[k],
            curve.error[k],
            curve.error_of_all[k],
        ) == (1, 1, 0, 0)
    wrong = (trained()(mixed).argmax(1) != y).double().mean()
    assert (curve.rejected[-1], curve.rejected_normal[-1]) == (0, 0)
    assert curve.error[-1] == curve.error_of_all[-1] == pytest.approx(float(wrong))


def test_a_higher_threshold_never_refuses_more(adapted: tuple[SelectiveClassifier, Tensor, Tensor]) -> None:
    redacted, mixed, y = adapted
    curve = rejection_curve(redacted, mixed, y, TEST.x)
    assert len(curve.thresholds) == 100
    assert (curve.thresholds[0], curve.thresholds[-1]) == (0, 1)
    for values in (curve.rejected, curve.rejected_normal):
        assert all(later <= earlier for earlier, later in pairwise(values))
    assert all(later >= earlier for earlier, later in pairwise(curve.error_of_all))
    assert all(
        whole <= answered for whole, answered in zip(curve.error_of_all, curve.error, strict=True)
    )
    assert len(set(curve.rejected)) > 10


def test_batches_are_no_part_of_the_curve(adapted: tuple[SelectiveClassifier, Tensor, Tensor]) -> None:
    redacted, mixed, y = adapted
    one, other = (rejection_curve(redacted, mixed, y, TEST.x, batch_size=size) for size in (7, 500))
    assert one == other


def test_attacked_images_are_refused_more_often_than_ordinary_ones(
    adapted: tuple[SelectiveClassifier, Tensor, Tensor],
) -> None:
    redacted, mixed, y = adapted
    half = len(TEST.x)
    curve = rejection_curve(redacted, mixed, y, TEST.x, thresholds=[0.5])
    attacked = 2 * curve.rejected[0] - curve.rejected_normal[0]
    assert attacked > curve.rejected_normal[0] + 0.3
    assert (
        curve.error_of_all[0]
        < float((trained()(mixed[half:]).argmax(1) != y[half:]).double().mean()) / 2
    )


def test_the_answer_agrees_with_the_curve(adapted: tuple[SelectiveClassifier, Tensor, Tensor]) -> None:
    redacted, mixed, y = adapted
    for threshold in THRESHOLDS:
        at = SelectiveClassifier(redacted.classifier, redacted.discriminator, threshold)
        z = answers(at, mixed)
        assert z.shape[1] == 11
        assert z.isfinite().all()
        share = float((z.argmax(1) == 10).double().mean())
        assert share == pytest.approx(
            rejection_curve(redacted, mixed, y, TEST.x, thresholds=[threshold]).rejected[0]
        )


def test_adapting_leaves_the_defense_as_it_was_and_is_a_function_of_its_coins() -> None:
    data = digits()
    defense = URejectron(trained(), data.x, training=Distinguishing(build=two_way, epochs=2))
    before = fingerprint(defense)
    x = TEST.x
    with torch.no_grad():
        one, other = (answers(defense.adapt(x, context(x, seed)), x) for seed in (0, 1))
    assert fingerprint(defense) == before
    assert not torch.equal(one, other)
    assert torch.equal(one, answers(defense.adapt(x, context(x)), x))


def test_before_it_adapts_it_refuses_nothing() -> None:
    z = answers(URejectron(trained(), digits().x), TEST.x)
    assert torch.equal(z[:, :10], trained()(TEST.x))
    assert (z.argmax(1) < 10).all()


def test_the_settings_of_the_paper() -> None:
    training = Distinguishing()
    assert (training.epochs, training.batch_size, training.optimizer) == (10, 128, Adam(1e-3))
    assert (
        sum(p.numel() for p in training.build().parameters()) == 11173962 - 8 * 513
    )  # ResNet-18 with two answers, not ten


def test_log_odds() -> None:
    assert log_odds(0.5) == 0
    assert log_odds(0.9) == pytest.approx(math.log(9))
    assert (log_odds(0), log_odds(-1), log_odds(1), log_odds(2)) == (
        -math.inf,
        -math.inf,
        math.inf,
        math.inf,
    )
    with pytest.raises(ValueError, match="got nan"):
        log_odds(math.nan)


def test_nothing_to_compare_is_an_error() -> None:
    with pytest.raises(ValueError, match="given none of the latter"):
        URejectron(trained(), TEST.x[:0])
    with pytest.raises(ValueError, match="got 4 images, 4 labels and 0 ordinary ones"):
        rejection_curve(_redacted(0.5), X, Y, X[:0])
