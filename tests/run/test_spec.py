"""A specification says everything, and says clearly what is wrong with it."""

from __future__ import annotations

import json

import pytest

from saddlepoint import APGD, CW, FAB, FMN, PGD, VMI, RayS, Square
from saddlepoint.run.attacks import NAMED, build, named
from saddlepoint.run.spec import RunSpec, SpecError, parse, radius, read, schema, write


def test_toml_and_models_are_the_same_thing_twice(tmp_path):
    spec = parse({"target": "zoo:digits-pgd", "data": {"n": 10}, "attacks": [{"kind": "apgd", "steps": 7}]})
    path = tmp_path / "spec.toml"
    path.write_text(write(spec))
    assert read(path) == spec
    assert write(read(path)) == write(spec)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"target": "a:b", "bugdet": "quick"}, r"bugdet: unknown key. Did you mean 'budget'\?"),
        ({"target": "a:b", "data": {"nam": "digits"}}, r"data.nam: unknown key. Did you mean 'name'\?"),
        ({"target": "a:b", "attacks": [{"kind": "apgd", "stpes": 3}]}, r"attacks.0.stpes: unknown key. Did you mean 'steps'\?"),
        ({"target": "a:b", "attacks": [{"kind": "agpd"}]}, r"Did you mean 'apgd'\?"),
        ({"target": "a:b", "threat": {"eps": "8/0"}}, "eps must be a number or a fraction"),
        ({"target": "a:b", "seed": "one"}, "seed: .*integer"),
        ({"target": "a:b", "batch_size": 0}, "batch_size"),
        ({}, "target: Field required"),
    ],
)
def test_what_is_wrong_is_named_with_the_nearest_thing_that_is_right(values, says):
    with pytest.raises(SpecError, match=says):
        parse(values)


def test_all_mistakes_are_reported_at_once():
    with pytest.raises(SpecError, match=r"(?s)bugdet.*sead"):
        parse({"target": "a:b", "bugdet": "quick", "sead": 1})


@pytest.mark.parametrize(("text", "value"), [("8/255", 8 / 255), ("0.031", 0.031), ("0", 0.0), ("1e-6", 1e-6)])
def test_a_radius_is_a_number_or_a_fraction(text, value):
    assert radius(text) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("text", ["8/0", "abc", "-1", "1/2/3", "nan", "inf", ""])
def test_anything_else_is_no_radius(text):
    with pytest.raises(SpecError, match="8/255"):
        radius(text)


def test_the_schema_is_json_and_names_every_key():
    text = json.dumps(schema())
    assert all(name in text for name in RunSpec.model_fields)


@pytest.mark.parametrize("name", NAMED)
def test_every_named_attack_becomes_an_adversary_of_that_name(name):
    assert build(named(name)).name == name


def test_an_unknown_attack_is_answered_with_the_nearest_name():
    with pytest.raises(SpecError, match="'apgd-ce'"):
        named("apgd-cee")


def test_a_file_that_is_not_toml_or_not_there_is_said_so(tmp_path):
    with pytest.raises(SpecError, match="no specification"):
        read(tmp_path / "spec.toml")
    (tmp_path / "spec.toml").write_text("target = ")
    with pytest.raises(SpecError, match="not valid TOML"):
        read(tmp_path / "spec.toml")


@pytest.mark.parametrize(
    ("name", "attack"),
    [
        ("pgd", PGD()),
        ("apgd-ce", APGD()),
        ("vmi", VMI()),
        ("fab", FAB()),
        ("square", Square()),
        ("rays", RayS()),
        ("cw", CW()),
        ("fmn", FMN()),
    ],
)
def test_an_attack_called_by_name_has_the_settings_of_its_class(name, attack):
    assert build(named(name)).attack == attack
