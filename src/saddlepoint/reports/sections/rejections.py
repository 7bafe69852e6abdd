"""The tradeoff of a defense that can reject inputs: errors against rejected clean images."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from saddlepoint.evaluation.rejection import RejectionCurve, rejection_tradeoff
from saddlepoint.phrases import at_most, count
from saddlepoint.reports.context import ReportContext, Section
from saddlepoint.reports.curves import share_curves
from saddlepoint.reports.document import legend, muted, percent, table
from saddlepoint.reports.markup import Markup, tag

_THRESHOLDS = 200  # drawn
_SHARES = (0.01, 0.1, 0.5)  # of the clean images that may be rejected, for the table
_HEAD = (
    "threshold",
    "clean images rejected",
    "worst points rejected",
    "worst points accepted",
    "errors among accepted",
    "errors among all",
)
_EXPLANATION = (
    "The rejection score is the output for rejection minus the highest class output: the defense "
    "rejects an input with a positive score. With another threshold it would reject other inputs. "
    "The curves run from a threshold that rejects nothing, on the left, to one that rejects "
    "everything, on the right. Clean images are evaluated by the defense in the state in which it "
    "receives the worst points. The attacks searched for these points at the actual threshold; at "
    "another threshold an attack might find worse ones."
)


def rejections(context: ReportContext) -> Section | None:
    """Show the error rate among accepted inputs by the share of clean images rejected.

    None for a defense that cannot reject.
    """
    scores = context.audit.rejection_scores
    if not scores.numel():
        return None
    # [4, S N]: all draws of all images
    worst, worst_wrong, clean, clean_wrong = scores.cpu().flatten(1)
    thresholds = _thresholds(worst, clean)
    attacked = rejection_tradeoff(worst, worst_wrong > 0, clean, thresholds, thresholds)
    unattacked = rejection_tradeoff(clean, clean_wrong > 0, clean, thresholds, thresholds)
    rows = {
        "actual threshold": thresholds.index(0.0),
        **{f"clean rejected {at_most(s)}": _strictest(attacked, s) for s in _SHARES},
        "no rejection": len(thresholds) - 1,
    }
    lines = [(name, *_line(attacked, index, len(worst))) for name, index in rows.items()]
    _, draws, images = scores.shape
    sample = (
        f"{count(images, 'clean image')} and as many worst points, each evaluated in "
        f"{'one draw' if draws == 1 else count(draws, 'draw')}."
    )
    return Section(
        "Rejection tradeoff",
        (_figure(attacked, unattacked), muted(_EXPLANATION), table(_HEAD, lines), muted(sample)),
        folded=True,
    )


def _figure(attacked: RejectionCurve, clean: RejectionCurve) -> Markup:
    curves = {
        "secondary": _over_rejected_clean(attacked, attacked.error),
        "marker": _over_rejected_clean(attacked, attacked.rejected),
        "primary": _over_rejected_clean(clean, clean.error),
    }
    key = legend(
        secondary="worst points: errors among accepted",
        marker="worst points: rejected",
        primary="clean images: errors among accepted",
    )
    figure = share_curves(
        curves,
        title="Errors among accepted inputs by clean images rejected",
        x_label="share of clean images rejected, %",
    )
    return tag("div", key, figure, class_="card")


def _thresholds(worst: Tensor, clean: Tensor) -> list[float]:
    """Return increasing thresholds of the score.

    They are quantiles of all scores, the thresholds that reject given shares of the clean images,
    the actual threshold, which is 0, and both infinities.
    """
    everything = torch.cat([worst, clean])
    uniform = torch.linspace(0, 1, _THRESHOLDS, dtype=torch.float64)
    shares = torch.tensor([1 - share for share in _SHARES], dtype=torch.float64)
    found = [*_quantiles(everything, uniform), *_quantiles(clean, shares)]
    return sorted({-math.inf, 0.0, math.inf, *found})


def _quantiles(scores: Tensor, levels: Tensor) -> list[float]:
    """Return the quantiles of the scores that are numbers; none if there are no such scores."""
    numbers = scores[~scores.isnan()]
    if not len(numbers):
        return []
    values: list[float] = numbers.quantile(levels, interpolation="higher").tolist()
    return values


def _over_rejected_clean(
    curve: RejectionCurve, values: tuple[float, ...]
) -> list[tuple[float, float]]:
    """Return points from no rejection to full rejection."""
    return list(zip(curve.rejected_normal, values, strict=True))[::-1]


def _strictest(curve: RejectionCurve, share: float) -> int:
    """Return the index of the lowest threshold that rejects at most this share of clean images."""
    return next(k for k, rejected in enumerate(curve.rejected_normal) if rejected <= share)


def _line(curve: RejectionCurve, index: int, total: int) -> tuple[str, ...]:
    accepted = round((1 - curve.rejected[index]) * total)
    return (
        percent(curve.rejected_normal[index]),
        percent(curve.rejected[index]),
        f"{accepted:,} of {total:,}",
        percent(curve.error[index]),
        percent(curve.error_of_all[index]),
    )
