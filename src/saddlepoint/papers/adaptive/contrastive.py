"""Section 3.6 and B.8: contrastive reversal, its randomness, and the attacker's control of it."""

from __future__ import annotations

from saddlepoint.evaluation import CleanCopies, Episode, FixedPoints, Threat, Transfer
from saddlepoint.papers.adaptive import published
from saddlepoint.papers.adaptive.attacks import (
    auto,
    on_contrastive,
    on_contrastive_with_known_randomness,
    on_static_of_contrastive,
    static,
)
from saddlepoint.papers.adaptive.defenses import contrastive_with_hidden_negatives
from saddlepoint.papers.adaptive.experiment import AdaptiveExperiment, AdaptiveSubject
from saddlepoint.papers.adaptive.findings import compared_with_static
from saddlepoint.papers.adaptive.fitting import FITS
from saddlepoint.papers.adaptive.reductions import LABEL
from saddlepoint.papers.cells import accuracy_cell, correct_rate, difference_cell
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Row, Table
from saddlepoint.runs.work import torch_threads

NOTES = (
    "all images of a batch are attacked, and are each other's negatives, as in the released code",
    "fixed seed: the random numbers are drawn once, are the same for all images, and are known to "
    "the attacker; EoT is not needed",
    "hidden negatives: training images that no attacker changes, and independent augmentations "
    "(B.8); transferred: points of APGD on the static network",
)


def run(request: Request) -> Result:
    """Reproduce the numbers of Section 3.6 and B.8."""
    experiment = AdaptiveExperiment.open(request)
    subject = experiment.subject("ContrastiveReversal")
    episodes = _attack(experiment, subject)
    papers = published.CONTRASTIVE
    reduced = experiment.reductions("ContrastiveReversal")
    rows = [
        Row((name, reduced), (accuracy_cell(correct_rate(episode), papers.get(key)),))
        for (name, key), episode in episodes.items()
    ]
    main = Table(
        f"Accuracy, %, on {subject.data} in {subject.space}",
        ("attack", LABEL),
        ("contrastive reversal",),
        tuple(rows),
        len(subject.test.x),
        digits=1,
    )
    by_key = {key: correct_rate(episode) for (_, key), episode in episodes.items()}
    negatives = _negatives(experiment, subject, episodes)
    gain = difference_cell(
        by_key["BPDA and EoT"], by_key["static"], papers["BPDA and EoT"] - papers["static"]
    )
    return experiment.result(
        "contrastive",
        [main, negatives],
        subjects=[subject],
        notes=[*NOTES, str(FITS[request.scale])],
        findings=[
            f"Under BPDA and EoT {compared_with_static('contrastive reversal', gain)}.",
            *(
                f"With {row.labels[0]} negatives and transferred points "
                f"{compared_with_static('contrastive reversal', row.cells[1])}."
                for row in negatives.rows
            ),
        ],
    )


def fixed_seed(subject: AdaptiveSubject) -> Threat:
    """The threat model in which the defense has one fixed seed, which the attacker knows."""
    return Threat(subject.space, randomness="fixed")


def _attack(
    experiment: AdaptiveExperiment, subject: AdaptiveSubject
) -> dict[tuple[str, str], Episode]:
    """Return the episodes by name of the row and key of the paper's number."""
    budgets = experiment.setting.attack_budgets
    on_static = on_static_of_contrastive(budgets)
    (undefended,) = experiment.play_static(subject, [on_static])
    clean, copies, transferred, full = experiment.play(
        subject,
        [
            FixedPoints(),
            Transfer(CleanCopies(auto(budgets)), subject.static),
            Transfer(on_static, subject.static),
            on_contrastive(subject.defense, budgets),
        ],
    )
    (fixed,) = experiment.play(
        subject,
        [on_contrastive_with_known_randomness(budgets)],
        threat=fixed_seed(subject),
    )
    return {
        ("none (clean)", "clean"): clean,
        ("APGD on the static network", "static"): undefended,
        ("AutoAttack (clean copies), transferred", "AutoAttack"): copies,
        ("APGD, transferred", "APGD"): transferred,
        ("APGD + BPDA + EoT", "BPDA and EoT"): full,
        ("APGD + BPDA, fixed seed", "fixed"): fixed,
    }


def _negatives(
    experiment: AdaptiveExperiment,
    subject: AdaptiveSubject,
    episodes: dict[tuple[str, str], Episode],
) -> Table:
    """Compare negatives from the attacked batch with hidden ones under transferred points."""
    base = experiment.base(subject.base)
    with torch_threads(experiment.setting.threads):
        defense = contrastive_with_hidden_negatives(base, FITS[experiment.request.scale])
    attack = Transfer(
        on_static_of_contrastive(experiment.setting.attack_budgets), static(subject.defense)
    )
    (hidden,) = experiment.run_attacks(
        defense,
        [attack],
        subject.test,
        threat=subject.threat,
        name=f"hidden negatives, {subject.base}",
        batch=subject.batch,
    )
    undefended = correct_rate(next(one for (_, key), one in episodes.items() if key == "static"))
    batch = next(one for (_, key), one in episodes.items() if key == "APGD")

    def cells(episode: Episode, paper: float | None) -> tuple[Cell, Cell]:
        correct = correct_rate(episode)
        return accuracy_cell(correct, paper), difference_cell(correct, undefended)

    rows = (
        Row(("batch",), cells(batch, published.CONTRASTIVE["APGD"])),
        Row(("hidden",), cells(hidden, None)),
    )
    columns = ("APGD, transferred", "minus static")
    title = "Negatives of the contrastive loss, %"
    return Table(title, ("negatives",), columns, rows, len(subject.test.x), digits=1)
