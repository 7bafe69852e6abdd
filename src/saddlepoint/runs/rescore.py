"""Points that others found, evaluated again by the referee."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from saddlepoint.audits.inputs import read_data, read_defense
from saddlepoint.audits.statistics import Interval, wilson
from saddlepoint.audits.target.admission import TargetError, placed
from saddlepoint.data import load_data
from saddlepoint.evaluation import FixedPoints, Points, play
from saddlepoint.phrases import at_most, count, count_of, percent
from saddlepoint.runs.spec import RunSpec
from saddlepoint.runs.targets import resolve
from saddlepoint.runs.threat_specs import threat


@dataclass(frozen=True)
class Rescored:
    """What points of others do to a target."""

    n: int
    clean_accuracy: float
    robust_accuracy: float  # points outside of the set do not count
    outside: int  # points outside of the perturbation set
    outside_wrong: int  # of these, those that are misclassified
    largest: float  # size of the largest perturbation, in the norm of the threat model
    interval: Interval

    def record(self) -> dict[str, Any]:
        """The numbers as plain values."""
        return {**asdict(self), "interval": self.interval._asdict()}

    def summary(self) -> str:
        """The result in one paragraph."""
        text = (
            f"robust accuracy {at_most(self.robust_accuracy)} ({self.interval}) at these points, "
            f"clean accuracy {percent(self.clean_accuracy)}, {count(self.n, 'image')}."
        )
        if self.outside:
            text += (
                f" {count_of(self.outside, self.n, 'point')} left the perturbation set (largest "
                f"size {self.largest:.6g}) and did not count; {self.outside_wrong} of them would "
                "be misclassified."
            )
        return text


def rescore(spec: RunSpec, points: Tensor) -> Rescored:
    """Evaluate points on the target, data and threat model of a specification.

    Args:
        spec: the specification; its attacks and its budget are not used.
        points: one point per image, in the order of the data, [M, ...]. With fewer points than
            images, the first images are used.

    Raises:
        TargetError: the points do not fit the images.
    """
    data = load_data(spec.data.name, split=spec.data.split, n=spec.data.n, root=spec.data.root)
    if len(points) > len(data) or points.shape[1:] != data.x.shape[1:]:
        raise TargetError(
            f"points have shape {list(points.shape)}, images {list(data.x.shape)}. Choose the "
            "images from which the points were made with --data and --n."
        )
    x, y = read_data(data.x[: len(points)].to(spec.device), data.y[: len(points)].to(spec.device))
    model = threat(spec.threat)
    target, _ = resolve(spec.target)
    defense = read_defense(placed(target, spec.device), x, y, model.space)
    near = points.to(x)
    inside = model.space.contains(near, x)

    def accuracy(adversary: FixedPoints | Points) -> Tensor:
        episode = play(defense, adversary, x, y, model, seed=spec.seed, batch_size=spec.batch_size)
        return episode.correct[0]

    clean = accuracy(FixedPoints())
    correct = accuracy(Points("points", near, outside="skip")).minimum(clean)
    wrong = torch.zeros_like(inside)
    if not inside.all():
        wrong = _wrong(defense, near, y) & ~inside
    robust = float(correct.mean())
    return Rescored(
        len(x),
        float(clean.mean()),
        robust,
        int((~inside).sum()),
        int(wrong.sum()),
        float(model.space.size(near - x).amax()),
        wilson(robust, len(x)),
    )


def _wrong(defense: Any, x: Tensor, y: Tensor) -> Tensor:
    """[N] bool: which points are misclassified, without a perturbation set."""
    from saddlepoint.defenses import Context

    ctx = Context.seeded(0, len(x))
    with torch.no_grad():
        wrong: Tensor = defense.respond(x, ctx).argmax(1) != y
    return wrong
