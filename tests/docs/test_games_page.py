"""The figures that docs/games.md tells are those of the record it names."""

from __future__ import annotations

from pathlib import Path

from saddlepoint.games.runs.record import read
from saddlepoint.games.runs.spec import GameSpec, command
from saddlepoint.zoo import entry

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "games.md").read_text()
RECORD = ROOT / "benchmarks" / "records" / "game-digits-exits.json"


def test_every_line_of_the_table_is_of_the_record():
    record = read(RECORD)  # which fits its seal

    def span(estimate: dict[str, float], sign: str = "") -> str:
        return f"{100 * estimate['value']:{sign}.1f} ({100 * estimate['low']:{sign}.1f} to {100 * estimate['high']:{sign}.1f})"

    for s in record["strategies"]:
        spans = " | ".join(span(s[name]) for name in ("aimer", "expected_loss", "per_image"))
        assert (
            f"| {s['name']} | {100 * s['clean']['value']:.1f} | {100 * s['restricted']:.1f} | {spans} |"
            in PAGE
        )
    gains = record["gains"]
    gain = record["value"]["value"] - record["pure_value"]
    spans = " | ".join(span(gains[name], "+") for name in ("aimer", "expected_loss", "per_image"))
    assert f"paired | {100 * gains['clean']['value']:+.1f} | {100 * gain:+.1f} | {spans} |" in PAGE
    assert f"In {record['beaten']} of {record['matched']} columns a mismatched row" in PAGE


def test_the_record_is_of_the_command_on_the_page_and_of_the_embedded_net():
    record = read(RECORD)
    spec = GameSpec.model_validate(record["spec"])
    assert command(spec) == record["command"]
    asked = "saddlepoint game zoo:digits-exits --eps 0.15"
    assert asked in PAGE
    assert (spec.target, spec.threat.eps, spec.data.n, spec.seed, spec.attack) == (
        "zoo:digits-exits",
        "0.15",
        500,
        0,
        "pgd-20",
    )
    assert entry("digits-exits").measured.radius == 0.15
