"""What refusing buys: every threshold of a defense that may refuse, from scores that its audit has kept."""

from __future__ import annotations

import math

import pytest
import torch
from saddlepoint.reports.sections.refusals import refusals
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
from saddlepoint.evaluation.rejection import rejection_tradeoff, scored
from saddlepoint.reports.context import Subject

N = 40
D = 5
LIMIT = 0.55
X = uniform(3, N, D)
NET = Affine.random(5, 4, D)
Y = NET(X).argmax(1)


class Bounded(Defense):
    """Refuses by how far the mean of the pixels lies beyond a limit."""

    rejects = True

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        logits = NET(x)
        beyond = (x.flatten(1).mean(1) - LIMIT) * 10
        return Trace((View("final", torch.cat([logits, (logits.amax(1) + beyond)[:, None]], 1)),))


def test_the_score_is_the_lead_of_the_refusal_and_knows_the_class_behind_it() -> None:
    z = torch.tensor([[1.0, 2.0, 5.0], [1.0, 2.0, 1.5], [3.0, 2.0, math.nan]], dtype=torch.float64)
    lead, wrong = scored(z, torch.tensor([0, 1, 0]))
    assert lead[:2].tolist() == [3.0, -0.5]
    assert lead[2].isnan()
    assert wrong.tolist() == [1.0, 0.0, 0.0]


def test_the_curve_counts_what_exceeds_a_cut() -> None:
    scores = torch.tensor([3.0, 1.0, -1.0, math.nan], dtype=torch.float64)
    wrong = torch.tensor([True, False, True, True])
    curve = rejection_tradeoff(
        scores,
        wrong,
        torch.tensor([0.5, -2.0], dtype=torch.float64),
        [-math.inf, 0.0, 2.0, math.inf],
        [0, 1, 2, 3],
    )
    assert curve.rejected == (0.75, 0.5, 0.25, 0.0)  # what is not a number is never refused
    assert curve.rejected_normal == (1.0, 0.5, 0.0, 0.0)
    assert curve.error == (1.0, 1.0, pytest.approx(2 / 3), 0.75)
    assert curve.error_of_all == (0.25, 0.5, 0.5, 0.75)


def test_the_record_holds_the_score_of_every_point_and_of_the_image_it_was_made_of() -> None:
    episode = play(Bounded(), Direct("pgd", PGD(steps=10)), X, Y, Threat(Linf(0.2)), batch_size=16)
    point, wrong, beside, mistaken = episode.rejection_scores[:, 0, 0]
    torch.testing.assert_close(point, 10 * (episode.points.mean(1) - LIMIT), rtol=0, atol=1e-12)
    torch.testing.assert_close(beside, 10 * (X.mean(1) - LIMIT), rtol=0, atol=1e-12)
    assert torch.equal(wrong > 0, NET(episode.points).argmax(1) != Y)
    assert not mistaken.any()
    assert torch.equal(point > 0, episode.rejected[0, 0] == 1)
    assert torch.equal(episode.correct[0] == 0, (wrong > 0) & (point <= 0))
    assert Episode.joined([episode, episode]).rejection_scores.shape == (4, 1, 1, 2 * N)
    assert torch.equal(episode[torch.arange(N).flip(0)].rejection_scores[0, 0, 0], point.flip(0))


def test_a_defense_that_cannot_refuse_has_no_scores_and_no_section() -> None:
    class Bare(Defense):
        def trace(self, x: Tensor, ctx: Context) -> Trace:
            return Trace((View("final", NET(x)),))

    episode = play(Bare(), FixedPoints(), X, Y, Threat(Linf(0.2)), batch_size=16)
    assert episode.rejection_scores.shape == (4, 0, 0, 0)
    assert Episode.joined([episode, episode]).rejection_scores.shape == (4, 0, 0, 0)
    assert refusals(Subject(an_audit())) is None
    assert "What refusing buys" not in page(an_audit())


def test_an_audit_keeps_the_scores_and_its_report_draws_them(tmp_path) -> None:
    found = audit(Bounded(), X, Y, threat=Linf(0.2), adversaries=[Direct("pgd", PGD(steps=10))])
    kept = Audit.load(found.save(tmp_path))
    assert torch.equal(kept.rejection_scores, found.rejection_scores)
    assert kept.rejection_scores.shape == (4, 1, N)
    text = page(kept)
    assert "What refusing buys" in text
    assert (
        text.count('class="line lost"')
        == text.count('class="line alone"')
        == text.count('class="line kept"')
        == 1
    )
    assert "40 images and as many worst points, each asked in one draw." in text
    point, wrong, beside, _ = kept.rejection_scores[:, 0]
    answered = int((point <= 0).sum())
    as_it_is = [
        f"{100 * float((beside > 0).double().mean()):.1f} %",
        f"{100 * float((point > 0).double().mean()):.1f} %",
        f"{answered} of {N}",
        f"{100 * float(((point <= 0) & (wrong > 0)).sum() / answered):.1f} %",
        f"{100 * (1 - kept.robust_accuracy):.1f} %",  # a refusal is right: Eq. 1 and the audit agree
    ]
    assert "as it is</th>" + "".join(f"<td>{cell}</td>" for cell in as_it_is) in text
    assert f"nothing refused</th><td>0.0 %</td><td>0.0 %</td><td>{N} of {N}</td>" in text


def test_an_audit_from_before_scores_were_kept_is_read_and_drawn_without_them(tmp_path) -> None:
    plain = an_audit(20)
    kept = Audit.load(plain.save(tmp_path))
    assert kept.rejection_scores.shape == (4, 0, 0)
    assert "What refusing buys" not in page(kept)


def test_scores_that_are_no_numbers_or_all_alike_are_drawn_too() -> None:
    odd = torch.zeros(4, 2, 20, dtype=torch.float64)
    for scores in (odd, odd.index_fill(0, torch.tensor([0, 2]), math.nan), odd + math.inf):
        text = page(an_audit(20, rejection_scores=scores))
        assert "each asked in 2 draws" in text
        assert "nan" not in text.partition("What refusing buys</h2>")[2].partition("</section>")[
            0
        ].lower().replace("finance", "")
