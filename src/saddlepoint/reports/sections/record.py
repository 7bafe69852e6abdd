"""What exactly was run, how to run it again and how to check it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import tomli_w

from saddlepoint.reports.context import Part, Subject
from saddlepoint.reports.document import facts, folded, quiet
from saddlepoint.reports.markup import Markup, tag
from saddlepoint.reports.recipe import check_again, python, sha256


def what_was_run(subject: Subject) -> Part:
    """The facts; with a run record also threat, specification and adversaries, complete."""
    audit = subject.audit
    record = subject.record
    change = (audit.worst_points - audit.x).flatten(1).double()
    largest, longest, total = (
        float(size.amax()) for size in (change.abs(), change.norm(dim=1), change.abs().sum(1))
    )
    low, high = (float(bound) for bound in audit.worst_points.aminmax())
    lines = {
        "target": audit.target,
        "threat": audit.threat,
        "data": f"{audit.data or 'tensors given by the caller'}, {audit.n} inputs of shape {list(audit.x.shape[1:])}",
        "budget, seed": f"{audit.budget}, {audit.seed}",
        "largest change": f"{largest:.6g} of one value, {longest:.6g} in Euclidean length, {total:.6g} in the sum of all values",
        "range of the points": f"{low:.6g} to {high:.6g}",
        "time": f"{audit.seconds:.1f} seconds",
        "versions": ", ".join(f"{name} {number}" for name, number in audit.versions.items()),
        "SHA-256 of x": sha256(audit.x),
        "SHA-256 of points": sha256(audit.worst_points),
    }
    if record:
        lines["SHA-256 of target"] = str(record["target"].get("sha256", ""))
        lines["work"] = (
            f"{len(record.get('cells', ()))} cells, batches of {record.get('batch_size')}, on {record.get('device')}"
        )
    return Part("What was run", (facts(lines), *_complete(subject)))


def _complete(subject: Subject) -> Iterator[Markup]:
    record = subject.record
    if record.get("threat"):
        yield folded("The threat, complete", facts(dict(_flat(record["threat"]))))
    if record.get("spec"):
        yield folded(
            "The specification, complete (TOML)", tag("pre", tomli_w.dumps(_told(record["spec"])))
        )
    if record.get("adversaries"):
        sent = "\n".join(
            json.dumps(adversary, sort_keys=True) for adversary in record["adversaries"]
        )
        yield folded("Every adversary with all its settings (JSON)", tag("pre", sent))


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as `space.radius`, value."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif name != "kind":
            yield (
                f"{prefix}{name}",
                "not limited"
                if value is None
                else ", ".join(map(str, value))
                if isinstance(value, list)
                else str(value),
            )


def _told(value: Any) -> Any:
    """Without what was left open: TOML has no word for nothing."""
    if isinstance(value, dict):
        return {name: _told(inner) for name, inner in value.items() if inner is not None}
    return [_told(inner) for inner in value] if isinstance(value, list) else value


def run_again(subject: Subject) -> Part:
    """The command line, the specification or Python, whichever can make this audit."""
    return Part("Run it again", tuple(_recipes(subject)))


def _recipes(subject: Subject) -> Iterator[Markup]:
    audit = subject.audit
    spec = subject.record.get("spec") or {}
    if spec.get(
        "attacks"
    ):  # a budget composes others, so neither the command line nor `audit` would ask for these
        yield tag("h3", "On the command line, with the specification above saved as spec.toml")
        yield tag("pre", "saddlepoint run spec.toml")
    else:
        if audit.command:
            yield tag("h3", "On the command line")
            yield tag("pre", audit.command)
        yield tag("h3", "In Python")
        yield tag("pre", python(audit))
    yield quiet(
        "Same target, data, seed and versions give the same points: every random number belongs to one image, whatever the batch. "
        "Defenses whose images influence each other also need the same batch size."
    )


def verify(subject: Subject) -> Part:
    """The saved points judged by plain torch."""
    return Part("Check it without this library", tuple(check_again(subject.audit)))
