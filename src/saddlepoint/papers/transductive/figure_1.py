"""Figure 1: what URejectron refuses and what slips through, for PGD, for Carlini and Wagner, and on brighter images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.spaces import Ball, unbounded_ball
from saddlepoint.data import load_data
from saddlepoint.data.corruptions import brightness
from saddlepoint.data.signs import Parts, prepared
from saddlepoint.defenses import Context
from saddlepoint.evaluation import Direct, Episode, FixedPoints, MaxLossPoint
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Cloud, Result, Row, Table
from saddlepoint.papers.runner import Images
from saddlepoint.papers.transductive import EXPERIMENTS, published
from saddlepoint.papers.transductive.experiment import Lab, about, accuracy
from saddlepoint.rng import Keys
from saddlepoint.runs.work import torch_threads
from saddlepoint.zoo.transductive import RejectionCurve, URejectron, rejection_curve

RECIPE = "signs"
ALLOWED = (0.01, 0.1, 0.5)  # shares of ordinary images that somebody may be willing to lose
SHORT = {"a": "(a) PGD", "b": "(b) CW", "c": "(c) brightness"}
TITLES = {
    "a": "(a) clean images and PGD's points",
    "b": "(b) clean images and CW's points",
    "c": "(c) brighter images and PGD's points on them",
}


@dataclass(frozen=True)
class Asked:
    """A test batch: ordinary images, and as many that were made of them by an attack on the classifier."""

    ordinary: Tensor
    made: Episode
    y: Tensor

    @property
    def batch(self) -> Tensor:
        return torch.cat([self.ordinary, self.made.points])


@dataclass(frozen=True)
class Refused:
    """What URejectron makes of a test batch, at every threshold; and of clean images that no discriminator has seen."""

    curve: RejectionCurve
    held: tuple[
        float, ...
    ]  # [T] share of clean validation images that is refused: high where it has learned its batch by heart

    @property
    def half(self) -> int:
        """The place of the threshold 1/2."""
        return min(
            range(len(self.curve.thresholds)), key=lambda k: abs(self.curve.thresholds[k] - 0.5)
        )


def run(request: Request) -> Result:
    lab = Lab.open(request)
    kind = lab.setting.signs
    recipe = lab.recipe(RECIPE)
    parts = prepared(
        load_data(kind.data, split="train", n=kind.photographs),
        per_class=kind.per_class,
        seed=request.seed,
    )
    parts = parts._replace(test=parts.test.take(kind.asked or len(parts.test)))
    with torch_threads(lab.setting.threads):
        net = lab.bench.trained(recipe, Images(parts.train.x, parts.train.y))
    asked = batches(lab, net, parts)
    with torch_threads(lab.setting.threads):
        found = {name: refused(lab, net, parts, one) for name, one in asked.items()}
    curves = {name: one.curve for name, one in found.items()}
    n = 2 * len(parts.test)
    return lab.result(
        EXPERIMENTS[6],
        [classifier(lab, net, parts, asked), refusals(found, n)],
        notes=[
            about(RECIPE, net, recipe.space, recipe),
            f"{len(parts.train)} training, {len(parts.dev)} validation and {len(parts.test)} test images, classes made equally "
            "large by warped copies before the split, as in the paper",
            f"PGD with {kind.pgd.steps} steps; CW with {kind.cw.steps} steps and no search for its constant, {kind.cw.constant:g}, "
            "any perturbation allowed; brightness of severity 1",
            f"each discriminator is trained for {kind.training.epochs} epochs on {kind.known or len(parts.train)} training images "
            f"and on the {n} it then judges",
            f"held-out clean: the {len(parts.dev)} validation images, which no discriminator has seen",
            *kind.changed,
        ],
        findings=findings(found),
        charts=charts(curves),
    )


def batches(lab: Lab, net: nn.Module, parts: Parts) -> dict[str, Asked]:
    """The three test batches of the figure."""
    kind = lab.setting.signs
    space = lab.recipe(RECIPE).space
    (x, y) = parts.test
    lighter = brightness(x, 1, Keys.of(lab.request.seed, torch.arange(len(x))))
    pgd = MaxLossPoint(Direct("pgd", kind.pgd, cross_entropy))
    anywhere = unbounded_ball(x[0].numel(), p=2)

    def made(ordinary: Tensor, adversary: MaxLossPoint | Direct, space: Ball) -> Asked:
        (episode,) = lab.on(net, [adversary], Images(ordinary, y), space, RECIPE)
        return Asked(ordinary, episode, y)

    return {
        "a": made(x, pgd, space),
        "b": made(x, Direct("cw", kind.cw), anywhere),
        "c": made(lighter, pgd, space),
    }


def refused(lab: Lab, net: nn.Module, parts: Parts, asked: Asked) -> Refused:
    """URejectron adapted to the whole batch."""
    kind = lab.setting.signs
    batch = asked.batch
    y = asked.y.repeat(2)
    defense = URejectron(net, parts.train.x[: kind.known], training=kind.training)
    with torch.no_grad():
        redacted = defense.adapt(batch, Context.seeded(lab.request.seed, len(batch)))
    thresholds = spread(kind.thresholds)
    found, held = (
        rejection_curve(redacted, batch, y, part, thresholds=thresholds)
        for part in (asked.ordinary, parts.dev.x)
    )
    return Refused(found, held.rejected_normal)


def spread(count: int) -> list[float]:
    """Thresholds 0 and 1, and between them evenly in log odds: on an even grid a discriminator that is sure tells nothing."""
    return [0.0, *torch.linspace(-12, 12, count - 2, dtype=torch.float64).sigmoid().tolist(), 1.0]


def classifier(lab: Lab, net: nn.Module, parts: Parts, asked: Mapping[str, Asked]) -> Table:
    """The classifier alone, without which refusals mean nothing."""
    plain = {"train": parts.train, "validation": parts.dev, "test": parts.test}
    space = lab.recipe(RECIPE).space
    found = {
        name: lab.on(net, [FixedPoints()], Images(*part), space, RECIPE)[0]
        for name, part in plain.items()
    }
    lighter = lab.on(
        net, [FixedPoints()], Images(asked["c"].ordinary, asked["c"].y), space, RECIPE
    )[0]
    found |= {"PGD": asked["a"].made, "CW": asked["b"].made, "brightness": lighter}
    rows = tuple(
        Row((name,), (accuracy([episode], published.FIGURE_1.get(name)),))
        for name, episode in found.items()
    )
    return Table(
        "The classifier alone, on test images where nothing else is said",
        ("images",),
        ("accuracy, %",),
        rows,
        len(parts.test),
    )


def refusals(found: Mapping[str, Refused], n: int) -> Table:
    """Errors among what is answered, by the share of ordinary images that may be refused; and what a threshold of 1/2 does."""
    rows = []
    for name, one in found.items():
        curve = one.curve
        half = one.half
        attacked = (
            2 * curve.rejected[half] - curve.rejected_normal[half]
        )  # half of the batch is ordinary
        at_half = (
            curve.rejected_normal[half],
            one.held[half],
            attacked,
            curve.error[half],
            curve.error_of_all[half],
        )
        cells = [*(slips(curve, share) for share in ALLOWED), *at_half]
        rows.append(Row((TITLES[name],), tuple(Cell((100 * value,)) for value in cells)))
    columns = (
        *(f"error among answered, at most {100 * share:g} % of ordinary refused" for share in ALLOWED),
        "threshold 1/2: ordinary refused", "held-out clean refused", "attacked refused", "error among answered",
        "errors of all (Eq. 1)",
    )  # fmt: skip
    return Table(
        "What URejectron refuses and what slips through, %",
        ("test batch",),
        columns,
        tuple(rows),
        n,
        units="in one batch",
    )


def slips(one: RejectionCurve, share: float) -> float:
    """The error among answered images at the strictest threshold that refuses no more than this share of ordinary ones."""
    return next(
        error
        for error, refused in zip(one.error, one.rejected_normal, strict=True)
        if refused <= share
    )


def findings(found: Mapping[str, Refused]) -> list[str]:
    """The paper's three statements, each beside what was found where a tenth of the ordinary images may be refused."""
    curves = {name: one.curve for name, one in found.items()}
    a, b, c = (slips(curves[name], 0.1) for name in "abc")
    through = (
        "more slips through than under PGD, as in the paper"
        if b > a
        else "no more slips through, against the paper"
    )
    brighter = cost(curves["c"], max(a, 0.01))
    lost, clean = (one.curve.rejected_normal[one.half] for one in (found["c"], found["a"]))
    verdict = (
        "they are refused, as in the paper"
        if lost > 0.5
        else "most are answered, against the paper"
    )
    return [
        f"(a) With at most 10 % of clean images refused, {100 * a:.1f} % of what is answered is wrong under PGD.",
        f"(b) Under CW it is {100 * b:.1f} %: {through}.",
        f"(c) Where ordinary images are brighter it is {100 * c:.1f} %; errors as rare as under (a), or 1 %, cost "
        f"{100 * brighter:.1f} % of these images, and {100 * cost(curves['a'], max(a, 0.01)):.1f} % of clean ones in (a).",
        f"(c) At a threshold of 1/2 {100 * lost:.1f} % of brighter images are refused, and {100 * clean:.1f} % of clean ones in "
        f"(a): {verdict}.",
    ]


def cost(one: RejectionCurve, error: float) -> float:
    """The least share of ordinary images that must be refused for errors no more frequent than this among answered ones."""
    return min(
        refused
        for found, refused in zip(one.error, one.rejected_normal, strict=True)
        if found <= error
    )


def charts(curves: Mapping[str, RejectionCurve]) -> list[Cloud]:
    """Errors and refusals over the share that is refused, one chart per batch; and the three curves of errors together."""
    each = [
        Cloud(f"figure-1-{name}", TITLES[name], "share of the batch refused, %", "%", {
            "error, answered": _points(one.rejected, one.error),
            "ordinary refused": _points(one.rejected, one.rejected_normal),
        }, joined=True)
        for name, one in curves.items()
    ]  # fmt: skip
    together = {
        SHORT[name]: _points(one.rejected_normal, one.error) for name, one in curves.items()
    }
    whole = Cloud(
        "figure-1",
        "Errors by refusals",
        "share of ordinary images refused, %",
        "error among answered, %",
        together,
        joined=True,
    )
    return [*each, whole]


def _points(across: tuple[float, ...], up: tuple[float, ...]) -> tuple[tuple[float, float], ...]:
    return tuple((100 * x, 100 * y) for x, y in zip(across, up, strict=True))
