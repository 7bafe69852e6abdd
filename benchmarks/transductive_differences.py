"""Write the page about differences from the paper on transductive defenses, from records.

    python -m benchmarks.transductive_differences benchmarks/records/transductive \\
        docs/results/differences-transductive.md
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

from saddlepoint.papers.markdown import format_cell
from saddlepoint.papers.result import Result, read
from saddlepoint.papers.write import stale_reasons

NOT_MEASURED = "not measured"


class Difference(NamedTuple):
    """One place where the implementation differs knowingly."""

    what: str
    theirs: str
    ours: str
    effect: str


class Records:
    """The records of a folder, with the cells of their first tables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stale = stale_reasons(folder)

    def result(self, name: str) -> Result:
        """The record of this name."""
        path = self.folder / f"{name}.json"
        return read(path.read_text(encoding="utf-8"), str(path))

    def number(self, name: str, labels: tuple[str, ...], column: str) -> str:
        """A cell of the first table of a record."""
        return format_cell(self.result(name).tables[0].cell(labels, column), 1)

    def cell(self, name: str, labels: tuple[str, ...], column: str) -> str:
        """A cell with its number of images, and whether its record is stale."""
        text = f"{self.number(name, labels, column)}, {self.result(name).tables[0].n} images"
        return f"{text}, stale" if name in self.stale else text


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("records", type=Path, help="folder of the transductive records")
    parser.add_argument("page", type=Path, help="Markdown file to write")
    arguments = parser.parse_args()
    arguments.page.write_text(page(arguments.records), encoding="utf-8")


def page(folder: Path) -> str:
    """Return the page as Markdown.

    Args:
        folder: the folder of the transductive records.
    """
    records = Records(folder)
    lines = ["| what | paper or released code | here | effect |", "|---|---|---|---|"]
    rows = [*_attacks(), *_rmc(records), *_dent(records), *_others(records)]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    introduction = (
        "# Differences: transductive defenses\n\n"
        "Where the experiments knowingly differ from Chen, Wu, Guo, Liang & Jha 2022 or from their "
        "released code, with the effect where it was measured. Results: "
        '[transductive.md](transductive.md), where "Compared with the paper" lists direction, size '
        "and order of every effect.\n\n"
        "Written by `python -m benchmarks.transductive_differences benchmarks/records/transductive "
        "docs/results/differences-transductive.md`; numbers come from records, whose commands are "
        "on the page of results. A number is an accuracy in percent, with [the paper's number]. "
        "*Stale* records were made before a change that the page of results names."
    )
    return f"{introduction}\n\n" + "\n".join(lines) + "\n"


def _attacks() -> list[Difference]:
    return [
        Difference(
            "round that FPA and GMSA return",
            "the released code returns the clean image where no round misleads its simulation of "
            "RMC or DENT",
            "the round in which the simulated defender is least accurate",
            NOT_MEASURED,
        ),
        Difference(
            "AutoAttack's points",
            "clean images where it fails",
            'both are shown: "AA" and "AA, max-loss points"',
            "see the two columns of every table",
        ),
    ]


def _rmc(records: Records) -> list[Difference]:
    standard = records.cell("table-1", ("mnist", "Standard"), "PGD")
    return [
        Difference(
            "RMC, number of neighbors",
            "K = 1024 of 120 000 images, library attacked by PGD-100",
            "small scale: K = 512 of 3000, PGD-40; K is `RMCSetting.neighbors`",
            f"a standard base under transferred PGD has {standard}",
        ),
        Difference(
            "RMC, when fine-tuning stops",
            "released: training loss below 0.01 and 5 epochs without improvement; paper: either "
            "limit",
            "the paper's rule; `Tuning.enough` is the released one",
            NOT_MEASURED,
        ),
    ]


def _dent(records: Records) -> list[Difference]:
    table = records.result("table-2").tables[0]
    numbers = "; ".join(
        f"{row.labels[0]} {records.number('table-2', row.labels, 'AA')} and "
        f"{records.number('table-2', row.labels, 'PGD')}"
        for row in table.rows
    )
    return [
        Difference(
            "DENT, base networks",
            "seven RobustBench networks for CIFAR-10",
            "three MNIST networks",
            f"the order of the attacks is reversed: under AA and PGD {numbers}, {table.n} images",
        ),
        Difference(
            "DENT, sorted batches",
            "paper: sorted after the attack; released: before",
            "before",
            NOT_MEASURED,
        ),
    ]


def _others(records: Records) -> list[Difference]:
    mnist = ("mnist",)
    clean = records.cell("table-3", mnist, "DANN, clean")
    known = records.cell("table-4", mnist, "Madry, AA")
    classifier = "; ".join(
        f"{name} {records.number('figure-1', (name,), 'accuracy, %')}"
        for name in ("train", "validation")
    )
    return [
        Difference(
            "DANN, length of the training",
            "100 epochs of 79 steps",
            "small scale: 100 epochs of 4 steps, because there are 256 test images",
            f"the clean accuracy is {clean}. A DANN that is no better than a "
            "constant prediction raises `ChanceAccuracyWarning`",
        ),
        Difference(
            "TADV, known network",
            "100 epochs on 60 000 images",
            "small scale: 6 epochs on 2100 images",
            f"under AutoAttack {known}: gains over the known network are not comparable with the "
            "paper's",
        ),
        Difference(
            "TADV, final networks",
            "one",
            "four, with their spread",
            "standard deviations in Table 4",
        ),
        Difference(
            "TADV, kept epoch and momentum",
            "the released code keeps the last epoch, and has ordinary momentum on CIFAR-10 where "
            "the paper has Nesterov's",
            "the epoch that is most robust on a part of the training set; Nesterov's momentum",
            "not measured",
        ),
        Difference(
            "URejectron, discriminator",
            "ResNet-18",
            "both: the ResNet, and a network on high-pass filtered images that was selected by its "
            "result and is marked so",
            "the second one accepts most brighter images at the threshold 1/2; the paper reports "
            "that they are rejected. Figure 1 of the results shows both",
        ),
        Difference(
            "URejectron, split",
            "the classifier's training images overlap the test images in the released code",
            "no overlap",
            f"accuracy of the classifier: {classifier}; the cause was not separated from the "
            "smaller network",
        ),
    ]


if __name__ == "__main__":
    main()
