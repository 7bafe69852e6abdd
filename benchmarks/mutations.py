"""Any change of any file of a run, and any command line, gives a known exit code.

    python -m benchmarks.mutations --out benchmarks/records/mutations.json

Files of a small audit, of the same audit with compacted cells and of a small game are changed one
at a time: a field of a JSON file is replaced by another value or removed (mostly with a new seal),
or bytes are replaced, inserted or cut off, also those of a file in an archive. A command then reads
the folder, and one in fifty changed runs is also verified. Command lines are random sequences of
commands, options and values, without those that would run something.
Every command must end with exit code 0, 1 or 2 and without a traceback. tests/cli/test_mutations.py
runs a small sample of the same cases.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.cli.commands import call
from tests.runs.runs import TARGETS

from saddlepoint.cli.errors import is_mistake
from saddlepoint.games.reports.verify import game_checks
from saddlepoint.reports.verify import audit_checks
from saddlepoint.runs.packed_cell import sealed
from saddlepoint.runs.replay import NO_REPLAY
from saddlepoint.runs.store import Store, versions

VALUES = (
    None, True, False, 0, -1, 1, 10**30, 0.5, -1e300, float("inf"), float("nan"), "", "x", "\0",
    "\x1b[31m", "a" * 64, "../..", [], {}, [[]], [None], {"": None}, {"a": {"b": [1]}}, [1, 2, 3],
)  # fmt: skip
FILES = {
    "audit": ("run.json", "audit.json", "ledger.jsonl", "manifest.json", "spec.toml",
              "published.toml", "points.safetensors", "cells", "diagnostics"),
    "compacted": ("cells.zip", "diagnostics/cells.zip"),
    "game": ("run.json", "game.json", "ledger.jsonl", "game.safetensors", "cells"),
}  # fmt: skip
COMMANDS = (
    ("runs", "list", "."), ("runs", "show", "run", "--cells"), ("runs", "gc", "run"),
    ("runs", "export", "run", "--json"), ("runs", "export", "run", "--per", "example"),
    ("runs", "export", "run", "--format", "card"), ("report", "run"),
)  # fmt: skip
WEIGHTS = (4, 4, 4, 4, 2, 2, 1)  # a report takes longest
SLOW = 50  # one in as many cases also verifies the run, in this process
KINDS = ("audit", "compacted", "game")


def original(kind: str, folder: Path) -> Path:
    """A small run of an audit, also with compacted cells, or of a game."""
    common = ("--data", "digits", "--eps", "0.05", "--allow-unusual", "--quiet", "--out", folder)
    if kind != "game":
        words = ("audit", f"{TARGETS}:linear", "--n", "2", "--attacks", "fgsm")
    else:
        words = ("game", f"{TARGETS}:halves", "--n", "4", "--attack", "fgsm")
    assert call(*words, *common).exit_code == 0
    if kind == "compacted":
        assert call("runs", "compact", folder).exit_code == 0
    (folder / "published.toml").write_text('claimed = 0.5\nsource = "a paper"\n')
    return folder


def places(value: object, place: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """All fields of a JSON value."""
    found = [place]
    if isinstance(value, dict):
        for key, inner in value.items():
            found += places(inner, (*place, key))
    elif isinstance(value, list):
        for k, inner in enumerate(value[:3]):
            found += places(inner, (*place, k))
    return found


def changed_json(text: str, rng: random.Random) -> str:
    """The text with one field replaced or removed."""
    record = json.loads(text)
    *outer, last = rng.choice(places(record)[1:])
    inner = record
    for part in outer:
        inner = inner[part]
    if rng.random() < 0.2:
        del inner[last]
    else:
        inner[last] = rng.choice(VALUES)
    if "seal" in record and isinstance(record, dict) and rng.random() < 0.7:
        del record["seal"]
        return sealed(record).decode()
    return json.dumps(record)


def changed_bytes(content: bytes, rng: random.Random) -> bytes:
    """The bytes with some replaced, removed or inserted."""
    kind = rng.randrange(4)
    place = rng.randrange(max(len(content), 1))
    noise = rng.randbytes(rng.choice((1, 8)))
    if kind == 0:
        return content[:place]
    if kind == 1:
        return content[:place] + noise + content[place:]
    if kind == 2:
        return rng.choice((b"", b"\0", b"[]", b"null", b"1", b'"x"', b"\xff\xfe", b"{" * 3000))
    return content[:place] + noise + content[place + len(noise) :]


def changed_archive(path: Path, rng: random.Random) -> None:
    """Change the bytes of one file in an archive."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    changed = rng.choice(sorted(contents))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, changed_bytes(content, rng) if name == changed else content)


def mutate(run: Path, name: str, rng: random.Random) -> Path:
    """Change one file of a kind; returns it."""
    path = run / name
    if name in ("cells", "diagnostics"):
        folder = run / "cells" if name == "cells" else run / "diagnostics" / "cells"
        path = rng.choice(sorted(folder.iterdir()))
    if path.suffix == ".zip" and rng.random() < 0.5:
        changed_archive(path, rng)
        return path
    is_json = path.suffix in (".json", ".jsonl")
    if not is_json or rng.random() < 0.2:
        path.write_bytes(changed_bytes(path.read_bytes(), rng))
    elif path.suffix == ".jsonl":
        lines = path.read_text().splitlines()
        k = rng.randrange(len(lines))
        lines[k] = changed_json(lines[k], rng)
        path.write_text("\n".join(lines) + "\n")
    else:
        path.write_text(changed_json(path.read_text(), rng))
    return path


