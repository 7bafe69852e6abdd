"""A fingerprint of the sources that the numbers of a record depend on.

A fingerprint covers the syntax trees of the modules that an experiment imports: readers of data,
attacks, gradients, defenses, evaluation, training and the experiment itself. Comments, docstrings
and formatting do not change it. How results are stored, formatted and shown is not part of it.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = "saddlepoint"
ROOT = Path(__file__).parents[1]
# Modules that no number of a record depends on: downloading data, loading models, storing,
# showing.
_UNRELATED = tuple(
    f"{PACKAGE}.{name}"
    for name in (
        "api",
        "atomic",
        "cli",
        "data.progress",
        "data.pull",
        "data.remote",
        "describe",
        "locate",
        "papers.charts",
        "papers.comparison",
        "papers.markdown",
        "papers.fingerprint",
        "papers.leaderboard",
        "papers.provenance",
        "papers.registry",
        "papers.result",
        "papers.runner",
        "papers.third_party",
        "papers.write",
        "phrases",
        "pytest_plugin",
        "reading",
        "reports",
        "runs",
        "schema",
        "selftests",
    )
)

_ABOUT_PAPERS = ("__init__", "published")


@dataclass(frozen=True)
class CodeVersion:
    """Which sources give the numbers of a record, and which small run belongs to them."""

    fingerprint: str  # of the sources whose numbers equal those of the record
    margins: str = ""  # digest of the mean margins under all attacks, finer than accuracies
    probe: str = ""  # digest of the experiment's values at scale tiny; empty: not run yet


def fingerprint(modules: Iterable[str], root: Path = ROOT) -> str:
    """Hash the sources of modules and of all modules of this package that they import.

    Args:
        modules: names of modules; those outside of this package are ignored.
        root: folder of the package; default: that of the running code.

    Returns:
        A hexadecimal digest of 16 digits.
    """
    state = hashlib.sha256()
    for name in sorted(imported_modules(modules, root)):
        state.update(f"{name} {_module(name, root)[0]}\n".encode())
    return state.hexdigest()[:16]


def imported_modules(modules: Iterable[str], root: Path = ROOT) -> frozenset[str]:
    """Return these modules and all that they import, directly or not, and that matter."""
    found = set[str]()
    left = [name for name in modules if _path(name, root) is not None]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left.extend(_module(name, root)[1])
    return frozenset(found)


def digest_of_margins(margins: Iterable[float]) -> str:
    """Hash mean margins, rounded to three digits: rounding errors must not change the hash."""
    return digest_of_values([f"{margin:.3g}" for margin in margins])


def digest_of_values(values: object) -> str:
    """Hash plain values, to compare two runs of one experiment; 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


@cache
def _module(name: str, root: Path) -> tuple[str, tuple[str, ...]]:
    """Return the digest of a module's syntax tree, and the modules that it imports."""
    path = _path(name, root)
    assert path is not None
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = tuple(dict.fromkeys(_imports(tree, root)))
    return hashlib.sha256(_canonical(tree).encode()).hexdigest(), imports


def _path(name: str, root: Path) -> Path | None:
    """Return the file of a module of this package; None if there is none."""
    if name != PACKAGE and not name.startswith(f"{PACKAGE}."):
        return None
    base = root.joinpath(*name.split(".")[1:])
    package = base / "__init__.py"
    if package.is_file():
        return package
    return base.with_suffix(".py") if base.with_suffix(".py").is_file() else None


def _imports(tree: ast.Module, root: Path) -> Iterator[str]:
    """Yield the modules of this package that are imported anywhere in a syntax tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if _path(name, root) else node.module for name in names]
        else:
            continue
        yield from (name for name in names if _path(name, root) and not _is_unrelated(name, root))


def _is_unrelated(name: str, root: Path) -> bool:
    """Whether no number depends on a module: titles and published numbers of papers do not."""
    papers = f"{PACKAGE}.papers"
    path = _path(name, root)
    if name == PACKAGE or (name.startswith(papers) and path and path.stem in _ABOUT_PAPERS):
        return True
    return any(name == one or name.startswith(f"{one}.") for one in _UNRELATED)


def _canonical(node: object) -> str:
    """Write a syntax tree without docstrings, positions and empty fields.

    Empty fields differ between versions of Python; `ast.dump` would therefore, too.
    """
    if isinstance(node, list):
        return f"[{','.join(_canonical(item) for item in node)}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = []
    for name, value in ast.iter_fields(node):
        kept = _without_docstring(node, value) if name == "body" else value
        if kept is not None and kept != []:
            fields.append(f"{name}={_canonical(kept)}")
    return f"{type(node).__name__}({','.join(fields)})"


def _without_docstring(node: ast.AST, body: object) -> object:
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    if isinstance(node, holders) and ast.get_docstring(node, clean=False) is not None:
        assert isinstance(body, list)
        return body[1:]
    return body
