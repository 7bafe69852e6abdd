"""Table 4: AID-purifier on several datasets."""

from __future__ import annotations

from torch import Tensor

from saddlepoint.evaluation import Episode, FixedPoints, Transfer
from saddlepoint.papers.adaptive import published
from saddlepoint.papers.adaptive.attacks import apgd, auto, on_aid, on_aid_longer
from saddlepoint.papers.adaptive.experiment import AdaptiveExperiment, AdaptiveSubject
from saddlepoint.papers.adaptive.findings import compared_with_static
from saddlepoint.papers.adaptive.nets import PGD_AT, further, recipes
from saddlepoint.papers.adaptive.reductions import LABEL
from saddlepoint.papers.cells import accuracy_cell, correct_rate, difference_cell
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Row, Table
from saddlepoint.zoo.adaptive import AIDPurifier

DETECTION = "detection by the discriminator"
COLUMNS = (
    "static, AutoAttack",
    "transferred",
    "direct",
    "direct minus static",
    "direct, longer",
    "clean",
    "static, clean",
    DETECTION,
)
NOTES = (
    "transferred: points of maximal cross-entropy by APGD on the static network",
    "the discriminator on SVHN uses other layers and is less deep, as the released one",
    "direct, longer: where the purified network seems more robust than the static one, the attack "
    "with more steps and restarts (B.7)",
    "detection: how often the discriminator prefers a natural image to a transferred point, over "
    "all pairs; at 50 % it is at chance, and purification has no relation to the perturbation",
)
_CHANCE = 60.0  # percent; below, the discriminator hardly detects attacks
# The paper's names of our datasets.
_DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN"}


def run(request: Request) -> Result:
    """Reproduce Table 4."""
    experiment = AdaptiveExperiment.open(request)
    bases = (PGD_AT, *further(request.scale))
    present = [base for base in bases if experiment.has_data(base)]
    subjects = [experiment.subject("AIDPurifier", base) for base in present]
    measured = {subject.base: _row(experiment, subject) for subject in subjects}
    known = recipes(request.scale)
    reduced = experiment.reductions("AIDPurifier")
    missing = {
        base: Row((known[base].data, str(known[base].space), reduced), (None,) * len(COLUMNS))
        for base in bases
        if base not in measured
    }
    table = Table(
        "Robust accuracy, %",
        ("data", "perturbations", LABEL),
        COLUMNS,
        tuple(measured.get(base) or missing[base] for base in bases),
        len(subjects[0].test.x),
        digits=1,
    )
    return experiment.result(
        "table-4",
        [table],
        subjects=subjects,
        notes=NOTES,
        findings=[
            *(text for row in measured.values() for text in _findings(row)),
            *(f"{row.labels[0]}: not on this machine, not measured." for row in missing.values()),
        ],
    )


def _row(experiment: AdaptiveExperiment, subject: AdaptiveSubject) -> Row:
    budgets = experiment.setting.attack_budgets
    name = _DATASETS.get(subject.data, "")
    papers = published.TABLE_4.get(name, (None, None, None))
    static, static_clean = (
        correct_rate(episode)
        for episode in experiment.play_static(subject, [auto(budgets), FixedPoints()])
    )
    attacks = [
        Transfer(apgd(budgets), subject.static),
        on_aid(subject.defense, budgets),
        FixedPoints(),
    ]
    transferred, *others = experiment.play(subject, attacks)
    direct, clean = (correct_rate(episode) for episode in others)
    paper_gap = None
    if papers[0] is not None and papers[2] is not None:
        paper_gap = papers[2] - papers[0]
    cells = (
        accuracy_cell(static, papers[0]),
        accuracy_cell(correct_rate(transferred), papers[1]),
        accuracy_cell(direct, papers[2]),
        difference_cell(direct, static, paper_gap),
        _longer(experiment, subject, direct, static, published.TABLE_4_LONGER.get(name)),
        accuracy_cell(clean),
        accuracy_cell(static_clean),
        _detection(subject, transferred),
    )
    return Row((subject.data, str(subject.space), experiment.reductions("AIDPurifier")), cells)


def _longer(
    experiment: AdaptiveExperiment,
    subject: AdaptiveSubject,
    direct: Tensor,
    static: Tensor,
    paper: float | None,
) -> Cell | None:
    """Attack longer if the purified network seems more robust than the static one."""
    if direct.mean() <= static.mean():
        return None
    attack = on_aid_longer(experiment.setting.attack_budgets)
    (episode,) = experiment.play(subject, [attack])
    return accuracy_cell(correct_rate(episode), paper)


def _detection(subject: AdaptiveSubject, transferred: Episode) -> Cell:
    assert isinstance(subject.defense, AIDPurifier)
    return Cell((100 * subject.defense.detection_rate(subject.test.x, transferred.points),))


def _findings(row: Row) -> list[str]:
    texts = [f"{row.labels[0]}: {compared_with_static('the purified network', row.cells[3])}."]
    detection = row.cells[COLUMNS.index(DETECTION)]
    assert detection is not None
    if detection.mean < _CHANCE:
        texts.append(
            f"{row.labels[0]}: the discriminator detects transferred points in "
            f"{detection.mean:.1f} % of pairs, close to chance, so that purification cannot undo "
            "perturbations."
        )
    return texts
