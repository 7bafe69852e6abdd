"""Which rows of a batch the attacker moves, and whom it wants to be answered wrongly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from saddlepoint.attacks.spaces import per_example
from saddlepoint.defenses import Context, Defense, DefenseWrapper, Trace
from saddlepoint.defenses.trace import View
from saddlepoint.rng import Keys


@dataclass(frozen=True)
class BatchControl:
    """The attacker's share of every batch. With less than all of it, a malicious minority sits among benign rows.

    A defense that learns from its batch can be led astray about rows that nobody touched (Wu et al. 2023, Uncovering adversarial
    risks of test-time adaptation). Rows that are not the attacker's stay clean; `victims` says whose wrong answers it works for.
    """

    share: float = 1.0  # of each batch, at least one row
    victims: Literal["all", "benign"] = "all"
    seed: int = 0  # draws the attacker's rows; no seed of a game does, so that a verdict meets the same ones

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(
                f"the attacker controls a share of each batch above 0 and at most 1, got share={self.share}."
            )
        if self.victims == "benign" and self.share == 1:
            raise ValueError(
                "victims='benign' needs rows that the attacker does not control: give a share below 1."
            )

    def rows(self, ids: Tensor, batch: Tensor | None = None) -> Tensor:
        """[N] bool: the attacker's rows among examples with these ids; `batch` [N] says which are answered together."""
        if batch is not None:
            mine = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
            for number in set(batch.tolist()):
                there = (batch == number).to(ids.device).nonzero()[:, 0]
                mine = mine.index_copy(0, there, self.rows(ids[there]))
            return mine
        count = max(math.floor(self.share * len(ids) + 0.5), 1)
        lots = Keys.of(self.seed, ids).uniform((), torch.float64)
        return lots.argsort().argsort() < count

    def __str__(self) -> str:
        if self.share == 1:
            return "all rows controlled"
        return f"{100 * self.share:g}% of each batch controlled, success counted on {self.victims} rows"


class PartialControl(DefenseWrapper):
    """The defense as the minority meets it: whatever it proposes for rows that are not its own, they come clean.

    Where only benign rows count, its own rows are answered with zeros: they cannot tempt any attack, whatever its loss.
    """

    def __init__(self, inner: Defense, mine: Tensor, clean: Tensor, control: BatchControl) -> None:
        super().__init__(inner)
        self.mine = mine
        self.clean = clean
        self.control = control

    def rewrap(self, inner: Defense, rows: Tensor | None = None) -> Defense:
        mine = self.mine if rows is None else self.mine[rows]
        clean = self.clean if rows is None else self.clean[rows]
        return PartialControl(inner, mine, clean, self.control)

    def adapt(self, x: Tensor, ctx: Context) -> Defense:
        return self.rewrap(self.inner.adapt(self.among(x), ctx))

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        return Trace(
            tuple(
                View(v.name, self._heard(v.logits))
                for v in self.inner.trace(self.among(x), ctx).views
            )
        )

    def answer(self, trace: Trace, ctx: Context) -> Tensor:
        return self._heard(self.inner.answer(trace, ctx))

    def among(self, x: Tensor) -> Tensor:
        """The batch that is sent: the attacker's points in its own rows, clean images in all others."""
        return torch.where(per_example(self.mine, x), x, self.clean)

    def _heard(self, logits: Tensor) -> Tensor:
        return (
            logits
            if self.control.victims == "all"
            else torch.where(self.mine[:, None], 0.0, logits)
        )
