"""The recipes of docs/cluster.md are valid for SLURM and KubeRay, and their commands exist."""

from __future__ import annotations

import copy
import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from tests.cli.commands import call

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cluster.md").read_text()
# From the custom resource definition of KubeRay, version ray.io/v1, reduced to the fields that the
# page uses and to types, patterns and required fields.
SCHEMA = json.loads(Path(__file__).with_name("rayjob_schema.json").read_text())
# Options of sbatch that the page may use, with the form of their values.
SBATCH = {
    "job-name": r"[\w-]+",
    "nodes": r"\d+",
    "ntasks-per-node": r"\d+",
    "cpus-per-task": r"\d+",
    "time": r"\d\d:\d\d:\d\d",
    "output": r"[\w%-]+\.log",
    "signal": r"B:TERM@\d+",
}
jsonschema = pytest.importorskip("jsonschema")
yaml = pytest.importorskip("yaml")


def block(language: str) -> str:
    [found] = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return found


def manifest() -> dict:
    return yaml.safe_load(block("yaml"))


def errors(value: dict) -> list[str]:
    return [error.message for error in jsonschema.Draft202012Validator(SCHEMA).iter_errors(value)]


def test_the_manifest_of_kuberay_fits_its_schema():
    assert errors(manifest()) == []


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("spec", "rayClusterSpec", "workerGroupSpecs", 0, "replicas"), "4", "not of type"),
        (("spec", "rayClusterSpec", "headGroupSpec", "rayStartParams", "num-cpus"), 0, "not of"),
        (("spec", "entryPoint"), "saddlepoint", "Additional properties"),
        (("apiVersion",), "ray.io/v1alpha1", "was expected"),
    ],
)
def test_mistakes_in_a_manifest_are_noticed(place, value, message):
    changed = copy.deepcopy(manifest())
    inner = changed
    for part in place[:-1]:
        inner = inner[part]
    inner[place[-1]] = value
    assert message in errors(changed)[0]


def test_the_pods_mount_the_volume_of_the_target_and_the_results():
    spec = manifest()["spec"]
    groups = spec["rayClusterSpec"]
    pods = [groups["headGroupSpec"], *groups["workerGroupSpecs"]]
    for pod in pods:
        [container] = pod["template"]["spec"]["containers"]
        [mount] = container["volumeMounts"]
        [volume] = pod["template"]["spec"]["volumes"]
        assert mount["name"] == volume["name"]
        assert f"--out {mount['mountPath']}/" in spec["entrypoint"]
        assert f" {mount['mountPath']}/net.py:make " in spec["entrypoint"]


def test_the_script_for_slurm_is_valid_and_has_known_options():
    script = block("bash")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    options = re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", script, re.MULTILINE)
    assert len(options) == script.count("#SBATCH")
    for name, value in options:
        assert re.fullmatch(SBATCH[name], value), (name, value)


@pytest.mark.parametrize("language", ["bash", "yaml"])
def test_the_commands_of_the_recipes_are_accepted(language, monkeypatch):
    text = manifest()["spec"]["entrypoint"] if language == "yaml" else block(language)
    command = re.search(r"saddlepoint (audit .*?--quiet)", text.replace("\\\n", " "), re.DOTALL)
    assert command
    parsed = []
    monkeypatch.setattr(
        "saddlepoint.cli.audit._dry_run", lambda spec, folder, json: parsed.append((spec, folder))
    )
    words = shlex.split(command[1].replace("$address", "host:6379"))
    result = call(*words, "--dry-run")
    assert result.exit_code == 0, result.output
    [(spec, folder)] = parsed
    assert (spec.data.name, spec.data.n, spec.budget) == ("cifar10", 10000, "thorough")
    assert folder.name == "thorough"
    assert {"--executor", "--address"} < set(words)
