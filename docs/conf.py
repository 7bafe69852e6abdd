"""Sphinx configuration: `make docs` builds the site in site/docs, offline, warnings as errors."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import typer
from sphinx.application import Sphinx
from typer.cli import get_docs_for_click

import saddlepoint
from saddlepoint.cli import app as cli

project = "saddlepoint"
copyright = "the saddlepoint maintainers"  # noqa: A001
version = release = "0.2.0"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_generated/README.md"]
html_theme = "furo"
html_title = "saddlepoint"
myst_heading_anchors = 4
# Notebooks are stored without outputs: every build executes them, and an error ends the build.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 600  # seconds per cell
autodoc_typehints = "none"
autodoc_member_order = "bysource"

GENERATED = Path(__file__).parent / "_generated"
ROOT = Path(__file__).parents[1]
# Files of the repository that are pages of the site as well.
COPIED = ("CHANGELOG", "CODE_OF_CONDUCT", "CONTRIBUTING", "SECURITY")


def write_references(app: Sphinx) -> None:
    """Write the pages of the command line and of the Python interface from the code."""
    GENERATED.mkdir(exist_ok=True)
    command = typer.main.get_command(cli)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="saddlepoint")
    text = re.sub(r"\[/?(?:bold|dim|italic)\]", "", text)
    GENERATED.joinpath("cli.md").write_text(text.replace("# `saddlepoint`", "# Command line", 1))
    lines = ["# Python interface", "", "Everything that `import saddlepoint as sp` gives.", ""]
    for name in saddlepoint.__all__:
        found = getattr(saddlepoint, name)
        kind = "autoclass" if isinstance(found, type) else "autofunction"
        module = found.__module__
        target = f"{module}.{found.__qualname__}"
        lines += [f"## `{name}`", "", "```{eval-rst}", f".. {kind}:: {target}"]
        lines += ["   :members:"] if kind == "autoclass" else []
        lines += ["   :no-index:", "```", ""]
    GENERATED.joinpath("python.md").write_text("\n".join(lines))


def copy_pages(app: Sphinx) -> None:
    """Copy pages from the root of the repository; their links then start in docs/."""
    for name in COPIED:
        text = (ROOT / f"{name}.md").read_text().replace("](docs/", "](/")
        GENERATED.joinpath(f"{name}.md").write_text(_to_copies(text, ""))


def link_to_copies(app: Sphinx, docname: str, content: list[str]) -> None:
    """Let links to these files lead to their pages."""
    content[0] = _to_copies(content[0], r"(?:\.\./)+")


def _to_copies(text: str, folder: str) -> str:
    return re.sub(rf"\]\({folder}({'|'.join(COPIED)})\.md", r"](/_generated/\1.md", text)


def escape(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Escape formulas of docstrings, which are plain text and not reStructuredText."""
    for k, line in enumerate(lines):
        bullet = re.match(r"\s*\* ", line)
        start = bullet.end() if bullet else 0
        lines[k] = line[:start] + re.sub(r"([|*\\])", r"\\\1", line[start:])
        lines[k] = re.sub(r"(?<=\w)_(?=\W|$)", r"\\_", lines[k])


def copy_leaderboard(app: Sphinx, error: Exception | None) -> None:
    """Copy the leaderboard, a page of its own, to the site."""
    if error is None:
        shutil.copytree(
            Path(__file__).parent / "leaderboard",
            Path(app.outdir) / "leaderboard",
            dirs_exist_ok=True,
        )


def setup(app: Sphinx) -> None:
    """Connect all steps; docstrings are escaped before napoleon reads their sections."""
    app.connect("builder-inited", write_references)
    app.connect("builder-inited", copy_pages)
    app.connect("source-read", link_to_copies)
    app.connect("build-finished", copy_leaderboard)
    app.connect("autodoc-process-docstring", escape, priority=100)
