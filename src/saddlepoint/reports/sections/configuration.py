"""The configuration of the audit, how to reproduce it and how to verify it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import tomli_w
from torch import Tensor

from saddlepoint.audits.result import Audit
from saddlepoint.phrases import count
from saddlepoint.reports.context import ReportContext, Section
from saddlepoint.reports.document import collapsible, facts, muted
from saddlepoint.reports.gallery import perturbations
from saddlepoint.reports.markup import Markup, tag
from saddlepoint.reports.recipe import python_call, tensor_sha256, verification_steps
from saddlepoint.reports.threats import why_unreadable


def configuration(context: ReportContext) -> Section:
    """Show what was run. With a run record: threat, specification and adversaries in full."""
    audit = context.audit
    record = context.record
    shape = list(audit.x.shape[1:])
    low, high = (float(bound) for bound in audit.worst_points.aminmax())
    values = {
        "target": audit.target,
        "threat": audit.threat,
        "data": f"{audit.data or 'unnamed tensors'}, {count(audit.n, 'input')} of shape {shape}",
        "budget, seed": f"{audit.budget}, {audit.seed}",
        "largest perturbation": _largest_perturbation(audit),
        "range of the points": f"{low:.6g} to {high:.6g}",
        "time": f"{audit.seconds:.1f} seconds",
        "versions": ", ".join(f"{name} {number}" for name, number in audit.versions.items()),
        "SHA-256 of x": tensor_sha256(audit.x),
        "SHA-256 of points": tensor_sha256(audit.worst_points),
    }
    if record:
        values["SHA-256 of target"] = str(record["target"].get("sha256", ""))
        cells = len(record.get("cells", ()))
        batches = f"batch size {record.get('batch_size')}, device {record.get('device')}"
        values["cells"] = f"{count(cells, 'cell')}, {batches}"
    return Section("Configuration", (facts(values), *_full_record(context)), folded=True)


def _largest_perturbation(audit: Audit) -> str:
    parts = list(map(_largest, perturbations(audit)))
    linf, l2, l1 = (max(norms) for norms in zip(*parts, strict=True))
    return f"{linf:.6g} (Linf), {l2:.6g} (L2), {l1:.6g} (L1)"


def _largest(delta: Tensor) -> tuple[float, float, float]:
    """The largest Linf, L2 and L1 norm of perturbations [M, D]."""
    l1 = float(delta.abs().sum(1).amax())
    return float(delta.abs().amax()), float(delta.norm(dim=1).amax()), l1


def _full_record(context: ReportContext) -> Iterator[Markup]:
    record = context.record
    if record.get("threat"):
        yield collapsible("Threat model in full", facts(dict(_flat(record["threat"]))))
    if record.get("spec"):
        spec = tomli_w.dumps(_without_none(record["spec"]))
        yield collapsible("Specification in full (TOML)", tag("pre", spec))
    if record.get("adversaries"):
        lines = (json.dumps(adversary, sort_keys=True) for adversary in record["adversaries"])
        yield collapsible("All adversaries with all settings (JSON)", tag("pre", "\n".join(lines)))


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield nested settings as pairs such as `space.radius` and its value."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif name != "kind":
            yield f"{prefix}{name}", _text(value)


def _text(value: Any) -> str:
    if value is None:
        return "unlimited"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _without_none(value: Any) -> Any:
    """Remove settings that are None, because TOML cannot express them."""
    if isinstance(value, dict):
        return {name: _without_none(inner) for name, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value] if isinstance(value, list) else value


def reproduction(context: ReportContext) -> Section:
    """Show the command line, the specification or the Python call that repeats the audit."""
    return Section("Reproduce this audit", tuple(_recipes(context)))


def _recipes(context: ReportContext) -> Iterator[Markup]:
    spec = context.record.get("spec") or {}
    # A budget would choose other attacks, so neither the command line nor `audit` can repeat a run
    # with a list of attacks.
    if spec.get("attacks"):
        yield tag("h3", "On the command line, with the specification above saved as spec.toml")
        yield tag("pre", "saddlepoint run spec.toml")
    else:
        yield from _calls(context.audit)
    yield muted(
        "The same target, data, seed and versions give the same points: every random number "
        "depends on the image alone, not on the batch. If the predictions of the defense depend on "
        "the batch, the batch size must be the same, too."
    )


def _calls(audit: Audit) -> Iterator[Markup]:
    if audit.command:
        yield tag("h3", "On the command line")
        yield tag("pre", audit.command)
    reason = why_unreadable(audit.threat_description)
    if reason:
        yield muted(f"The Python call cannot be shown: {reason}.")
    else:
        yield tag("h3", "In Python")
        yield tag("pre", python_call(audit))


def verification(context: ReportContext) -> Section:
    """Show code that re-evaluates the saved points with torch alone."""
    return Section("Verify without this library", tuple(verification_steps(context.audit)))
