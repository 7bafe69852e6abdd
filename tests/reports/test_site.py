"""What a run folder adds to a report, and several of them as a site."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import torch
from tests.reports.audits import an_audit
from tests.reports.test_html import Page
from typer.testing import CliRunner

from saddlepoint.cli import app
from saddlepoint.reports.context import Subject
from saddlepoint.reports.html import page
from saddlepoint.reports.published import Published
from saddlepoint.reports.sections.radius import radius
from saddlepoint.reports.site import write
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


def shares(part):
    """What the curve says at its quarters, from its description."""
    return [
        float(share)
        for share in re.findall(r": ([\d.]+) %", re.search("<desc>(.*?)</desc>", part.body[0])[1])
    ]


def test_the_curve_counts_what_is_known_to_have_fallen_at_each_radius():
    audit = an_audit(n=100)
    # Ten images fall unchanged, ten each just below a quarter, half, three quarters and the whole of the radius 0.1, fifty stand.
    sizes = torch.tensor([0.0, 0.0249, 0.0499, 0.0749, 0.0999]).repeat_interleave(10)
    known = replace(audit.examples, size=torch.cat([sizes, torch.full((50,), 0.1)]))
    part = radius(
        Subject(replace(audit, examples=known, correct=(torch.arange(100) >= 50).double()))
    )
    assert shares(part) == [90.0, 80.0, 70.0, 60.0, 50.0]
    assert (
        "the truth may be far lower" in part.body[1]
    )  # nothing says that the nearest mistakes were looked for


def test_there_is_no_curve_where_every_perturbation_uses_the_whole_radius():
    assert radius(Subject(an_audit())) is None


def test_the_nearest_success_of_any_attack_is_found_in_the_cells(run):
    folder, audit = run
    store = Store(folder)
    nearest = torch.full((40,), torch.inf, dtype=torch.float64)
    for key in json.loads((folder / "run.json").read_text())["cells"]:
        episode = store.get(key)
        (first, last) = store.record(key)["rows"]
        for row, size, right in zip(
            range(first, last + 1), episode.size.tolist(), episode.correct[0].tolist(), strict=True
        ):
            if not right:
                nearest[row] = min(nearest[row], size)
    subject = Subject.of(audit, folder)
    assert torch.equal(subject.nearest, nearest)
    assert "FMN looked for the nearest mistake" in radius(subject).body[1]


@pytest.mark.parametrize("changes", [{"unit": "batch"}, {"random": True}, {"cells": ["0" * 64]}])
def test_points_that_fooled_in_other_company_or_by_luck_or_are_gone_are_not_counted(
    run, tmp_path, changes
):
    folder, audit = run
    record = {**json.loads((folder / "run.json").read_text()), **changes}
    (tmp_path / "run.json").write_text(json.dumps(record))
    (tmp_path / "cells").symlink_to(folder / "cells")
    assert Subject.of(audit, tmp_path).nearest is None


def test_threat_specification_and_adversaries_are_there_in_full(run):
    folder, audit = run
    words = Page(page(Subject.of(audit, folder))).words
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
    assert "budget='standard'" not in words  # a budget would have composed other attacks


def test_the_record_of_another_audit_is_not_told(run):
    folder, _ = run
    assert Subject.of(an_audit(), folder).record == {}


def test_a_damaged_run_record_is_told(tmp_path):
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(StoreError, match=r"run\.json is damaged"):
        Subject.of(an_audit(), tmp_path)


def test_what_others_report_stands_beside_ours(tmp_path):
    an_audit().save(tmp_path / "run")
    (tmp_path / "run" / "published.toml").write_text(
        'claimed = 0.7\nstatic = 0.4\nsource = "Table 1 of <b>them</b>"\n'
    )
    index = write([tmp_path / "run"], tmp_path / "site")
    words = Page(index.read_text("utf-8").split("<script>")[0] + "</body></html>").words
    assert "claimed static ours, at most" in words
    assert "70.0 % 40.0 % 53.0 %" in words
    report = (tmp_path / "site" / "run" / "report.html").read_text("utf-8")
    assert "From Table 1 of <b>them</b>." in Page(report).words
    assert "claimed 70.0 % +17.0" in Page(report).words


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("claimd = 0.5", "Did you mean 'claimed'"),
        ("claimed = 62", "0.62 for 62 %"),
        ("claimed = '62'", "0.62 for 62 %"),
        ("claimed = nan", "0.62 for 62 %"),
        ("source = 3", "source is a text"),
        ("claimed =", "not valid TOML"),
    ],
)
def test_published_figures_that_cannot_be_read_are_told(tmp_path, text, message):
    (tmp_path / "published.toml").write_text(text)
    with pytest.raises(ValueError, match=message):
        Published.read(tmp_path)


def test_runs_of_the_same_name_get_pages_of_their_own(tmp_path):
    folders = [tmp_path / part / "my run" for part in ("a", "b")]
    for folder, target in zip(folders, ("first", "second"), strict=True):
        an_audit(n=20, target=target).save(folder)
    write(folders, tmp_path / "site")
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
    refused = call("a", "b", "--out", "both.html")
    assert refused.exit_code == 2
    assert "2 runs do not fit into one file" in refused.stderr
    assert not (tmp_path / "both.html").exists()
