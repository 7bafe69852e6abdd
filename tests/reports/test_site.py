"""What a run folder adds to a report, and several runs as a site."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import pytest
import torch
from tests.reports.audits import a_threat, an_audit
from tests.reports.test_html import Page
from typer.testing import CliRunner

from saddlepoint.cli import app
from saddlepoint.reports.context import ReportContext
from saddlepoint.reports.html import page
from saddlepoint.reports.published import Published
from saddlepoint.reports.sections.radius import radius
from saddlepoint.reports.site import write_site
from saddlepoint.runs import run_spec
from saddlepoint.runs.executors import Serial
from saddlepoint.runs.spec import AttackSpec, DataSpec, RunSpec, ThreatSpec
from saddlepoint.runs.store import Store, StoreError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "real"
    attacks = (AttackSpec(kind="apgd", loss="ce", steps=5), AttackSpec(kind="fmn", steps=20))
    spec = RunSpec(
        target="zoo:digits-pgd",
        data=DataSpec(n=40),
        threat=ThreatSpec(eps="0.3"),
        batch_size=20,
        attacks=attacks,
    )
    return folder, run_spec(spec, folder, executor=Serial())


def accuracies(section):
    """The accuracies at the quarters of the curve, from its description."""
    description = re.search("<desc>(.*?)</desc>", section.body[0])[1]
    return [float(share) for share in re.findall(r": ([\d.]+) %", description)]


def an_audit_with_small_perturbations():
    """Of 100 images, 10 are misclassified at each of five sizes and 50 are robust.

    The sizes are 0 and just below a quarter, half, three quarters and all of the radius 0.1.
    """
    audit = an_audit(n=100)
    sizes = torch.tensor([0.0, 0.0249, 0.0499, 0.0749, 0.0999]).repeat_interleave(10)
    examples = replace(audit.examples, size=torch.cat([sizes, torch.full((50,), 0.1)]))
    return replace(audit, examples=examples, correct=(torch.arange(100) >= 50).double())


def test_the_curve_counts_images_known_to_be_misclassified_at_each_radius():
    section = radius(ReportContext(an_audit_with_small_perturbations()))
    assert accuracies(section) == [90.0, 80.0, 70.0, 60.0, 50.0]
    # The record does not say whether a minimum-norm attack ran.
    assert "may be far lower" in section.body[1]


def test_there_is_no_curve_if_every_perturbation_uses_the_whole_radius():
    assert radius(ReportContext(an_audit())) is None


def test_there_is_no_curve_for_an_old_record_without_a_structured_threat():
    old = replace(an_audit_with_small_perturbations(), threat_description={})
    assert radius(ReportContext(old)) is None


def test_the_smallest_successful_perturbation_of_any_attack_is_found_in_the_cells(run):
    folder, audit = run
    store = Store(folder)
    smallest = torch.full((40,), torch.inf, dtype=torch.float64)
    for key in json.loads((folder / "run.json").read_text())["cells"]:
        episode = store.get(key)
        (first, last) = store.record(key)["rows"]
        for row, size, correct in zip(
            range(first, last + 1), episode.size.tolist(), episode.correct[0].tolist(), strict=True
        ):
            if not correct:
                smallest[row] = min(smallest[row], size)
    context = ReportContext.load(before_schema_8(audit), folder)
    assert torch.equal(context.smallest_sizes, smallest)
    assert "fmn minimized the perturbation size" in radius(context).body[1]
    # Shrinking worst points makes them smaller still.
    shrunk = ReportContext.load(audit, folder).smallest_sizes
    assert torch.equal(shrunk, audit.examples.smallest.double())
    assert (shrunk <= smallest).all()
    assert (shrunk < smallest).any()


def before_schema_8(audit):
    """The audit as a record that does not have the smallest perturbations."""
    return replace(audit, examples=replace(audit.examples, smallest=torch.zeros(0)))


@pytest.mark.parametrize("changes", [{"unit": "batch"}, {"random": True}, {"cells": ["0" * 64]}])
def test_sizes_are_unknown_for_coupled_or_randomized_defenses_and_missing_cells(
    run, tmp_path, changes
):
    folder, audit = run
    record = {**json.loads((folder / "run.json").read_text()), **changes}
    (tmp_path / "run.json").write_text(json.dumps(record))
    shutil.copytree(folder / "cells", tmp_path / "cells")
    assert ReportContext.load(before_schema_8(audit), tmp_path).smallest_sizes is None


def test_threat_specification_and_adversaries_are_shown_in_full(run):
    folder, audit = run
    words = Page(page(ReportContext.load(audit, folder))).words
    for part in (
        "space.radius 0.3",
        "access gradient",
        'target = "zoo:digits-pgd"',
        "batch_size = 20",
        '"kind": "FMN"',
        "6 cells",
    ):
        assert part in words
    assert "saddlepoint run spec.toml" in words
    assert "budget='standard'" not in words  # a budget would choose other attacks


def test_an_audit_keeps_the_threat_of_its_run(run):
    folder, audit = run
    record = json.loads((folder / "run.json").read_text())
    assert audit.threat_description == record["threat"]


def test_the_run_record_of_another_audit_is_ignored(run):
    folder, _ = run
    assert ReportContext.load(an_audit(), folder).record == {}


def test_a_damaged_run_record_is_an_error(tmp_path):
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(StoreError, match=r"run\.json is damaged"):
        ReportContext.load(an_audit(), tmp_path)


def test_published_results_are_shown_beside_ours(tmp_path):
    an_audit().save(tmp_path / "run")
    (tmp_path / "run" / "published.toml").write_text(
        'claimed = 0.7\nstatic = 0.4\nsource = "Table 1 of <b>them</b>"\n'
    )
    index = write_site([tmp_path / "run"], tmp_path / "site")
    words = Page(index.read_text("utf-8").split("<script>")[0] + "</body></html>").words
    assert "clean accuracy claimed static model robust accuracy" in words
    assert "70.0 % 40.0 % ≤ 53.0 %" in words
    report = (tmp_path / "site" / "run" / "report.html").read_text("utf-8")
    assert "Source: Table 1 of <b>them</b>." in Page(report).words
    assert "claimed 70.0 % +17.0" in Page(report).words


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("claimd = 0.5", "Did you mean 'claimed'"),
        ("claimed = 62", "0.62 for 62 %"),
        ("claimed = '62'", "0.62 for 62 %"),
        ("claimed = nan", "0.62 for 62 %"),
        ("source = 3", "source must be a string"),
        ("claimed =", "not valid TOML"),
    ],
)
def test_published_results_that_are_not_valid_are_errors(tmp_path, text, message):
    (tmp_path / "published.toml").write_text(text)
    with pytest.raises(ValueError, match=message):
        Published.read(tmp_path)


@pytest.mark.parametrize(
    ("changes", "comparable"), [({}, True), ({"data": "mnist"}, False), (a_threat(0.2), False)]
)
def test_audits_with_different_data_or_threats_are_marked_as_not_comparable(
    tmp_path, changes, comparable
):
    an_audit(n=20).save(tmp_path / "a")
    an_audit(n=20, **changes).save(tmp_path / "b")
    index = write_site([tmp_path / "a", tmp_path / "b"], tmp_path / "site")
    words = Page(index.read_text("utf-8")).words
    assert ("not comparable" in words) is not comparable
    assert "Linf radius 0.1, digits" in words


def test_runs_with_equal_names_get_pages_of_their_own(tmp_path):
    folders = [tmp_path / part / "my run" for part in ("a", "b")]
    for folder, target in zip(folders, ("first", "second"), strict=True):
        an_audit(n=20, target=target).save(folder)
    write_site(folders, tmp_path / "site")
    for name, target in (("my-run", "first"), ("my-run-2", "second")):
        assert f"<h1>{target}</h1>" in (tmp_path / "site" / name / "report.html").read_text("utf-8")


def test_the_command_writes_a_page_or_a_site(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        an_audit(n=20, target=name).save(tmp_path / name)

    def call(*words):
        return CliRunner().invoke(app, ["report", *words])

    assert call("a").stdout == "a/report.html\n"
    assert call("a", "b").stdout == "site/index.html\n"
    assert call("a", "-o", "alone/").stdout == "alone/index.html\n"
    rejected = call("a", "b", "--out", "both.html")
    assert rejected.exit_code == 2
    assert "2 runs do not fit into one file" in rejected.stderr
    assert not (tmp_path / "both.html").exists()
