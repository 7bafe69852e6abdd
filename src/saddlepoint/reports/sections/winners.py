"""The attack that found the worst point of each image."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from saddlepoint.audits.result import Audit
from saddlepoint.phrases import agree, count, count_of
from saddlepoint.reports.context import ReportContext, Section
from saddlepoint.reports.document import muted, percent, table

_HEAD = (
    "winning attack",
    "images misclassified",
    "of all images",
    "median perturbation size",
    "images still correct",
)


def winners(context: ReportContext) -> Section:
    """Summarize the worst points by the attack that found them."""
    audit = context.audit
    verified = int(audit.examples.verified.sum())
    draws = "one draw" if audit.examples.draws == 1 else count(audit.examples.draws, "draw")
    explanations = (
        "Each image is counted for the attack that found its worst point. That is a misclassified "
        "point, or, if no attack succeeded, the point closest to misclassification. An attack may "
        "find the worst point of an image that another one broke before. Images that are "
        "misclassified without perturbation are counted as “clean”.",
        f"In the re-evaluation, {count_of(verified, audit.n, 'point')} "
        f"{agree(verified, 'was', 'were')} classified as the attack had reported. Each point was "
        f"evaluated in {draws}. One line per image is exported by saddlepoint runs export RUN "
        "--format csv.",
    )
    body = (table(_HEAD, _lines(audit)), *(muted(text) for text in explanations))
    return Section("Winning attacks", body, folded=True)


def _lines(audit: Audit) -> Iterator[tuple[str, ...]]:
    misclassified = audit.correct.cpu().double() < 0.5
    sizes = audit.examples.size.cpu().double()
    names = _names(audit)
    number = {name: k for k, name in enumerate(names)}
    winner = torch.tensor([number[name] for name in audit.examples.winner])
    for k, name in enumerate(names):
        broken = (winner == k) & misclassified
        yield (
            name,
            str(int(broken.sum())),
            percent(float(broken.double().mean())),
            f"{abs(float(sizes[broken].median())):.4g}" if broken.any() else "–",
            str(int(((winner == k) & ~misclassified).sum())),
        )


def _names(audit: Audit) -> list[str]:
    """Return the attacks that found a worst point, in the order in which they ran."""
    found = audit.examples.winner
    distinct = set(found)
    order = ("clean", *(row.name for row in audit.rows))
    return list(dict.fromkeys([*(name for name in order if name in distinct), *found]))
