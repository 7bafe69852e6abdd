"""Closed-loop control and SOAP on the weights of their authors, with the paper's settings.

    python -m benchmarks.released_defenses closed-loop --models DIR --data DIR --out FOLDER
    python -m benchmarks.released_defenses closed-loop-audit --models DIR --data DIR --out FOLDER
    python -m benchmarks.released_defenses soap --models DIR --data DIR --out FOLDER

modules.py in the folder of models loads both networks by name. Fitted bases and attack results are
kept in the output folder and reused, so the command can be interrupted and started again. The
record `FOLDER/NAME.json` has the format of `saddlepoint reproduce`; its copy in
`benchmarks/records/adaptive` is part of docs/results/adaptive.md. One thread, seed 0.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import FGSM
from saddlepoint.attacks.spaces import Ball, Linf
from saddlepoint.audits.result import Audit
from saddlepoint.data import load_data
from saddlepoint.defenses import Defense, Plain
from saddlepoint.evaluation import (
    Adversary,
    Direct,
    FixedPoints,
    RowByRow,
    RowRounds,
    Threat,
    Transfer,
)
from saddlepoint.gradients import BPDA
from saddlepoint.papers.adaptive import published
from saddlepoint.papers.adaptive.attacks import on_closed_loop, on_soap, pgd
from saddlepoint.papers.adaptive.audit_costs import answer_seconds
from saddlepoint.papers.adaptive.scales import AttackBudgets
from saddlepoint.papers.budgets import counted
from saddlepoint.papers.cells import accuracy_cell, correct_rate
from saddlepoint.papers.registry import Experiment, Request
from saddlepoint.papers.result import Cell, Result, Row, Table, read
from saddlepoint.papers.runner import Images, Runner
from saddlepoint.papers.third_party import ModelFolder
from saddlepoint.zoo.adaptive import (
    SOAP,
    ClosedLoopControl,
    LabelConsistency,
    nearest,
    nearest_with_old_cuda_gradient,
)

CHEN = "cifar10/chen2021_resnet20"
SHI = "cifar10/soap_resnet_pi"
CONTROLLED_LAYERS = ("normalize", "stem", "layer1", "layer2", "layer3")
CLOSED_LOOP_BATCH = 16
SOAP_BATCH = 100
TRAINING_IMAGES = 6000  # of which the first 5000 that the network classifies correctly are used
BUDGETS = AttackBudgets()  # the paper's
LEAST_IMAGES = 64  # of a cell
EMULATED = "gradient of PyTorch 1.3 to 1.5 on CUDA"
BLIND_AUDITS = Path(__file__).parent / "records" / "blind-audit" / "adaptive.json"
SOURCES = ("saddlepoint.papers.adaptive.attacks", "saddlepoint.audits.pipeline")
CLOSED_LOOP = Experiment(
    "adaptive/released-closed-loop",
    "Closed-loop control on the evaluators' weights",
    "At 89.1 % clean accuracy, the robust accuracy is 34.5 % under PGD-20 on the static model, "
    "9.5 % under PGD-20 with BPDA and 5.6 % under APGD with BPDA (Sec. 3.3).",
    "benchmarks.released_defenses:closed_loop",
    sources=SOURCES,
    probes=("adaptive/closed-loop", "blind-audit/adaptive"),
)
CLOSED_LOOP_AUDIT = replace(
    CLOSED_LOOP,
    name="adaptive/released-closed-loop-audit",
    title="Audit of closed-loop control on the evaluators' weights",
    function="benchmarks.released_defenses:closed_loop_audit",
)
SOAP_EXPERIMENT = Experiment(
    "adaptive/released-soap",
    "SOAP on its authors' weights with both gradients of upsampling",
    "The purified network has 83.7 % clean accuracy, 54.5 % under FGSM on the static model and "
    "3.7 % under APGD on its trajectory (Sec. 3.5, B.5).",
    "benchmarks.released_defenses:soap",
    sources=SOURCES,
    probes=("adaptive/table-1", "blind-audit/adaptive"),
)


def main() -> None:
    """Measure one defense and write its record."""
    arguments = _parser().parse_args()
    torch.set_num_threads(1)
    sys.path.insert(0, str(arguments.models))
    load = importlib.import_module("modules").load
    MEASURES[arguments.defense](arguments, load)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("defense", choices=tuple(MEASURES))
    parser.add_argument("--models", type=Path, required=True, help="folder with modules.py")
    parser.add_argument("--data", type=Path, required=True, help="folder with cifar-10-batches-bin")
    parser.add_argument("--out", type=Path, required=True, help="folder of bases, cells and record")
    parser.add_argument(
        "--skip",
        type=int,
        default=0,
        help="test images at the start that are left out, for example because settings of attacks "
        "were chosen on them",
    )
    parser.add_argument("--images", type=int, default=304, help="test images of clean accuracy")
    parser.add_argument(
        "--transferred", type=int, default=304, help="test images of PGD on closed-loop control"
    )
    parser.add_argument(
        "--attacked", type=int, default=32, help="test images of attacks on the defense itself"
    )
    parser.add_argument(
        "--longest", type=int, default=0, help="test images of APGD + BPDA on closed-loop control"
    )
    parser.add_argument("--audited", type=int, default=0, help="test images of the audit")
    parser.add_argument("--workers", type=int, help="processes of the audit")
    parser.add_argument("--budget", choices=("quick", "standard"), default="standard")
    parser.add_argument(
        "--steps", type=int, default=50, help="of APGD on the trajectory of SOAP; the paper: 1000"
    )
    parser.add_argument(
        "--rounds", type=int, default=4, help="of APGD on SOAP, each with twice the steps"
    )
    return parser


def fitted(net: nn.Module, arguments: argparse.Namespace) -> ClosedLoopControl:
    """Closed-loop control with bases of 5000 training images, read from the folder if present."""
    path = arguments.out / "closed-loop-bases.pt"
    if path.exists():
        embeddings = torch.load(path, weights_only=False)
        return ClosedLoopControl(net, CONTROLLED_LAYERS, embeddings=embeddings)
    train = load_data("cifar10", split="train", n=TRAINING_IMAGES, root=arguments.data)
    defense = ClosedLoopControl(net, CONTROLLED_LAYERS).fit(train.x, train.y)
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(dict(defense.embeddings or {}), path)
    return defense


def closed_loop(arguments: argparse.Namespace, load: Callable[..., nn.Module]) -> None:
    """Measure closed-loop control (Sec. 3.3) on the evaluators' ResNet-20 at radius 2/255."""
    static, defense = Plain(load(CHEN)), fitted(load(CHEN, stem_slope=0.0), arguments)
    notes = (
        *_about_closed_loop(defense),
        "PGD starts at the clean image, its steps are a quarter of the radius, and its point of "
        "highest loss is transferred; the evaluators transfer its last point",
        "APGD has a best point and a step size for every row, as in the evaluators' code; PGD + "
        "BPDA compares whole batches. All final points are evaluated together",
    )
    bench = Bench(arguments, CLOSED_LOOP, CHEN, CLOSED_LOOP_BATCH, Linf(2 / 255), notes)
    bpda = replace(pgd(BUDGETS, "PGD+BPDA"), rules={"control": BPDA()})
    apgd_bpda = RowByRow(on_closed_loop(defense, BUDGETS))
    transfer = Transfer(pgd(BUDGETS), static)
    papers = published.CLOSED_LOOP
    undefended = published.CLOSED_LOOP_STATIC
    few = arguments.transferred
    bench.row("clean", defense, FixedPoints(), papers["clean"])
    bench.row("clean, static", static, FixedPoints())
    bench.row("PGD-20, transferred", defense, transfer, papers["transfer PGD"], images=few)
    bench.row("PGD-20 on the static network", static, pgd(BUDGETS), undefended, images=few)
    if few := arguments.attacked:
        bench.row("PGD-20 + BPDA", defense, bpda, papers["PGD + BPDA"], images=few)
    if few := arguments.longest:
        bench.row("APGD + BPDA", defense, apgd_bpda, papers["APGD + BPDA"], images=few)
    else:
        bench.add_cost("APGD + BPDA", defense, BUDGETS.apgd_steps)


