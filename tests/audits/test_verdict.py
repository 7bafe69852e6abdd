"""The verdict follows from what was found, and nothing holds while the evaluation has a gap."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.audits.test_checklist import (
    APGD,
    BPDA,
    CLEANED,
    NET,
    ROUNDED,
    SQUARE,
    THREAT,
    TRANSFER,
    WEAKER,
    Purified,
    X,
    Y,
)

import saddlepoint as sp
from saddlepoint.audits.statistics import wilson
from saddlepoint.audits.verdict import DEARER, Comparisons, Item, Symptom, rule

PASS = (Item("a", "pass", "."), Item("b", "does not apply", "."))
SERIOUS = Symptom("masked", "serious", "gradients are masked.")


def ruled(checklist=PASS, symptoms=(), compared=None, robust=0.5):
    return rule(robust, 200, wilson(robust, 200), checklist, symptoms, compared or Comparisons())


def test_all_that_applies_has_passed():
    assert ruled() == ("holds so far", ("all 1 items of the checklist that apply have passed.",))
    assert ruled(symptoms=(replace(SERIOUS, level="warning"),)).verdict == "holds so far"


@pytest.mark.parametrize(
    ("checklist", "symptoms", "reason"),
    [
        ((), (), "the checklist was not run."),
        ((*PASS, Item("c", "not run", "nobody did.")), (), "not run: c. Nobody did."),
        ((*PASS, Item("c", "fail", "it broke.")), (), "failed: c. It broke."),
        (PASS, (SERIOUS,), "masked: gradients are masked."),
    ],
)
def test_a_gap_means_that_it_cannot_be_told(checklist, symptoms, reason):
    assert ruled(checklist, symptoms) == ("cannot be told", (reason,))


def test_what_refutes_a_number_needs_no_complete_checklist_and_comes_first():
    high = wilson(0.5, 200).high
    low = wilson(0.5, 200).low
    assert ruled(compared=Comparisons(claim=high + 1e-6)).verdict == "overstated"
    assert (
        ruled(compared=Comparisons(claim=high - 1e-6)).verdict == "holds so far"
    )  # within what other images would give
    found = ruled((Item("c", "not run", "nobody did."),), compared=Comparisons(claim=0.9))
    assert found.verdict == "overstated"
    assert [reason[:6] for reason in found.reasons] == ["90.0 %", "not ru"]
    assert ruled(compared=Comparisons(standard=0.9)).verdict == "overstated"
    assert ruled(compared=Comparisons(standard=low)).verdict == "holds so far"


def test_a_finding_about_the_defense_is_no_fault_of_the_evaluation():
    assert ruled((*PASS, Item(DEARER, "fail", "it costs."))) == (
        "overstated",
        (f"{DEARER}: it costs.",),
    )


def audited(target, sent, **more):
    return sp.audit(target, X, Y, threat=THREAT, adversaries=sent, **more)


def test_a_defense_that_does_nothing_is_its_static_net_and_one_that_weakens_it_is_overstated():
    same = audited(Purified(), [APGD, TRANSFER, SQUARE])
    assert same.verdict == "holds so far", same.reasons
    static = same.compared.static
    assert (static.robust_accuracy, static.only_defense, static.only_static, static.p) == (
        same.robust_accuracy,
        0,
        0,
        1,
    )
    weaker = audited(WEAKER, [APGD, TRANSFER, SQUARE])
    assert weaker.verdict == "overstated"
    assert weaker.compared.static.p < 0.05
    assert "only without it" in weaker.reasons[0]


def test_a_standard_evaluation_that_an_adaptive_attack_contradicts_is_overstated():
    found = audited(ROUNDED, [APGD, BPDA])
    assert found.compared.standard > found.robust_accuracy + 0.1
    assert found.verdict == "overstated"
    assert "a standard evaluation overstates it" in found.reasons[0]
    assert found.reasons[0].rstrip(".") in found.summary()


def test_a_claim_is_refuted_or_not():
    truth = audited(NET, [APGD, SQUARE]).robust_accuracy
    assert audited(NET, [APGD, SQUARE], claim=truth).verdict == "holds so far"
    refuted = audited(NET, [APGD, SQUARE], claim=1.0)
    assert (refuted.verdict, refuted.compared.claim) == ("overstated", 1.0)
    with pytest.raises(ValueError, match="share between 0 and 1"):
        audited(NET, [APGD], claim=62)


def test_robustness_that_is_real_holds_where_attacks_go_around_what_hides_its_gradients():
    """Rounding to the grid of the clean pixels undoes every perturbation: the truth is the clean accuracy."""
    found = audited(CLEANED, [BPDA, TRANSFER, SQUARE])
    assert found.robust_accuracy == found.clean_accuracy
    assert found.compared.static.robust_accuracy < 0.9
    assert found.verdict == "holds so far", found.reasons


def test_an_audit_with_checklist_and_comparison_survives_the_disk(tmp_path):
    kept = audited(Purified(), [APGD, TRANSFER, SQUARE], out=tmp_path / "run", claim=0.9)
    again = sp.Audit.load(tmp_path / "run")
    assert again.record() == kept.record()
    assert again.checklist == kept.checklist
    assert again.compared == kept.compared
    assert (again.verdict, again.reasons) == (kept.verdict, kept.reasons)


def test_the_interval_of_a_stream_says_that_there_is_but_one():
    class Online(Purified):
        memory = "stream"

    found = sp.audit(Online(), X, Y, threat=THREAT, adversaries=[APGD], batch_size=20)
    assert "all belong to one stream" in found.interval.covers


def test_the_interval_of_images_that_are_answered_together_is_over_batches():
    class Together(Purified):
        coupled = True

    found = sp.audit(Together(), X, Y, threat=THREAT, adversaries=[APGD], batch_size=20)
    assert "4 batches" in found.interval.covers
    assert found.interval.covers in found.summary()
    assert torch.equal(
        found.correct,
        sp.audit(Together(), X, Y, threat=THREAT, adversaries=[APGD], batch_size=20).correct,
    )
