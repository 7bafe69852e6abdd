"""Losses that an attacker maximizes, per example.

A loss maps logits, [..., N, C], and labels, [N], to values, [..., N]. A larger value is worse for
the defender.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from saddlepoint.phrases import count

Loss = Callable[[Tensor, Tensor], Tensor]
TargetedLoss = Callable[[Tensor], Loss]  # target classes [N] -> a loss


def misclassified(logits: Tensor, y: Tensor) -> Tensor:
    """[..., N] bool: the example is misclassified. Logits with NaN count as misclassified."""
    highest, label = logits.max(-1)  # NaN if there is one
    return (label != y) | highest.isnan()


def merge_rejection(logits: Tensor, y: Tensor, rejects: bool) -> Tensor:
    """Fold the reject class into the label: z_y <- max(z_y, z_reject).

    An example counts as misclassified only if a wrong class exceeds both the label and the reject
    class (Goldwasser et al. 2020). With the reject class folded into the label, every loss,
    targeted or not, increases where the attacker makes progress.

    Args:
        logits: [..., N, C + 1] with the reject class last; [..., N, C] if `rejects` is False.
        y: labels, [N].
        rejects: whether there is a reject class.

    Returns:
        [..., N, C]; the logits themselves if `rejects` is False.
    """
    if not rejects:
        return logits
    classes = logits[..., :-1]
    reject = logits[..., -1]
    label = y.expand(classes.shape[:-1]).unsqueeze(-1)
    return classes.scatter(-1, label, torch.maximum(_of(classes, y), reject).unsqueeze(-1))


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """logsumexp(z) - z_y."""
    return logits.logsumexp(-1) - _of(logits, y)


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """max_{j != y} z_j - z_y, the CW loss: positive if the example is misclassified."""
    return _strongest_other(logits, y) - _of(logits, y)


def dlr(logits: Tensor, y: Tensor) -> Tensor:
    """Difference of logits ratio, margin / (z_(1) - z_(3)), with z_(1) >= z_(2) >= ... sorted.

    It is invariant to shift and scale (Croce & Hein 2020, Eq. 6).

    Raises:
        ValueError: there are fewer than 3 classes.
    """
    _check_classes(logits, 3, "dlr", instead="margin")
    top = logits.topk(3, dim=-1).values
    return margin(logits, y) / (top[..., 0] - top[..., 2] + 1e-12)


def probability_margin(logits: Tensor, y: Tensor) -> Tensor:
    """max_{j != y} p_j - p_y, the margin of softmax probabilities (PMA)."""
    return margin(logits.softmax(-1), y)


@dataclass(frozen=True)
class SmoothError:
    """sigmoid(margin / w), about 1 if the example is misclassified and about 0 if it is not.

    Its sum over a batch is a smooth count of errors. Where rows influence each other, the sum of
    another loss may increase because a few examples are misclassified by a large margin.

    Args:
        width: w in units of the median standard deviation of the logits of a row; default 0.1.
    """

    width: float = 0.1

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        return (margin(logits, y) / (self.width * _spread(logits))).sigmoid()


def clipped_margin(logits: Tensor, y: Tensor) -> Tensor:
    """min(margin, w): examples that are misclassified by more than w have no gradient.

    Where rows influence each other, the sum of margins increases most by rows that are already
    misclassified. With the clipped margin only the other rows count, also those that are far from
    the boundary, where `SmoothError` is flat. The width w is a twentieth of the median standard
    deviation of the logits of a row.
    """
    return margin(logits, y).minimum(_spread(logits) / 20)


def confidence(logits: Tensor, y: Tensor) -> Tensor:
    """max_{j != y} p_j, the largest probability of a wrong class (Chen et al. 2022, App. A.3)."""
    return _strongest_other(logits.softmax(-1), y)


@dataclass(frozen=True)
class NextClass:
    """z_t - z_y with the target class t = (y + step) mod C.

    Args:
        step: distance from the label to the target class.
    """

    step: int

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        return _of(logits, (y + self.step) % logits.shape[-1]) - _of(logits, y)


@runtime_checkable
class PerRow(Protocol):
    """A loss with data per row, which can be restricted to some rows."""

    def restrict(self, rows: Tensor) -> Loss:
        """The same loss for some of the rows, [M]."""
        ...


def restrict(loss: Loss, rows: Tensor) -> Loss:
    """The same loss for some of the rows, [M]."""
    # Not by `isinstance`: a check against a protocol takes longer than the pass of a small network.
    own = getattr(loss, "restrict", None)
    restricted: Loss = loss if own is None else own(rows)
    return restricted


@dataclass(frozen=True)
class Toward:
    """A targeted loss with one target class per row."""

    form: Callable[[Tensor, Tensor, Tensor], Tensor]  # (logits, y, target) -> [..., N]
    target: Tensor  # [N] target classes

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        return self.form(logits, y, self.target)

    def restrict(self, rows: Tensor) -> Loss:
        return Toward(self.form, self.target[rows])


def targeted_margin(target: Tensor) -> Loss:
    """The loss z_t - z_y for target classes t, [N]."""
    return Toward(lambda logits, y, t: _of(logits, t) - _of(logits, y), target)


def targeted_cross_entropy(target: Tensor) -> Loss:
    """The loss z_t - logsumexp(z), the log-likelihood of the target classes t, [N]."""
    return Toward(lambda logits, y, t: -cross_entropy(logits, t), target)  # noqa: ARG005


def targeted_dlr(target: Tensor) -> Loss:
    """The loss (z_t - z_y) / (z_(1) - (z_(3) + z_(4)) / 2) for target classes t, [N].

    Croce & Hein 2020, Eq. 7. It raises ValueError if there are fewer than 4 classes.
    """

    def ratio(logits: Tensor, y: Tensor, t: Tensor) -> Tensor:
        _check_classes(logits, 4, "targeted_dlr", instead="targeted_margin")
        top = logits.topk(4, dim=-1).values
        spread = top[..., 0] - (top[..., 2] + top[..., 3]) / 2
        return (_of(logits, t) - _of(logits, y)) / (spread + 1e-12)

    return Toward(ratio, target)


@dataclass(frozen=True)
class saturated:  # noqa: N801
    """A loss without gradient on rows with a margin above `beyond`.

    If a defense couples the rows of its batch, rows that are already misclassified would otherwise
    keep changing the adaptation that all rows share.

    Args:
        loss: the loss.
        beyond: margin above which a row has no gradient, in units of logits; default 0.
    """

    loss: Loss
    beyond: float = 0.0

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        value = self.loss(logits, y)
        return torch.where(margin(logits, y) > self.beyond, value.detach(), value)

    def restrict(self, rows: Tensor) -> Loss:
        return saturated(restrict(self.loss, rows), self.beyond)


def _spread(logits: Tensor) -> Tensor:
    """The median over rows of the standard deviation of the logits of a row; a constant."""
    spread = logits.detach().std(-1).nan_to_num(0.0)
    return spread.median().clamp(min=torch.finfo(logits.dtype).tiny)


def _of(logits: Tensor, label: Tensor) -> Tensor:
    """The logit of each row's label: [..., N, C], [N] -> [..., N]."""
    return logits.gather(-1, label.expand(logits.shape[:-1]).unsqueeze(-1)).squeeze(-1)


def _strongest_other(logits: Tensor, y: Tensor) -> Tensor:
    """The largest logit besides that of the label: [..., N, C], [N] -> [..., N]."""
    return logits.scatter(-1, y.expand(logits.shape[:-1]).unsqueeze(-1), -torch.inf).amax(-1)


def _check_classes(logits: Tensor, least: int, name: str, *, instead: str) -> None:
    if logits.shape[-1] < least:
        raise ValueError(
            f"{name} needs at least {count(least, 'class')}, the defense has {logits.shape[-1]}. "
            f"Use `{instead}` instead."
        )
