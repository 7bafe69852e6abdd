"""Options follow from the fields of a specification, in both directions."""

from __future__ import annotations

import shlex
from typing import get_args

import pytest
import typer
from pydantic import BaseModel
from tests.cli.commands import call

from saddlepoint.cli import options as cli_options
from saddlepoint.cli.options import audit_options, game_options, options_table
from saddlepoint.runs.attack_specs import named
from saddlepoint.runs.command import command
from saddlepoint.runs.game_spec import GameSpec, game_command
from saddlepoint.runs.options import Option
from saddlepoint.runs.spec import AttackSpec, RunSpec, parse

KINDS = {"audit": (RunSpec, audit_options, command), "game": (GameSpec, game_options, game_command)}
OPTIONS = [(kind, option) for kind, (_, load, _) in KINDS.items() for option in load()]
SAMPLES = {  # values that are not the default, where the type does not determine one
    "data.name": "my images.npz",
    "data.n": None,
    "data.root": "some folder",
    "threat.radius": "0.25",
    "threat.mask": "mask.npy",
    "threat.corruption": "fog:3",
    "attacks": (named("fgsm"), named("apgd-t")),
    "claim": 0.1234567,
    "device": "cuda:1",
}


def sample(option: Option) -> object:
    """A value of the field that is not its default."""
    if option.key in SAMPLES:
        return SAMPLES[option.key]
    if option.choices:
        return next(choice for choice in option.choices if choice != option.field.default)
    if option.is_switch:
        return not option.field.default
    return {int: 7, float: 0.25}[option.type]


def changed(spec: BaseModel, path: tuple[str, ...], value: object) -> BaseModel:
    """The specification with another value in one field."""
    first, *rest = path
    inner = changed(getattr(spec, first), tuple(rest), value) if rest else value
    return spec.model_copy(update={first: inner})


def parsed(kind: str, line: str, monkeypatch: pytest.MonkeyPatch) -> object:
    """The specification that a command line leads to; nothing is run."""
    found = []

    def capture(target, values):
        found.append(getattr(cli_options, f"{kind}_spec")(target, values))
        raise typer.Exit

    monkeypatch.setattr(f"saddlepoint.cli.{kind}.{kind}_spec", capture)
    result = call(*shlex.split(line)[1:])
    assert result.exit_code == 0, result.output
    return found[0]


@pytest.mark.parametrize(
    ("kind", "option"), OPTIONS, ids=[f"{kind} {option.name}" for kind, option in OPTIONS]
)
def test_a_value_survives_from_specification_to_command_line_and_back(kind, option, monkeypatch):
    model, _, write = KINDS[kind]
    value = sample(option)
    spec = changed(model(target="net.py:make"), option.path, value)
    assert value != option.field.default
    line = write(spec)
    assert option.name in shlex.split(line)
    assert parsed(kind, line, monkeypatch) == spec


@pytest.mark.parametrize("kind", KINDS)
def test_the_default_specification_survives(kind, monkeypatch):
    model, _, write = KINDS[kind]
    spec = model(target="zoo:digits-exits")
    assert parsed(kind, write(spec), monkeypatch) == spec


def fields(model: type[BaseModel], path: str = "") -> set[str]:
    found = set()
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found |= fields(kind, f"{path}{name}.")
        else:
            found.add(path + name)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_has_an_option_of_its_own(kind):
    model, load, _ = KINDS[kind]
    options = load()
    assert {option.key for option in options} == fields(model) - {"schema_version", "target"}
    assert len({option.name for option in options}) == len(options)


@pytest.mark.parametrize("kind", KINDS)
def test_the_help_page_shows_every_option_with_its_choices(kind, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    page = call(kind, "--help").stdout
    for option in KINDS[kind][1]():
        [line] = [line for line in page.splitlines() if f"│ {option.name} " in line]
        assert option.help in line
        assert option.help.endswith(".")
        assert "|".join(option.choices) in line


def test_the_choices_are_those_of_the_type():
    [order] = [option for option in audit_options() if option.name == "--order"]
    assert order.choices == get_args(
        RunSpec.model_fields["threat"].annotation.model_fields["order"].annotation
    )
    assert order.choices == ("natural", "by-label", "searched")


def test_the_radius_is_given_by_eps_and_the_visible_state_by_its_negation():
    names = {option.key: option.name for option in audit_options()}
    assert names["threat.radius"] == "--eps"
    assert names["threat.state_visible"] == "--hidden-state"
    assert names["threat.controlled_fraction"] == "--controlled-fraction"


def test_attacks_with_their_own_settings_have_no_option():
    spec = RunSpec(target="a:b", attacks=(AttackSpec(kind="pgd", name="pgd", steps=3),))
    assert command(spec) == "saddlepoint run spec.toml"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("audit a:b", {"data": {"n": 500}, "threat": {"radius": "8/255"}}),
        ("audit a:b --norm L2", {"threat": {"norm": "l2", "radius": "0.5"}}),
        ("audit a:b --norm l1", {"threat": {"norm": "l1", "radius": "12"}}),
        ("audit a:b --data x.npz", {"data": {"name": "x.npz", "n": "all"}}),
        ("audit a:b --data x.npz --n 3", {"data": {"name": "x.npz", "n": 3}}),
        ("audit a:b --n all", {"data": {"n": "all"}}),
    ],
)
def test_defaults_depend_on_the_norm_and_on_the_data(line, expected, monkeypatch):
    assert parsed("audit", f"saddlepoint {line}", monkeypatch) == parse(
        {"target": "a:b", **expected}
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_has_a_row_for_every_option(kind):
    head, rule, *rows = options_table(kind).splitlines()
    assert head.count("|") == rule.count("|") == 6
    assert [row.split("|")[1].strip() for row in rows] == [
        f"`{option.name}`" for option in KINDS[kind][1]()
    ]
    assert all(row.count("|") == 6 for row in rows)
