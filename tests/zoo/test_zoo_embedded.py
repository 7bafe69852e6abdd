"""Packaged defenses: the loaded ones are those that were measured, and they can be rebuilt."""

import json
from dataclasses import replace

import pytest
import torch

from saddlepoint import zoo
from saddlepoint.data import load_data
from saddlepoint.defenses import Context
from saddlepoint.describe import describe
from saddlepoint.rng import Keys
from saddlepoint.runs.targets import resolve
from saddlepoint.zoo import RECIPES, adaptive, transductive
from saddlepoint.zoo.adaptive import TABLE
from saddlepoint.zoo.adaptive.fitting import Phase
from saddlepoint.zoo.adaptive.sodef import StableTraining
from saddlepoint.zoo.embedded import KITS, make
from saddlepoint.zoo.embedded.adaptive import (
    ADAPTIVE,
    AIDKit,
    ATLDKit,
    ClosedLoopKit,
    ContrastiveKit,
    DenoisingKit,
    SODEFKit,
)
from saddlepoint.zoo.embedded.transductive import TRANSDUCTIVE, RMCKit
from saddlepoint.zoo.records import WEIGHTS

# Short training for the recipes that train something.
TRAINED = {
    SODEFKit: {
        "training": StableTraining(Phase(1, 128, 1e-3), Phase(1, 64, 1e-2), Phase(1, 128, 1e-2))
    },
    ClosedLoopKit: {},
    ContrastiveKit: {"phase": Phase(1, 64, 1e-3)},
    ATLDKit: {"training": replace(ATLDKit().training, network=Phase(1, 64, 0.02))},
    AIDKit: {"epochs": 1},
    DenoisingKit: {"epochs": 1},
    RMCKit: {"attack": replace(RMCKit().attack, steps=2)},
}
# Defenses that take seconds for one prediction.
SLOW = ("digits-contrastive", "digits-denoising", "digits-rmc", "digits-dann", "digits-tadv")


def respond(defense, x):
    """Return the final output [N, C] of a defense, without gradients."""
    with torch.no_grad():
        return defense.respond(x, Context(Keys.of(0, torch.arange(len(x)))))


def test_every_defense_of_the_two_surveys_is_packaged():
    assert {kit.kind.__name__ for kit in ADAPTIVE} == {row.name for row in TABLE}
    assert {kit.kind for kit in TRANSDUCTIVE} == {
        getattr(transductive, name)
        for name in ("DENT", "TENT", "RMC", "DANN", "TADV", "URejectron")
    }
    assert all(kit.kind is getattr(adaptive, kit.kind.__name__) for kit in ADAPTIVE)
    assert set(KITS) <= set(zoo.names())


@pytest.mark.parametrize("name", KITS)
def test_a_defense_is_built_from_its_network_weights_and_settings(name):
    kit = KITS[name]
    record = zoo.entry(name)
    defense, source = resolve(f"zoo:{name}")  # as an audit does
    assert type(defense) is kit.kind
    assert source == f"zoo:{name}"
    assert (record.net, record.defense) == (kit.base, kit.kind.__name__)
    assert record.recipe == json.loads(json.dumps(describe(kit)))
    assert not zoo.entry(kit.base).defense
    if name != "digits-atld":  # ATLD trains a network of its own
        expected = zoo.load(kit.base).state_dict()
        assert all(
            torch.equal(value, expected[key]) for key, value in defense.static.state_dict().items()
        )


@pytest.mark.parametrize("name", KITS)
def test_only_trained_defenses_have_weights_and_they_are_small(name):
    file = WEIGHTS / f"{name}.safetensors"
    record = zoo.entry(name)
    assert file.is_file() == bool(record.sha256) == (type(KITS[name]) in TRAINED)
    assert not file.is_file() or file.stat().st_size < 200_000


@pytest.mark.parametrize("name", [name for name in KITS if name not in SLOW])
def test_the_clean_accuracy_is_the_recorded_one(name):
    """Of 100 digits, rounding may change two predictions and other random draws two more."""
    kit = KITS[name]
    record = zoo.entry(name)
    x, y = load_data("digits", n=kit.measured_on)
    defense = zoo.target(name)
    predicted = respond(defense, x).argmax(1)
    correct = (predicted == y) | (predicted == 10)  # a rejection counts as correct
    difference = abs(float(correct.float().mean()) - record.check.accuracy["clean"])
    assert difference <= 0.02 + 0.02 * defense.random


@pytest.mark.parametrize("kind", TRAINED)
def test_training_is_a_function_of_the_seed(kind):
    """Short training on few digits, twice, with different states of the global generator."""
    kit = kind(**TRAINED[kind])
    net = zoo.load(kit.base)
    data = load_data("digits", split="train", n=64)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    first = kit.learn(net, data.x, data.y, 0)
    torch.rand(3)
    state = torch.get_rng_state()
    second = kit.learn(net, data.x, data.y, 0)
    assert torch.equal(torch.get_rng_state(), state)
    assert first.keys() == second.keys()
    assert all(torch.equal(value, second[key]) for key, value in first.items())
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    if kind is not ClosedLoopKit:  # principal components are deterministic
        other = kit.learn(net, data.x, data.y, 1)
        assert any(not torch.equal(value, other[key]) for key, value in first.items())


@pytest.mark.slow
def test_a_rebuilt_defense_is_loaded_from_its_folder(tmp_path):
    kit = replace(AIDKit(), epochs=1, measured_on=10, attack_steps=2)
    record = make(kit, tmp_path)
    assert record == zoo.entry("digits-aid", tmp_path)
    assert record.sha256 != zoo.entry("digits-aid").sha256
    x = load_data("digits", n=5).x
    rebuilt = zoo.target("digits-aid", tmp_path)
    packaged = zoo.target("digits-aid")
    assert not torch.equal(rebuilt.natural_logit(x), packaged.natural_logit(x))
    again = make(kit, tmp_path / "again")
    assert again == record


def test_loading_a_defense_as_a_network_raises_and_names_its_network():
    with pytest.raises(
        ValueError,
        match=r"a defense, AIDPurifier, on the network digits-pgd\. target\('digits-aid'\)",
    ):
        zoo.load("digits-aid")


def test_a_record_of_an_unknown_defense_raises(tmp_path):
    record = json.loads((WEIGHTS / "digits-hedge.json").read_text())
    (tmp_path / "digits-os.json").write_text(
        json.dumps({**record, "name": "digits-os", "defense": "os.system"})
    )
    with pytest.raises(ValueError, match="only has the defenses digits-sodef"):
        zoo.target("digits-os", tmp_path)


@pytest.mark.parametrize("name", [name for name in KITS if type(KITS[name]) in TRAINED])
def test_changed_weights_raise(name, tmp_path):
    content = bytearray((WEIGHTS / f"{name}.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / f"{name}.safetensors").write_bytes(content)
    (tmp_path / f"{name}.json").write_bytes((WEIGHTS / f"{name}.json").read_bytes())
    with pytest.raises(ValueError, match="is not the file that was measured"):
        zoo.target(name, tmp_path)


def test_the_underlying_networks_have_recipes():
    assert {kit.base for kit in KITS.values()} <= set(RECIPES)
