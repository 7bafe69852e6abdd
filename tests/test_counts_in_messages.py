"""Messages show counts and percentages through `saddlepoint.phrases`, so that `1 images` cannot be.

A number in an f-string that is followed by a plural noun, or by a percent sign, is found and
rejected. Pages of the papers are excluded: their tables are published, and their counts are fixed.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from saddlepoint import phrases

ROOT = Path(__file__).parent.parent / "src" / "saddlepoint"
FILES = [
    file
    for file in sorted(ROOT.rglob("*.py"))
    if file != ROOT / "phrases.py" and ROOT / "papers" not in file.parents
]

NOUNS = [
    "actions",
    "adversaries",
    "attacks",
    "audits",
    "batches",
    "branches",
    "bytes",
    "cells",
    "checks",
    "classes",
    "columns",
    "copies",
    "cores",
    "diagnostics",
    "dimensions",
    "draws",
    "entries",
    "epochs",
    "examples",
    "exits",
    "files",
    "groups",
    "images",
    "inputs",
    "integers",
    "items",
    "labels",
    "layers",
    "locks",
    "models",
    "neighbors",
    "networks",
    "nets",
    "operations",
    "orders",
    "outputs",
    "parts",
    "passes",
    "points",
    "predictions",
    "probabilities",
    "queries",
    "records",
    "rounds",
    "rows",
    "runs",
    "sites",
    "starts",
    "states",
    "steps",
    "strategies",
    "streams",
    "subsets",
    "targets",
    "threads",
    "times",
    "units",
    "views",
    "weights",
    "workers",
]
NOT_ADJECTIVES = "and by for from in need needs of on or per than the to with"
BETWEEN = rf"(?:(?!(?:{NOT_ADJECTIVES.replace(' ', '|')})\b)[a-z-]+ )?"
AFTER = re.compile(rf" (?:%|{BETWEEN}(?:{'|'.join(NOUNS)})\b)")

# Texts, not numbers; and numbers that are never 1.
ALLOWED = {
    "{name} images": "clean or attacked",
    "{verb} clean images": "a verb",
    "{split} images": "train or test",
    "{self.victims} rows": "all or benign",
    "{min(unknown)} labels": "the name of a class, and a verb",
    "{self.name} draws": "a name and a verb",
    "{self.name} attacks exits": "a name and a verb",
    "{name} outputs": "a name and a verb",
    "{name} proposed points": "a name and a verb",
    "{line.truth} %": "an interval",
    "{percent} %": "a tick of an axis",
    "{backward} backward passes": "a mean with one decimal",
    "{100 * TOLERANCE:} points": "a constant",
    "{whole(passed)} applicable items": "more than one; see agree",
    "{len(channels) - 1} times": "at least two resolutions",
}


def numbers_before_nouns(source):
    """Every placeholder of an f-string with the plural noun or percent sign after it."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, text in zip(node.values, node.values[1:], strict=False):
            if not isinstance(value, ast.FormattedValue) or not isinstance(text, ast.Constant):
                continue
            match = AFTER.match(text.value)
            if match and not _is_phrase(value.value):
                spec = ":" if value.format_spec is not None else ""
                found.append(f"{{{ast.unparse(value.value)}{spec}}}{match[0]}")
    return found


def _is_phrase(value):
    """A call of `phrases`, which gives a whole text such as `is` or `45.3 %`."""
    if not isinstance(value, ast.Call):
        return False
    function = value.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    bare_number = name in ("whole", "number", "signed", "cosine", "radius")
    return (hasattr(phrases, name) and not bare_number) or name == "percent_of"


def test_counts_and_percentages_are_rendered_by_phrases():
    wrong = {}
    for file in FILES:
        found = [one for one in numbers_before_nouns(file.read_text()) if one not in ALLOWED]
        if found:
            wrong[str(file.relative_to(ROOT))] = found
    assert wrong == {}


def test_every_exception_is_used():
    used = {one for file in FILES for one in numbers_before_nouns(file.read_text())}
    assert set(ALLOWED) - used == set()


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('f"{n} images"', 1),
        ('f"on {k} of {n} images"', 1),
        ('f"{len(rows)} clean images"', 1),
        ('f"{100 * share:.1f} % of images"', 1),
        ('f"{cost:.1f} times"', 1),
        ("f\"{count(n, 'image')} of them\"", 0),
        ('f"{name} is an image"', 0),
        ('f"{percent(share)} of images"', 0),
        ('"{n} images"', 0),
    ],
)
def test_a_number_before_a_plural_is_found(source, count):
    assert len(numbers_before_nouns(source)) == count
