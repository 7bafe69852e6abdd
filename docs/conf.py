"""Sphinx configuration: `make docs` builds the site in site/docs, offline, warnings as errors."""

from __future__ import annotations

import re
from pathlib import Path

import typer
from sphinx.application import Sphinx
from typer.cli import get_docs_for_click

import saddlepoint
from saddlepoint.cli import app as cli

project = "saddlepoint"
copyright = "the saddlepoint maintainers"  # noqa: A001
version = release = "0.2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_generated/README.md"]
html_theme = "furo"
html_title = "saddlepoint"
myst_heading_anchors = 4
autodoc_typehints = "none"
autodoc_member_order = "bysource"
# Links from pages to files of the repository that are not pages of the site.
suppress_warnings = ["myst.xref_missing"]

GENERATED = Path(__file__).parent / "_generated"


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


def escape(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Escape formulas of docstrings, which are plain text and not reStructuredText."""
    for k, line in enumerate(lines):
        bullet = re.match(r"\s*\* ", line)
        start = bullet.end() if bullet else 0
        lines[k] = line[:start] + re.sub(r"([|*\\])", r"\\\1", line[start:])
        lines[k] = re.sub(r"(?<=\w)_(?=\W|$)", r"\\_", lines[k])


def setup(app: Sphinx) -> None:
    """Connect both steps; docstrings are escaped before napoleon reads their sections."""
    app.connect("builder-inited", write_references)
    app.connect("autodoc-process-docstring", escape, priority=100)
