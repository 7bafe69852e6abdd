"""A specification is complete, and an error names what is wrong with it."""

from __future__ import annotations

import json
import tomllib

import pytest

from saddlepoint import APGD, FAB, PGD, Linf, Square, Threat
from saddlepoint.attacks.cw import CW
from saddlepoint.attacks.fmn import FMN
from saddlepoint.attacks.rays import RayS
from saddlepoint.attacks.vmi import VMI
from saddlepoint.evaluation.batch_control import BatchControl
from saddlepoint.evaluation.orders import SortedByLabel, WorstCaseOrder
from saddlepoint.runs.attack_specs import NAMED, build, named
from saddlepoint.runs.command import command
from saddlepoint.runs.game_spec import GameSpec
from saddlepoint.runs.spec import (
    RunSpec,
    SpecError,
    ThreatSpec,
    migrate_spec,
    parse,
    parse_radius,
    read,
    schema,
    validate,
    write,
)
from saddlepoint.runs.threat_specs import threat

OLD = """
schema_version = 1
target = "zoo:digits-dent"
budget = "quick"

[threat]
norm = "l2"
eps = "0.25"
access = "score"
coins = "public"
leaking = false
control = 0.5
live = true

[[attacks]]
kind = "apgd"
"""
NEW = {
    "schema_version": 2,
    "target": "zoo:digits-dent",
    "budget": "quick",
    "threat": {
        "norm": "l2",
        "radius": "0.25",
        "access": "score",
        "randomness": "public",
        "state_visible": False,
        "controlled_fraction": 0.5,
        "online_queries": True,
    },
    "attacks": [{"kind": "apgd"}],
}


def test_toml_and_models_contain_the_same(tmp_path):
    spec = parse(
        {"target": "zoo:digits-pgd", "data": {"n": 10}, "attacks": [{"kind": "apgd", "steps": 7}]}
    )
    path = tmp_path / "spec.toml"
    path.write_text(write(spec))
    assert read(path) == spec
    assert write(read(path)) == write(spec)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"target": "a:b", "bugdet": "quick"}, r"bugdet: unknown key. Did you mean 'budget'\?"),
        (
            {"target": "a:b", "data": {"nam": "digits"}},
            r"data.nam: unknown key. Did you mean 'name'\?",
        ),
        (
            {"target": "a:b", "attacks": [{"kind": "apgd", "stpes": 3}]},
            r"attacks.0.stpes: unknown key. Did you mean 'steps'\?",
        ),
        ({"target": "a:b", "attacks": [{"kind": "agpd"}]}, r"Did you mean 'apgd'\?"),
        (
            {"target": "a:b", "threat": {"radius": "8/0"}},
            r"threat.radius: .*, got a fraction with a zero denominator, '8/0'\.",
        ),
        (
            {"target": "a:b", "threat": {"radius": "-0.1"}},
            r"threat.radius: the radius must not be negative, got '-0.1'\.",
        ),
        (
            {"target": "a:b", "threat": {"controlled_fraction": 0.0}},
            r"threat.controlled_fraction: expected a number above 0, got 0.0\.",
        ),
        (
            {"target": "a:b", "threat": {"controlled_fraction": 2.0}},
            r"threat.controlled_fraction: expected a share between 0 and 1. Got 2\.",
        ),
        (
            {"target": "a:b", "threat": {"oder": "natural"}},
            r"threat.oder: unknown key. Did you mean 'order'\?",
        ),
        ({"target": "a:b", "threat": {"esp": "1"}}, r"unknown key. Did you mean 'eps'\?"),
        ({"target": "a:b", "threat": {"order": "by_label"}}, r"Did you mean 'by-label'\?"),
        (
            {"target": "a:b", "threat": {"window": 0}},
            r"threat.window: expected a number of at least 1, got 0",
        ),
        ({"target": "a:b", "seed": "one"}, "seed: .*integer"),
        ({"target": "a:b", "batch_size": 0}, "batch_size"),
        ({}, "target: Field required"),
        ({"target": "a:b", "schema_version": 3}, "schema_version: expected 2, got 3"),
    ],
)
def test_an_error_names_the_wrong_key_and_the_nearest_right_one(values, message):
    with pytest.raises(SpecError, match=message):
        parse(values)


def test_all_mistakes_are_reported_at_once():
    with pytest.raises(SpecError, match=r"(?s)bugdet.*sead"):
        parse({"target": "a:b", "bugdet": "quick", "sead": 1})


def test_error_messages_can_name_options_instead_of_keys():
    with pytest.raises(
        SpecError, match=r"the command line is not valid:\n  --n: expected a number"
    ):
        validate(RunSpec, {"target": "a", "data": {"n": 0}}, "the command line", {"data.n": "--n"})


def test_a_specification_of_version_1_is_read_as_one_of_version_2(tmp_path):
    path = tmp_path / "spec.toml"
    path.write_text(OLD)
    assert read(path) == parse(NEW)
    assert migrate_spec(tomllib.loads(OLD)) == NEW
    assert migrate_spec(NEW) == NEW
    assert RunSpec.model_validate_json(json.dumps(tomllib.loads(OLD))) == parse(NEW)


def test_a_specification_without_a_version_may_use_the_keys_of_version_1():
    old = tomllib.loads(OLD.replace("schema_version = 1", ""))
    assert parse(old) == parse(NEW)
    assert "schema_version" not in parse(old).model_dump(exclude_unset=True)


