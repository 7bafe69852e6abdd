"""Watches that write an audit to an experiment tracker: TensorBoard, Weights & Biases.

    sp.audit(net, x, y, watch=TensorBoard("logs"))
    sp.audit(net, x, y, watch=WandB(wandb.init(project="robustness")))

Any other tracker: subclass `Tracker` and implement `log` and `finish`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saddlepoint.audits import Audit
from saddlepoint.audits.cells import AttackCell, Measurement
from saddlepoint.evaluation import Episode

if TYPE_CHECKING:
    from torch import Tensor

    from saddlepoint.runs.work import Work


class Tracker(ABC):
    """Writes one step per attack cell, and the result at the end.

    After each cell: the accuracy under this attack on the images of the cell, and the worst case
    over all attacks so far on all images that were attacked. At the end: clean and robust accuracy,
    the interval, and the robust accuracy of each attack.
    """

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._step = 0
        self._correct: dict[int, Tensor] = {}  # by group: [N] worst case so far
        self._coupled = False

    @abstractmethod
    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write numbers by name.

        Args:
            values: the numbers.
            step: cells that were computed so far.
        """

    @abstractmethod
    def finish(self, values: Mapping[str, float], text: str) -> None:
        """Write the result.

        Args:
            values: numbers by name.
            text: the verdict in one paragraph.
        """

    def begin(self, work: Work, missing: Sequence[AttackCell]) -> None:  # noqa: ARG002
        """Attack cells are about to be computed."""
        self._names = tuple(adversary.name for adversary in work.plan.adversaries)
        self._coupled = work.plan.job.defense.unit != "example"

    def cell(self, cell: AttackCell, episode: Episode) -> None:
        """An attack cell was computed."""
        group, number = cell
        correct = episode.correct[0].cpu()
        before = self._correct.get(group, correct)
        # Rows of a coupled batch were evaluated together, so whole batches are compared.
        worst = min(before, correct, key=_total) if self._coupled else correct.minimum(before)
        self._correct[group] = worst
        self._step += 1
        total = sum(_total(one) for one in self._correct.values())
        images = sum(len(one) for one in self._correct.values())
        self.log(
            {
                f"attack/{self._names[number]}": float(correct.mean()),
                "worst case so far": total / images,
            },
            self._step,
        )

    def measure(self, missing: Sequence[Measurement]) -> None:  # noqa: B027
        """Measurements are not written."""

    def measured(self, cell: Measurement) -> None:  # noqa: B027
        """Measurements are not written."""

    def say(self, message: str) -> None:  # noqa: B027
        """Messages are not written."""

    def concluded(self, audit: Audit) -> None:
        """Write the result of the audit."""
        values = {
            "clean accuracy": audit.clean_accuracy,
            "robust accuracy": audit.robust_accuracy,
            "interval/low": audit.interval.low,
            "interval/high": audit.interval.high,
        }
        values |= {f"after all attacks/{row.name}": row.robust_accuracy for row in audit.rows}
        self.finish(values, f"{audit.target}, {audit.threat}: {audit.summary()}")


class TensorBoard(Tracker):
    """Writes an audit as event files of TensorBoard. Needs the extra `tensorboard`.

    Args:
        folder: the log folder of the run.

    Raises:
        ImportError: tensorboard is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "TensorBoard needs tensorboard: pip install 'saddlepoint[tensorboard]'."
            ) from error
        self._writer: Any = SummaryWriter(str(folder))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write numbers by name."""
        for name, value in values.items():
            self._writer.add_scalar(name.replace(" ", "_"), value, step)
        self._writer.flush()

    def finish(self, values: Mapping[str, float], text: str) -> None:
        """Write the result and close the file."""
        self.log(values, self._step)
        self._writer.add_text("verdict", text, self._step)
        self._writer.close()


class WandB(Tracker):
    """Writes an audit to a run of Weights & Biases. The run stays open.

    Args:
        run: what `wandb.init` returned: an object with `log` and `summary`.
    """

    def __init__(self, run: Any) -> None:
        super().__init__()
        self._run = run

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write numbers by name. The number of cells is one of them: steps belong to the run."""
        self._run.log({**values, "cells": step})

    def finish(self, values: Mapping[str, float], text: str) -> None:
        """Write the result into the summary of the run."""
        self._run.summary.update({**values, "verdict": text})


def _total(correct: Tensor) -> float:
    return float(correct.sum())