def closed_loop_audit(arguments: argparse.Namespace, load: Callable[..., nn.Module]) -> None:
    """Audit closed-loop control on the same network, in a record of its own."""
    static, defense = Plain(load(CHEN)), fitted(load(CHEN, stem_slope=0.0), arguments)
    notes = (
        *_about_closed_loop(defense),
        "attacks along the gradient of the last view alone were added to audits after an audit of "
        "these images without them",
        "audits now attack along all views and along the last view separately, and try more steps "
        "on the batch with the most unbroken images; the recorded audit before these changes left "
        "4 of these images",
    )
    bench = Bench(arguments, CLOSED_LOOP_AUDIT, CHEN, CLOSED_LOOP_BATCH, Linf(2 / 255), notes)
    papers = published.CLOSED_LOOP
    bench.row("clean", defense, FixedPoints(), papers["clean"])
    bench.row("clean, static", static, FixedPoints())
    bench.audit("ClosedLoopControl", defense, papers["APGD + BPDA"])


def _about_closed_loop(defense: ClosedLoopControl) -> tuple[str, ...]:
    ranks = ", ".join(
        f"{name} {embedding.basis.shape[1]} of {embedding.basis.shape[0]}"  # type: ignore[attr-defined]
        for name, embedding in (defense.embeddings or {}).items()
    )
    return (
        "weights: the ResNet-20 that the evaluators trained and released; the defense runs it with "
        "a ReLU in the stem, as their code does, the static network has a LeakyReLU there",
        "controls after normalization, stem, layer1, layer2 and layer3; bases of 5000 correctly "
        "classified training images without augmentation, 99 % of the sum of singular values; "
        f"dimensions: {ranks}",
        "batches of 16, 4 updates with learning rate 5e-3",
    )