def test_a_game_of_version_1_is_read_as_one_of_version_2():
    old = {"schema_version": 1, "target": "a:b", "threat": {"norm": "linf", "eps": "0.15"}}
    new = {"schema_version": 2, "target": "a:b", "threat": {"norm": "linf", "radius": "0.15"}}
    assert GameSpec.model_validate(old) == GameSpec.model_validate(new)
    assert migrate_spec(old) == new


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("coins", "randomness", "public"),
        ("leaking", "state_visible", False),
        ("control", "controlled_fraction", 0.5),
        ("live", "online_queries", True),
    ],
)
def test_an_old_key_in_a_specification_of_version_2_is_an_error_with_the_new_key(old, new, value):
    with pytest.raises(SpecError, match=rf"threat\.{old}: this key is now called '{new}'\."):
        parse({"schema_version": 2, "target": "a:b", "threat": {old: value}})
    with pytest.raises(SpecError, match=rf"threat\.{old} and threat\.{new} are the same option"):
        parse({"target": "a:b", "threat": {old: value, new: value}})


def test_eps_is_another_name_for_the_radius():
    assert ThreatSpec(eps="0.25") == ThreatSpec(radius="0.25")
    assert parse({**NEW, "threat": {"eps": "0.25"}}).threat.radius == "0.25"
    with pytest.raises(SpecError, match=r"threat\.eps"):
        parse({**NEW, "threat": {"eps": "0.25", "radius": "0.25"}})


@pytest.mark.parametrize(
    ("text", "value"), [("8/255", 8 / 255), ("0.031", 0.031), ("0", 0.0), ("1e-6", 1e-6)]
)
def test_a_radius_is_a_number_or_a_fraction(text, value):
    assert parse_radius(text) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("text", ["8/0", "abc", "-1", "1/2/3", "nan", "inf", ""])
def test_any_other_text_is_not_a_radius(text):
    with pytest.raises(SpecError, match="8/255"):
        parse_radius(text)


def test_the_schema_is_json_and_names_every_key():
    text = json.dumps(schema())
    assert all(name in text for name in RunSpec.model_fields)
    assert all(name in text for name in ThreatSpec.model_fields)


@pytest.mark.parametrize("name", NAMED)
def test_every_named_attack_gives_an_adversary_of_that_name(name):
    assert build(named(name)).name == name


def test_the_error_about_an_unknown_attack_names_the_nearest():
    with pytest.raises(SpecError, match="'apgd-ce'"):
        named("apgd-cee")


def test_a_missing_file_and_a_file_that_is_not_toml_are_errors(tmp_path):
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
def test_a_named_attack_has_the_defaults_of_its_class(name, attack):
    assert build(named(name)).attack == attack


def with_threat(**values):
    return parse({"target": "zoo:digits-dent", "threat": {"radius": "0.25", **values}})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, Threat(Linf(0.25))),
        ({"rounds": "one"}, Threat(Linf(0.25), rounds="one")),
        ({"state_visible": False}, Threat(Linf(0.25), state_visible=False)),
        ({"order": "by-label"}, Threat(Linf(0.25), order=SortedByLabel(256))),
        ({"order": "searched", "window": 64}, Threat(Linf(0.25), order=WorstCaseOrder(64))),
        (
            {"controlled_fraction": 0.2, "victims": "benign"},
            Threat(Linf(0.25), batch_control=BatchControl(0.2, "benign")),
        ),
        (
            {"online_queries": True, "access": "score"},
            Threat(Linf(0.25), access="score", online_queries=True),
        ),
        ({"randomness": "fixed", "draws": 3}, Threat(Linf(0.25), randomness="fixed", draws=3)),
        ({"queries": 9}, Threat(Linf(0.25), queries=9)),
    ],
)
def test_every_key_of_the_threat_reaches_the_threat_model_and_the_file(values, expected, tmp_path):
    spec = with_threat(**values)
    assert threat(spec.threat) == expected
    path = tmp_path / "spec.toml"
    path.write_text(write(spec))
    assert read(path) == spec


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"window": 8}, "Set the order to 'by-label' or 'searched', or leave the window out"),
        ({"rounds": "one", "order": "by-label"}, "needs rounds='many'"),
        ({"online_queries": True}, "use access='score'"),
        ({"victims": "benign"}, "a share below 1"),
        ({"queries": 9, "order": "searched"}, "use queries=None"),
    ],
)
def test_an_error_about_a_contradictory_threat_says_what_to_change(values, message):
    with pytest.raises(ValueError, match=message):
        threat(with_threat(**values).threat)


def test_the_command_of_a_run_contains_only_the_unusual_options_of_its_threat():
    unusual = (
        "--access",
        "--randomness",
        "--draws",
        "--rounds",
        "--hidden-state",
        "--order",
        "--window",
        "--controlled-fraction",
        "--victims",
        "--online-queries",
    )
    assert not any(word in command(with_threat()) for word in unusual)
    line = command(
        with_threat(
            order="by-label",
            window=32,
            controlled_fraction=0.5,
            state_visible=False,
            randomness="public",
            draws=3,
        )
    )
    assert (
        "--randomness public --draws 3 --hidden-state --order by-label --window 32 "
        "--controlled-fraction 0.5" in line
    )
    line = command(with_threat(access="score", online_queries=True))
    assert "--access score" in line
    assert line.count("--online-queries") == 1
