"""The registry of experiments, and the command that runs them."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib import import_module
from inspect import signature
from pathlib import Path

import pytest
from typer.testing import CliRunner

from saddlepoint import papers
from saddlepoint.cli import app
from saddlepoint.papers import EXPERIMENTS, Request, select_experiments


def call(*words: str):
    return CliRunner().invoke(app, list(words))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_names_a_function_of_a_request(name: str) -> None:
    module, _, function = EXPERIMENTS[name].function.partition(":")
    assert list(signature(getattr(import_module(module), function)).parameters) == ["request"]
    assert EXPERIMENTS[name].reports.endswith(".")


def test_the_name_of_a_paper_selects_all_of_its_experiments() -> None:
    for paper in ("multi-exit", "deq", "transductive"):
        found = select_experiments(paper, EXPERIMENTS)
        assert found == tuple(
            experiment
            for experiment in EXPERIMENTS.values()
            if experiment.name.startswith(f"{paper}/")
        )
        assert found
    assert select_experiments("multi-exit/table-2", EXPERIMENTS) == (
        EXPERIMENTS["multi-exit/table-2"],
    )


def test_an_unknown_name_raises_an_error_that_suggests_the_closest_name() -> None:
    with pytest.raises(ValueError, match="Did you mean 'multi-exit/table-1'"):
        select_experiments("multi_exit/table1", EXPERIMENTS)
    result = call("reproduce", "multi-exit/figure6")
    assert result.exit_code == 2
    assert "Did you mean 'multi-exit/figure-6'?" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("untold", "blind-audit"),
        ("untold/adaptive", "blind-audit/adaptive"),
        ("multi-exit/honest", "multi-exit/out-of-sample"),
    ],
)
def test_a_former_name_raises_an_error_that_gives_the_new_name(old: str, new: str) -> None:
    assert select_experiments(new, EXPERIMENTS)
    result = call("reproduce", old)
    assert result.exit_code == 2
    assert f"was renamed to {new!r}" in " ".join(result.stderr.split())


def test_an_unknown_scale_raises_an_error(tmp_path) -> None:
    with pytest.raises(ValueError, match="one of tiny, small, real, paper, got 'huge'"):
        Request(tmp_path, "huge")  # type: ignore[arg-type]


def test_without_a_name_all_experiments_are_listed_without_importing_torch() -> None:
    code = (
        "import sys\n"
        "from saddlepoint.cli import app\n"
        "app(['reproduce'], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in EXPERIMENTS)
    listed = json.loads(call("reproduce", "--json").stdout)
    assert [one["name"] for one in listed] == list(EXPERIMENTS)


def test_every_experiment_looks_for_data_in_the_folder_of_the_request() -> None:
    calls = [
        (path.name, node)
        for path in sorted(Path(papers.__file__).parent.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "load_data"
    ]
    assert len(calls) > 5
    roots = [
        (name, [ast.unparse(k.value) for k in c.keywords if k.arg == "root"]) for name, c in calls
    ]
    assert [name for name, root in roots if not root or not root[0].endswith("request.data")] == []