def soap(arguments: argparse.Namespace, load: Callable[..., nn.Module]) -> None:
    """Measure SOAP (Sec. 3.5) on its authors' network with both gradients of upsampling."""
    net = load(SHI)
    notes = (
        "weights: the network with label consistency that the authors of SOAP released",
        "the loss crops 28 of 32 pixels and enlarges them by nearest neighbor; purification "
        "follows the gradient through this enlargement. In PyTorch 1.3 to 1.5 it reached wrong "
        "pixels on CUDA (PyTorch issue 38985): the published numbers are shown beside it",
        f"batches of {SOAP_BATCH}, which share one of eleven radii; the paper's number under FGSM "
        "is of one batch of 1000",
        "APGD+BPDA (traj.) at the selected radius: APGD without the search over radii, at the "
        "radius that the batch of the last points selects, on the rows that are still classified "
        f"correctly, in {counted(arguments.rounds, 'round')} with twice the steps each, the first "
        f"with {counted(arguments.steps, 'step')}; a row that another radius makes correct is "
        "attacked at the radii of the last three rounds together. The paper has one run of "
        f"{counted(BUDGETS.soap_steps, 'step')}. All final points are evaluated together on SOAP. "
        "Its steps and rounds were chosen on the first 64 test images",
        "audits now attack along all views and along the last view separately; the recorded audit "
        "before this change left 3 of these images",
    )
    bench = Bench(arguments, SOAP_EXPERIMENT, SHI, SOAP_BATCH, Linf(8 / 255), notes)
    fgsm = Direct("FGSM", FGSM(), loss=cross_entropy)
    papers = published.SOAP
    bench.row("clean, static", Plain(net), FixedPoints())
    bench.row("FGSM on the static network", Plain(net), fgsm)
    for name, resize, known in (
        (EMULATED, nearest_with_old_cuda_gradient, papers),
        ("today's gradient", nearest, {}),
    ):
        defense = SOAP(net, LabelConsistency(resize=resize))
        transfer = Transfer(fgsm, Plain(net))
        bench.row(f"clean, {name}", defense, FixedPoints(), known.get("clean"))
        bench.row(f"FGSM, transferred, {name}", defense, transfer, known.get("FGSM"))
    defense = SOAP(net, LabelConsistency(resize=nearest_with_old_cuda_gradient))
    if few := arguments.attacked:
        first = on_soap(defense, replace(BUDGETS, soap_steps=arguments.steps))
        first = replace(first, stop_at_success=True)
        later = (first.scaled(2**k) for k in range(1, arguments.rounds))
        attack = RowRounds(first, tuple(later))
        title = f"APGD+BPDA (traj.) at the selected radius, {EMULATED}"
        bench.row(title, defense, attack, papers["APGD+BPDA (traj.)"], images=few)
    bench.audit("SOAP", defense, papers["APGD+BPDA (traj.)"])


