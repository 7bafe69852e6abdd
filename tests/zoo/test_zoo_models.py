"""The packaged models have the recorded accuracies, and files that were changed raise."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from saddlepoint import zoo
from saddlepoint.data import load_data
from saddlepoint.defenses import Context, Defense
from saddlepoint.describe import describe
from saddlepoint.runs.targets import resolve
from saddlepoint.zoo import RECIPES, check_accuracy
from saddlepoint.zoo.build import ADVERSARIES
from saddlepoint.zoo.deq import DEQ
from saddlepoint.zoo.embedded import KITS
from saddlepoint.zoo.records import WEIGHTS, store

PLAIN = ("digits-exits", "digits-pgd", "digits-standard", "digits-trades")
EQUILIBRIA = ("digits-deq-exact", "digits-deq-standard", "digits-deq-unrolled")
# Networks inside defenses.
BASES = (
    "digits-lenet",
    "digits-resnet",
    "digits-resnet-standard",
    "digits-small-standard",
    "digits-two-heads",
)
NAMES = (*EQUILIBRIA, *PLAIN, *BASES)


@pytest.fixture
def folder(tmp_path):
    for suffix in ("json", "safetensors"):
        shutil.copy(WEIGHTS / f"digits-standard.{suffix}", tmp_path)
    return tmp_path


def test_the_names_of_all_packaged_models_are_listed():
    assert zoo.names() == tuple(sorted((*NAMES, *KITS)))


@pytest.mark.parametrize("name", BASES)
def test_a_network_of_a_defense_has_its_recorded_clean_accuracy(name):
    record = zoo.entry(name)
    clean = check_accuracy(
        zoo.load(name), RECIPES[name], seed=record.check.seed, adversaries=ADVERSARIES[:1]
    )
    assert clean.accuracy["clean"] == record.check.accuracy["clean"]


@pytest.mark.parametrize("name", PLAIN)
def test_a_model_has_its_recorded_accuracies(name):
    """PGD-40 runs with the recorded seed.

    Only rounding on another machine can change the result, by at most 5 images of 500.
    """
    record = zoo.entry(name)
    clean, pgd = ADVERSARIES[:2]
    measured = check_accuracy(
        zoo.load(name), RECIPES[name], seed=record.check.seed, adversaries=(clean, pgd)
    )
    assert measured.n == record.check.n == 500
    assert measured.radius == record.check.radius
    assert measured.accuracy["clean"] == record.check.accuracy["clean"]
    assert abs(measured.accuracy["pgd-40"] - record.check.accuracy["pgd-40"]) <= 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", EQUILIBRIA)
def test_an_equilibrium_model_has_its_recorded_accuracies(name):
    """Solves may stop a step later on another machine: one image of 500.

    PGD runs on the first 60 images; the tolerance is 4 standard deviations.
    """
    record = zoo.entry(name)
    recipe = RECIPES[name]
    clean = check_accuracy(
        zoo.load(name), recipe, seed=record.check.seed, adversaries=ADVERSARIES[:1]
    )
    assert clean.n == record.check.n == 500
    assert abs(clean.accuracy["clean"] - record.check.accuracy["clean"]) <= 1 / 500
    few = check_accuracy(
        zoo.load(name),
        replace(recipe, measured_on=60),
        seed=record.check.seed,
        adversaries=ADVERSARIES[1:2],
    )
    accuracy = record.check.accuracy["pgd-40"]
    deviation = (accuracy * (1 - accuracy) / 60) ** 0.5
    assert abs(few.accuracy["pgd-40"] - accuracy) <= 4 * deviation


@pytest.mark.parametrize("name", EQUILIBRIA)
def test_an_equilibrium_model_has_an_equilibrium_at_every_digit(name):
    """The solver, with 8 or 18 steps, has a residual below 3 % on all images.

    On most images it is within the tolerance.
    """
    record = zoo.entry(name)
    defense = zoo.target(name)
    residual = defense.convergence(load_data("digits", split="test").x).residual
    assert residual.amax() < 0.03
    assert residual.median() < 1e-3
    assert len(record.residuals) == RECIPES[name].epochs
    assert record.residuals[record.epoch - 1] == pytest.approx(float(residual.mean()), rel=1)


@pytest.mark.parametrize("name", EQUILIBRIA)
def test_the_target_of_an_equilibrium_model_is_its_defense(name):
    net = zoo.load(name)
    defense = zoo.target(name)
    assert isinstance(defense, DEQ)
    found, source = resolve(f"zoo:{name}")
    assert isinstance(found, DEQ)
    assert source == f"zoo:{name}"
    x = load_data("digits", n=5).x
    with torch.no_grad():
        assert torch.equal(defense.respond(x, Context.seeded(0, 5)), net(x))
    assert not isinstance(zoo.target("digits-pgd"), Defense)


def test_adversarially_trained_equilibrium_models_are_robust_and_the_standard_one_is_not():
    attacked = {name: zoo.entry(name).check.accuracy["apgd-100-dlr"] for name in EQUILIBRIA}
    assert attacked["digits-deq-standard"] < 0.2
    assert min(attacked["digits-deq-exact"], attacked["digits-deq-unrolled"]) > 0.6


def test_adversarially_trained_networks_are_robust_and_the_standard_one_is_not():
    attacked = {name: zoo.entry(name).check.accuracy["apgd-100-dlr"] for name in PLAIN}
    assert attacked["digits-standard"] < 0.15
    assert min(attacked["digits-pgd"], attacked["digits-trades"], attacked["digits-exits"]) > 0.6


def agrees(recorded, described):
    """Return whether every recorded setting is unchanged; newer settings are ignored."""
    if isinstance(recorded, dict):
        return all(
            key in described and agrees(value, described[key]) for key, value in recorded.items()
        )
    return recorded == described


@pytest.mark.parametrize("name", NAMES)
def test_a_record_matches_its_recipe_and_its_network(name):
    record = zoo.entry(name)
    net = zoo.load(name)
    assert agrees(record.recipe, json.loads(json.dumps(describe(RECIPES[name]))))
    assert record.parameters == sum(p.numel() for p in net.parameters())
    assert record.training_radius == (
        0.0 if name.endswith(("standard", "heads")) else RECIPES[name].space.radius
    )
    assert (WEIGHTS / f"{name}.safetensors").stat().st_size < 800_000
    assert not net.training


def test_weights_with_one_changed_bit_raise(folder):
    path = folder / "digits-standard.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        ValueError,
        match=r"not the file that was measured: expected SHA-256 [0-9a-f]{64}, found [0-9a-f]{64}",
    ):
        zoo.load("digits-standard", folder)


def test_missing_weights_raise(folder):
    (folder / "digits-standard.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="is missing"):
        zoo.load("digits-standard", folder)


def test_a_damaged_record_raises(folder):
    (folder / "digits-standard.json").write_text('{"name": "digits-standard"}')
    with pytest.raises(ValueError, match="is not the record of a model"):
        zoo.load("digits-standard", folder)


def test_a_record_cannot_name_code_to_run(folder):
    path = folder / "digits-standard.json"
    path.write_text(path.read_text().replace('"net": "DigitsCNN"', '"net": "os.system"'))
    with pytest.raises(
        ValueError,
        match=r"recorded as the architecture os\.system, but the known ones are DigitsCNN",
    ):
        zoo.load("digits-standard", folder)


def test_an_unknown_name_raises_and_names_the_nearest():
    with pytest.raises(
        ValueError,
        match=r"no model is called 'digits_pdg'\. Did you mean 'digits-pgd'\? Known: digits-aid, ",
    ):
        zoo.load("digits_pdg")
    with pytest.raises(ValueError, match=r"no model is called 'x'\. Known"):
        zoo.load("x")


def test_a_stored_network_is_loaded_unchanged(tmp_path):
    net = zoo.load("digits-pgd")
    record = zoo.entry("digits-pgd")
    # The digest is equal too: the same weights are the same bytes.
    assert store(net, record, tmp_path) == record
    x = load_data("digits", n=5).x
    assert torch.equal(zoo.load("digits-pgd", tmp_path)(x), net(x))


def test_a_record_of_version_0_1_is_read_without_its_worst_case(folder):
    path = folder / "digits-standard.json"
    record = json.loads(path.read_text())
    check = record.pop("check")
    old = {**check, "accuracy": {**check["accuracy"], "worst case": 0.5}}
    path.write_text(json.dumps({**record, "measured": old}))
    assert zoo.entry("digits-standard", folder) == zoo.entry("digits-standard")
