"""Partial control of a batch: the rows that the attacker perturbs and the rows that count."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from saddlepoint.attacks.spaces import per_example
from saddlepoint.defenses import Context, Defense, DefenseWrapper, Trace
from saddlepoint.defenses.trace import View
from saddlepoint.phrases import percent
from saddlepoint.rng import Keys


@dataclass(frozen=True)
class BatchControl:
    """The fraction of every batch that the attacker controls.

    A defense that adapts to its batch can be attacked through other rows: perturbing some rows
    changes the predictions on rows that stay clean (Wu et al. 2023, Uncovering adversarial risks
    of test-time adaptation). Rows that the attacker does not control always stay clean.

    Args:
        share: fraction of each batch that the attacker controls, in (0, 1]; at least one row.
        victims: rows on which errors count: all, or only the benign rows that stay clean.
        seed: selects the controlled rows. It is independent of the seed of an evaluation, so that
            later evaluations of the same examples have the same controlled rows.
    """

    share: float = 1.0
    victims: Literal["all", "benign"] = "all"
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(
                "the attacker controls a share of each batch above 0 and at most 1, "
                f"got share={self.share}."
            )
        if self.victims == "benign" and self.share == 1:
            raise ValueError(
                "victims='benign' needs rows that the attacker does not control: "
                "use a share below 1."
            )

    def rows(self, ids: Tensor, batch: Tensor | None = None) -> Tensor:
        """The rows that the attacker controls.

        Args:
            ids: example ids, [N].
            batch: number of the batch of each example, [N]; None: all are in one batch.

        Returns:
            [N] bool.
        """
        if batch is not None:
            controlled = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
            for number in set(batch.tolist()):
                members = (batch == number).to(ids.device).nonzero()[:, 0]
                controlled = controlled.index_copy(0, members, self.rows(ids[members]))
            return controlled
        count = max(math.floor(self.share * len(ids) + 0.5), 1)
        draws = Keys.of(self.seed, ids).uniform((), torch.float64)
        return draws.argsort().argsort() < count

    def __str__(self) -> str:
        if self.share == 1:
            return "all rows controlled"
        return (
            f"{percent(self.share, 0)} of each batch controlled, "
            f"success counted on {self.victims} rows"
        )


class PartialControl(DefenseWrapper):
    """The defense as an attacker with partial control of the batch queries it.

    Rows that the attacker does not control are replaced by clean images before every call. Where
    only benign rows count, the logits of the controlled rows are zero, so that no loss depends on
    them.
    """

    def __init__(
        self, inner: Defense, controlled: Tensor, clean: Tensor, control: BatchControl
    ) -> None:
        super().__init__(inner)
        self.controlled = controlled  # [N] bool
        self.clean = clean  # [N, ...]
        self.control = control

    def rewrap(self, inner: Defense, rows: Tensor | None = None) -> Defense:
        controlled = self.controlled if rows is None else self.controlled[rows]
        clean = self.clean if rows is None else self.clean[rows]
        return PartialControl(inner, controlled, clean, self.control)

    def adapt(self, x: Tensor, ctx: Context) -> Defense:
        return self.rewrap(self.inner.adapt(self.submitted(x), ctx))

    def decouple(self, x: Tensor) -> Defense | None:
        fixed = self.inner.decouple(self.submitted(x))
        return None if fixed is None else self.rewrap(fixed)

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        views = self.inner.trace(self.submitted(x), ctx).views
        return Trace(tuple(View(view.name, self._on_victims(view.logits)) for view in views))

    def answer(self, trace: Trace, ctx: Context) -> Tensor:
        return self._on_victims(self.inner.answer(trace, ctx))

    def submitted(self, x: Tensor) -> Tensor:
        """The batch that reaches the defense: `x` in controlled rows, clean images elsewhere."""
        return torch.where(per_example(self.controlled, x), x, self.clean)

    def _on_victims(self, logits: Tensor) -> Tensor:
        if self.control.victims == "all":
            return logits
        return torch.where(self.controlled[:, None], 0.0, logits)
