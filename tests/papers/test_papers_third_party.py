"""Scale real: networks that others trained, what they are called in records, and costs."""

from __future__ import annotations

import hashlib
import subprocess
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.cli import app
from saddlepoint.data import load_data
from saddlepoint.locate import LocateError
from saddlepoint.papers import EXPERIMENTS, Request
from saddlepoint.papers.cost_estimate import CostEstimate, result_without_run, training_cost
from saddlepoint.papers.markdown import result_markdown
from saddlepoint.papers.provenance import source_commit, versions
from saddlepoint.papers.registry import Experiment
from saddlepoint.papers.result import read
from saddlepoint.papers.runner import Images, Runner
from saddlepoint.papers.third_party import OPAQUE, ModelFolder
from saddlepoint.training import PGDTraining, Recipe

LOADER = """
import torch
from pathlib import Path

def load(name, scale=1.0):
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    net.load_state_dict(torch.load(Path(__file__).parent / f"{name}.pt", weights_only=True))
    net[1].weight.data *= scale
    return net.eval()
"""
TOY = Experiment("toy/table-9", "A toy", "Nothing at all.", "nowhere:run")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one linear network of the digits."""
    place = tmp_path / "models"
    (place / "digits").mkdir(parents=True)
    (place / "modules.py").write_text(LOADER)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    torch.save(net.state_dict(), place / "digits" / "linear.pt")
    return place


def test_a_network_is_loaded_by_name_and_its_file_is_named_by_hash(folder, tmp_path) -> None:
    runner = Runner(Request(tmp_path, "real", models=folder), batch=4, threads=1)
    net = runner.load_third_party("digits/linear")
    double = runner.load_third_party("digits/linear", scale=2.0)
    assert torch.equal(2 * net[1].weight, double[1].weight)  # type: ignore[index]
    result = runner.result(TOY, (), notes=(), findings=(), charts=(), repeats=1)
    sha = hashlib.sha256((folder / "digits" / "linear.pt").read_bytes()).hexdigest()
    assert result.weights == {"digits/linear": sha}
    assert read(result.text(), "here").weights == {"digits/linear": sha}
    assert result.command.endswith("--scale real --seed 0 --models FOLDER")
    assert f"weights of digits/linear: SHA-256 `{sha}`" in result_markdown(result)


def test_a_missing_folder_network_or_loader_is_an_error_that_says_what_to_do(
    folder, tmp_path
) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no network 'digits/deep'.*--models"):
        ModelFolder(folder).load("digits/deep")
    with pytest.raises(FileNotFoundError, match=r"has no modules\.py"):
        ModelFolder(tmp_path)
    with pytest.raises(LocateError, match=r"There is no file .*loaders\.py"):
        ModelFolder(folder).load("digits/linear", loader=OPAQUE)
    with pytest.raises(ValueError, match="--models FOLDER"):
        Request(tmp_path, "real")
    done = CliRunner().invoke(app, ["reproduce", "multi-exit/table-1", "--scale", "real"])
    assert done.exit_code == 2
    assert "--models FOLDER" in " ".join(done.stderr.split())


def test_an_experiment_without_a_third_party_network_is_an_error(folder, tmp_path) -> None:
    with pytest.raises(ValueError, match="toy/table-9 is not defined at scale real"):
        TOY.run(Request(tmp_path, "real", models=folder))


def test_real_functions_of_experiments_exist() -> None:
    for experiment in EXPERIMENTS.values():
        if experiment.real:
            module, _, name = experiment.real.partition(":")
            found = getattr(import_module(module), name)
            assert list(signature(found).parameters) == ["request"]


def test_a_result_without_run_says_what_it_would_cost(folder, tmp_path) -> None:
    runner = Runner(Request(tmp_path, "real", models=folder), batch=4, threads=1)
    costs = [CostEstimate("training a", 0.5, 7200, 8), CostEstimate("training b", 1.0, 3600, 1)]
    result = result_without_run(runner, TOY, "two networks", costs)
    assert result.not_run == (
        "it needs two networks, which the folder of models does not have: training a takes 0.5 s "
        "per image of one processor core (measured on 8 images) x 7200 images = 1 hours and "
        "training b takes 1 s per image of one processor core (measured on 1 image) x 3600 images "
        "= 1 hours, 2 hours together."
    )
    assert f"Not run: {result.not_run}" in result_markdown(read(result.text(), "here"))


def test_a_cost_of_training_counts_the_attack_and_all_epochs() -> None:
    data = load_data("digits", n=9)
    images = Images(data.x, data.y)
    net = partial(nn.Sequential, nn.Flatten(), nn.Linear(64, 10))
    found = [
        training_cost(
            Recipe("toy", "digits", net, PGDTraining(PGD(steps)), Linf(0.1), epochs=3),
            images,
            train_images=100,
        )
        for steps in (1, 200)
    ]
    assert [(cost.images, cost.measured_on) for cost in found] == [(300, 8)] * 2
    assert found[1].seconds > 5 * found[0].seconds
    assert found[0].hours == pytest.approx(found[0].seconds * 300 / 3600)


def test_versions_name_the_commit_of_the_source_tree_and_its_changes(tmp_path) -> None:
    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *words],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    package = tmp_path / "package"
    package.mkdir()
    assert source_commit(package) == ""
    (package / "code.py").write_text("a = 1\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    source_commit.cache_clear()
    head = git("rev-parse", "--short=12", "HEAD")
    assert source_commit(package) == head
    (package / "code.py").write_text("a = 2\n")
    source_commit.cache_clear()
    assert source_commit(package) == f"{head}+changes"
    other = tmp_path / "untracked"
    other.mkdir()
    assert source_commit(other) == "", "a folder that git does not track has no commit"
    assert {"saddlepoint", "torch", "python"} <= set(versions())
