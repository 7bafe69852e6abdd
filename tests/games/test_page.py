"""The report of a game: warnings first, the whole matrix, both strategies, names as text."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from tests.games.game_records import SYMPTOMS, a_game
from tests.reports.test_html import _HOSTILE, Page, assert_in_order, contrast

from saddlepoint.audits.verdict import Level, Symptom, SymptomName
from saddlepoint.games.reports.export import as_json, payoff_csv
from saddlepoint.games.reports.heatmap import FAINT, STRONG, Matrix, heatmap
from saddlepoint.games.reports.page import page, write_report
from saddlepoint.reports.style import DARK, LIGHT


def drawn(text: str, name: str, kind: str) -> list[dict[str, str | None]]:
    """The attributes of all elements with this tag and this CSS class."""
    return [
        attributes
        for tag, attributes in Page(text).tags
        if tag == name and attributes.get("class") == kind
    ]


def test_warnings_come_before_numbers_and_are_sorted_by_level():
    words = Page(page(a_game(symptoms=SYMPTOMS))).words
    assert_in_order(
        words,
        "Value of the game",
        "warning: NEED's gain",
        "note: clean copies",
        "value of the restricted game",
        "Accuracy on the 30 held-out images",
    )
    assert "No warnings" in Page(page(a_game())).words


def test_a_serious_warning_colors_the_value():
    serious = Symptom(SymptomName.EXPLOITABLE, Level.SERIOUS, "the value is too high.")
    assert 'class="verdict serious"' in page(a_game(symptoms=(serious,)))
    assert 'class="verdict note"' in page(a_game(symptoms=SYMPTOMS))


def test_every_number_of_a_small_matrix_is_shown_and_matched_cells_are_framed():
    record = a_game()
    text = page(record)
    values = re.findall(r'class="value">([\d.]+)<', text)
    assert values == [f"{100 * p:.1f}" for p in record.payoff.flatten().tolist()]
    assert len(drawn(text, "rect", "matched")) == 7
    assert len(drawn(text, "rect", "cell")) == 42


def test_both_strategies_are_drawn_on_the_margins_in_proportion():
    accuracies = [[0.5, 0.6], [0.7, 0.4]]
    attacker = (0.25, 0.75)
    defender = (1.0, 0.0)
    text = heatmap(
        Matrix(accuracies, ("a", "b"), ("x", "y"), attacker, defender, frozenset()), title="m"
    )
    [column] = drawn(text, "rect", "primary")
    rows = drawn(text, "rect", "secondary")
    assert [round(float(bar["width"]) / float(rows[1]["width"]), 3) for bar in rows] == [0.333, 1.0]
    assert float(column["height"]) > 0
    assert "the defender plays x: 100 %" in text
    assert "the attacker plays b: 75.0 %" in text


def test_the_opacity_of_a_cell_follows_its_rank():
    accuracies = [[0.9, 0.1], [0.8, 0.85]]
    matrix = Matrix(accuracies, ("a", "b"), ("x", "y"), (1, 0), (1, 0), frozenset())
    text = heatmap(matrix, title="m")
    opacities = [float(cell["fill-opacity"]) for cell in drawn(text, "rect", "cell")]
    assert opacities == pytest.approx(
        [STRONG, FAINT, FAINT + (STRONG - FAINT) / 3, FAINT + (STRONG - FAINT) * 2 / 3], abs=1e-3
    )
    single = heatmap(Matrix([[0.5]], ("a",), ("x",), (1,), (1,), frozenset()), title="m")
    assert float(drawn(single, "rect", "cell")[0]["fill-opacity"]) == STRONG


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("opacity", [FAINT, STRONG])
def test_numbers_have_enough_contrast_on_every_shade(palette, opacity):
    colors = (palette["primary"], palette["card"])
    channels = [[int(color[k : k + 2], 16) for k in (1, 3, 5)] for color in colors]
    mixed = "#" + "".join(
        f"{round(opacity * a + (1 - opacity) * b):02x}" for a, b in zip(*channels, strict=True)
    )
    assert contrast(palette["text"], mixed) >= 4.5  # WCAG 2.2, 1.4.3


def test_a_large_matrix_has_tooltips_instead_of_numbers():
    text = page(a_game(exits=5, n=4))
    assert 'class="value"' not in text
    assert text.count(" against ") >= 31 * 31
    assert len(text) < 200 * 31 * 31 + 50_000  # 4 MB for 127 x 127


def test_columns_that_are_not_played_are_omitted_from_a_huge_matrix(monkeypatch):
    monkeypatch.setattr("saddlepoint.games.reports.sections.matrix._MAX_COLUMNS", 8)
    huge = a_game(exits=4)
    text = page(huge)
    assert text.count('class="value"') == 15 * 8
    assert "7 columns that are not played are omitted; game.json has all." in Page(text).words
    for d, p in enumerate(huge.equilibrium.mix):
        assert p < 1e-9 or f"the defender plays {huge.columns[d]}: " in text


def test_strategies_exits_and_cost_are_shown(tmp_path):
    record = a_game(exploitability=0.004, mismatch=None)
    words = Page(write_report(record, tmp_path / "report.html").read_text()).words
    for strategy in record.strategies:
        assert strategy.name in words
        assert f"{100 * strategy.per_image.value:.1f} %" in words
    assert "Accuracy by exit" in words
    for number, (clean, attacked) in enumerate(
        zip(record.exit_accuracy(0), record.exit_accuracy(7), strict=True), start=1
    ):
        assert f"exit {number} {100 * clean:.1f} % {100 * attacked:.1f} %" in words
    assert record.all_exits_row == 7
    assert f"{30 * 41 * 7 + 30 * 41 * 11:,} passes" in words
    assert "0.40 points when the double oracle stopped" in words
    assert "not defined: a row attacks no fixed set of exits" in words
    assert "saddlepoint game net.py:make" in words
    assert "ab" * 32 in words


def test_names_are_text_everywhere():
    record = a_game()
    hostile = replace(
        record,
        target=_HOSTILE,
        threat=_HOSTILE,
        data=_HOSTILE,
        command=_HOSTILE,
        passed={"target": _HOSTILE},
        spec={**record.spec, "target": _HOSTILE},
        versions={_HOSTILE: _HOSTILE},
        rows=tuple(replace(row, name=_HOSTILE) for row in record.rows),
        strategies=tuple(replace(s, name=f"{s.name} {_HOSTILE}") for s in record.strategies),
        symptoms=(Symptom(SymptomName.CLEAN_COPIES, Level.NOTE, _HOSTILE),),
    )
    text = page(hostile)
    assert "<script" not in text
    assert {tag for tag, _ in Page(text).tags}.isdisjoint({"script", "iframe", "object"})
    assert Page(text).words.count('<script>alert("x")</script>') > 10


def test_the_page_loads_nothing_from_the_network():
    text = page(a_game())
    assert not re.search(r'(?:src|href)="(?!#|data:)', text)
    assert "url(" not in text


def test_the_verification_code_runs_and_prints_the_numbers(tmp_path, monkeypatch, capsys):
    record = a_game()
    record.save(tmp_path)
    monkeypatch.chdir(tmp_path)
    text = Page(page(record))
    code = next(part for part in text.text if part.startswith("import json"))
    exec(code, {})
    value, worst = (float(line.split()[-1]) for line in capsys.readouterr().out.splitlines())
    assert value == pytest.approx(record.equilibrium.value, abs=1e-9)
    assert f"Expected: {value:.6f} and {worst:.6f}." in text.words


def test_exports_contain_the_matrix():
    record = a_game(target="=cmd()")
    lines = payoff_csv(record).splitlines()
    assert lines[0] == "attack,probability,1,2,3,1+2,1+3,2+3,1+2+3,run"
    assert [float(cell) for cell in lines[1].split(",")[2:-1]] == record.payoff[0].tolist()
    assert lines[1].endswith(f",{record.run}")
    hostile = replace(record, rows=tuple(replace(row, name="=1+1") for row in record.rows))
    assert payoff_csv(hostile).splitlines()[1].startswith("'=1+1,")
    assert '"kind": "game"' in as_json(record)


def test_a_record_made_by_hand_is_saved_and_loaded(tmp_path):
    record = a_game()
    loaded = type(record).load(record.save(tmp_path))
    assert loaded.record() == record.record()
    assert torch.equal(loaded.scored, record.scored)
