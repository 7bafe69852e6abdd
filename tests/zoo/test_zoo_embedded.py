"""Defenses of the zoo by name: what is loaded is what was measured, and is made again by a command."""

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
from saddlepoint.training import RECIPES
from saddlepoint.zoo import adaptive, transductive
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
from saddlepoint.zoo.models import WEIGHTS

LEARNING = {
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
SLOW = (
    "digits-contrastive",
    "digits-denoising",
    "digits-rmc",
    "digits-dann",
    "digits-tadv",
)  # seconds per answer


def answer(defense, x):
    with torch.no_grad():
        return defense.respond(x, Context(Keys.of(0, torch.arange(len(x)))))


def test_every_surveyed_defense_and_every_transductive_one_is_there():
    assert {kit.kind.__name__ for kit in ADAPTIVE} == {row.name for row in TABLE}
    assert {kit.kind for kit in TRANSDUCTIVE} == {
        getattr(transductive, name)
        for name in ("DENT", "TENT", "RMC", "DANN", "TADV", "URejectron")
    }
    assert all(kit.kind is getattr(adaptive, kit.kind.__name__) for kit in ADAPTIVE)
    assert set(KITS) <= set(zoo.names())


@pytest.mark.parametrize("name", KITS)
def test_a_defense_is_made_of_its_network_its_weights_and_its_settings(name):
    kit = KITS[name]
    record = zoo.entry(name)
    defense, source = resolve(f"zoo:{name}")  # as an audit finds it
    assert type(defense) is kit.kind
    assert source == f"zoo:{name}"
    assert (record.net, record.defense) == (kit.base, kit.kind.__name__)
    assert record.recipe == json.loads(json.dumps(describe(kit)))
    assert not zoo.entry(kit.base).defense
    if name != "digits-atld":  # which trained a network of its own
        expected = zoo.load(kit.base).state_dict()
        assert all(
            torch.equal(value, expected[key]) for key, value in defense.static.state_dict().items()
        )


@pytest.mark.parametrize("name", KITS)
def test_weights_are_small_and_only_where_something_was_learnt(name):
    file = WEIGHTS / f"{name}.safetensors"
    record = zoo.entry(name)
    assert file.is_file() == bool(record.sha256) == (type(KITS[name]) in LEARNING)
    assert not file.is_file() or file.stat().st_size < 200_000


@pytest.mark.parametrize("name", [name for name in KITS if name not in SLOW])
def test_a_defense_is_as_accurate_as_recorded(name):
    """The batch that was measured, 100 digits: other arithmetic may move two of them, and other coins two more."""
    kit = KITS[name]
    record = zoo.entry(name)
    x, y = load_data("digits", n=kit.measured_on)
    defense = zoo.target(name)
    found = answer(defense, x).argmax(1)
    right = (found == y) | (found == 10)  # a refusal counts as right
    assert (
        abs(float(right.float().mean()) - record.measured.accuracy["clean"])
        <= 0.02 + 0.02 * defense.random
    )


@pytest.mark.parametrize("kind", LEARNING)
def test_what_is_learnt_is_a_function_of_the_seed(kind):
    """Short training on few digits, twice, with the global generator somewhere else."""
    kit = kind(**LEARNING[kind])
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
    if kind is not ClosedLoopKit:  # principal components draw nothing
        other = kit.learn(net, data.x, data.y, 1)
        assert any(not torch.equal(value, other[key]) for key, value in first.items())


def test_a_defense_that_was_made_again_is_loaded_from_its_folder(tmp_path):
    kit = replace(AIDKit(), epochs=1, measured_on=10, attack_steps=2)
    record = make(kit, tmp_path)
    assert record == zoo.entry("digits-aid", tmp_path)
    assert record.sha256 != zoo.entry("digits-aid").sha256
    x = load_data("digits", n=5).x
    here = zoo.target("digits-aid", tmp_path)
    packaged = zoo.target("digits-aid")
    assert not torch.equal(here.natural_logit(x), packaged.natural_logit(x))
    again = make(kit, tmp_path / "again")
    assert again == record


def test_a_defense_is_no_network_and_says_which_it_stands_on():
    with pytest.raises(
        ValueError,
        match=r"a defense, AIDPurifier, on the network digits-pgd\. target\('digits-aid'\)",
    ):
        zoo.load("digits-aid")


def test_a_record_of_a_defense_that_is_not_here_is_refused(tmp_path):
    record = json.loads((WEIGHTS / "digits-hedge.json").read_text())
    (tmp_path / "digits-os.json").write_text(
        json.dumps({**record, "name": "digits-os", "defense": "os.system"})
    )
    with pytest.raises(ValueError, match="the defenses here are digits-sodef"):
        zoo.target("digits-os", tmp_path)


@pytest.mark.parametrize("name", [name for name in KITS if type(KITS[name]) in LEARNING])
def test_weights_that_were_not_measured_are_refused(name, tmp_path):
    content = bytearray((WEIGHTS / f"{name}.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / f"{name}.safetensors").write_bytes(content)
    (tmp_path / f"{name}.json").write_bytes((WEIGHTS / f"{name}.json").read_bytes())
    with pytest.raises(ValueError, match="is not the file that was measured"):
        zoo.target(name, tmp_path)


def test_the_networks_they_stand_on_have_recipes():
    assert {kit.base for kit in KITS.values()} <= set(RECIPES)
