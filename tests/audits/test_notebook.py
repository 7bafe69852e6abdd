"""Results are short when printed, and HTML in a notebook."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.reports.audits import SYMPTOMS, an_audit

import saddlepoint as sp
from saddlepoint import zoo
from saddlepoint.phrases import percent


def test_a_printed_audit_is_one_short_line_with_the_numbers_that_matter() -> None:
    audit = an_audit()
    assert repr(audit) == (
        "<Audit of net.py:make, Linf radius 0.1, 200 images: clean 90.0 %, robust ≤ 53.0 %, "
        f"{audit.verdict}>"
    )


def test_printed_outcomes_and_games_are_one_short_line() -> None:
    x, y = sp.load_data("digits", n=4)
    threat = sp.Threat(sp.Linf(0.1))
    outcomes = sp.evaluate(
        sp.Plain(zoo.load("digits-pgd")), [sp.Direct("pgd", sp.PGD(1))], x, y, threat=threat
    )
    accuracy = percent(float(outcomes.accuracy()[0, 0]))
    assert repr(outcomes) == f"<Outcomes of 4 images, 1 answer: pgd {accuracy}>"
    assert repr(outcomes.episodes[0]).startswith("<Episode of pgd, 4 images: ")
    net = sp.MultiExit(zoo.load("digits-exits"))
    game = sp.exit_game(net, x, y, threat=sp.Linf(0.1), attack=sp.PGD(1))
    assert len(repr(game)) < 200
    assert "4 images" in repr(game)


def test_printed_traits_are_those_that_are_present() -> None:
    x, y = sp.load_data("digits", n=16)
    traits = sp.probe(sp.MultiExit(zoo.load("digits-exits")), x, y)
    assert repr(traits).startswith("<Traits: ")
    assert "early exits" in repr(traits)
    assert len(repr(traits)) < 200
    assert "early exits: the network returns one output per exit" in str(traits).splitlines()
    assert str(traits).endswith(f"Measured: {len(traits)} properties.")
    assert "probabilities:" not in traits._repr_html_()


def test_a_printed_row_has_no_loss_curve() -> None:
    assert "loss_curve" not in repr(an_audit().rows[0])


def test_html_has_a_row_per_attack_and_escapes_names_and_messages() -> None:
    audit = replace(an_audit(), target="<script>", symptoms=SYMPTOMS)
    html = audit._repr_html_()
    assert html.count("<tr>") == 2 + len(audit.rows)
    assert "<script>" not in html
    assert html.count("<li>") == len(SYMPTOMS)


def test_a_table_of_pandas_has_a_line_per_image() -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    audit = an_audit()
    table = audit.to_dataframe()
    assert len(table) == audit.n
    assert table["correct"].mean() == pytest.approx(audit.robust_accuracy, abs=1e-12)
    assert torch.equal(torch.tensor(table["label"].to_numpy()), audit.y)
