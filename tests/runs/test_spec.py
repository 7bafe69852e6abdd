"""A specification says everything, and says clearly what is wrong with it."""

from __future__ import annotations

import json

import pytest

from saddlepoint import (
    APGD,
    CW,
    FAB,
    FMN,
    PGD,
    VMI,
    BatchControl,
    Linf,
    RayS,
    SortedByLabel,
    Square,
    Threat,
    WorstCaseOrder,
)
from saddlepoint.runs.attack_specs import NAMED, build, named
from saddlepoint.runs.spec import RunSpec, SpecError, parse, radius, read, schema, write
from saddlepoint.runs.threat_specs import threat
from saddlepoint.runs.work import command


def test_toml_and_models_are_the_same_thing_twice(tmp_path):
    spec = parse(
        {"target": "zoo:digits-pgd", "data": {"n": 10}, "attacks": [{"kind": "apgd", "steps": 7}]}
    )
    path = tmp_path / "spec.toml"
    path.write_text(write(spec))
    assert read(path) == spec
    assert write(read(path)) == write(spec)


@pytest.mark.parametrize(
    ("values", "says"),
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
        ({"target": "a:b", "threat": {"eps": "8/0"}}, "eps must be a number or a fraction"),
        (
            {"target": "a:b", "threat": {"control": 0}},
            r"threat.control: Input should be greater than 0, got 0\.",
        ),
        (
            {"target": "a:b", "threat": {"oder": "natural"}},
            r"threat.oder: unknown key. Did you mean 'order'\?",
        ),
        ({"target": "a:b", "threat": {"order": "by_label"}}, r"Did you mean 'by-label'\?"),
        (
            {"target": "a:b", "threat": {"window": 0}},
            r"threat.window: Input should be greater than or equal to 1",
        ),
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


@pytest.mark.parametrize(
    ("text", "value"), [("8/255", 8 / 255), ("0.031", 0.031), ("0", 0.0), ("1e-6", 1e-6)]
)
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


def asked(**words):
    return parse({"target": "zoo:digits-dent", "threat": {"eps": "0.25", **words}})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({}, Threat(Linf(0.25))),
        ({"rounds": "one"}, Threat(Linf(0.25), rounds="one")),
        ({"leaking": False}, Threat(Linf(0.25), state_visible=False)),
        ({"order": "by-label"}, Threat(Linf(0.25), order=SortedByLabel(256))),
        ({"order": "searched", "window": 64}, Threat(Linf(0.25), order=WorstCaseOrder(64))),
        (
            {"control": 0.2, "victims": "benign"},
            Threat(Linf(0.25), batch_control=BatchControl(0.2, "benign")),
        ),
        (
            {"live": True, "access": "score"},
            Threat(Linf(0.25), access="score", online_queries=True),
        ),
        ({"coins": "fixed", "draws": 3}, Threat(Linf(0.25), randomness="fixed", draws=3)),
    ],
)
def test_every_word_about_a_stream_reaches_the_threat_and_the_file(words, expected, tmp_path):
    spec = asked(**words)
    assert threat(spec.threat) == expected
    path = tmp_path / "spec.toml"
    path.write_text(write(spec))
    assert read(path) == spec


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"window": 8}, "Give order = 'by-label' or 'searched' too, or leave the window out"),
        ({"rounds": "one", "order": "by-label"}, "needs rounds='many'"),
        ({"live": True}, "use access='score' or 'decision'"),
        ({"victims": "benign"}, "give a share below 1"),
        ({"queries": 9, "order": "searched"}, "use queries=None"),
    ],
)
def test_a_threat_that_contradicts_itself_is_told_what_to_change(words, says):
    with pytest.raises(ValueError, match=says):
        threat(asked(**words).threat)


def test_the_command_of_a_run_says_what_is_not_usual_about_its_threat():
    usual = command(asked())
    assert not any(
        word in usual
        for word in (
            "--access",
            "--order",
            "--control",
            "--hidden-state",
            "--live",
            "--rounds",
            "--coins",
        )
    )
    told = command(
        asked(
            order="by-label",
            window=32,
            controlled_fraction=0.5,
            state_visible=False,
            randomness="public",
        )
    )
    assert "--coins public --order by-label --window 32 --control 0.5 --hidden-state" in told
    assert "--access score" in command(asked(access="score", online_queries=True))
    assert command(asked(access="score", online_queries=True)).count("--live") == 1
    assert command(asked(draws=3)) == "saddlepoint run spec.toml"  # no option says it
