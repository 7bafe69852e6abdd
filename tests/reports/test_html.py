"""The page says the verdict first, hides nothing, fetches nothing and runs nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch
from tests.reports.audits import CHECKLIST, SYMPTOMS, an_audit, page

from saddlepoint.audits.statistics import wilson
from saddlepoint.audits.verdict import CertifiedBound, Comparisons, Cost, Item, StaticNet
from saddlepoint.reports.comparison import write as write_comparison
from saddlepoint.reports.document import put
from saddlepoint.reports.html import write
from saddlepoint.reports.recipe import python, verification
from saddlepoint.reports.style import DARK, LIGHT

_VOID = {"link", "meta", "img", "br", "hr"}
_HOSTILE = '<script>alert("x")</script>&\'"'


class Page(HTMLParser):
    """The tags, in order and nested rightly, and the text between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def test_verdict_comes_before_symptoms_and_symptoms_before_numbers():
    words = Page(page(an_audit(symptoms=SYMPTOMS))).words
    places = [
        words.index(part)
        for part in (
            "Verdict: cannot be told",
            "serious: vanishing gradients",
            "clean accuracy",
            "SHA-256 of x",
        )
    ]
    assert places == sorted(places)


def test_the_checklist_stands_above_the_numbers_what_is_open_first():
    gap = Item("black-box attacks", "not run", "no attack without gradients was sent <b>.")
    words = Page(page(an_audit(checklist=(*CHECKLIST[:2], gap)))).words
    places = [
        words.index(part)
        for part in (
            "Verdict: cannot be told",
            "○ not run",
            "✓ pass",
            "– does not apply",
            "clean accuracy",
        )
    ]
    assert places == sorted(places)
    assert gap.evidence in words  # as text


def test_what_the_number_is_held_against_stands_beside_it():
    static = StaticNet(0.95, 0.5, 3, 20, 0.001)
    held = Comparisons(
        0.8, 0.75, static, Cost(12.0, 10.0, 4.0, 0.5), CertifiedBound(0.2, "interval <bounds>")
    )
    words = Page(page(an_audit(compared=held))).words
    for part in (
        "claimed 80.0 %",
        "95.0 % clean, at most 50.0 % robust",
        "20 only without it",
        "8.0 times",
        "20.0 %, proven by interval <bounds>",
    ):
        assert part in words, part
    assert "Verdict: overstated" in words
    assert "80.0 % is claimed" in words


def test_symptoms_are_ranked_and_named_by_word_not_by_color_alone():
    words = Page(page(an_audit(symptoms=SYMPTOMS))).words
    places = [words.index(f"{s.level}: {s.name}") for s in reversed(SYMPTOMS)]
    assert places == sorted(places)


def test_without_symptoms_the_page_says_so():
    assert "No symptom was met" in Page(page(an_audit())).words


def test_every_number_of_the_table_is_there():
    audit = an_audit()
    words = Page(page(audit)).words
    for row in audit.rows:
        alone, running = (
            f"{100 * share:.1f} % {100 * low:.1f} – {100 * high:.1f} %"
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
    assert f"{100 * audit.clean_accuracy:.1f} %" in words
    assert f"{100 * audit.interval.low:.1f} – {100 * audit.interval.high:.1f} %" in words


def test_names_chosen_by_others_stay_text_everywhere():
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
        symptoms=tuple(replace(s, name=_HOSTILE, message=_HOSTILE) for s in SYMPTOMS),
        versions={_HOSTILE: _HOSTILE},
        examples=replace(audit.examples, winner=(_HOSTILE,) * audit.n),
    )
    text = page(hostile)
    assert "<script" not in text
    assert "script" not in {tag for tag, _ in Page(text).tags}
    # Whatever is written survives as text: nothing was dropped to be safe.
    assert _HOSTILE in "".join(Page(text).text)


def test_a_comparison_escapes_names_and_addresses(tmp_path):
    written = write_comparison(
        [(an_audit(target=_HOSTILE), f"{_HOSTILE}/report.html")], tmp_path / "index.html"
    ).read_text("utf-8")
    assert written.count("<script") == 1  # ours, which sorts
    assert ("a", {"href": f"{_HOSTILE}/report.html"}) in Page(written).tags


