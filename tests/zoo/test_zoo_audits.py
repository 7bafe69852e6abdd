"""The accuracies of the zoo come from audits in which no defense was attacked less than its net."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from saddlepoint import zoo
from saddlepoint.cli.zoo_audit import IMAGES, measure, setting
from saddlepoint.zoo.audited import audited, keep_audit, weaker_than_static
from saddlepoint.zoo.records import WEIGHTS

AUDITED = [name for name in zoo.names() if zoo.audited(name)]
# ATLD trains a network of its own, which is no model of the zoo.
AROUND_A_MODEL = [name for name in AUDITED if zoo.entry(name).defense and name != "digits-atld"]


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
    _, n, threat = setting(name)
    assert not found.stale
    assert (found.name, found.budget, found.command) == (
        name,
        "standard",
        f"saddlepoint zoo {name} --measure",
    )
    assert (found.n, found.radius) == (n, threat.space.radius)
    assert n <= IMAGES
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
    """A short budget on the network of the package; only the folder of the record differs."""
    found = measure("digits-two-heads", budget="quick")
    path = keep_audit(found, tmp_path)
    assert path == tmp_path / "audits" / "digits-two-heads.json"
    assert audited("digits-two-heads", tmp_path) == found
    assert found.weights == {"digits-two-heads": zoo.entry("digits-two-heads").sha256}
    assert found.robust_accuracy == 1 - len(found.broken) / found.n
    assert audited("digits-pgd", tmp_path) is None


def test_other_weights_make_a_record_stale(record):
    assert replace(record, weights={"digits-pgd": "0" * 64}).stale
    assert replace(record, weights={"nothing": ""}).stale


def test_a_damaged_audit_record_raises(tmp_path):
    content = json.loads((WEIGHTS / "audits" / "digits-pgd.json").read_text())
    content.pop("broken")
    (tmp_path / "audits").mkdir()
    (tmp_path / "audits" / "digits-pgd.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"is not the audit record of a model .*--measure"):
        audited("digits-pgd", tmp_path)
