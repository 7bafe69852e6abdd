"""The shape of the package: imports point left, names say what is inside, what is exported exists."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "saddlepoint"
FILES = sorted(ROOT.rglob("*.py"))

ORDER = (
    "coins",
    "gradients",
    "defense",
    "attack",
    "game",
    "auditing",
    "run",
    "selftesting",
    "report",
    "papers",
    "cli",
)
LEAVES = (
    "data",
    "describe",
    "engine",
    "locate",
    "schema",
    "solving",
    "zoo.nets",
)  # anybody may import them; they import nothing of ours but leaves
# Stand beside the chain: may import leaves and the chain up to here.
BESIDE = {"zoo": "game", "train": "game", "zoo.transductive": "game", "zoo.embedded": "game"}
FRONT = (
    "papers",
    "cli",
)  # may import everything, and so may the package's own __init__ and __main__
UP_TO = {
    **{name: set(ORDER[: k + 1]) | set(LEAVES) for k, name in enumerate(ORDER)},
    **{name: set(LEAVES) for name in LEAVES},
    **{
        name: set(ORDER[: ORDER.index(last) + 1]) | set(LEAVES) | {name}
        for name, last in BESIDE.items()
    },
}
for front in FRONT:
    UP_TO[front] |= set(BESIDE) | set(ORDER)
UP_TO["run"] |= {"zoo"}  # a specification may name an embedded model
UP_TO["train"] |= {"zoo"}  # a recipe may rebuild one
UP_TO["zoo.transductive"] |= {
    "zoo",
    "train",
}  # what learns at test time is trained by the same pieces
UP_TO["zoo.embedded"] |= {
    "zoo",
    "train",
    "zoo.transductive",
}  # defenses by name, those that learn at test time among them
UP_TO["data"] |= {"coins"}  # what is done to images at random tosses them

# (importing file, imported layer): why. An exception must be an import inside a function.
EXCEPTIONS: dict[tuple[str, str], str] = {
    (
        "auditing",
        "run",
    ): "`Audit.verify` has itself checked by the layer that keeps runs; imported only when asked",
    (
        "auditing",
        "report",
    ): "`Audit.to_html` writes the page about itself; report reads audits and is imported only when asked",
    (
        "zoo",
        "zoo.embedded",
    ): "`zoo.target` makes any defense by its name; some are made of the training loop, which knows the zoo",
}


def layer(module: str) -> str:
    """The layer of a module of ours: `saddlepoint.zoo.nets.wide` -> `zoo.nets`; the package itself is `cli`, which sees all."""
    parts = module.split(".")[1:]
    if not parts or parts == ["__main__"]:
        return "cli"
    return next(
        (
            inner
            for inner in (*LEAVES, *BESIDE)
            if "." in inner and ".".join(parts).startswith(inner)
        ),
        parts[0],
    )


def module(file: Path) -> str:
    parts = ["saddlepoint", *file.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(file: Path) -> list[tuple[str, bool]]:
    """(module of ours, inside a function?) for every import of the file."""
    tree = ast.parse(file.read_text())
    inner = {id(n) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for n in ast.walk(f)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: write imports of ours in full"
            # `from saddlepoint import attack` imports a layer, `from saddlepoint.attacks import PGD` a name of one.
            names = (
                [f"saddlepoint.{a.name}" for a in node.names]
                if node.module == "saddlepoint"
                else [node.module or ""]
            )
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        else:
            continue
        found += [
            (name, id(node) in inner) for name in names if name.split(".")[0] == "saddlepoint"
        ]
    return found


def complaints(file: Path) -> list[str]:
    own = layer(module(file))
    wrong = []
    for name, inside in imports(file):
        other = layer(name)
        allowed = other in UP_TO.get(own, set()) or ((own, other) in EXCEPTIONS and inside)
        if not allowed:
            wrong.append(f"{file.relative_to(ROOT)} ({own}) imports {name} ({other})")
    return wrong


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_imports_point_left(file: Path) -> None:
    assert layer(module(file)) in UP_TO, (
        f"{file.relative_to(ROOT)} belongs to no layer: add it to the order above"
    )
    assert complaints(file) == []


def test_the_rule_sees_what_it_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("test_layers.ROOT", tmp_path)
    cases = {
        "attack/pgd.py": ("from saddlepoint.evaluation import play", 1),
        "attack/apgd.py": ("from saddlepoint.rng import Coins\nimport saddlepoint.defenses", 0),
        "data/mnist.py": ("from saddlepoint.attacks.pgd import PGD", 1),
        "zoo/deq.py": (
            "from saddlepoint.zoo.nets.wide import Wide\nfrom saddlepoint.attacks.pgd import PGD",
            0,
        ),
        "zoo/nets/wide.py": ("from saddlepoint.zoo.deq import DEQ", 1),
        "auditing/audit.py": ("from saddlepoint.reports import html", 1),
        "auditing/lazy.py": ("def f():\n    from saddlepoint.reports import html", 0),
        "game/lazy.py": ("def f():\n    from saddlepoint.reports import html", 1),
        "game/top.py": ("from saddlepoint import audit", 1),
        "papers/deq.py": (
            "from saddlepoint.training import fit\nfrom saddlepoint.runs.cached_play import kept\nimport saddlepoint.reports",
            0,
        ),
        "report/papers.py": ("from saddlepoint.papers import EXPERIMENTS", 1),
        "cli.py": ("from saddlepoint.zoo import deq\nfrom saddlepoint.reports import html", 0),
    }
    for name, (text, count) in cases.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        assert len(complaints(file)) == count, name


def test_every_exception_has_a_reason() -> None:
    assert all(len(reason.split()) > 5 for reason in EXCEPTIONS.values())


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_every_file_is_about_something_and_short_enough_to_read(file: Path) -> None:
    assert not {"utils", "misc", "common", "helpers"} & {
        part.lower() for part in file.relative_to(ROOT).with_suffix("").parts
    }
    lines = file.read_text().splitlines()
    assert len(lines) <= 400
    if file.name != "__init__.py":
        assert "from __future__ import annotations" in lines
        assert ast.get_docstring(ast.parse(file.read_text())), (
            f"{file.name} does not say what it is about"
        )
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 60, (
                f"{node.name} is too long to read at once"
            )


@pytest.mark.parametrize("name", [module(f) for f in FILES if "__all__ =" in f.read_text()])
def test_what_is_exported_exists(name: str) -> None:
    loaded = importlib.import_module(name)
    assert [export for export in loaded.__all__ if not hasattr(loaded, export)] == []
    assert list(loaded.__all__) == sorted(set(loaded.__all__), key=_natural)


def _natural(name: str) -> tuple[int, str]:
    """The order ruff keeps: CONSTANTS, then Classes, then functions."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name
