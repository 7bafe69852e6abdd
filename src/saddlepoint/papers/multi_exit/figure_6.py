"""Figure 6: mismatch and expected accuracy of the attackers, for random strategies of the defender."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attack.pgd import PGD
from saddlepoint.coins import Coins
from saddlepoint.game.exits import ExitGame
from saddlepoint.game.partial import max_average
from saddlepoint.papers.multi_exit.lab import Lab, Subject
from saddlepoint.papers.multi_exit.scales import Rows
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Cloud, Result, Row, Table

NETWORKS = ("resnet-18", "vgg-16")
OTHERS = ("Random", "Single attack", "Average attack", "Max-average attack")
_DRAWS = 1000


def run(request: Request) -> Result:
    lab, studies = Lab.open(request), list[Study]()
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
    "AIMER's row is chosen on the images of the game, on which it cannot lose to another row: accuracies are those on test images",
    "the max-average attack is no row of the game but a choice among rows for every image: it has no mismatch rate",
)


@dataclass(frozen=True)
class Study:
    """The figure for one network."""

    subject: Subject
    table: Table
    cloud: Cloud
    findings: tuple[str, ...]


def study(lab: Lab, subject: Subject, game: ExitGame, fresh: ExitGame, attack: PGD | None = None) -> Study:
    """[S] mismatches and [S, N] chances of a right answer for S strategies, by attacker; `fresh` is the game on test images."""
    strategies = dirichlet(lab.setting.strategies, len(game.subsets), lab.request.seed)
    responses = {
        "Random": torch.full((len(strategies), len(game.targets)), 1 / len(game.targets), dtype=torch.float64),
        "Single attack": game.one_hot((subject.exits,)).expand(len(strategies), -1),
        "Average attack": game.one_hot(subject.everything).expand(len(strategies), -1),
        "AIMER": torch.stack([game.best_response(s) for s in strategies]),
    }
    right = {name: _chances(response, fresh.correct, strategies) for name, response in responses.items()}
    mismatch = {
        name: [game.mismatch(t, s) for t, s in zip(response, strategies, strict=True)] for name, response in responses.items()
    }
    peaks = max_average(Rows(attack or lab.setting.payoff), subject.exits)
    episode = lab.play(subject, [peaks], subject.test, seed=lab.request.seed)[0]
    right["Max-average attack"] = strategies @ episode.correct[: len(game.subsets)].double()
    points = {name: tuple(zip(mismatch[name], (100 * right[name].mean(1)).tolist(), strict=True)) for name in responses}
    cloud = Cloud(f"figure-6-{subject.name}", f"{subject.name}, {subject.data}", "mismatch rate", "expected accuracy, %", points)
    return Study(subject, _table(subject, mismatch, right), cloud, tuple(_compared(subject, right, lab.request.seed)))


def dirichlet(count: int, actions: int, seed: int) -> Tensor:
    """[S, A] uniform over the simplex: exponential numbers, divided by their sum."""
    u = Coins.of(seed, torch.arange(count)).uniform((actions,), torch.float64)
    drawn = -(1 - u).log()
    return drawn / drawn.sum(1, keepdim=True)


def _chances(responses: Tensor, correct: Tensor, strategies: Tensor) -> Tensor:
    """[S, A], [A, D, N], [S, D] -> [S, N]: how probable a right answer is when each plays its mix."""
    return torch.stack([torch.einsum("a,d,adn->n", t, s, correct.double()) for t, s in zip(responses, strategies, strict=True)])


def _table(subject: Subject, mismatch: dict[str, list[float]], right: dict[str, Tensor]) -> Table:
    rows = []
    for name in (*OTHERS, "AIMER"):
        accuracies, rates = (100 * right[name].mean(1)).tolist(), mismatch.get(name)
        apart = Cell((sum(rates) / len(rates),)) if rates else None
        above = (right["AIMER"].mean(1) > right[name].mean(1) + 1e-9).double().mean() * 100
        rows.append(Row((name,), (apart, Cell((sum(accuracies) / len(accuracies),)), Cell((float(above),)))))
    columns = ("mismatch rate, mean", "expected accuracy, %, mean", "AIMER above it, % of strategies")
    return Table(f"{subject.name}, {subject.data}", ("attacker",), columns, tuple(rows), len(subject.test.x))


def _compared(subject: Subject, right: dict[str, Tensor], seed: int) -> list[str]:
    """How often AIMER does worse than another by more than drawing the images again explains."""
    told = []
    for name in OTHERS:
        apart = right["AIMER"] - right[name]  # [S, N]
        low = _low_end(apart, seed)
        mean = apart.mean(1)
        told.append(
            f"{subject.name}: AIMER is at or below {name.lower()} for {int((mean <= 1e-9).sum())} of {len(mean)} strategies, "
            f"and above it beyond the 95 % interval for {int((low > 0).sum())}; "
            f"the mean difference is {100 * float(mean.mean()):+.2f} points."
        )
    return told


def _low_end(apart: Tensor, seed: int) -> Tensor:
    """[S, N] -> [S]: the 2.5th percentile of the mean over images drawn again, the same draws for all strategies."""
    n = apart.shape[1]
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(n, (_DRAWS, n), generator=generator)
    counts = torch.zeros(_DRAWS, n, dtype=torch.float64).scatter_add(1, drawn, torch.ones(_DRAWS, n, dtype=torch.float64))
    return (counts @ apart.T / n).quantile(0.025, dim=0)
