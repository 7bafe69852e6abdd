"""The states of a solver: their distance from a fixed point, and their accuracy under attack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.evaluation import Episode
from saddlepoint.evaluation.bootstrap import mean_of
from saddlepoint.papers.cells import accuracy_cell, by_interval, difference_text
from saddlepoint.papers.deq.subjects import DEQSubject
from saddlepoint.papers.result import Cell, Row, Table
from saddlepoint.zoo.deq import DEQ, EarlyState, FinalState, MeanState

FAR = 0.1  # a relative residual that is too large to be explained by the solver's tolerance
COLUMNS = ("clean, %", "ready-made PGD-10, %", "residual, clean", "residual, attacked")


@dataclass(frozen=True)
class StateResults:
    """All states of a network on test images, clean and under the ready-made attack."""

    subject: DEQSubject
    clean: Episode
    attacked: Episode
    residual: dict[str, Tensor]  # [N] on clean images, by state
    residual_attacked: dict[str, Tensor]  # [N] on attacked images, by state
    symptoms: tuple[str, ...]  # warnings about solves that did not converge

    def residual_cell(self, name: str) -> Cell:
        """Return the median residual of this state on clean images."""
        return Cell((float(self.residual[name].median()),))

    def table(self, clean: Sequence[float] = (), robust: Sequence[float] = ()) -> Table:
        """Make a table with one row per state.

        Args:
            clean: the paper's clean accuracies of z_1, z_2, ... in percent.
            robust: the paper's accuracies under attack of z_1, z_2, ... in percent.
        """
        subject = self.subject
        rows = []
        for k, name in enumerate(subject.defense.names):
            cells = (
                accuracy_cell(subject.correct(self.clean, name), _published(clean, k, name)),
                accuracy_cell(subject.correct(self.attacked, name), _published(robust, k, name)),
                self.residual_cell(name),
                Cell((float(self.residual_attacked[name].median()),)),
            )
            rows.append(Row((label(name),), cells))
        title = f"{subject.title}, {subject.data}: every state"
        return Table(title, ("state",), COLUMNS, tuple(rows), len(subject.test.x), digits=3)

    def accumulation(self, early: EarlyState) -> str:
        """Say whether the early state is more robust to the ready-made attack than the final one.

        The early state must have been selected on other images.
        """
        difference = mean_of(
            self.subject.correct(self.attacked, early.name)
            - self.subject.correct(self.attacked, FinalState.name)
        )
        verdict = by_interval(
            difference.low,
            difference.high,
            above="robustness accumulation at intermediate states",
            below="no robustness accumulation but the opposite",
            inconclusive="no robustness accumulation that is detectable on these images",
        )
        return (
            f"{self.subject.title}: under the ready-made PGD-10 the accuracy of the state "
            f"{label(early.name)} minus that of the final state is "
            f"{difference_text(difference)}: {verdict}."
        )


def _published(numbers: Sequence[float], k: int, name: str) -> float | None:
    """Return the paper's number of the state in row k; only solver states have one."""
    return numbers[k] if name.startswith("solve/") and k < len(numbers) else None


def label(name: str) -> str:
    """Return the paper's notation for a state: z3, ensemble, final."""
    if name == MeanState.name:
        return "ensemble"
    return "z" + name.partition("/")[2] if name.startswith("solve/") else name


def residuals(defense: DEQ, x: Tensor, batch: int = 100) -> dict[str, Tensor]:
    """Return the relative residual of every state that the defense may answer with (Sec. 6.1).

    Args:
        defense: the equilibrium network.
        x: images [N, ...].
        batch: images per batch.

    Returns:
        ||f(z; x) - z|| / ||f(z; x)|| [N] by the name of the state's view.
    """
    parts = [_residuals(defense, part) for part in torch.split(x, batch)]
    return {name: torch.cat([part[name] for part in parts]).double().cpu() for name in parts[0]}


@torch.no_grad()
def _residuals(defense: DEQ, x: Tensor) -> dict[str, Tensor]:
    net = defense.net
    count = defense.method.steps
    u = net.inject(x)
    numbers = range(1, count + 1)
    weights = (1 / (count + 1),) * count
    solution = defense.method(
        lambda z, rows: net.cell(z, u[rows]), net.start(u), keep=numbers, weights=weights
    )
    final = defense.after(net.cell, solution.best, u)
    assert solution.blend is not None
    states = {EarlyState(n).name: solution.states[n] for n in numbers}
    states |= {MeanState.name: solution.blend + final / (count + 1), FinalState.name: final}
    return {name: _residual(z, net.cell(z, u)) for name, z in states.items()}


def _residual(z: Tensor, f: Tensor) -> Tensor:  # [N]
    gap, size = ((v.flatten(1)).norm(dim=1) for v in (f - z, f))
    ratio: Tensor = gap / size.clamp(min=torch.finfo(f.dtype).tiny)
    return ratio.nan_to_num(nan=torch.inf)


def end_residuals(defense: DEQ, x: Tensor, batch: int = 100) -> Tensor:
    """Return the relative residual [N] of the state at which each solve ended.

    The final state is computed from this state.
    """
    parts = [defense.convergence(part).residual for part in torch.split(x, batch)]
    return torch.cat(parts).double().cpu()


def convergence_warnings(name: str, residual: Mapping[str, Tensor]) -> list[str]:
    """Warn about solves that did not converge.

    Args:
        name: name of the network.
        residual: residuals [N] at the end of the solve, by kind of images ("clean", "attacked").

    Returns:
        One warning per kind of images on which some residual is above `FAR`.
    """
    warnings = []
    for kind, values in residual.items():
        share = float((values > FAR).double().mean())
        if share:
            warnings.append(
                f"{name}: no fixed point on {100 * share:.0f} % of the {kind} images, where the "
                f"solver ends with a relative residual above {FAR:g} (median over all images "
                f"{float(values.median()):.2g}). The output there is not an equilibrium, and the "
                "exact gradient is not the gradient of the output."
            )
    return warnings