MEASURES = {"closed-loop": closed_loop, "closed-loop-audit": closed_loop_audit, "soap": soap}


class Bench:
    """Runs attacks on test images of CIFAR-10; writes the record after each of them."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        experiment: Experiment,
        weights: str,
        batch: int,
        space: Ball,
        notes: Sequence[str],
    ) -> None:
        self.test = test_images(arguments)
        self.experiment = experiment
        self.space = space
        self.notes = (*notes, _which_images(arguments))
        self.arguments = arguments
        self.rows: list[Row] = []
        self.path = arguments.out / f"released-{arguments.defense}.json"
        request = Request(arguments.out, "paper", progress=lambda text: print(text, flush=True))
        self.runner = Runner(request, batch, threads=1)
        self.runner.weights[weights] = ModelFolder(arguments.models).sha256(weights)
        options = (
            "skip",
            "images",
            "transferred",
            "attacked",
            "longest",
            "audited",
            "budget",
            "steps",
            "rounds",
        )
        chosen = " ".join(f"--{name} {getattr(arguments, name)}" for name in options)
        self.command = (
            f"python -m benchmarks.released_defenses {arguments.defense} --models DIR --data DIR "
            f"--out FOLDER {chosen}"
        )

    def row(
        self,
        name: str,
        defense: Defense,
        adversary: Adversary,
        paper: float | None = None,
        *,
        images: int | None = None,
    ) -> None:
        """Attack a defense and add its accuracy and the number of images to the record."""
        test = self.test.first(images)
        (episode,) = self.runner.play(
            defense, [adversary], test, threat=self.space, answers=None, name=name, seed=0
        )
        correct = correct_rate(episode)
        share = f"{int(correct.sum())} of {len(correct)}"
        self._add(name, share, accuracy_cell(correct, paper))

    def add_cost(self, attack: str, defense: Defense, steps: int) -> None:
        """Note what an attack that was not run would take, from the time of an answer."""
        seconds = answer_seconds(defense, self.test.x[:CLOSED_LOOP_BATCH])
        hours = LEAST_IMAGES * steps * seconds / 3600
        self.notes += (
            f"{attack} was not run: an answer takes {seconds:.2f} s per image of one core, so "
            f"{counted(steps, 'step')} on {counted(LEAST_IMAGES, 'image')} would take at least "
            f"{hours:.3g} h on one core",
        )

    def audit(self, defense_name: str, defense: Defense, paper: float) -> None:
        """Audit the defense and add its accuracy and verdict, or the cost that forbade it."""
        count, budget = self.arguments.audited, self.arguments.budget
        if not count or budget != "standard":
            self.notes += (self._audit_cost(defense_name, defense),)
        if count:
            found = self.runner.audit(
                defense,
                self.test.first(count),
                threat=Threat(self.space),
                budget=budget,
                name=f"{defense_name}, {budget}, {counted(count, 'image')}",
                workers=self.arguments.workers,
            )
            correct = found.correct.double().cpu()
            self.notes += _about_audit(found)
            share = f"{int(correct.sum())} of {count}"
            self._add(f"audit, {budget}", share, accuracy_cell(correct, paper))
        self.path.write_text(self.result().text(), encoding="utf-8")

    def _audit_cost(self, defense_name: str, defense: Defense) -> str:
        """Say what an audit with the budget standard would take, from the passes of another one."""
        (table,) = read(BLIND_AUDITS.read_text(encoding="utf-8"), str(BLIND_AUDITS)).tables
        row = next(row for row in table.rows if row.labels[0] == defense_name)
        passes = sum(
            cell.mean
            for column, cell in zip(table.columns, row.cells, strict=True)
            if cell is not None and column.startswith(("forward passes", "backward passes"))
        )
        seconds = answer_seconds(defense, self.test.x[:CLOSED_LOOP_BATCH])
        hours = LEAST_IMAGES * passes * seconds / 3600
        return (
            f"no audit with the budget standard: an answer takes {seconds:.2f} s per image of one "
            f"core, and the audit of this defense in blind-audit/adaptive took {passes:.0f} "
            f"passes per image, so {counted(LEAST_IMAGES, 'image')} would take about {hours:.3g} h "
            "on one core"
        )

    def _add(self, name: str, share: str, cell: Cell) -> None:
        print(f"{name}: {share}", flush=True)
        self.rows.append(Row((name, share), (cell,)))
        self.path.write_text(self.result().text(), encoding="utf-8")

    def result(self) -> Result:
        """Assemble the record of the rows so far."""
        table = Table(
            f"Accuracy, %, cifar10, {self.space}",
            ("attack", "correct images"),
            ("accuracy",),
            tuple(self.rows),
            0,
            digits=1,
        )
        result = self.runner.result(
            self.experiment,
            [table],
            notes=self.notes,
            findings=[_finding(row) for row in self.rows if _paper(row) is not None],
            charts=(),
            repeats=1,
        )
        return replace(result, command=self.command)


def test_images(arguments: argparse.Namespace) -> Images:
    """Load the images that `--images` and `--skip` choose."""
    skip = arguments.skip
    found = load_data("cifar10", split="test", n=skip + arguments.images, root=arguments.data)
    return Images(found.x[skip:], found.y[skip:])


def _which_images(arguments: argparse.Namespace) -> str:
    first = arguments.skip + 1
    text = f"test images {first} to {arguments.skip + arguments.images}; rows with fewer images "
    return f"{text}have the first of these"


def _about_audit(audit: Audit) -> tuple[str, ...]:
    """Say what an audit concludes and why, and what each of its attacks leaves."""
    attacks = "; ".join(
        f"{row.name} {100 * row.robust_accuracy:.1f} % ({row.seconds:.0f} s)" for row in audit.rows
    )
    found = [f"{symptom.name.value} ({symptom.level.value})" for symptom in audit.symptoms]
    return (
        f"audit with the budget {audit.budget}: verdict {audit.verdict}, {audit.seconds:.0f} s for "
        f"{counted(audit.n, 'image')}; clean {100 * audit.clean_accuracy:.1f} %",
        *(f"reason for the verdict: {reason}" for reason in audit.reasons),
        f"symptoms that the audit found: {', '.join(found) or 'none'}",
        f"robust accuracy of each attack of the audit, in order: {attacks}",
    )


def _paper(row: Row) -> float | None:
    cell = row.cells[0]
    return cell.paper if cell is not None else None


def _finding(row: Row) -> str:
    """Compare a cell with the paper's number by its interval over images."""
    cell = row.cells[0]
    assert isinstance(cell, Cell)
    assert cell.paper is not None
    assert cell.interval is not None
    low, high = cell.interval
    verdict = "contains" if low <= cell.paper <= high else "does not contain"
    return (
        f"{row.labels[0]}: {cell.mean:.1f} %, {cell.mean - cell.paper:+.1f} points from the "
        f"paper's {cell.paper:.1f} %; the interval over images {verdict} the paper's number."
    )


if __name__ == "__main__":
    main()
