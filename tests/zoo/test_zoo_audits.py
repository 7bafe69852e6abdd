"""The accuracies of the zoo come from audits in which no defense was attacked less than its net."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.cli.commands import call

from saddlepoint import zoo
from saddlepoint.cli.console import percent
from saddlepoint.cli.zoo_audit import IMAGES, command, measure, setting
from saddlepoint.zoo.audited import audited, keep_audit, objection, weaker_than_static
from saddlepoint.zoo.embedded import KITS
from saddlepoint.zoo.records import WEIGHTS, keep

AUDITED = [name for name in zoo.names() if zoo.audited(name)]
# A defense that trains its network further protects a network that is no model of the zoo.
AROUND_A_MODEL = [name for name in AUDITED if name in KITS and not KITS[name].trains_network]
FEWEST = 30  # images of an audit


# It never changes a label, so nothing makes it more robust than its net (Croce et al. 2022, 3.8).
SAME_LABELS = [name for name in AUDITED if name == "digits-anti-adversary"]


@pytest.fixture
def static():
    """The audit of a network."""
    return zoo.audited("digits-pgd")


@pytest.fixture
def record(static):
    """An audit of a defense around it, in which as many images of the network are broken."""
    return replace(static, name="defense", static_accuracy=static.robust_accuracy)


@pytest.mark.parametrize("name", AUDITED)
def test_a_record_is_a_standard_audit_of_the_packaged_weights(name):
    found = zoo.audited(name)
    assert not found.stale()
    assert (found.name, found.budget) == (name, "standard")
    assert found.command == command(name, found.n)
    assert found.radius == setting(name).threat.space.radius
    assert FEWEST <= found.n <= IMAGES
    assert found.robust_accuracy <= found.clean_accuracy
    assert (found.static_accuracy is None) == (not zoo.entry(name).defense)


@pytest.mark.parametrize("name", AROUND_A_MODEL)
def test_a_defense_is_never_above_its_static_net_by_weaker_attacks(name):
    """Its attacks break at least as many images of the net as an audit of the net itself."""
    found = zoo.audited(name)
    static = zoo.audited(zoo.entry(name).net)
    assert static is not None, "audit the network of an audited defense as well"
    assert not weaker_than_static(found, static)
    assert "transfer worst case" in found.accuracy
    assert objection(found) == ""


@pytest.mark.parametrize("name", SAME_LABELS)
def test_a_defense_with_the_labels_of_its_net_is_at_or_below_it(name, static):
    found = zoo.audited(name)
    assert found.robust_accuracy <= static.accuracy_on(found.n)


def test_weaker_attacks_are_recognized(record, static):
    assert not weaker_than_static(record, static)
    assert weaker_than_static(
        replace(record, static_accuracy=record.static_accuracy + 0.01), static
    )
    assert weaker_than_static(replace(record, static_accuracy=None), static)


def test_an_audit_of_a_network_is_restricted_to_the_images_of_a_defense(record, static):
    broken = replace(static, n=10, broken=(0, 3, 9))
    assert [broken.accuracy_on(n) for n in (1, 4, 10)] == [0.0, 0.5, 0.7]
    assert weaker_than_static(replace(record, n=4, static_accuracy=0.75), broken)
    with pytest.raises(ValueError, match=r"was audited on 10 images, fewer than 11"):
        broken.accuracy_on(11)


def test_a_measured_model_is_listed_by_its_folder(tmp_path):
    """A short budget on few images and the network of the package, with a folder of its own."""
    found = measure("digits-two-heads", images=10, budget="quick")
    assert (found.n, found.command.endswith("--measure --images 10")) == (10, True)
    path = keep_audit(found, tmp_path)
    assert path == tmp_path / "audits" / "digits-two-heads.json"
    assert audited("digits-two-heads", tmp_path) == found
    assert found.weights == {"digits-two-heads": zoo.entry("digits-two-heads").sha256}
    assert found.robust_accuracy == 1 - len(found.broken) / found.n
    assert audited("digits-pgd", tmp_path) is None


def test_the_command_of_a_record_names_an_unusual_number_of_images():
    assert command("digits-pgd", 100) == "saddlepoint zoo digits-pgd --measure"
    assert command("digits-pgd", 40) == "saddlepoint zoo digits-pgd --measure --images 40"


def test_other_weights_make_a_record_stale(record):
    for weights in ({"digits-pgd": "0" * 64}, {"nothing": ""}):
        changed = replace(record, name="digits-hedge", weights=weights)
        assert changed.stale()
        assert objection(changed) == "audited with other weights"


def test_weights_of_a_users_folder_are_compared_with_its_record(tmp_path, static):
    keep({}, replace(zoo.entry("digits-pgd"), sha256=""), tmp_path)
    assert static.stale(tmp_path)
    assert not replace(static, weights={"digits-pgd": ""}).stale(tmp_path)


def test_the_accuracy_of_a_defense_that_was_attacked_less_than_its_net_is_not_shown(
    tmp_path, record, static
):
    weights = {"digits-hedge": "", **static.weights}
    hedge = replace(record, name="digits-hedge", weights=weights)
    assert objection(hedge) == ""
    weaker = replace(hedge, static_accuracy=static.robust_accuracy + 0.01)
    assert objection(weaker) == "attacks weaker than on its network"
    assert objection(replace(hedge, n=static.n + 1)) == "audit digits-pgd first"
    keep({}, zoo.entry("digits-hedge"), tmp_path)
    keep_audit(weaker, tmp_path)
    printed = call("zoo", "--folder", str(tmp_path)).stdout
    (line,) = (line for line in printed.splitlines() if "HedgeDefense" in line)
    assert "attacks weaker than on its network" in line
    assert percent(weaker.clean_accuracy) in line
    assert percent(weaker.robust_accuracy) not in line


def test_a_damaged_audit_record_raises(tmp_path):
    content = json.loads((WEIGHTS / "audits" / "digits-pgd.json").read_text())
    content.pop("broken")
    (tmp_path / "audits").mkdir()
    (tmp_path / "audits" / "digits-pgd.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"is not the audit record of a model .*--measure"):
        audited("digits-pgd", tmp_path)