def test_nothing_is_fetched():
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
    addresses = set(re.findall(r"https?://[^\"' ]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, not an address


def test_whoever_has_a_page_open_sees_the_old_one_whole(tmp_path):
    put(tmp_path / "page.html", "old")
    with (tmp_path / "page.html").open() as reader:
        put(tmp_path / "page.html", "new")
        assert reader.read() == "old"
    assert [path.read_text() for path in tmp_path.iterdir()] == ["new"]


def test_500_digits_make_less_than_a_megabyte(tmp_path):
    written = write(an_audit(n=500, symptoms=SYMPTOMS), tmp_path / "new" / "folder" / "report.html")
    assert written.stat().st_size < 1_000_000


def test_inputs_that_are_no_images_get_a_page_without_pictures():
    audit = an_audit()
    flat = replace(
        audit, x=audit.x.flatten(1), worst_points=audit.worst_points.flatten(1), classes=()
    )
    parsed = Page(page(flat))
    assert "img" not in {tag for tag, _ in parsed.tags}
    assert "not images that can be drawn" in parsed.words


def test_an_audit_in_which_nothing_fell_gets_a_page():
    audit = an_audit(correct=torch.ones(200), worst_points=an_audit().x, robust_accuracy=1.0)
    assert "No image that was changed is answered wrongly" in Page(page(audit)).words


def test_answers_that_are_not_finite_get_a_page():
    audit = an_audit()
    nan = replace(audit, examples=replace(audit.examples, margin=torch.full((audit.n,), torch.nan)))
    assert "margins cannot be drawn" in Page(page(nan)).words


def test_many_classes_show_the_weakest():
    audit = an_audit(n=100)
    many = replace(audit, y=torch.arange(100), answered=torch.arange(100), classes=())
    assert "80 stronger classes are left out" in Page(page(many)).words


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_text_stands_out_from_its_ground(palette):
    pairs = [
        (text, ground)
        for text in ("ink", "quiet", "accent", "serious")
        for ground in ("ground", "card")
    ]
    pairs += [
        ("ink", "code"),
        *(
            (word, f"{level}-ground")
            for level in ("serious", "warning", "note")
            for word in (level, "ink")
        ),
    ]
    for text, ground in pairs:
        assert contrast(palette[text], palette[ground]) >= 4.5, (text, ground)  # WCAG 2.2, 1.4.3


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_bars_stand_out_from_the_card_and_from_each_other(palette):
    assert contrast(palette["kept"], palette["card"]) >= 3  # WCAG 2.2, 1.4.11
    assert (
        contrast(palette["kept"], palette["lost"]) >= 1.5
    )  # beside each other; also told by order and words


def contrast(one: str, other: str) -> float:
    """(L1 + 0.05) / (L2 + 0.05), L the relative luminance of sRGB."""

    def luminance(color: str) -> float:
        channels = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_the_check_on_the_page_runs_and_finds_the_number(tmp_path, monkeypatch, capsys):
    audit = an_audit()
    audit.save(tmp_path)
    monkeypatch.chdir(tmp_path)
    # A model that answers as the record says: it recognizes the points and nothing else.
    answers = torch.nn.functional.one_hot(audit.answered, 10).float()
    code = verification(audit).replace("target = ...", "target = given")
    exec(
        code, {"given": lambda points: answers if torch.equal(points, audit.worst_points) else None}
    )
    size, accuracy = (line.split() for line in capsys.readouterr().out.splitlines())
    assert float(size[2]) <= 0.1 + 1e-6
    assert float(accuracy[2]) == pytest.approx(audit.robust_accuracy)


def test_a_name_cannot_leave_the_comment_it_stands_in():
    for made in (python, verification):
        code = made(an_audit(target="net\nimport os; os.abort()"))
        assert not any(line.startswith("import os") for line in code.splitlines())
        compile(code, "page", "exec")
