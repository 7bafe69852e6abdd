"""Every trait, symptom and item is produced somewhere, and remedies refer to existing ones only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import saddlepoint
from saddlepoint.audits.catalog import ItemName, SymptomName
from saddlepoint.audits.probes.traits import TraitName
from saddlepoint.audits.remedies.strategies import OUTDONE, STRATEGIES

SOURCE = Path(saddlepoint.__file__).parent
# A finding is constructed with its name as first argument, or with a variable `name`.
CONSTRUCTORS = {
    "TraitName": {"Trait", "present", "absent", "observed", "unmeasured", "_on_some_images"},
    "SymptomName": {"Symptom"},
    "ItemName": {"Item"},
}


def member(node, enumeration):
    """The member of an enumeration that an expression names; None if it names none."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr if node.value.id == enumeration else None
    return None


def produced(tree, enumeration):
    """Members that are the first argument of a constructor, directly or through a variable."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            if node.func.id in CONSTRUCTORS[enumeration]:
                yield member(node.args[0], enumeration)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "name":
            yield member(node.value, enumeration)


@pytest.fixture(scope="module")
def trees():
    packages = [SOURCE / "audits", SOURCE / "games"]
    files = [file for package in packages for file in package.rglob("*.py")]
    return [ast.parse(file.read_text()) for file in files if file.name != "catalog.py"]


@pytest.mark.parametrize("enumeration", [TraitName, SymptomName, ItemName])
def test_every_member_is_produced_in_the_source(trees, enumeration):
    found = {name for tree in trees for name in produced(tree, enumeration.__name__)}
    assert set(enumeration.__members__) - found == set()


@pytest.mark.parametrize("enumeration", [TraitName, SymptomName, ItemName])
def test_the_text_of_a_member_belongs_to_no_other_member(enumeration):
    # A repeated value would silently make one member an alias of another.
    assert len(enumeration.__members__) == len(list(enumeration))


def test_every_trigger_of_a_remedy_is_a_symptom_or_an_item():
    triggers = [trigger for strategy in STRATEGIES for trigger in strategy.triggers]
    assert all(isinstance(trigger, SymptomName | ItemName) for trigger in (*triggers, *OUTDONE))
    assert set(OUTDONE) <= set(triggers)


def test_every_item_has_a_description_and_every_trait_has_one():
    assert all(name.description for name in (*ItemName, *TraitName))
