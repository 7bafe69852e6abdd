"""The report shows the verdict first, hides nothing, loads nothing and runs no scripts."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from tests.reports.audits import (
    CHECKLIST,
    SYMPTOMS,
    an_audit,
    page,
)
from tests.reports.parsed import Page

from saddlepoint.audits.statistics import wilson
from saddlepoint.audits.verdict import (
    CertifiedBound,
    Comparisons,
    Cost,
    Item,
    ItemName,
    State,
    StaticNet,
    Verdict,
)
from saddlepoint.phrases import at_most, percent_cell, percent_range
from saddlepoint.reports.comparison import write_leaderboard
from saddlepoint.reports.document import save_page
from saddlepoint.reports.html import write_report
from saddlepoint.reports.style import DARK, LIGHT

_HOSTILE = '<script>alert("x")</script>&\'"'


def assert_in_order(words: str, *parts: str) -> None:
    places = [words.index(part) for part in parts]
    assert places == sorted(places)


def test_the_first_screen_has_verdict_numbers_charts_and_cost_before_the_warnings():
    words = Page(page(an_audit_with_sizes(symptoms=SYMPTOMS))).words
    assert_in_order(
        words,
        f"Verdict: {Verdict.INCONCLUSIVE}",
        "on 200 images, without attack",
        "Upper bound of robust accuracy by radius",
        "Robust accuracy after each attack",
        "Passes per image",
        "serious: vanishing gradients",
        "SHA-256 of x",
    )


def an_audit_with_sizes(**changes):
    """An audit that knows the smallest perturbation of each image."""
    audit = an_audit(**changes)
    smallest = torch.where(audit.correct < 0.5, audit.examples.size / 2, torch.inf)
    return replace(audit, examples=replace(audit.examples, smallest=smallest))


def test_charts_are_beside_each_other_only_if_there_are_two():
    classes = [attrs.get("class") for _, attrs in Page(page(an_audit_with_sizes())).tags]
    assert classes.count("pair") == 1
    assert "pair" not in [attrs.get("class") for _, attrs in Page(page(an_audit())).tags]


def test_details_are_folded_and_findings_are_not():
    text = page(an_audit_with_sizes(symptoms=SYMPTOMS))
    titles = re.findall(r"<summary><h2>(.*?)</h2></summary>", text)
    assert titles == [
        "All attacks",
        "Loss curves",
        "Margins",
        "Robust accuracy by class",
        "Winning attacks",
        "Configuration",
    ]
    for title in titles:  # a browser unfolds what a link leads to
        anchor = title.lower().replace(" ", "-")
        assert f'</summary><div id="{anchor}" class="unfolded">' in text


def test_each_reason_of_the_verdict_is_shown_once():
    cost = Item(ItemName.COST, State.FAIL, "a prediction takes 30 times the time")
    gap = Item(ItemName.BLACK_BOX, State.NOT_RUN, "no attack without gradients was run.")
    audit = an_audit(checklist=(*CHECKLIST[:2], cost, gap))
    text = page(audit)
    box = Page(text[text.index('<div class="verdict') : text.index("<section")]).words
    assert len(audit.reasons) == 2
    for reason in audit.reasons:
        assert box.count(reason) == 1
    assert "; not run: " not in box
    assert box.lower().count(ItemName.COST) == 1
    assert str(audit.interval) in box


def test_more_than_three_reasons_of_the_verdict_are_folded():
    names = (ItemName.BLACK_BOX, ItemName.COST, ItemName.CONVERGED, ItemName.UNBOUNDED)
    gaps = [Item(name, State.NOT_RUN, f"{name} was left out.") for name in names]
    audit = an_audit(checklist=(*CHECKLIST[:2], *gaps))
    shown, _, folded = page(audit).partition("<summary>1 further reason</summary>")
    assert [audit.reasons.index(r) for r in audit.reasons if f"<li>{r}</li>" in shown] == [0, 1, 2]
    assert f"<li>{audit.reasons[3]}</li>" in folded


def test_the_checklist_begins_with_open_items():
    gap = Item(ItemName.BLACK_BOX, State.NOT_RUN, "no attack without gradients was run <b>.")
    words = Page(page(an_audit(checklist=(*CHECKLIST[:2], gap)))).words
    assert_in_order(
        words,
        f"Verdict: {Verdict.INCONCLUSIVE}",
        "○ not run",
        "✓ pass",
        "– not applicable",
    )
    assert gap.evidence in words  # as text


def test_comparisons_are_shown_beside_the_robust_accuracy():
    static = StaticNet(0.95, 0.5, 3, 20, 0.001)
    compared = Comparisons(
        0.8, 0.75, static, Cost(12.0, 10.0, 4.0, 0.5), CertifiedBound(0.2, "interval <bounds>")
    )
    audit = an_audit(compared=compared)
    words = Page(page(audit)).words
    for part in (
        "claimed robust accuracy 80.0 %",
        "under non-adaptive attacks 75.0 %",
        "95.0 % clean accuracy, ≤ 50.0 % robust accuracy",
        "20 only without it",
        "8.0 times",
        "≥ 20.0 %, certified by interval <bounds>",
    ):
        assert part in words, part
    assert f"Verdict: {Verdict.OVERSTATED}" in words
    assert audit.reasons[0] in words  # the claim is refuted
    assert "80.0 %" in audit.reasons[0]


def test_warnings_are_sorted_by_level_and_name_their_level_in_words():
    words = Page(page(an_audit(symptoms=SYMPTOMS))).words
    assert_in_order(words, *(f"{s.level}: {s.name}" for s in reversed(SYMPTOMS)))


def test_a_page_without_warnings_says_so():
    assert "No warnings" in Page(page(an_audit())).words


def test_every_number_of_the_tables_is_shown():
    audit = an_audit()
    words = Page(page(audit)).words
    for row in audit.rows:
        alone, running = (
            f"{percent_cell(share)} {percent_range(low, high, ' – ')}"
            for share in (row.robust_accuracy, row.running)
            for low, high, *_ in [wilson(share, audit.n)]
        )
        assert f"{row.name} {alone} {running} {100 * row.gain:.1f} {row.attacked}" in words
        per_attacked = (row.forward + row.backward) * audit.n / row.attacked
        cost = (
            f"{row.forward:.1f}",
            f"{row.backward:.1f}",
            f"{per_attacked:.1f}",
            str(row.copies),
            f"{row.seconds:.1f}",
        )
        assert " ".join([row.name, *cost]) in words
    assert f"clean accuracy {percent_cell(audit.clean_accuracy)}" in words
    assert f"robust accuracy {at_most(audit.robust_accuracy)}" in words
    assert f"{percent_range(audit.interval.low, audit.interval.high, ' – ')}" in words


def test_names_from_outside_are_text_everywhere():
    audit = an_audit()
    hostile = replace(
        audit,
        target=_HOSTILE,
        threat=_HOSTILE,
        budget=_HOSTILE,
        data=_HOSTILE,
        command=_HOSTILE,
        classes=tuple(f"{_HOSTILE}{k}" for k in range(10)),
        rows=tuple(replace(row, name=_HOSTILE) for row in audit.rows),
        symptoms=tuple(replace(s, message=_HOSTILE) for s in SYMPTOMS),
        versions={_HOSTILE: _HOSTILE},
        examples=replace(audit.examples, winner=(_HOSTILE,) * audit.n),
    )
    text = page(hostile)
    assert "<script" not in text
    assert "script" not in {tag for tag, _ in Page(text).tags}
    # The name is shown as text: nothing was removed.
    assert _HOSTILE in "".join(Page(text).text)


def test_a_comparison_escapes_names_and_urls(tmp_path):
    written = write_leaderboard(
        [(an_audit(target=_HOSTILE), f"{_HOSTILE}/report.html")], tmp_path / "index.html"
    ).read_text("utf-8")
    assert written.count("<script") == 1  # our own, which sorts
    assert ("a", {"href": f"{_HOSTILE}/report.html"}) in Page(written).tags


def test_the_page_loads_nothing_from_the_network():
    text = page(an_audit(symptoms=SYMPTOMS))
    sources = [
        value
        for tag, attrs in Page(text).tags
        for name, value in attrs.items()
        if name in ("src", "href")
    ]
    assert sources
    assert all(source.startswith(("data:image/png;base64,", "data:,", "#")) for source in sources)
    assert "@import" not in text
    assert "url(" not in text
    urls = set(re.findall(r"https?://[^\"' ]+", text))
    assert urls <= {"http://www.w3.org/2000/svg"}  # the name of a namespace


def test_a_reader_of_the_old_page_keeps_reading_the_old_page(tmp_path):
    save_page(tmp_path / "page.html", "old")
    with (tmp_path / "page.html").open() as reader:
        save_page(tmp_path / "page.html", "new")
        assert reader.read() == "old"
    assert [path.read_text() for path in tmp_path.iterdir()] == ["new"]


def test_the_report_of_500_digits_is_smaller_than_a_megabyte(tmp_path):
    written = write_report(
        an_audit(n=500, symptoms=SYMPTOMS), tmp_path / "new" / "folder" / "report.html"
    )
    assert written.stat().st_size < 1_000_000


def test_inputs_that_are_not_images_get_a_page_without_images():
    audit = an_audit()
    flat = replace(
        audit, x=audit.x.flatten(1), worst_points=audit.worst_points.flatten(1), classes=()
    )
    parsed = Page(page(flat))
    assert "img" not in {tag for tag, _ in parsed.tags}
    assert "not images that can be drawn" in parsed.words


def test_an_audit_without_misclassified_images_gets_a_page():
    audit = an_audit(correct=torch.ones(200), worst_points=an_audit().x, robust_accuracy=1.0)
    assert "No perturbed image is misclassified" in Page(page(audit)).words


def test_outputs_that_are_not_finite_get_a_page():
    audit = an_audit()
    nan = replace(audit, examples=replace(audit.examples, margin=torch.full((audit.n,), torch.nan)))
    assert "margins cannot be drawn" in Page(page(nan)).words


def test_of_many_classes_those_with_the_lowest_accuracy_are_shown():
    audit = an_audit(n=100)
    many = replace(audit, y=torch.arange(100), answered=torch.arange(100), classes=())
    assert "80 classes with higher robust accuracy are not shown" in Page(page(many)).words


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_text_has_enough_contrast_to_its_background(palette):
    pairs = [
        (text, background)
        for text in ("text", "muted", "accent", "serious")
        for background in ("background", "card")
    ]
    pairs += [
        ("text", "code"),
        *(
            (text, f"{level}-background")
            for level in ("serious", "warning", "note")
            for text in (level, "text")
        ),
    ]
    for text, background in pairs:
        # WCAG 2.2, 1.4.3
        assert contrast(palette[text], palette[background]) >= 4.5, (text, background)


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_bars_have_enough_contrast_to_the_card_and_to_each_other(palette):
    assert contrast(palette["primary"], palette["card"]) >= 3  # WCAG 2.2, 1.4.11
    # Bars beside each other also differ by order and text.
    assert contrast(palette["primary"], palette["secondary"]) >= 1.5


def contrast(one: str, other: str) -> float:
    """(L1 + 0.05) / (L2 + 0.05), L the relative luminance of sRGB."""

    def luminance(color: str) -> float:
        channels = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)
