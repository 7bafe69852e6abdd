"""The pages agree with the code: names, options, specifications and links."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from tests.test_architecture import ORDER

import saddlepoint as sp
from saddlepoint.audits.verdict import ItemName, Verdict
from saddlepoint.cli.options import options_table
from saddlepoint.reports.published import Published
from saddlepoint.runs.spec import parse

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "saddlepoint"
ARCHITECTURE = (DOCS / "architecture.md").read_text()
API = (DOCS / "api.md").read_text()
RUNS = (DOCS / "runs.md").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")])


def resolve(dotted: str) -> object:
    """The module, class, function or attribute with a full name.

    Raises:
        AttributeError: there is no such name.
    """
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for name in parts[count:]:
            found = getattr(found, name)
        return found
    raise AttributeError(f"no module {dotted}")


def quoted(text: str) -> list[str]:
    """All names between single backticks: identifiers, with or without dots."""
    return re.findall(r"(?<!`)`([A-Za-z_][\w.]*)`(?!`)", text)


def full_names(text: str) -> list[str]:
    return sorted({name for name in quoted(text) if name.startswith("saddlepoint.")})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_full_names_on_pages_exist(page: Path) -> None:
    if page.name != "CHANGELOG.md":  # it also lists old names
        for name in full_names(page.read_text()):
            resolve(name)


def test_new_names_in_the_changelog_exist() -> None:
    """Full names in the second column exist; a module there has the names of the first column."""
    text = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1]
    for old, new in re.findall(r"^\| (.*?) \| (.*?) \|$", text, re.MULTILINE):
        for name in full_names(new):
            found = resolve(name)
            moved = [one.removeprefix("sp.") for one in quoted(old) if one.startswith("sp.")]
            if isinstance(found, ModuleType):
                assert [one for one in moved if not hasattr(found, one)] == [], name


def test_short_names_on_the_architecture_page_exist_in_a_module_it_names() -> None:
    modules = {"saddlepoint.audits.pipeline"}
    for name in full_names(ARCHITECTURE):
        parts = name.split(".")
        if not isinstance(resolve(name), ModuleType):
            parts = parts[:-1]
            while not isinstance(resolve(".".join(parts)), ModuleType):
                parts = parts[:-1]
        modules.add(".".join(parts))
    loaded = [importlib.import_module(name) for name in sorted(modules)]
    unknown = []
    for name in quoted(ARCHITECTURE):
        first, _, attribute = name.partition(".")
        if first == "saddlepoint" or (SOURCE / first).is_dir():
            continue
        owners = [getattr(module, first) for module in loaded if hasattr(module, first)]
        if not owners or (attribute and not any(_has(owner, attribute) for owner in owners)):
            unknown.append(name)
    assert unknown == []


def _has(owner: object, attribute: str) -> bool:
    """Whether a class has an attribute or, as a dataclass, a field."""
    return hasattr(owner, attribute) or attribute in getattr(owner, "__annotations__", {})


def test_the_stages_on_the_architecture_page_are_those_of_the_pipeline() -> None:
    pipeline = importlib.import_module("saddlepoint.audits.pipeline")
    stages = re.findall(r"^    (\w+)  ", pipeline.__doc__ or "", re.MULTILINE)
    rows = re.findall(r"^\| (\w+) \| `(\w+)` \| `([\w.]+)` \|", ARCHITECTURE, re.MULTILINE)
    assert [stage for stage, _, _ in rows] == stages
    for _, function, module in rows:
        assert callable(resolve(f"{module}.{function}"))
    drawing = " -> ".join(stages)
    assert drawing in ARCHITECTURE


def test_the_tree_on_the_architecture_page_is_complete() -> None:
    tree = ARCHITECTURE.split("```")[1]
    listed = set(re.findall(r"(?:^  |   )([a-z]+(?:/|\.py))  ", tree, re.MULTILINE))
    packages = {f"{path.parent.name}/" for path in SOURCE.glob("*/__init__.py")}
    assert packages <= listed
    assert all((SOURCE / name).exists() for name in listed)


def test_the_import_order_on_the_architecture_page_is_the_tested_one() -> None:
    chain = re.search(r"`(rng → [^`]*)`", ARCHITECTURE)
    assert chain is not None
    assert re.split(r"\s*→\s*", chain[1]) == [layer for layer in ORDER if "." not in layer]


def test_the_architecture_page_is_short() -> None:
    assert len(ARCHITECTURE.splitlines()) < 120


def exported_groups() -> dict[str, set[str]]:
    """The public names by the comments of their groups in `saddlepoint/__init__.py`."""
    lines = (SOURCE / "__init__.py").read_text().splitlines()
    begin = lines.index("_EXPORTS = {")
    groups: dict[str, set[str]] = {}
    title = ""
    for line in lines[begin + 1 : lines.index("}", begin)]:
        if line.strip().startswith("# "):
            title = line.strip().removeprefix("# ").rstrip(".")
            groups[title] = set()
        else:
            names = re.findall(r'"(\w+)"', line.partition(":")[2] or line)
            groups[title].update(name for name in names if name in sp.__all__)
    return groups


def test_the_api_page_lists_all_public_names_in_their_groups() -> None:
    groups: dict[str, list[str]] = {}
    for section in API.split("\n## ")[1:]:
        title = section.splitlines()[0]
        groups[title] = re.findall(r"^\| `sp\.(\w+)` \| \S", section, re.MULTILINE)
    assert groups.pop("Everything else") == []
    assert sorted(name for names in groups.values() for name in names) == sp.__all__
    assert {title: set(names) for title, names in groups.items()} == exported_groups()


def test_the_api_page_describes_the_other_packages() -> None:
    rows = re.findall(r"^\| `saddlepoint\.(\w+)` \| (.*) \|$", API, re.MULTILINE)
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")} - {"cli"}
    assert {name for name, _ in rows} == packages | {"rng"}
    for package, content in rows:
        known = defined_names(package)
        for name in quoted(content):
            parts = name.removeprefix(f"{package}.").split(".")
            assert set(parts) <= known, f"{package} has no {name}"


def defined_names(package: str) -> set[str]:
    """The modules, classes and functions of a package."""
    path = SOURCE / package
    files = [*path.rglob("*.py")] if path.is_dir() else [path.with_suffix(".py")]
    names = {file.stem for file in files} | {file.parent.name for file in files}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                names.add(node.name)
    return names


def test_the_table_of_options_is_made_from_the_specification() -> None:
    begin = "<!-- options of `saddlepoint audit`: begin -->\n"
    end = "<!-- options of `saddlepoint audit`: end -->"
    table = RUNS.partition(begin)[2].partition(end)[0]
    assert table == options_table("audit"), "paste the output of options_table('audit')"


def test_specifications_on_the_page_about_runs_are_valid() -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```", RUNS, re.MULTILINE | re.DOTALL)
    specification, published = (tomllib.loads(block) for block in blocks)
    assert parse(specification).target == "net.py:make"
    assert Published.parse(published, "published.toml").claimed == 0.62


def test_the_page_about_verdicts_lists_all_items_and_verdicts() -> None:
    page = (DOCS / "verdict.md").read_text()
    rows = re.findall(r"^\| ([^|]+?) \| ", page.split("## The checklist")[1], re.MULTILINE)
    assert rows[1 : 1 + len(ItemName)] == [item.value for item in ItemName]
    assert re.findall(r"^\| \*(\w+)\* \|", page, re.MULTILINE) == [v.value for v in Verdict]


@pytest.mark.parametrize(
    "page", [*PAGES, *sorted((DOCS / "results").glob("*.md"))], ids=lambda page: page.name
)
def test_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text())
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert missing == []


def test_every_name_of_an_attack_that_audits_run_is_explained() -> None:
    page = (DOCS / "reading-a-report.md").read_text().partition("## Names of attacks")[2]
    explained = set(re.findall(r"`([a-z]+(?:-[a-z]+)*)", page))
    audits = SOURCE / "audits"
    sources = [*(audits / "planning").glob("*.py"), *(audits / "remedies").glob("*.py")]
    kinds = "apgd|pgd|fab|fmn|square|rays|levels|rows|evolution|gmsa|fixed-point|retrained"
    found = {
        name
        for file in sources
        for name in re.findall(rf'"((?:{kinds})(?:-[a-z]+)*)"', file.read_text())
    }
    assert len(found) > 25
    known = {name for name in found if name.removesuffix("-longer") in explained}
    assert found - known == set()
