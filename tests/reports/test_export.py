"""Exports say what the record says, to programs that read CSV, JSON, LaTeX and Markdown."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import asdict, replace

import pytest
import torch
from tests.reports.audits import SYMPTOMS, an_audit

from saddlepoint.audits.statistics import wilson
from saddlepoint.reports.export import as_json, examples_csv, latex, model_card, rows_csv

_HOSTILE = '=<b>|"50%_of_$x^2$\\{a}&#~\n`[x](y)'


def test_the_ledger_has_a_line_per_example_that_says_what_the_record_says():
    audit = an_audit(n=50)
    lines = list(csv.DictReader(io.StringIO(examples_csv(audit))))
    assert [line["winner"] for line in lines] == list(audit.examples.winner)
    assert [int(line["label"]) for line in lines] == audit.y.tolist()
    assert [float(line["size"]) for line in lines] == audit.examples.size.tolist()
    assert sum(float(line["correct"]) for line in lines) == pytest.approx(
        audit.robust_accuracy * 50
    )


def test_attacks_have_a_line_each_with_their_interval():
    audit = an_audit()
    lines = list(csv.DictReader(io.StringIO(rows_csv(audit))))
    for row, line in zip(audit.rows, lines, strict=True):
        interval = wilson(row.robust_accuracy, audit.n)
        assert (line["name"], float(line["running"])) == (row.name, row.running)
        assert (float(line["low"]), float(line["high"])) == (interval.low, interval.high)


def test_a_spreadsheet_computes_no_name():
    audit = an_audit(n=10)
    named = replace(audit, examples=replace(audit.examples, winner=("=1+1",) * 10))
    assert all(
        line["winner"] == "'=1+1" for line in csv.DictReader(io.StringIO(examples_csv(named)))
    )


def test_json_is_strict_json_even_where_a_margin_is_no_number():
    audit = an_audit(n=20)
    nan = replace(audit, examples=replace(audit.examples, margin=torch.full((20,), torch.nan)))

    def refuse(constant):
        raise AssertionError(constant)

    read = json.loads(as_json(nan), parse_constant=refuse)
    assert read["examples"]["margin"] == [None] * 20
    assert (read["robust_accuracy"], read["target"], len(read["rows"])) == (
        audit.robust_accuracy,
        audit.target,
        len(audit.rows),
    )


def test_json_holds_every_number_of_the_loss_traces():
    audit = an_audit(n=20)
    read = json.loads(as_json(audit))
    for row, line in zip(audit.rows, read["rows"], strict=True):
        assert {name: tuple(column) for name, column in line["ascent"].items()} == asdict(
            row.loss_curve
        )
        assert len(line["ascent"]["passes"]) == len(row.loss_curve.value) > 5


def test_a_latex_table_has_as_many_cells_in_every_line_whatever_names_hold():
    audit = an_audit(symptoms=SYMPTOMS)
    made = latex(
        replace(
            audit, target=_HOSTILE, rows=tuple(replace(row, name=_HOSTILE) for row in audit.rows)
        )
    )
    body = [line for line in made.splitlines() if not line.startswith("%")]
    rows = [line for line in body if line.endswith("\\\\")]
    assert len(rows) == 1 + 1 + len(audit.rows) + 1
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {5}
    text = "\n".join(body)
    assert re.search(r"(?<!\\)[#%$_~^]", text) is None
    plain = re.sub(r"\\[{}]", "", text)
    assert plain.count("{") == plain.count("}")
    assert f"{100 * audit.rows[0].robust_accuracy:.1f}" in text


def test_a_model_card_says_verdict_number_interval_and_symptoms():
    audit = an_audit(symptoms=SYMPTOMS)
    card = model_card(audit)
    for part in (
        "cannot be told",
        f"{100 * audit.robust_accuracy:.1f} % ({audit.interval}",
        "vanishing gradients",
        "upper bound",
    ):
        assert part in card
    assert audit.command in card


def test_no_name_leaves_its_cell_in_a_model_card():
    audit = an_audit(target=_HOSTILE, command="echo ``` && x")
    card = model_card(audit)
    assert re.search(r"(?<!\\)<b>", card) is None
    table = [line for line in card.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {3}
    assert "````\necho ``` && x\n````" in card
