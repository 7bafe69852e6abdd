"""The page about models that were written without a look at the code of the audit.

    python -m benchmarks.unseen_page benchmarks/records/unseen docs/results/unseen.md

Each record in the folder is one round of models. A model has a robust accuracy that was found by
hand, with full knowledge of its mechanism, and the result of `sp.audit` with the budget `standard`
and seed 0 when the audit first saw it. Where a failure led to a change of the audit, the record
also has the result after the change.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TOLERANCE = 0.0201  # two points
_INTRO = """# Models that the audit had not seen

Each round has new dynamic models, written as ordinary modules without a look at the code of the
audit, and a few ordinary nets. The *truth* is the lowest accuracy under attacks that were made by
hand for each mechanism; it is an upper bound, since a stronger attack may exist. The audit ran with
the budget `standard` and seed 0, at the state of the code when it first saw the model. A result is
*right* if it is at most two points above the truth. *Now* is the result after the audit was changed
because of a failure; other models were not run again. The code of the models is not part of this
repository. There is no record of a round 4.

Made by `python -m benchmarks.unseen_page benchmarks/records/unseen docs/results/unseen.md`."""


def main() -> None:
    """Write the page from all records of a folder."""
    folder, out = map(Path, sys.argv[1:3])
    rounds = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    out.write_text(page(rounds))


def page(rounds: Mapping[str, Mapping[str, Any]]) -> str:
    """The page as Markdown.

    Args:
        rounds: the records by name.
    """
    every = [model for record in rounds.values() for model in record["models"]]
    parts = [_INTRO, "## All rounds", _summary(every)]
    for name, record in rounds.items():
        models = record["models"]
        parts += [f"## {name.replace('-', ' ').capitalize()}", _summary(models), _table(models)]
    return "\n\n".join(parts) + "\n"


def judgment(model: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """How a result compares with the truth of a model."""
    if "error" in result:
        return "error"
    if result["robust"] <= model["truth"] + TOLERANCE:
        return "right"
    return "too high, credible" if result["verdict"] == "credible" else "too high, not credible"


def _summary(models: Sequence[Mapping[str, Any]]) -> str:
    first = Counter(judgment(model, model["first"]) for model in models)
    now = Counter(judgment(model, model.get("mended", model["first"])) for model in models)
    rows = [f"| {kind} | {first[kind]} | {now[kind]} |" for kind in sorted({*first, *now})]
    head = [f"| of {len(models)} models | first | now |", "|---|---:|---:|"]
    return "\n".join([*head, *rows])


def _table(models: Sequence[Mapping[str, Any]]) -> str:
    head = [
        "| model | mechanism | radius | clean | truth | first | now |",
        "|---|---|---:|---:|---:|---|---|",
    ]
    return "\n".join([*head, *map(_row, models)])


def _row(model: Mapping[str, Any]) -> str:
    mended = _result(model["mended"]) if "mended" in model else ""
    mechanism = model["mechanism"].replace("|", "/")
    return (
        f"| {model['model']} | {mechanism} | {model['radius']:g} | {100 * model['clean']:.1f} | "
        f"≤ {100 * model['truth']:.1f} | {_result(model['first'])} | {mended} |"
    )


def _result(result: Mapping[str, Any]) -> str:
    if "error" in result:
        return f"`{result['error'].split('.')[0][:80]}`"
    return f"{100 * result['robust']:.1f} {result['verdict']}"


if __name__ == "__main__":
    main()
