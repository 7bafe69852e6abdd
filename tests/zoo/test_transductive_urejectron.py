"""URejectron: the effect of the threshold, and two definitions of the error."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from tests.zoo.transductive_problem import (
    answers,
    context,
    digits,
    fingerprint,
    trained,
    two_classes,
)
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
QUICK = Distinguishing(build=two_classes, epochs=40, optimizer=Adam(3e-3))
THRESHOLDS = (-0.1, 0.0, 0.1, 0.5, 0.9, 1.0)


class ReadsPixel(nn.Module):
    """Outputs logits with P(class 1) equal to one pixel."""

    def __init__(self, column: int) -> None:
        super().__init__()
        self.column = column

    def forward(self, x: Tensor) -> Tensor:
        p = x.flatten(1)[:, self.column].clamp(1e-9, 1 - 1e-9)
        return torch.stack([(1 - p).log(), p.log()], 1)


def _selective(threshold: float) -> SelectiveClassifier:
    return SelectiveClassifier(ReadsPixel(1), ReadsPixel(0), threshold)


# Columns are h and P(class 1). All labels are 0, so class 1 is an error.
X = torch.tensor([[0.2, 0.1], [0.4, 0.9], [0.6, 0.9], [0.8, 0.1]], dtype=torch.float64)
Y = torch.zeros(4, dtype=torch.long)


def test_images_above_the_threshold_are_rejected() -> None:
    for threshold, expected in {
        0.5: [0, 1, 2, 2],
        0.3: [0, 2, 2, 2],
        0.7: [0, 1, 1, 2],
        1.0: [0, 1, 1, 0],
        -0.1: [2] * 4,
    }.items():
        assert answers(_selective(threshold), X).argmax(1).tolist() == expected


def test_both_definitions_of_the_error() -> None:
    curve = rejection_curve(_selective(0.5), X, Y, X[:2], thresholds=[0.0, 0.3, 0.5, 0.7, 1.0])
    assert curve.rejected == (1, 0.75, 0.5, 0.25, 0)
    assert curve.rejected_normal == (1, 0.5, 0, 0, 0)
    assert curve.error == pytest.approx((0, 0, 1 / 2, 2 / 3, 2 / 4))  # of the accepted images
    assert curve.error_of_all == (0, 0, 1 / 4, 2 / 4, 2 / 4)  # of the whole batch, Eq. 1


def test_the_referee_counts_errors_of_the_whole_batch() -> None:
    for threshold in (0.3, 0.5, 0.7):
        episode = play(_selective(threshold), FixedPoints(), X[:, None, None], Y, Threat(SPACE))
        curve = rejection_curve(_selective(threshold), X, Y, X, thresholds=[threshold])
        assert 1 - float(episode.correct.mean()) == pytest.approx(curve.error_of_all[0])
        assert float(episode.rejected[0].mean()) == pytest.approx(curve.rejected[0])
        assert float(episode.rejected[1].mean()) == pytest.approx(curve.rejected_normal[0])


@pytest.fixture(scope="module")
def adapted() -> tuple[SelectiveClassifier, Tensor, Tensor]:
    """A defense that adapted to clean and attacked digits, mixed as in the paper."""
    data = digits()
    points = play(
        Plain(trained()), Direct("pgd", PGD(steps=10)), TEST.x, TEST.y, Threat(SPACE)
    ).points
    mixed = torch.cat([TEST.x, points])
    y = torch.cat([TEST.y, TEST.y])
    return URejectron(trained(), data.x, training=QUICK).adapt(mixed, context(mixed)), mixed, y


def test_thresholds_from_rejecting_all_to_rejecting_nothing(
    adapted: tuple[SelectiveClassifier, Tensor, Tensor],
) -> None:
    defense, mixed, y = adapted
    curve = rejection_curve(defense, mixed, y, TEST.x, thresholds=THRESHOLDS)
    for k in (0, 1):  # everything is rejected: no error, by convention
        assert (
            curve.rejected[k],
            curve.rejected_normal[k],
            curve.error[k],
            curve.error_of_all[k],
        ) == (1, 1, 0, 0)
    wrong = (trained()(mixed).argmax(1) != y).double().mean()
    assert (curve.rejected[-1], curve.rejected_normal[-1]) == (0, 0)
    assert curve.error[-1] == curve.error_of_all[-1] == pytest.approx(float(wrong))


def test_a_higher_threshold_never_rejects_more(
    adapted: tuple[SelectiveClassifier, Tensor, Tensor],
) -> None:
    defense, mixed, y = adapted
    curve = rejection_curve(defense, mixed, y, TEST.x)
    assert len(curve.thresholds) == 100
    assert (curve.thresholds[0], curve.thresholds[-1]) == (0, 1)
    for values in (curve.rejected, curve.rejected_normal):
        assert all(later <= earlier for earlier, later in pairwise(values))
    assert all(later >= earlier for earlier, later in pairwise(curve.error_of_all))
    assert all(
        whole <= answered for whole, answered in zip(curve.error_of_all, curve.error, strict=True)
    )
    assert len(set(curve.rejected)) > 10


def test_the_curve_does_not_depend_on_the_batch_size(
    adapted: tuple[SelectiveClassifier, Tensor, Tensor],
) -> None:
    defense, mixed, y = adapted
    one, other = (rejection_curve(defense, mixed, y, TEST.x, batch_size=size) for size in (7, 500))
    assert one == other


def test_attacked_images_are_rejected_more_often_than_clean_ones(
    adapted: tuple[SelectiveClassifier, Tensor, Tensor],
) -> None:
    defense, mixed, y = adapted
    half = len(TEST.x)
    curve = rejection_curve(defense, mixed, y, TEST.x, thresholds=[0.5])
    attacked = 2 * curve.rejected[0] - curve.rejected_normal[0]
    assert attacked > curve.rejected_normal[0] + 0.3
    assert (
        curve.error_of_all[0]
        < float((trained()(mixed[half:]).argmax(1) != y[half:]).double().mean()) / 2
    )


def test_the_rejections_of_the_defense_match_the_curve(
    adapted: tuple[SelectiveClassifier, Tensor, Tensor],
) -> None:
    defense, mixed, y = adapted
    for threshold in THRESHOLDS:
        at = SelectiveClassifier(defense.classifier, defense.discriminator, threshold)
        z = answers(at, mixed)
        assert z.shape[1] == 11
        assert z.isfinite().all()
        share = float((z.argmax(1) == 10).double().mean())
        assert share == pytest.approx(
            rejection_curve(defense, mixed, y, TEST.x, thresholds=[threshold]).rejected[0]
        )


def test_adapting_does_not_change_the_defense_and_depends_on_the_seed() -> None:
    data = digits()
    defense = URejectron(trained(), data.x, training=Distinguishing(build=two_classes, epochs=2))
    before = fingerprint(defense)
    x = TEST.x
    with torch.no_grad():
        one, other = (answers(defense.adapt(x, context(x, seed)), x) for seed in (0, 1))
    assert fingerprint(defense) == before
    assert not torch.equal(one, other)
    assert torch.equal(one, answers(defense.adapt(x, context(x)), x))


def test_before_it_adapts_it_rejects_nothing() -> None:
    z = answers(URejectron(trained(), digits().x), TEST.x)
    assert torch.equal(z[:, :10], trained()(TEST.x))
    assert (z.argmax(1) < 10).all()


def test_the_settings_of_the_paper() -> None:
    training = Distinguishing()
    assert (training.epochs, training.batch_size, training.optimizer) == (10, 128, Adam(1e-3))
    # ResNet-18 with two classes instead of ten.
    assert sum(p.numel() for p in training.build().parameters()) == 11173962 - 8 * 513


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


def test_missing_images_raise() -> None:
    with pytest.raises(ValueError, match="got no training images"):
        URejectron(trained(), TEST.x[:0])
    with pytest.raises(ValueError, match="got 4 images, 4 labels and 0 clean images"):
        rejection_curve(_selective(0.5), X, Y, X[:0])
