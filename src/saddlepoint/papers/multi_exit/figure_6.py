"""Figure 6: mismatch rate and expected accuracy per attacker, for random defender strategies."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attacks.pgd import PGD
from saddlepoint.games.exit_attacks import max_average
from saddlepoint.games.payoffs import ExitGame
from saddlepoint.papers.multi_exit.experiment import MultiExitExperiment, MultiExitSubject
from saddlepoint.papers.multi_exit.scales import PartialPGD
from saddlepoint.papers.multi_exit.third_party import triple_wins, with_all_rows
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Plot, Result, Row, Table
from saddlepoint.papers.runner import Images
from saddlepoint.rng import Keys

NETWORKS = ("resnet-18", "vgg-16")
OTHERS = ("Random", "Single attack", "Average attack", "Max-average attack")
NOTES = (
    "the defender's strategies are drawn from Dirichlet(1, ..., 1), uniformly over all mixed "
    "strategies",
    "AIMER's row is chosen on the game's images, where no other row can have a lower accuracy; the "
    "chart therefore shows accuracies on test images",
    "the max-average attack is not a row of the game: it chooses a row per image, so it has no "
    "mismatch rate",
)
_BOOTSTRAP_DRAWS = 1000


def run(request: Request) -> Result:
    """Reproduce Figure 6 for each network in `NETWORKS`."""
    experiment = MultiExitExperiment.open(request)
    studies = list[NetworkStudy]()
    for name in NETWORKS:
        subject = experiment.subject(name)
        studies.append(
            study(
                experiment,
                subject,
                experiment.game(subject),
                experiment.game(subject, subject.test),
            )
        )
    return experiment.result(
        "figure-6",
        [one.table for one in studies],
        subjects=[one.subject for one in studies],
        notes=NOTES,
        findings=[finding for one in studies for finding in one.findings],
        charts=[one.plot for one in studies],
        repeats=1,
    )


def run_real(request: Request) -> Result:
    """Reproduce Figure 6 for the third-party network."""
    experiment = with_all_rows(MultiExitExperiment.open(request))
    subject = triple_wins(experiment)
    test_game = experiment.game(subject, subject.test)
    one = study(experiment, subject, experiment.game(subject), test_game)
    return experiment.result(
        "figure-6",
        [one.table],
        subjects=[subject],
        notes=NOTES,
        findings=one.findings,
        charts=[one.plot],
        repeats=1,
    )


@dataclass(frozen=True)
class NetworkStudy:
    """The table, chart and findings of one network."""

    subject: MultiExitSubject
    table: Table
    plot: Plot
    findings: tuple[str, ...]


def study(
    experiment: MultiExitExperiment,
    subject: MultiExitSubject,
    game: ExitGame,
    test_game: ExitGame,
    attack: PGD | None = None,
) -> NetworkStudy:
    """Compare the attackers on one network over random defender strategies.

    Args:
        experiment: the experiment, which gives the number of strategies and the seed.
        subject: the network and its images.
        game: the game on the held-out images, from which AIMER chooses its row.
        test_game: the same game on the test images.
        attack: PGD of the games' rows; None: the payoff attack of the scale.

    Returns:
        The table, the chart and the findings of this network.
    """
    strategies = dirichlet(
        experiment.setting.strategies, len(game.subsets), experiment.request.seed
    )  # [S, D]
    responses = _responses(subject, game, strategies)
    mismatch = {
        name: [game.mismatch(t, s) for t, s in zip(response, strategies, strict=True)]
        for name, response in responses.items()
    }
    own = _correct(experiment, subject, game, subject.game, responses, strategies, attack)
    correct = _correct(experiment, subject, test_game, subject.test, responses, strategies, attack)
    points = {
        name: tuple(zip(mismatch[name], (100 * correct[name].mean(1)).tolist(), strict=True))
        for name in responses
    }
    plot = Plot(
        f"figure-6-{subject.name}",
        f"{subject.name}, {subject.data}",
        "mismatch rate",
        "expected accuracy, %",
        points,
    )
    return NetworkStudy(
        subject,
        _table(subject, mismatch, own, correct),
        plot,
        (
            *_accuracy_findings(subject, correct, experiment.request.seed),
            _mismatch_finding(subject, mismatch),
        ),
    )


def _responses(subject: MultiExitSubject, game: ExitGame, strategies: Tensor) -> dict[str, Tensor]:
    """[S, A] the mixed strategy of each attacker against S defender strategies."""
    count = len(strategies)
    rows = len(game.targets)
    identity = torch.eye(rows, dtype=torch.float64)
    single, average = (
        identity[game.targets.index(exits)] for exits in ((subject.exits,), subject.everything)
    )
    return {
        "Random": torch.full((count, rows), 1 / rows, dtype=torch.float64),
        "Single attack": single.expand(count, -1),
        "Average attack": average.expand(count, -1),
        "AIMER": torch.stack([game.best_response(s) for s in strategies]),
    }


def _correct(
    experiment: MultiExitExperiment,
    subject: MultiExitSubject,
    game: ExitGame,
    images: Images,
    responses: dict[str, Tensor],
    strategies: Tensor,
    attack: PGD | None,
) -> dict[str, Tensor]:
    """[S, N] probability of a correct prediction per attacker, strategy and image.

    `game` is the game on `images`. The probability is exact over the draws of both players.
    """
    by_row = torch.einsum("sd,adn->san", strategies, game.correct.double())  # [S, A, N]
    correct = {
        name: torch.einsum("sa,san->sn", response, by_row) for name, response in responses.items()
    }
    adversary = max_average(PartialPGD(attack or experiment.setting.payoff), subject.exits)
    episode = experiment.play(subject, [adversary], images, seed=experiment.request.seed)[0]
    return {
        **correct,
        "Max-average attack": strategies @ episode.correct[: len(game.subsets)].double(),
    }


def dirichlet(count: int, actions: int, seed: int) -> Tensor:
    """Draw mixed strategies uniformly from the simplex, that is from Dirichlet(1, ..., 1).

    Exponential random numbers divided by their sum have this distribution.

    Args:
        count: number S of strategies.
        actions: number A of actions of each strategy.
        seed: seed; the first strategies do not depend on `count`.

    Returns:
        [S, A] probabilities, float64; every row sums to 1.
    """
    u = Keys.of(seed, torch.arange(count)).uniform((actions,), torch.float64)
    exponential = -(1 - u).log()
    return exponential / exponential.sum(1, keepdim=True)


def _table(
    subject: MultiExitSubject,
    mismatch: dict[str, list[float]],
    own: dict[str, Tensor],
    correct: dict[str, Tensor],
) -> Table:
    """Means over strategies, and how often AIMER's accuracy is above that of each attacker.

    `own` is measured on the game's images, `correct` on test images.
    """
    rows = []
    for name in (*(other for other in OTHERS if other in own), "AIMER"):
        rates = mismatch.get(name)
        cells = [Cell((sum(rates) / len(rates),)) if rates else None]
        for found in (own, correct):
            cells.append(Cell((100 * float(found[name].mean()),)))
            above = (found["AIMER"].mean(1) > found[name].mean(1) + 1e-9).double().mean()
            cells.append(Cell((100 * float(above),)))
        rows.append(Row((name,), tuple(cells)))
    columns = (
        "mismatch rate",
        "accuracy, %, game's images",
        "strategies with a higher accuracy under AIMER, %, game's images",
        "accuracy, %, test images",
        "strategies with a higher accuracy under AIMER, %, test images",
    )
    return Table(
        f"{subject.name}, {subject.data}: means over strategies",
        ("attacker",),
        columns,
        tuple(rows),
        len(subject.test.x),
    )


def _mismatch_finding(subject: MultiExitSubject, mismatch: dict[str, list[float]]) -> str:
    """For how many strategies AIMER has the lowest mismatch rate, and the mean rates."""
    lowest = sum(
        all(rates[k] >= mismatch["AIMER"][k] - 1e-9 for rates in mismatch.values())
        for k in range(len(mismatch["AIMER"]))
    )
    means = ", ".join(
        f"{name.lower()} {sum(rates) / len(rates):.2f}" for name, rates in mismatch.items()
    )
    return (
        f"{subject.name}: AIMER has the lowest mismatch rate for {lowest} of "
        f"{len(mismatch['AIMER'])} strategies; mean rates: {means}."
    )


def _accuracy_findings(
    subject: MultiExitSubject, correct: dict[str, Tensor], seed: int
) -> list[str]:
    """For how many strategies AIMER's accuracy is significantly above that of another attacker."""
    sentences = []
    for name in (other for other in OTHERS if other in correct):
        difference = correct["AIMER"] - correct[name]  # [S, N]
        low = lower_bound(difference, seed)
        mean = difference.mean(1)
        sentences.append(
            f"{subject.name}: compared with {name.lower()}, the accuracy under AIMER is lower or "
            f"equal for {int((mean <= 1e-9).sum())} of {len(mean)} strategies and significantly "
            f"higher (95 % interval) for {int((low > 0).sum())}; the mean difference is "
            f"{100 * float(mean.mean()):+.2f} points."
        )
    return sentences


def lower_bound(differences: Tensor, seed: int) -> Tensor:
    """Bootstrap lower bound of the mean over images.

    Args:
        differences: [S, N] difference per strategy and image.
        seed: seed of the bootstrap; all strategies share the same resampled images.

    Returns:
        [S] 2.5th percentile of the mean over resampled images.
    """
    n = differences.shape[1]
    generator = torch.Generator().manual_seed(seed)
    resampled = torch.randint(n, (_BOOTSTRAP_DRAWS, n), generator=generator)
    counts = torch.zeros(_BOOTSTRAP_DRAWS, n, dtype=torch.float64).scatter_add(
        1, resampled, torch.ones(_BOOTSTRAP_DRAWS, n, dtype=torch.float64)
    )
    return (counts @ differences.T / n).quantile(0.025, dim=0)
