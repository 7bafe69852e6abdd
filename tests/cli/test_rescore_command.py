"""`saddlepoint rescore` evaluates points that others saved."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.cli.commands import call, error_of

import saddlepoint as sp
from saddlepoint import zoo

N = 20
RADIUS = 0.15
WORDS = ("--target", "zoo:digits-pgd", "--n", str(N), "--eps", str(RADIUS))


@pytest.fixture(scope="module")
def problem():
    x, y = sp.load_data("digits", n=N)
    net = zoo.load("digits-standard")
    return x, y, sp.attack(net, x, y, threat=RADIUS, method=sp.PGD(steps=10))


def rescored(*words):
    result = call("rescore", *words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("kind", ["npz", "npy", "pth", "safetensors", "bytes"])
def test_points_of_every_format_give_the_accuracy_of_the_target_there(kind, problem, tmp_path):
    x, y, points = problem
    # Toward zero: rounding must not leave the perturbation set.
    grid = x + ((points - x) * 255).trunc() / 255 if kind == "bytes" else points
    path = tmp_path / f"points.{'npz' if kind == 'bytes' else kind}"
    if kind == "npz":
        np.savez(path, x_adv=grid.numpy(), y=y.numpy())
    elif kind == "npy":
        np.save(path, grid.numpy())
    elif kind == "pth":
        torch.save({"adv_complete": grid}, path)
    elif kind == "safetensors":  # the names of a stored audit
        save_file({"x": x, "y": y, "worst_points": grid, "correct": y.float()}, path)
    else:
        np.savez(path, points=(grid * 255).round().byte().numpy())
    net = zoo.load("digits-pgd")
    clean = net(x).argmax(1) == y
    result = rescored(path, *WORDS)
    if kind != "bytes":  # the images are not on the grid of bytes
        expected = clean & (net(grid).argmax(1) == y)
        assert result["robust_accuracy"] == pytest.approx(float(expected.double().mean()))
        assert result["outside"] == 0
    assert result["clean_accuracy"] == pytest.approx(float(clean.double().mean()))


def test_points_outside_of_the_set_do_not_count_and_are_reported(problem, tmp_path):
    x, _, _ = problem
    np.savez(tmp_path / "far.npz", points=(1 - x).numpy())
    result = rescored(tmp_path / "far.npz", *WORDS)
    assert result["outside"] == N
    assert result["outside_wrong"] > 0
    assert result["robust_accuracy"] == result["clean_accuracy"]
    text = call("rescore", tmp_path / "far.npz", *WORDS).stdout
    assert f"{N} of {N} points left the perturbation set" in " ".join(text.split())


def test_fewer_points_use_the_first_images(problem, tmp_path):
    _, _, points = problem
    np.save(tmp_path / "few.npy", points[:5].numpy())
    assert rescored(tmp_path / "few.npy", *WORDS)["n"] == 5


def test_files_without_points_are_errors(problem, tmp_path):
    _, _, points = problem
    np.savez(tmp_path / "two.npz", a=points.numpy(), b=points.numpy())
    np.savez(tmp_path / "small.npz", points=points[:, :, :4].numpy())
    (tmp_path / "bad.npz").write_bytes(b"no archive")
    assert "--array NAME" in error_of("rescore", tmp_path / "two.npz", *WORDS)
    assert "--data and --n" in error_of("rescore", tmp_path / "small.npz", *WORDS)
    assert "no plain arrays" in error_of("rescore", tmp_path / "bad.npz", *WORDS)
    (tmp_path / "bad.safetensors").write_bytes(b"no tensors")
    assert "no plain arrays" in error_of("rescore", tmp_path / "bad.safetensors", *WORDS)
    assert "There is no file" in error_of("rescore", tmp_path / "none.npz", *WORDS)
    assert rescored(tmp_path / "two.npz", *WORDS, "--array", "a")["n"] == N


def test_a_curve_on_the_command_line_has_one_line_per_radius():
    words = ("curve", "zoo:digits-pgd", "--n", "10", "--radii", "0.05,0.2", "--steps", "10")
    record = json.loads(call(*words, "--json").stdout)
    assert record["radii"] == [0.05, 0.2]
    assert record["accuracy"] == sorted(record["accuracy"], reverse=True)
    text = call(*words).stdout
    assert "Linf radius 0.05" in text
    assert "at least one radius" in error_of(*words[:4], "--radii", "0")
