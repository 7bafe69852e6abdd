"""The verdict follows from the findings, and no estimate is credible while a check is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.audits.linear_defenses import (
    APGD,
    BPDA,
    CLEANED,
    IDENTITY,
    NET,
    ROUNDED,
    SQUARE,
    THREAT,
    TRANSFER,
    WEAKER,
    Coupled,
    Purified,
    X,
    Y,
)

import saddlepoint as sp
from saddlepoint.audits.statistics import wilson
from saddlepoint.audits.verdict import (
    Comparisons,
    Item,
    ItemName,
    Level,
    State,
    Symptom,
    SymptomName,
    Verdict,
    decide,
)

PASSED = (
    Item(ItemName.WHITE_BOX, State.PASS, "."),
    Item(ItemName.TRANSFER, State.NOT_APPLICABLE, "."),
)
NOT_RUN = Item(ItemName.BLACK_BOX, State.NOT_RUN, "no attack was run.")
FAILED = Item(ItemName.BLACK_BOX, State.FAIL, "it failed.")
SERIOUS = Symptom(SymptomName.BLACK_BOX_STRONGER, Level.SERIOUS, "gradients are masked.")


def decided(checklist=PASSED, symptoms=(), compared=None, robust=0.5):
    compared = compared or Comparisons()
    return decide(robust, 200, wilson(robust, 200), checklist, symptoms, compared)


def test_an_estimate_is_credible_if_all_applicable_items_passed():
    reasons = ("the only applicable item of the checklist passed.",)
    assert decided() == (Verdict.CREDIBLE, reasons)
    warning = replace(SERIOUS, level=Level.WARNING)
    assert decided(symptoms=(warning,)).verdict is Verdict.CREDIBLE


@pytest.mark.parametrize(
    ("checklist", "symptoms", "reason"),
    [
        ((), (), "the checklist was not run."),
        ((*PASSED, NOT_RUN), (), "not run: black-box attacks. No attack was run."),
        ((*PASSED, FAILED), (), "failed: black-box attacks. It failed."),
        (PASSED, (SERIOUS,), "black box beats white box: gradients are masked."),
    ],
)
def test_a_missing_or_failed_check_makes_the_verdict_inconclusive(checklist, symptoms, reason):
    assert decided(checklist, symptoms) == (Verdict.INCONCLUSIVE, (reason,))


def test_a_claim_is_refuted_above_the_interval():
    high = wilson(0.5, 200).high
    assert decided(compared=Comparisons(claim=high + 1e-6)).verdict is Verdict.OVERSTATED
    assert decided(compared=Comparisons(claim=high - 1e-6)).verdict is Verdict.CREDIBLE


def test_a_standard_evaluation_is_refuted_if_its_interval_excludes_the_estimate():
    low = wilson(0.5, 200).low
    assert decided(compared=Comparisons(standard=0.9)).verdict is Verdict.OVERSTATED
    assert decided(compared=Comparisons(standard=low)).verdict is Verdict.CREDIBLE


def test_an_estimate_never_refutes_a_number_that_is_equal_to_it():
    for n in [*range(1, 130), 500, 1000, 1999]:
        for k in range(n + 1):
            compared = Comparisons(claim=k / n, standard=k / n)
            found = decide(k / n, n, wilson(k / n, n), PASSED, (), compared)
            assert found.verdict is not Verdict.OVERSTATED, (k, n)


def test_rounding_errors_of_means_refute_nothing():
    share = 0.1 + 0.2  # above 0.3
    for n in range(1, 2001):
        compared = Comparisons(claim=share, standard=share)
        found = decide(0.3, n, wilson(0.3, n), PASSED, (), compared)
        assert found.verdict is not Verdict.OVERSTATED, n


def test_one_image_more_under_a_standard_evaluation_may_be_chance():
    """Wilson's interval of one image never contains 0."""
    one = decide(0.0, 64, wilson(0, 64), PASSED, (), Comparisons(standard=1 / 64))
    two = decide(0.0, 64, wilson(0, 64), PASSED, (), Comparisons(standard=2 / 64))
    assert (one.verdict, two.verdict) == (Verdict.CREDIBLE, Verdict.OVERSTATED)


