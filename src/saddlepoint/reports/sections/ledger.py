"""Who won how many images, in the end."""

from __future__ import annotations

import torch

from saddlepoint.reports.context import Part, Subject
from saddlepoint.reports.document import percent, quiet, table


def ledger(subject: Subject) -> Part:
    """The per-example ledger summed up by winner: what fell, what stood, how large the perturbations are."""
    audit = subject.audit
    known = subject.audit.examples
    fallen = audit.correct.cpu().double() < 0.5
    size = known.size.cpu().double()
    order = ["clean", *(row.name for row in audit.rows)]
    winners = set(known.winner)
    number = {
        name: k
        for k, name in enumerate(
            dict.fromkeys([*(name for name in order if name in winners), *known.winner])
        )
    }
    owner = torch.tensor([number[name] for name in known.winner])
    lines = []
    for name, k in number.items():
        here = owner == k
        fell = here & fallen
        middle = f"{float(size[fell].median()):.4g}" if fell.any() else "–"
        lines.append(
            (
                name,
                str(int(fell.sum())),
                percent(float(fell.double().mean())),
                middle,
                str(int((here & ~fallen).sum())),
            )
        )
    again = int(known.verified.sum())
    draws = "one answer" if known.draws == 1 else f"{known.draws} answers"
    remarks = (
        "Each image is kept with the point that did most harm, or, where none did, that came nearest to it. Images that are wrong "
        "unchanged belong to “clean”.",
        f"Asked again, the target answered {again} of {audit.n} points as the attack had claimed; each was judged by {draws}. The "
        "whole ledger, a line per image, is exported by saddlepoint runs export RUN --format csv.",
    )
    head = ("winner", "images that fell", "of all", "median size", "images that stood")
    return Part("Who won", (table(head, lines), *(quiet(remark) for remark in remarks)))
