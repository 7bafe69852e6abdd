"""Figure 6: mismatch and expected accuracy of the attackers, for random strategies of the defender."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attacks.pgd import PGD
from saddlepoint.games.exit_attacks import max_average
from saddlepoint.games.exit_game import ExitGame
from saddlepoint.papers.multi_exit.experiment import Lab, Subject
from saddlepoint.papers.multi_exit.scales import Rows
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Cloud, Result, Row, Table
from saddlepoint.papers.runner import Images
from saddlepoint.rng import Keys

NETWORKS = ("resnet-18", "vgg-16")
OTHERS = ("Random", "Single attack", "Average attack", "Max-average attack")
_DRAWS = 1000


def run(request: Request) -> Result:
    lab = Lab.open(request)
    studies = list[Study]()
    for name in NETWORKS:
        subject = lab.subject(name)
        studies.append(study(lab, subject, lab.game(subject), lab.game(subject, subject.test)))
    return lab.result(
        "figure-6",
        [one.table for one in studies],
        subjects=[one.subject for one in studies],
        notes=NOTES,
        findings=[told for one in studies for told in one.findings],
        charts=[one.cloud for one in studies],
        repeats=1,
    )


NOTES = (
    "strategies are drawn from Dirichlet(1, ..., 1), uniformly over all mixes",
    "AIMER's row is chosen on the images of the game, on which it cannot lose to another row: the points are those on test images",
    "the max-average attack is no row of the game but a choice among rows for every image: it has no mismatch rate",
)


@dataclass(frozen=True)
class Study:
    """The figure for one network."""

    subject: Subject
    table: Table
    cloud: Cloud
    findings: tuple[str, ...]


def study(
    lab: Lab, subject: Subject, game: ExitGame, fresh: ExitGame, attack: PGD | None = None
) -> Study:
    """[S] mismatches and [S, N] chances of a right answer for S strategies, by attacker; `fresh` is the game on test images."""
    strategies = dirichlet(lab.setting.strategies, len(game.subsets), lab.request.seed)
    responses = {
        "Random": torch.full(
            (len(strategies), len(game.targets)), 1 / len(game.targets), dtype=torch.float64
        ),
        "Single attack": game.one_hot((subject.exits,)).expand(len(strategies), -1),
        "Average attack": game.one_hot(subject.everything).expand(len(strategies), -1),
        "AIMER": torch.stack([game.best_response(s) for s in strategies]),
    }
    mismatch = {
        name: [game.mismatch(t, s) for t, s in zip(response, strategies, strict=True)]
        for name, response in responses.items()
    }
    own = _right(lab, subject, game, subject.game, responses, strategies, attack)
    right = _right(lab, subject, fresh, subject.test, responses, strategies, attack)
    points = {
        name: tuple(zip(mismatch[name], (100 * right[name].mean(1)).tolist(), strict=True))
        for name in responses
    }
    cloud = Cloud(
        f"figure-6-{subject.name}",
        f"{subject.name}, {subject.data}",
        "mismatch rate",
        "expected accuracy, %",
        points,
    )
    table = _table(subject, mismatch, own, right)
    return Study(
        subject,
        table,
        cloud,
        (*_compared(subject, right, lab.request.seed), _apart(subject, mismatch)),
    )


def _right(
    lab: Lab,
    subject: Subject,
    played: ExitGame,
    images: Images,
    responses: dict[str, Tensor],
    strategies: Tensor,
    attack: PGD | None,
) -> dict[str, Tensor]:
    """[S, N] by attacker: how probable a right answer is when each plays its mix."""
    peaks = max_average(Rows(attack or lab.setting.payoff), subject.exits)
    episode = lab.play(subject, [peaks], images, seed=lab.request.seed)[0]
    by_row = torch.einsum("sd,adn->san", strategies, played.correct.double())  # [S, A, N]
    right = {
        name: torch.einsum("sa,san->sn", response, by_row) for name, response in responses.items()
    }
    return {
        **right,
        "Max-average attack": strategies @ episode.correct[: len(played.subsets)].double(),
    }


def dirichlet(count: int, actions: int, seed: int) -> Tensor:
    """[S, A] uniform over the simplex: exponential numbers, divided by their sum."""
    u = Keys.of(seed, torch.arange(count)).uniform((actions,), torch.float64)
    drawn = -(1 - u).log()
    return drawn / drawn.sum(1, keepdim=True)


def _table(
    subject: Subject,
    mismatch: dict[str, list[float]],
    own: dict[str, Tensor],
    right: dict[str, Tensor],
) -> Table:
    """Means over strategies; and for how many of them AIMER leaves a higher accuracy than the other attacker does."""
    rows = []
    for name in (*OTHERS, "AIMER"):
        rates = mismatch.get(name)
        cells = [Cell((sum(rates) / len(rates),)) if rates else None]
        for found in (own, right):
            cells.append(Cell((100 * float(found[name].mean()),)))
            above = (found["AIMER"].mean(1) > found[name].mean(1) + 1e-9).double().mean()
            cells.append(Cell((100 * float(above),)))
        rows.append(Row((name,), tuple(cells)))
    columns = (
        "mismatch rate", "accuracy, %, game's images", "AIMER above it, % of strategies", "accuracy, %, test images",
        "AIMER above it, % of strategies, test",
    )  # fmt: skip
    return Table(
        f"{subject.name}, {subject.data}: means over strategies",
        ("attacker",),
        columns,
        tuple(rows),
        len(subject.test.x),
    )


def _apart(subject: Subject, mismatch: dict[str, list[float]]) -> str:
    """Whether AIMER has the lowest mismatch."""
    least = sum(
        all(rates[k] >= mismatch["AIMER"][k] - 1e-9 for rates in mismatch.values())
        for k in range(len(mismatch["AIMER"]))
    )
    means = ", ".join(
        f"{name.lower()} {sum(rates) / len(rates):.2f}" for name, rates in mismatch.items()
    )
    return f"{subject.name}: AIMER has the lowest mismatch for {least} of {len(mismatch['AIMER'])} strategies; on average: {means}."


def _compared(subject: Subject, right: dict[str, Tensor], seed: int) -> list[str]:
    """How often AIMER does worse than another by more than drawing the images again explains."""
    told = []
    for name in OTHERS:
        apart = right["AIMER"] - right[name]  # [S, N]
        low = low_end(apart, seed)
        mean = apart.mean(1)
        told.append(
            f"{subject.name}: AIMER is at or below {name.lower()} for {int((mean <= 1e-9).sum())} of {len(mean)} strategies, "
            f"and above it beyond the 95 % interval for {int((low > 0).sum())}; "
            f"the mean difference is {100 * float(mean.mean()):+.2f} points."
        )
    return told


def low_end(apart: Tensor, seed: int) -> Tensor:
    """[S, N] -> [S]: the 2.5th percentile of the mean over images drawn again, the same draws for all strategies."""
    n = apart.shape[1]
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(n, (_DRAWS, n), generator=generator)
    counts = torch.zeros(_DRAWS, n, dtype=torch.float64).scatter_add(
        1, drawn, torch.ones(_DRAWS, n, dtype=torch.float64)
    )
    return (counts @ apart.T / n).quantile(0.025, dim=0)
