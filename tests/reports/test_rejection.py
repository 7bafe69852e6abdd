"""The rejection tradeoff: all thresholds of a defense that can reject, from the scores kept."""

from __future__ import annotations

import math
import re

import pytest
import torch
from tests.problems import Affine, uniform
from tests.reports.audits import an_audit, page
from torch import Tensor

from saddlepoint import audit
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.audits import Audit
from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.evaluation import Direct, Episode, FixedPoints, Threat
from saddlepoint.evaluation.referee import play
from saddlepoint.evaluation.rejection import rejection_scores, rejection_tradeoff
from saddlepoint.phrases import percent_cell
from saddlepoint.reports.context import ReportContext
from saddlepoint.reports.sections.rejections import rejections

N = 40
D = 5
LIMIT = 0.55
TITLE = "Rejection tradeoff"
X = uniform(3, N, D)
NET = Affine.random(5, 4, D)
Y = NET(X).argmax(1)
ZEROS = torch.zeros(4, 2, 20, dtype=torch.float64)  # two draws of 20 images


class RejectsBright(Defense):
    """Rejects images with a mean above a limit; the score is 10 times the difference."""

    rejects = True

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        logits = NET(x)
        beyond = (x.flatten(1).mean(1) - LIMIT) * 10
        return Trace((View("final", torch.cat([logits, (logits.amax(1) + beyond)[:, None]], 1)),))


class NeverRejects(Defense):
    """A static model."""

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        return Trace((View("final", NET(x)),))


def test_the_score_is_the_rejection_output_minus_the_highest_class_output() -> None:
    z = torch.tensor([[1.0, 2.0, 5.0], [1.0, 2.0, 1.5], [3.0, 2.0, math.nan]], dtype=torch.float64)
    score, wrong = rejection_scores(z, torch.tensor([0, 1, 0]))
    assert score[:2].tolist() == [3.0, -0.5]
    assert score[2].isnan()
    assert wrong.tolist() == [1.0, 0.0, 0.0]  # of the highest class


def test_scores_above_a_threshold_count_as_rejected() -> None:
    scores = torch.tensor([3.0, 1.0, -1.0, math.nan], dtype=torch.float64)
    wrong = torch.tensor([True, False, True, True])
    curve = rejection_tradeoff(
        scores,
        wrong,
        torch.tensor([0.5, -2.0], dtype=torch.float64),
        [-math.inf, 0.0, 2.0, math.inf],
        [0, 1, 2, 3],
    )
    assert curve.rejected == (0.75, 0.5, 0.25, 0.0)  # NaN is never rejected
    assert curve.rejected_normal == (1.0, 0.5, 0.0, 0.0)
    assert curve.error == (1.0, 1.0, pytest.approx(2 / 3), 0.75)
    assert curve.error_of_all == (0.25, 0.5, 0.5, 0.75)


def test_an_episode_contains_the_scores_of_every_point_and_of_its_clean_image() -> None:
    pgd = Direct("pgd", PGD(steps=10))
    episode = play(RejectsBright(), pgd, X, Y, Threat(Linf(0.2)), batch_size=16)
    point, wrong, clean, clean_wrong = episode.rejection_scores[:, 0, 0]
    torch.testing.assert_close(point, 10 * (episode.points.mean(1) - LIMIT), rtol=0, atol=1e-12)
    torch.testing.assert_close(clean, 10 * (X.mean(1) - LIMIT), rtol=0, atol=1e-12)
    assert torch.equal(wrong > 0, NET(episode.points).argmax(1) != Y)
    assert not clean_wrong.any()
    assert torch.equal(point > 0, episode.rejected[0, 0] == 1)
    assert torch.equal(episode.correct[0] == 0, (wrong > 0) & (point <= 0))
    assert Episode.joined([episode, episode]).rejection_scores.shape == (4, 1, 1, 2 * N)
    assert torch.equal(episode[torch.arange(N).flip(0)].rejection_scores[0, 0, 0], point.flip(0))


def test_a_defense_that_cannot_reject_has_no_scores_and_no_section() -> None:
    episode = play(NeverRejects(), FixedPoints(), X, Y, Threat(Linf(0.2)), batch_size=16)
    assert episode.rejection_scores.shape == (4, 0, 0, 0)
    assert Episode.joined([episode, episode]).rejection_scores.shape == (4, 0, 0, 0)
    assert rejections(ReportContext(an_audit())) is None
    assert TITLE not in page(an_audit())


def test_an_audit_keeps_the_scores_and_its_report_draws_them(tmp_path) -> None:
    pgd = Direct("pgd", PGD(steps=10))
    result = audit(RejectsBright(), X, Y, threat=Linf(0.2), adversaries=[pgd])
    loaded = Audit.load(result.save(tmp_path))
    assert torch.equal(loaded.rejection_scores, result.rejection_scores)
    assert loaded.rejection_scores.shape == (4, 1, N)
    text = page(loaded)
    assert TITLE in text
    for color in ("primary", "secondary", "marker"):
        assert text.count(f'class="line {color}"') == 1
    assert "40 clean images and as many worst points, each evaluated in one draw." in text
    point, wrong, clean, _ = loaded.rejection_scores[:, 0]
    accepted = int((point <= 0).sum())
    actual = [
        f"{percent_cell(float((clean > 0).double().mean()))}",
        f"{percent_cell(float((point > 0).double().mean()))}",
        f"{accepted} of {N}",
        f"{percent_cell(float(((point <= 0) & (wrong > 0)).sum() / accepted))}",
        # A rejection counts as correct, so Eq. 1 and the audit agree:
        f"{percent_cell(1 - loaded.robust_accuracy)}",
    ]
    cells = re.sub(r' data-label="[^"]*"', "", text)
    assert "actual threshold</th>" + "".join(f"<td>{cell}</td>" for cell in actual) in cells
    assert f"no rejection</th><td>0 %</td><td>0 %</td><td>{N} of {N}</td>" in cells


def test_an_audit_from_before_scores_were_kept_is_loaded_and_has_no_section(tmp_path) -> None:
    plain = an_audit(20)
    loaded = Audit.load(plain.save(tmp_path))
    assert loaded.rejection_scores.shape == (4, 0, 0)
    assert TITLE not in page(loaded)


@pytest.mark.parametrize(
    "scores",
    [ZEROS, ZEROS.index_fill(0, torch.tensor([0, 2]), math.nan), ZEROS + math.inf],
    ids=["equal", "nan", "infinite"],
)
def test_equal_nan_and_infinite_scores_are_drawn(scores) -> None:
    text = page(an_audit(20, rejection_scores=scores))
    assert "each evaluated in 2 draws" in text
    section = text.partition(f"{TITLE}</h2>")[2].partition("</section>")[0]
    assert "nan" not in section.lower()
