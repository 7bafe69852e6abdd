"""The cost of the attacks in forward and backward passes."""

from __future__ import annotations

from collections.abc import Iterator

from saddlepoint.audits.result import Audit
from saddlepoint.phrases import count, whole
from saddlepoint.reports.context import ReportContext, Section
from saddlepoint.reports.document import collapsible, legend, muted, table
from saddlepoint.reports.markup import Markup, tag
from saddlepoint.reports.stacked_bars import StackedBar, stacked_bars

_HEAD = (
    "attack",
    "forward, per image",
    "backward, per image",
    "passes per attacked image",
    "clean copies",
    "seconds",
)

_SECONDS = (
    "Clean copies are attacked images for which the attack returned the clean image. Seconds of an "
    "attack are summed over all workers; the last line is the wall-clock time since the run was "
    "last started or resumed."
)
_STAGE_HEAD = ("stage", "forward, per image", "backward, per image", "seconds")
_STAGES = (
    "All passes through the target by stage, those of its evaluation included. The stages attack, "
    "diagnose and remedy are sums over all cells and workers; the other stages are those of the "
    "last start. Loading the target and waiting for workers are not included, so these seconds "
    "differ from the wall-clock time by stage that the console shows."
)


def cost(context: ReportContext) -> Section:
    """Show forward and backward passes per image by attack in a figure; all numbers are folded."""
    audit = context.audit
    passes = (audit.examples.forward + audit.examples.backward).double()
    rows = [
        StackedBar(row.name, row.forward, row.backward, f"{row.forward + row.backward:,.1f}")
        for row in audit.rows
    ]
    figure = tag(
        "div",
        legend(primary="forward", secondary="backward"),
        stacked_bars(rows, title="Passes per image"),
        class_="card",
    )
    explanation = (
        "Passes through the target, averaged over all images of the set, including images that "
        f"were not attacked. One image took {whole(int(passes.min()))} to "
        f"{count(int(passes.max()), 'pass')}, the median is {whole(int(passes.median()))}, the sum "
        f"over all images {whole(int(passes.sum()))}."
    )
    return Section("Cost", (figure, muted(explanation), _tables(audit)))


def _tables(audit: Audit) -> Markup:
    parts = [table(_HEAD, _lines(audit)), muted(_SECONDS)]
    if audit.stages:
        parts += [table(_STAGE_HEAD, _stage_lines(audit)), muted(_STAGES)]
    parts.append(muted(str(audit.engine)))
    return collapsible("Passes and seconds by attack and by stage", *parts)


def _stage_lines(audit: Audit) -> Iterator[tuple[str, ...]]:
    for stage in audit.stages:
        yield (
            stage.name,
            f"{stage.forward:,.1f}",
            f"{stage.backward:,.1f}",
            f"{stage.seconds:,.1f}",
        )


def _lines(audit: Audit) -> Iterator[tuple[str, ...]]:
    for row in audit.rows:
        passes = (row.forward + row.backward) * audit.n
        yield (
            row.name,
            f"{row.forward:,.1f}",
            f"{row.backward:,.1f}",
            f"{passes / row.attacked:,.1f}" if row.attacked else "–",
            str(row.copies),
            f"{row.seconds:,.1f}",
        )
    yield (
        "all",
        f"{float(audit.examples.forward.double().mean()):,.1f}",
        f"{float(audit.examples.backward.double().mean()):,.1f}",
        "–",
        str(sum(row.copies for row in audit.rows)),
        f"{audit.seconds:,.1f}",
    )
