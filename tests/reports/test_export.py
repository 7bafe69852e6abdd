"""Exports contain what the record contains, for programs that read CSV, JSON, LaTeX, Markdown."""

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
from saddlepoint.audits.verdict import CertifiedBound, Comparisons, Verdict
from saddlepoint.phrases import at_most
from saddlepoint.reports.export import as_json, attacks_csv, examples_csv, latex, model_card

_HOSTILE = '=<b>|"50%_of_$x^2$\\{a}&#~\n`[x](y)'


def test_the_examples_have_one_line_each_with_the_values_of_the_record():
    audit = an_audit(n=50)
    lines = list(csv.DictReader(io.StringIO(examples_csv(audit))))
    assert [line["winner"] for line in lines] == list(audit.examples.winner)
    assert [int(line["label"]) for line in lines] == audit.y.tolist()
    assert [float(line["size"]) for line in lines] == audit.examples.size.tolist()
    assert sum(float(line["correct"]) for line in lines) == pytest.approx(
        audit.robust_accuracy * 50
    )


def test_the_attacks_have_one_line_each_with_their_interval():
    audit = an_audit()
    lines = list(csv.DictReader(io.StringIO(attacks_csv(audit))))
    for row, line in zip(audit.rows, lines, strict=True):
        interval = wilson(row.robust_accuracy, audit.n)
        assert (line["name"], float(line["running"])) == (row.name, row.running)
        assert (float(line["low"]), float(line["high"])) == (interval.low, interval.high)


@pytest.mark.parametrize("export", [examples_csv, attacks_csv, as_json, latex, model_card])
def test_every_export_names_its_run(export):
    audit = an_audit(n=10)
    assert "5a" * 32 in export(replace(audit, run="5a" * 32))


def test_a_spreadsheet_evaluates_no_name_as_a_formula():
    audit = an_audit(n=10)
    named = replace(audit, examples=replace(audit.examples, winner=("=1+1",) * 10))
    assert all(
        line["winner"] == "'=1+1" for line in csv.DictReader(io.StringIO(examples_csv(named)))
    )


def test_json_is_strict_json_even_if_margins_are_nan():
    audit = an_audit(n=20)
    nan = replace(audit, examples=replace(audit.examples, margin=torch.full((20,), torch.nan)))

    def fail(constant):
        raise AssertionError(constant)

    read = json.loads(as_json(nan), parse_constant=fail)
    assert read["examples"]["margin"] == [None] * 20
    assert (read["robust_accuracy"], read["target"], len(read["rows"])) == (
        audit.robust_accuracy,
        audit.target,
        len(audit.rows),
    )


def test_json_contains_the_loss_curves_and_the_structured_threat():
    audit = an_audit(n=20)
    read = json.loads(as_json(audit))
    for row, line in zip(audit.rows, read["rows"], strict=True):
        curve = {name: tuple(column) for name, column in line["loss_curve"].items()}
        assert curve == asdict(row.loss_curve)
        assert len(line["loss_curve"]["passes"]) == len(row.loss_curve.value) > 5
    assert read["threat_description"] == audit.threat_description


def test_every_line_of_a_latex_table_has_the_same_number_of_cells_whatever_the_names_contain():
    audit = an_audit(symptoms=SYMPTOMS)
    text = latex(
        replace(
            audit, target=_HOSTILE, rows=tuple(replace(row, name=_HOSTILE) for row in audit.rows)
        )
    )
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    rows = [line for line in lines if line.endswith("\\\\")]
    assert len(rows) == 1 + 1 + len(audit.rows) + 1
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {5}
    body = "\n".join(lines)
    assert re.search(r"(?<!\\)[#%$_~^]", body) is None
    plain = re.sub(r"\\[{}]", "", body)
    assert plain.count("{") == plain.count("}")
    assert f"{100 * audit.rows[0].robust_accuracy:.1f}" in body


def test_a_model_card_contains_verdict_upper_bound_interval_and_warnings():
    audit = an_audit(symptoms=SYMPTOMS)
    card = model_card(audit)
    for part in (
        Verdict.INCONCLUSIVE,
        f"{at_most(audit.robust_accuracy)} ({audit.interval}",
        "vanishing gradients",
        "upper bound",
    ):
        assert part in card
    assert audit.command in card


def test_a_model_card_contains_the_claim_and_the_certified_accuracy():
    compared = Comparisons(claim=0.7, proven=CertifiedBound(0.2, "interval <bounds>"))
    card = model_card(an_audit(compared=compared))
    assert "| claimed robust accuracy | 70.0 % |" in card
    assert "≥ 20.0 %, certified by interval \\<bounds\\>" in card


def test_no_name_leaves_its_cell_in_a_model_card():
    audit = an_audit(target=_HOSTILE, command="echo ``` && x")
    card = model_card(audit)
    assert re.search(r"(?<!\\)<b>", card) is None
    table = [line for line in card.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {3}
    assert "````\necho ``` && x\n````" in card
