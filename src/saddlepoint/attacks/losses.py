"""What an attacker maximizes, per example: ([..., N, C] logits, [N] labels) -> [..., N], larger is worse for the defender."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]
TargetedLoss = Callable[[Tensor], Loss]  # [N] target classes -> a loss


def fooled(logits: Tensor, y: Tensor) -> Tensor:
    """[..., N] bool: the answer is another class. An answer that is not a number is a wrong answer."""
    return (logits.argmax(-1) != y) | logits.isnan().any(-1)


def refusing(logits: Tensor, y: Tensor, rejects: bool) -> Tensor:
    """[..., N, C + 1] -> [..., N, C]: z_y <- max(z_y, z_reject), the logits of a defense that may refuse as an attacker meets them.

    Only a wrong class that is ahead of the right one and of the refusal fools anybody (Goldwasser et al. 2020), so a refusal is
    folded into the right class: every loss, targeted or not, then climbs where the attacker wins. Without `rejects`, z itself.
    """
    if not rejects:
        return logits
    classes = logits[..., :-1]
    refusal = logits[..., -1]
    label = y.expand(classes.shape[:-1]).unsqueeze(-1)
    return classes.scatter(-1, label, torch.maximum(_of(classes, y), refusal).unsqueeze(-1))


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """logsumexp(z) - z_y."""
    return logits.logsumexp(-1) - _of(logits, y)


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """max_{j != y} z_j - z_y, the CW loss: positive when the answer is wrong."""
    return _strongest_other(logits, y) - _of(logits, y)


def dlr(logits: Tensor, y: Tensor) -> Tensor:
    """Difference of logits ratio, margin / (z_(1) - z_(3)): invariant to shift and scale (Croce & Hein 2020, Eq. 6)."""
    _need_classes(logits, 3, "dlr", instead="margin")
    top = logits.topk(3, dim=-1).values
    return margin(logits, y) / (top[..., 0] - top[..., 2] + 1e-12)


def probability_margin(logits: Tensor, y: Tensor) -> Tensor:
    """max_{j != y} p_j - p_y, the margin of softmax probabilities (PMA)."""
    return margin(logits.softmax(-1), y)


def confidence(logits: Tensor, y: Tensor) -> Tensor:
    """max_{j != y} p_j: how sure the defense is of a wrong class (Chen et al. 2022, App. A.3)."""
    return _strongest_other(logits.softmax(-1), y)


@dataclass(frozen=True)
class NextClass:
    """z_t - z_y towards the class t = y + step, counted round the classes."""

    step: int

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        return _of(logits, (y + self.step) % logits.shape[-1]) - _of(logits, y)


@runtime_checkable
class PerRow(Protocol):
    """A loss that holds something for each row, and can be had for some of them."""

    def restrict(self, rows: Tensor) -> Loss: ...


def restrict(loss: Loss, rows: Tensor) -> Loss:
    """The same loss for some of the rows."""
    return loss.restrict(rows) if isinstance(loss, PerRow) else loss


@dataclass(frozen=True)
class Toward:
    """A loss that draws each row towards a class of its own."""

    form: Callable[[Tensor, Tensor, Tensor], Tensor]  # (logits, y, target) -> [..., N]
    target: Tensor  # [N]

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        return self.form(logits, y, self.target)

    def restrict(self, rows: Tensor) -> Loss:
        return Toward(self.form, self.target[rows])


def targeted_margin(target: Tensor) -> Loss:
    """z_t - z_y."""
    return Toward(lambda logits, y, t: _of(logits, t) - _of(logits, y), target)


def targeted_cross_entropy(target: Tensor) -> Loss:
    """z_t - logsumexp(z): the likelihood of the target."""
    return Toward(lambda logits, y, t: -cross_entropy(logits, t), target)  # noqa: ARG005


def targeted_dlr(target: Tensor) -> Loss:
    """(z_t - z_y) / (z_(1) - (z_(3) + z_(4)) / 2), Croce & Hein 2020, Eq. 7."""

    def ratio(logits: Tensor, y: Tensor, t: Tensor) -> Tensor:
        _need_classes(logits, 4, "targeted_dlr", instead="targeted_margin")
        top = logits.topk(4, dim=-1).values
        spread = top[..., 0] - (top[..., 2] + top[..., 3]) / 2
        return (_of(logits, t) - _of(logits, y)) / (spread + 1e-12)

    return Toward(ratio, target)


@dataclass(frozen=True)
class saturated:  # noqa: N801
    """`loss` without a gradient on rows whose margin is above `beyond`.

    Under a defense that couples its batch, rows already fooled would go on pulling the shared adaptation their way.
    """

    loss: Loss
    beyond: float = 0.0

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        value = self.loss(logits, y)
        return torch.where(margin(logits, y) > self.beyond, value.detach(), value)

    def restrict(self, rows: Tensor) -> Loss:
        return saturated(restrict(self.loss, rows), self.beyond)


def _of(logits: Tensor, label: Tensor) -> Tensor:
    return logits.gather(-1, label.expand(logits.shape[:-1]).unsqueeze(-1)).squeeze(-1)


def _strongest_other(logits: Tensor, y: Tensor) -> Tensor:
    return logits.scatter(-1, y.expand(logits.shape[:-1]).unsqueeze(-1), -torch.inf).amax(-1)


def _need_classes(logits: Tensor, least: int, name: str, *, instead: str) -> None:
    if logits.shape[-1] < least:
        raise ValueError(
            f"{name} needs at least {least} classes, the defense has {logits.shape[-1]}. Use `{instead}` instead."
        )
