"""Beyond the paper: an attacker who knows the mix climbs its expected loss, or picks the attack for every image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attacks.pgd import PGD
from saddlepoint.defenses import exit_name, subset_name
from saddlepoint.evaluation import FixedPoints
from saddlepoint.evaluation.bootstrap import Estimate, mean_of
from saddlepoint.games.exit_game import ExitGame, Offense
from saddlepoint.games.matrix import least_per_example
from saddlepoint.papers.multi_exit import published
from saddlepoint.papers.multi_exit.experiment import Lab, Subject, attackers
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Row, Table

NETWORKS = ("resnet-18", "vgg-16")
ATTACKERS = ("promised by the game", "AIMER", "expected loss", "worst per image")
NOTES = (
    "promised: the strategy's worst row on the game's own images; everything else is on test images, which the game has not seen",
    "worst per image: the attacker who picks, for every image, the worst of all partial attacks and of the expected-loss attack",
    "best fixed answer and per-image mix: the best set of exits, and the best mix, against that attacker on the game's images",
)


def run(request: Request) -> Result:
    lab = Lab.open(request)
    tables = list[Table]()
    told = list[str]()
    subjects = list[Subject]()
    for name in NETWORKS:
        subject = lab.subject(name)
        game = lab.game(subject)
        fresh = lab.game(subject, subject.test)
        exposed = exposure(lab, subject, game, fresh)
        tables.append(exposed.table)
        told += exposed.findings
        subjects.append(subject)
    copies = _copies(lab, subjects[0])
    return lab.result(
        "honest",
        [*tables, copies],
        subjects=subjects,
        notes=[*NOTES, lab.setting.budgets],
        findings=[*told, *_gaps(copies)],
    )


@dataclass(frozen=True)
class Exposed:
    """The strategies of one network under attackers that know more and more."""

    table: Table
    findings: tuple[str, ...]


def strategies(game: ExitGame) -> dict[str, Tensor]:
    """What is compared, each found on the game's images."""
    fixed = torch.stack(
        [least_per_example(game.correct, game.one_hot(s)).mean() for s in game.subsets]
    )
    return {
        "NEED": game.equilibrium().defender,
        "best fixed answer": game.one_hot(game.subsets[int(fixed.argmax())]),
        "per-image mix": game.per_example().defender,
        "all exits": game.one_hot(tuple(range(1, game.exits + 1))),
        "last exit": game.one_hot((game.exits,)),
    }


def exposure(
    lab: Lab, subject: Subject, game: ExitGame, fresh: ExitGame, attack: PGD | None = None
) -> Exposed:
    offense = Offense(tuple(map(exit_name, subject.everything)), attack or lab.setting.payoff)
    kinds = strategies(game)
    right = dict[str, dict[str, Tensor]]()
    for name, s in kinds.items():
        clean, climbed = lab.play(
            subject,
            [FixedPoints(), offense.expected(game.subsets, s)],
            subject.test,
            seed=lab.request.seed,
        )
        count = len(game.subsets)
        rows = torch.einsum("d,adn->an", s, fresh.correct.double())  # [A, N]
        expected = s @ climbed.correct[:count].double()
        right[name] = {
            "clean": s @ clean.correct[:count].double(),
            "AIMER": game.best_response(s) @ rows,
            "expected loss": expected,
            "worst per image": torch.minimum(rows.amin(0), expected),
        }
    table = _table(subject, game, kinds, right)
    beaten = (
        f"{subject.name}: a mismatched attack beats the matched one in {game.beaten_matches()} of {len(game.subsets)} columns on "
        f"the game's images, in {fresh.beaten_matches()} on test images (against Assumption 3.5)."
    )
    return Exposed(table, (beaten, *_compared(subject, right)))


def _table(
    subject: Subject,
    game: ExitGame,
    kinds: Mapping[str, Tensor],
    right: Mapping[str, Mapping[str, Tensor]],
) -> Table:
    rows = []
    for name, s in kinds.items():
        promised = Cell((100 * float(game.accuracy(s).amin()),))
        clean, *found = (_cell(mean_of(values)) for values in right[name].values())
        label = (
            f"{name} ({subset_name(game.subsets[int(s.argmax())])})"
            if name == "best fixed answer"
            else name
        )
        rows.append(Row((label,), (clean, promised, *found)))
    title = f"{subject.name}, {subject.data}: accuracy, %, under attackers that know more and more"
    return Table(
        title, ("strategy",), ("clean", *ATTACKERS), tuple(rows), len(subject.test.x), digits=1
    )


def _cell(found: Estimate) -> Cell:
    return Cell((100 * found.value,), interval=(100 * found.low, 100 * found.high))


def _compared(subject: Subject, right: Mapping[str, Mapping[str, Tensor]]) -> list[str]:
    """Differences on the same images, with their intervals."""
    told = []
    for attacker in ATTACKERS[1:]:
        for other in ("best fixed answer", "per-image mix", "all exits", "last exit"):
            apart = mean_of(right["NEED"][attacker] - right[other][attacker])
            sure = "" if apart.low > 0 or apart.high < 0 else ", which other images might reverse"
            told.append(
                f"{subject.name}, {attacker}: NEED minus {other} is {100 * apart.value:+.1f} points "
                f"({100 * apart.low:+.1f} to {100 * apart.high:+.1f}){sure}."
            )
    return told


def _copies(lab: Lab, subject: Subject) -> Table:
    """The static case of Table 1 with AutoAttack's points of largest loss, and with what its stock code returns."""
    game = lab.game(subject)
    images = lab.swept(subject)
    defender = lab.defender(subject, game, (3,))
    crafts = {
        "PGD-100": lab.setting.attacks["PGD-100"],
        "AutoAttack, largest loss": lab.setting.attacks["AutoAttack"],
        "AutoAttack, stock": lab.setting.stock,
    }
    cells: dict[str, list[Cell | None]] = {name: [] for name in published.EVALUATIONS}
    papers = {"PGD-100": 2, "AutoAttack, stock": 5}
    for column, craft in crafts.items():
        sent = attackers(subject, game, defender, craft)
        repeats = [lab.play(subject, list(sent.values()), images, seed=seed) for seed in lab.seeds]
        for k, name in enumerate(sent):
            values = tuple(100 * float(defender.right(repeat[k]).mean()) for repeat in repeats)
            paper = published.TABLE_1["static"][k][papers[column]] if column in papers else None
            cells[name].append(Cell(values, paper))
            if column == "AutoAttack, stock":
                copied = tuple(100 * float(repeat[k].copies.double().mean()) for repeat in repeats)
                cells[name].append(Cell(copied))
    columns = (*crafts, "clean copies among its points, %")
    rows = tuple(Row((name,), tuple(found)) for name, found in cells.items())
    return Table(
        f"{subject.name}, the third exit answers: accuracy, %",
        ("evaluation",),
        columns,
        rows,
        len(images.x),
    )


def _gaps(table: Table) -> list[str]:
    told = []
    for column in table.columns[:-1]:
        pair = [table.cell((name,), column) for name in ("Max-average attack", "AIMER")]
        papers = [cell.paper for cell in pair if cell.paper is not None]
        reported = (
            f"; the paper's figures give {papers[0] - papers[1]:.2f}" if len(papers) == 2 else ""
        )
        told.append(
            f"{column}: AIMER finds {pair[0].mean - pair[1].mean:+.2f} points less than max-average{reported}."
        )
    return told
