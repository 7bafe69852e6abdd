"""The numbers on the page docs/games.md are those of the record that it names."""

from __future__ import annotations

from pathlib import Path

from saddlepoint.games.runs.record import read
from saddlepoint.runs.game_spec import GameSpec, game_command
from saddlepoint.zoo import entry

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "games.md").read_text()
RECORD = ROOT / "benchmarks" / "records" / "game-digits-exits.json"


def with_interval(estimate: dict[str, float], sign: str = "") -> str:
    """`51.2 (48.0 to 54.4)`, in percent; `sign` is "+" for differences."""
    low = f"{100 * estimate['low']:{sign}.1f}"
    high = f"{100 * estimate['high']:{sign}.1f}"
    return f"{100 * estimate['value']:{sign}.1f} ({low} to {high})"


def options(text: str) -> tuple[list[str], dict[str, str]]:
    """The first words of a command line, and its options in any order."""
    words = text.split()
    return words[:3], dict(zip(words[3::2], words[4::2], strict=True))


def test_every_line_of_the_table_is_in_the_record():
    record = read(RECORD)  # checks its seal
    attackers = ("aimer", "expected_loss", "per_image")
    for strategy in record["strategies"]:
        estimates = " | ".join(with_interval(strategy[name]) for name in attackers)
        clean = f"{100 * strategy['clean']['value']:.1f}"
        value = f"{100 * strategy['restricted']:.1f}"
        assert f"| {strategy['name']} | {clean} | {value} | {estimates} |" in PAGE
    gains = record["gains"]
    gain = record["value"]["value"] - record["pure_value"]
    estimates = " | ".join(with_interval(gains[name], "+") for name in attackers)
    clean = f"{100 * gains['clean']['value']:+.1f}"
    assert f"paired | {clean} | {100 * gain:+.1f} | {estimates} |" in PAGE
    assert f"In {record['beaten']} of {record['matched']} columns a mismatched row" in PAGE


def test_the_record_is_of_the_command_on_the_page_and_of_the_embedded_net():
    record = read(RECORD)
    spec = GameSpec.model_validate(record["spec"])
    assert options(game_command(spec)) == options(record["command"])
    assert "saddlepoint game zoo:digits-exits --eps 0.15" in PAGE
    assert (spec.target, spec.threat.eps, spec.data.n, spec.seed, spec.attack) == (
        "zoo:digits-exits",
        "0.15",
        500,
        0,
        "pgd-20",
    )
    assert entry("digits-exits").check.radius == 0.15
