"""What a defense that may refuse would let through at other thresholds, and what that costs."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from saddlepoint.evaluation.rejection import RejectionCurve, rejection_tradeoff
from saddlepoint.reports.context import Part, Subject
from saddlepoint.reports.curves import lines
from saddlepoint.reports.document import key, percent, quiet, table
from saddlepoint.reports.markup import tag

_GRID = 200  # thresholds that are drawn
_SHARES = (0.01, 0.1, 0.5)  # of clean images that somebody may be willing to lose
_TOLD = (
    "How far an answer is from a refusal is the refusal's lead over the foremost class. A defense that asked for more or less of a "
    "lead would refuse other images: the curves go from one that refuses nothing, left, to one that refuses everything, right. The "
    "clean images are put to the defense as it is when it meets the worst points. These were sought against the threshold that it "
    "has; against another one an attack might find worse."
)


def rejections(subject: Subject) -> Part | None:
    """Mistakes among what is answered, by the share of clean images that is refused; nothing of a defense that cannot refuse."""
    scores = subject.audit.rejection_scores
    if not scores.numel():
        return None
    point, wrong, beside, mistaken = scores.cpu().flatten(1)  # [4, S N]: every draw of every image
    cuts = _cuts(point, beside)
    attacked = rejection_tradeoff(point, wrong > 0, beside, cuts, cuts)
    clean = rejection_tradeoff(beside, mistaken > 0, beside, cuts, cuts)
    drawn = lines(
        {
            "lost": _over(attacked, attacked.error),
            "alone": _over(attacked, attacked.rejected),
            "kept": _over(clean, clean.error),
        },
        title="Mistakes among answers, by rejections",
        across="share of clean images refused, %",
    )
    legend = key(
        lost="worst points: wrong among answered",
        alone="worst points: refused",
        kept="clean images: wrong among answered",
    )
    head = (
        "threshold",
        "clean refused",
        "worst points refused",
        "answered",
        "wrong among answered",
        "wrong among all",
    )
    places = {
        "as it is": cuts.index(0.0),
        **{f"clean refused ≤ {100 * s:g} %": _strictest(attacked, s) for s in _SHARES},
    }
    places["nothing refused"] = len(cuts) - 1
    rows = [(name, *_line(attacked, place, len(point))) for name, place in places.items()]
    draws = "one draw" if scores.shape[1] == 1 else f"{scores.shape[1]} draws"
    behind = f"{scores.shape[2]:,} images and as many worst points, each asked in {draws}."
    return Part(
        "What refusing buys",
        (tag("div", legend, drawn, class_="card"), quiet(_TOLD), table(head, rows), quiet(behind)),
    )


def _cuts(point: Tensor, beside: Tensor) -> list[float]:
    """Leads that are asked for, rising: spread over those that there are, its own, which is none, and both extremes."""
    both, own = (scores[~scores.isnan()] for scores in (torch.cat([point, beside]), beside))
    levels = (
        torch.linspace(0, 1, _GRID, dtype=torch.float64),
        torch.tensor([1 - share for share in _SHARES], dtype=torch.float64),
    )
    found = [
        s.quantile(q, interpolation="higher")
        for s, q in zip((both, own), levels, strict=True)
        if len(s)
    ]
    return sorted({-math.inf, 0.0, math.inf, *(cut for part in found for cut in part.tolist())})


def _over(curve: RejectionCurve, up: tuple[float, ...]) -> list[tuple[float, float]]:
    """From nothing refused to everything refused."""
    return list(zip(curve.rejected_normal, up, strict=True))[::-1]


def _strictest(curve: RejectionCurve, share: float) -> int:
    """The place of the lowest threshold that refuses no more than this share of the clean images."""
    return next(k for k, refused in enumerate(curve.rejected_normal) if refused <= share)


def _line(curve: RejectionCurve, place: int, asked: int) -> tuple[str, ...]:
    shares = (
        curve.rejected_normal[place],
        curve.rejected[place],
        curve.error[place],
        curve.error_of_all[place],
    )
    refused, attacked, error, all_ = (percent(share) for share in shares)
    return (
        refused,
        attacked,
        f"{round((1 - curve.rejected[place]) * asked):,} of {asked:,}",
        error,
        all_,
    )