class Case(NamedTuple):
    """A command, what was done before it, and how it ended."""

    place: str  # the file that was changed, or "command line"
    words: tuple[str, ...]
    exit_code: int
    traceback: str  # the end of the output if there was a traceback, or another exit code
    verified: str = ""  # how a verification ended, if there was one


def changed_files(kind: str, before: Path, number: int, seed: str) -> Iterator[Case]:
    """Change files of a run in the current folder, one after the other.

    Args:
        kind: audit, compacted or game.
        before: the run that is copied.
        number: of changes; every kind of file is changed as often.
        seed: of the changes.
    """
    rng = random.Random(seed)
    run = Path("run")
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(before, run)
    for k in range(number):
        name = FILES[kind][k % len(FILES[kind])]
        path = mutate(run, name, rng)
        words = rng.choices(COMMANDS, WEIGHTS)[0]
        result = call(*words)
        verified = _verified(run, kind) if k % SLOW == 0 else ""
        yield Case(f"{kind}: {name}", words, result.exit_code, _traceback(result), verified)
        _restore(before, run, path)


def command_lines(number: int, seed: int) -> Iterator[Case]:
    """Random command lines, without those that would run something."""
    rng = random.Random(seed)
    done = 0
    while done < number:
        words = [rng.choice(WORDS) for _ in range(rng.randint(1, 7))]
        if words[0] in ("audit", "probe", "game"):
            words.insert(1, rng.choice(HARMLESS))
        if words[:2] in (["zoo", "--"], ["view", ".."], ["view", "-"]):
            continue
        done += 1
        result = call(*words)
        yield Case("command line", tuple(words), result.exit_code, _traceback(result))


def _traceback(result: Any) -> str:
    """Empty if a command ended as it should."""
    if result.exit_code in (0, 1, 2) and isinstance(result.exception, SystemExit | None):
        return ""
    return f"{result.exit_code} {result.exception!r} {result.output[-2000:]}"


def _restore(original: Path, run: Path, changed: Path) -> None:
    """Undo a change, and what commands did because of it."""
    before = {path.relative_to(original) for path in original.rglob("*") if path.is_file()}
    for path in [path for path in run.rglob("*") if path.is_file()]:
        if path.relative_to(run) not in before:
            path.unlink()
    for name in before:
        if not (run / name).is_file() or (run / name) == changed or name.name == "report.html":
            shutil.copyfile(original / name, run / name)
    shutil.copyfile(original / "manifest.json", run / "manifest.json")


def _verified(run: Path, kind: str) -> str:
    """How a verification in this process ends: ok, differs, mistake, or a traceback."""
    checks = game_checks if kind == "game" else audit_checks
    try:
        found = list(checks(Store(run), NO_REPLAY))
    except Exception as error:
        return "mistake" if is_mistake(error) else f"traceback: {error!r}"
    return "ok" if all(check.passed for check in found) else "differs"


WORDS = (
    "audit", "run", "probe", "game", "runs", "list", "show", "verify", "export", "gc", "report",
    "view", "zoo", "data", "--eps", "--norm", "--n", "--data", "--budget", "--seed", "--threads",
    "--batch-size", "--replay", "--sign", "--timeout", "--workers", "--executor", "--address",
    "--out", "--json", "--dry-run", "--attacks", "linf", "8/255", "1e300", "-1", "nan", "all", "0",
    "quick", "nowhere.py:make", "zoo:nothing", "nowhere", "", "\x1b[2J", "100000", "serial", "ray",
    "no:such:target", "zoo:", ":", "mnist.npz", "..", "--port", "70000", "é", "\udce9", "-", "--",
)  # fmt: skip
HARMLESS = ("zoo:nothing", "nowhere.py:make", "zoo:", ":", "")  # targets that do not exist


def main() -> None:
    """Run all cases and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--files", type=int, default=2000, help="changes of files")
    parser.add_argument("--lines", type=int, default=600, help="command lines")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/records/mutations.json"))
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    cases: list[Case] = []
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        for kind, part in zip(KINDS, (5 / 8, 1 / 8, 1 / 4), strict=True):
            before = original(kind, Path(place) / f"original-{kind}")
            number = round(arguments.files * part)
            cases += changed_files(kind, before, number, f"{kind} {arguments.seed}")
            print(f"{len(cases)} cases, {sum(bool(one.traceback) for one in cases)} tracebacks")
        cases += command_lines(arguments.lines, arguments.seed)
        os.chdir(out.parent)
    record = _record(arguments, cases)
    out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record["tracebacks"], indent=1))
    raise SystemExit(bool(record["tracebacks"]))


def _record(arguments: argparse.Namespace, cases: list[Case]) -> dict[str, Any]:
    places = sorted({case.place for case in cases})
    codes = {
        place: dict(sorted(Counter(c.exit_code for c in cases if c.place == place).items()))
        for place in places
    }
    wrong = [case for case in cases if case.traceback or case.verified.startswith("traceback")]
    return {
        "command": f"python -m benchmarks.mutations --files {arguments.files} "
        f"--lines {arguments.lines} --seed {arguments.seed}",
        "versions": versions(),
        "changed_files": sum(case.place != "command line" for case in cases),
        "command_lines": sum(case.place == "command line" for case in cases),
        "verified": dict(Counter(case.verified for case in cases if case.verified)),
        "exit_codes": codes,
        "tracebacks": [case._asdict() for case in wrong],
    }


if __name__ == "__main__":
    main()
