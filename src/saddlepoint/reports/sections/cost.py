"""What the number cost."""

from __future__ import annotations

from saddlepoint.reports.amounts import Amount, amounts
from saddlepoint.reports.context import Part, Subject
from saddlepoint.reports.document import key, quiet, table
from saddlepoint.reports.markup import tag


def cost(subject: Subject) -> Part:
    """Forward and backward passes per image by attack, in a figure and in numbers."""
    audit = subject.audit
    known = subject.audit.examples
    spent = (known.forward + known.backward).double()
    rows = [
        Amount(row.name, row.forward, row.backward, f"{row.forward + row.backward:,.1f}")
        for row in audit.rows
    ]
    lines = []
    for row in audit.rows:
        per = (
            f"{(row.forward + row.backward) * audit.n / row.attacked:,.1f}" if row.attacked else "–"
        )
        lines.append(
            (
                row.name,
                f"{row.forward:,.1f}",
                f"{row.backward:,.1f}",
                per,
                str(row.copies),
                f"{row.seconds:,.1f}",
            )
        )
    forward = float(known.forward.double().mean())
    backward = float(known.backward.double().mean())
    lines.append(
        (
            "all",
            f"{forward:,.1f}",
            f"{backward:,.1f}",
            "–",
            str(sum(row.copies for row in audit.rows)),
            f"{audit.seconds:,.1f}",
        )
    )
    head = (
        "attack",
        "forward, per image",
        "backward, per image",
        "per attacked image",
        "clean copies",
        "seconds",
    )
    told = (
        "Passes through the target are counted per image of the whole set, whoever was attacked. One image cost "
        f"{spent.min():,.0f} to {spent.max():,.0f} passes, {spent.median():,.0f} in the middle; all together {spent.sum():,.0f}. "
        "Seconds of attacks are added up over all workers; the last line is the clock's, since the run last went on."
    )
    figure = tag(
        "div",
        key(kept="forward", lost="backward"),
        amounts(rows, title="Passes per image"),
        class_="card",
    )
    return Part("What it cost", (figure, quiet(told), table(head, lines)))