def test_refuting_a_number_needs_no_complete_checklist_and_comes_first():
    found = decided((NOT_RUN,), compared=Comparisons(claim=0.9))
    assert found.verdict is Verdict.OVERSTATED
    assert [reason[:12] for reason in found.reasons] == ["the claim is", "not run: bla"]


def test_a_finding_about_the_defense_is_no_gap_of_the_evaluation():
    costs = Item(ItemName.COST, State.FAIL, "it costs.")
    reasons = (f"{ItemName.COST}: it costs.",)
    assert decided((*PASSED, costs)) == (Verdict.OVERSTATED, reasons)


def audited(target, adversaries, **settings):
    return sp.audit(target, X, Y, threat=THREAT, adversaries=adversaries, **settings)


@pytest.fixture(scope="module")
def identity_audit(tmp_path_factory):
    """A defense that changes nothing, with a claim that is true, saved to disk."""
    folder = tmp_path_factory.mktemp("audits") / "run"
    return audited(IDENTITY, [APGD, TRANSFER, SQUARE], claim=0.1, out=folder)


def test_a_defense_that_changes_nothing_is_as_robust_as_its_static_net(identity_audit):
    assert identity_audit.verdict is Verdict.CREDIBLE, identity_audit.reasons
    static = identity_audit.compared.static
    assert static.robust_accuracy == identity_audit.robust_accuracy
    assert (static.only_defense, static.only_static, static.p) == (0, 0, 1)


def test_a_defense_that_weakens_its_static_net_is_overstated():
    weaker = audited(WEAKER, [APGD, TRANSFER, SQUARE])
    assert weaker.verdict is Verdict.OVERSTATED
    assert weaker.compared.static.p < 0.05
    assert "only without it" in weaker.reasons[0]


def test_a_standard_evaluation_that_an_adaptive_attack_refutes_is_overstated():
    found = audited(ROUNDED, [APGD, BPDA])
    assert found.compared.standard > found.robust_accuracy + 0.1
    assert found.verdict is Verdict.OVERSTATED
    assert "a standard evaluation overstates robustness" in found.reasons[0]
    reason = found.reasons[0].rstrip(".")
    assert f"{reason[:1].upper()}{reason[1:]}" in found.summary()


def test_a_true_claim_is_credible_and_a_false_one_overstated():
    true = audited(NET, [APGD, SQUARE]).robust_accuracy
    assert audited(NET, [APGD, SQUARE], claim=true).verdict is Verdict.CREDIBLE
    refuted = audited(NET, [APGD, SQUARE], claim=1.0)
    assert (refuted.verdict, refuted.compared.claim) == (Verdict.OVERSTATED, 1.0)


def test_a_misspelled_budget_is_corrected():
    with pytest.raises(ValueError, match=r"got 'quik'\. Did you mean 'quick'\?"):
        audited(NET, [APGD], budget="quik")


def test_a_claim_in_percent_is_rejected():
    with pytest.raises(ValueError, match="between 0 and 1"):
        audited(NET, [APGD], claim=62)


def test_true_robustness_is_credible_if_attacks_bypass_what_hides_its_gradients():
    """Rounding to the grid of clean pixels removes every perturbation."""
    found = audited(CLEANED, [BPDA, TRANSFER, SQUARE])
    assert found.robust_accuracy == found.clean_accuracy
    assert found.compared.static.robust_accuracy < 0.9
    assert found.verdict is Verdict.CREDIBLE, found.reasons


def test_a_saved_audit_has_the_same_checklist_comparisons_and_verdict(identity_audit):
    loaded = sp.Audit.load(identity_audit.folder)
    assert loaded.record() == identity_audit.record()
    assert loaded.checklist == identity_audit.checklist
    assert loaded.compared == identity_audit.compared
    assert (loaded.verdict, loaded.reasons) == (identity_audit.verdict, identity_audit.reasons)


class Stream(Purified):
    memory = "stream"


def test_the_interval_of_a_stream_says_that_there_is_only_one():
    found = audited(Stream(), [APGD], batch_size=20)
    assert "belong to one stream" in found.interval.covers


def test_the_interval_of_coupled_images_is_over_batches():
    found = audited(Coupled(), [APGD], batch_size=20)
    assert "4 batches" in found.interval.covers
    assert found.interval.covers in found.summary()
    again = audited(Coupled(), [APGD], batch_size=20)
    assert torch.equal(found.correct, again.correct)
