"""Files for continuous integration, made from audits with invented outcomes."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from tests.reports.audits import an_audit

from saddlepoint.audits.statistics import wilson
from saddlepoint.audits.verdict import Comparisons
from saddlepoint.reports.ci import junit, markdown_summary, requirements


@pytest.mark.parametrize(
    ("fail_under", "met"), [(0.0, True), (0.5, True), (0.50001, False), (1.0, False)]
)
def test_robust_accuracy_must_reach_the_required_one_counted_in_images(
    fail_under: float, met: bool
) -> None:
    audit = replace(an_audit(), n=10, robust_accuracy=0.5, interval=wilson(0.5, 10))
    (requirement,) = requirements(audit, fail_under)
    assert requirement.met is met


@pytest.mark.parametrize(
    ("correct", "n", "fail_under", "shown"),
    [
        (22, 32, 0.688, ("at least 68.80 % is", "≤ 68.75 % (")),
        (5, 10, 0.50001, ("at least 50.001 % is", "≤ 50.000 % (")),
        (9999, 10000, 0.99995, ("at least 99.995 % is", "≤ 99.990 % (")),
        (5, 10, 0.6, ("at least 60.0 % is", "≤ 50.0 % (")),
    ],
)
def test_a_required_accuracy_that_is_missed_differs_from_the_one_that_is_found(
    correct: int, n: int, fail_under: float, shown: tuple[str, str]
) -> None:
    accuracy = correct / n
    audit = replace(an_audit(), n=n, robust_accuracy=accuracy, interval=wilson(accuracy, n))
    (requirement,) = requirements(audit, fail_under)
    assert not requirement.met
    assert all(text in requirement.message for text in shown), requirement.message


def test_a_claim_is_not_met_only_if_it_is_above_the_whole_interval() -> None:
    interval = wilson(0.5, 100)
    audit = replace(an_audit(), n=100, robust_accuracy=0.5, interval=interval)
    for claim, met in ((interval.high, True), (interval.high + 0.02, False)):
        (requirement,) = requirements(replace(audit, compared=Comparisons(claim=claim)))
        assert requirement.met is met
    assert requirements(audit) == ()


def test_a_junit_file_is_well_formed_whatever_the_target_is_called() -> None:
    audit = replace(an_audit(), target='<a & "b">\x00\x1b[31m')
    root = ElementTree.fromstring(junit(audit, requirements(audit, 1.0)))
    assert [case.get("name") for case in root] == ["audit", "robust accuracy"]
    assert root.find("testcase/failure") is not None
    assert root.get("name") == 'saddlepoint: <a & "b">[31m'


def test_a_summary_escapes_what_it_shows_and_has_a_row_per_attack() -> None:
    audit = replace(an_audit(), target="a|b <script>")
    text = markdown_summary(audit, requirements(audit, 0.2))
    assert text.startswith(r"## a\|b \<script\>: ")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + len(audit.rows)  # the head, the clean images, the attacks
