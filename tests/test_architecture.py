"""The shape of the package: import layers, layout of code, names and words."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import saddlepoint as sp

REPOSITORY = Path(__file__).parent.parent
ROOT = REPOSITORY / "src" / "saddlepoint"
FILES = sorted(ROOT.rglob("*.py"))

# Imports point to the left in this order.
ORDER = (
    "rng",
    "solvers",
    "gradients",
    "defenses",
    "attacks",
    "evaluation",
    "games",
    "audits",
    "runs",
    "games.runs",
    "reports",
    "games.reports",
    "api",
    "pytest_plugin",
    "selftests",
    "papers",
    "cli",
)
# Leaves import nothing of the package but other leaves and what is listed here.
LEAVES = {
    "atomic": (),
    "describe": (),
    "engine": (),
    "locate": (),
    "passes": (),
    "phrases": (),
    "reading": (),
    "schema": (),
    "tensor_files": (),
    "data": ("rng",),
    "zoo.nets": (),
}
# Packages beside the chain: the last layer of the chain that they may import, and other packages.
BESIDE = {
    "training": ("evaluation", ()),
    "zoo": ("evaluation", ("training",)),
}
# Layers of the chain that may also import packages beside it.
ALSO = {
    "runs": ("zoo",),  # a specification may name an embedded model
    "games.runs": ("zoo",),
    "api": ("zoo",),
    "selftests": ("zoo",),
    "papers": ("zoo", "training"),
    "cli": ("zoo", "training"),
}


def layer_of(module: str) -> str:
    """The layer of a module: `saddlepoint.games.runs.play` -> `games.runs`."""
    parts = module.split(".")[1:]
    if not parts or parts[0] == "__main__":
        return "cli"
    known = {*ORDER, *LEAVES, *BESIDE}
    nested = ".".join(parts[:2])
    return nested if nested in known else parts[0]


def allowed(layer: str) -> set[str]:
    """The layers that a layer may import."""
    if layer in LEAVES:
        return {layer, *LEAVES, *LEAVES[layer]}
    if layer in BESIDE:
        last, others = BESIDE[layer]
        return {layer, *LEAVES, *others, *ORDER[: ORDER.index(last) + 1]}
    return {*LEAVES, *ORDER[: ORDER.index(layer) + 1], *ALSO.get(layer, ())}


def module_of(file: Path, root: Path) -> str:
    parts = ["saddlepoint", *file.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(file: Path) -> list[str]:
    """All modules of the package that a file imports, at the top or inside functions."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: use absolute imports"
            module = node.module or ""
            if module == "saddlepoint":
                found += [f"saddlepoint.{alias.name}" for alias in node.names]
            else:
                found.append(module)
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return [name for name in found if name.split(".")[0] == "saddlepoint"]


def wrong_imports(files: list[Path], root: Path) -> list[str]:
    wrong = []
    for file in files:
        own = layer_of(module_of(file, root))
        for name in imported(file):
            other = layer_of(name)
            if other not in allowed(own):
                wrong.append(f"{file.relative_to(root)} ({own}) imports {name} ({other})")
    return wrong


def test_imports_follow_the_layers() -> None:
    assert wrong_imports([f for f in FILES if f != ROOT / "__init__.py"], ROOT) == []


def test_a_wrong_import_is_found(tmp_path: Path) -> None:
    cases = {
        "attacks/pgd.py": ("from saddlepoint.evaluation import play", 1),
        "attacks/apgd.py": ("from saddlepoint.rng import Keys\nimport saddlepoint.defenses", 0),
        "data/mnist.py": ("from saddlepoint.attacks.pgd import PGD", 1),
        "zoo/deq.py": ("from saddlepoint.zoo.nets.wide import Wide", 0),
        "zoo/nets/wide.py": ("from saddlepoint.zoo.deq import DEQ", 1),
        "training/fit.py": ("from saddlepoint.zoo import load", 1),
        "audits/result.py": ("def f():\n    from saddlepoint.reports import html", 1),
        "audits/bounds.py": ("from saddlepoint.zoo.deq import DEQ", 1),
        "runs/verify.py": ("from saddlepoint.games.runs import verify", 1),
        "games/runs/verify.py": ("from saddlepoint.runs.store import Store", 0),
        "reports/papers.py": ("from saddlepoint.papers import EXPERIMENTS", 1),
        "cli/run.py": ("from saddlepoint.zoo import deq\nfrom saddlepoint.reports import html", 0),
    }
    for name, (text, count) in cases.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        assert len(wrong_imports([file], tmp_path)) == count, name


def _layout_problems(file: Path) -> list[str]:
    text = file.read_text()
    lines = text.splitlines()
    tree = ast.parse(text)
    found = []
    if len(lines) > 400:
        found.append(f"{len(lines)} lines; at most 400")
    if file.name != "__init__.py" and "from __future__ import annotations" not in lines:
        found.append("no `from __future__ import annotations`")
    if not ast.get_docstring(tree):
        found.append("no docstring of the module")
    if {"utils", "misc", "common", "helpers"} & {*file.with_suffix("").parts}:
        found.append("a name that says nothing")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and _code_lines(node) > 60:
            found.append(f"line {node.lineno}: {node.name} is longer than 60 lines")
        if isinstance(node, ast.IfExp) and isinstance(node.orelse, ast.IfExp):
            found.append(f"line {node.lineno}: a chain of conditional expressions")
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            values = isinstance(node.value, ast.Tuple)
            if values and not _swaps(node):
                found.append(f"line {node.lineno}: several assignments in one statement")
    return [f"{file.relative_to(REPOSITORY)}: {problem}" for problem in found]


def _code_lines(function: ast.FunctionDef) -> int:
    """The length of a function without its docstring."""
    length = (function.end_lineno or 0) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function):
        length -= (first.end_lineno or 0) - first.lineno + 1
    return length


def _swaps(node: ast.Assign) -> bool:
    """Whether a tuple assignment reads a name that it assigns, as a swap does."""
    assigned = {ast.unparse(name) for name in ast.walk(node.targets[0]) if _is_place(name)}
    read = {ast.unparse(name) for name in ast.walk(node.value) if _is_place(name)}
    return bool(assigned & read)


def _is_place(node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.Attribute)


def test_every_file_keeps_the_layout_rules() -> None:
    assert [problem for file in FILES for problem in _layout_problems(file)] == []


def test_exported_names_exist_and_are_documented() -> None:
    assert len(sp.__all__) <= 45
    stub = (ROOT / "__init__.pyi").read_text()
    assert sorted(re.findall(r" as (\w+)$", stub, flags=re.M)) == sorted(sp.__all__)
    for name in sp.__all__:
        assert (getattr(sp, name).__doc__ or "").strip(), name
    for file in FILES:
        if file.name == "__init__.py" and "__all__ =" in file.read_text() and file.parent != ROOT:
            module = importlib.import_module(module_of(file, ROOT))
            assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_no_file_imports_scipy_stats() -> None:
    """Its import takes half a second; the functions of `scipy.special` are enough."""
    found = re.compile(r"^\s*(?:from|import) scipy\.stats\b|from scipy import .*\bstats\b", re.M)
    assert [file.name for file in FILES if found.search(file.read_text())] == []
