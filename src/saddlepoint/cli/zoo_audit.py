"""Audits of the models of the zoo, by which `saddlepoint zoo --measure` fills its tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from saddlepoint.api import audit
from saddlepoint.data import load_data
from saddlepoint.evaluation import Threat
from saddlepoint.runs.work import torch_threads
from saddlepoint.zoo import entry, recipe, target
from saddlepoint.zoo.audited import AuditRecord
from saddlepoint.zoo.embedded import KITS
from saddlepoint.zoo.records import WEIGHTS, names

if TYPE_CHECKING:
    from saddlepoint.audits.planning.budget import Budget
    from saddlepoint.runs.cache import Watch

BUDGET: Budget = "standard"
IMAGES = 100  # of a network: the largest number of images on which a defense is measured


class Setting(NamedTuple):
    """The images and the threat model of a measurement."""

    data: str
    n: int
    threat: Threat


def setting(name: str) -> Setting:
    """The images and the threat model by which a model of the zoo is measured."""
    if name in KITS:
        return Setting("digits", KITS[name].measured_on, KITS[name].threat())
    known = recipe(name)
    return Setting(known.data, IMAGES, Threat(known.space))


def command(name: str, n: int) -> str:
    """The command that audits a model on the first `n` images."""
    usual = setting(name).n
    return f"saddlepoint zoo {name} --measure" + (f" --images {n}" if n != usual else "")


def measure(
    name: str,
    folder: str | Path = WEIGHTS,
    *,
    images: int | None = None,
    out: Path | None = None,
    seed: int = 0,
    budget: Budget = BUDGET,
    watch: Watch | None = None,
) -> AuditRecord:
    """Audit a model of the zoo on the first test images.

    Args:
        name: The name of the model.
        folder: The folder with the models; by default that of the package.
        images: The number of images; None: that of the setting. The command in the record names
            another number.
        out: A folder where finished cells are kept: an interrupted measurement continues.
        seed: The seed of the attacks.
        budget: The budget of the audit; by default standard.
        watch: Follows progress.

    Returns:
        The record of the audit.
    """
    source, usual, threat = setting(name)
    data = load_data(source, split="test", n=images or usual)
    with torch_threads(1):  # the same cells on every machine
        result = audit(
            target(name, folder),
            data.x,
            data.y,
            threat=threat,
            budget=budget,
            seed=seed,
            out=out,
            batch_size=len(data),
            name=name,
            allow_unusual=True,  # the zoo has weak models as well
            watch=watch,
        )
    static = result.compared.static
    return AuditRecord(
        name=name,
        command=command(name, result.n),
        budget=budget,
        data=f"{source}, test",
        n=result.n,
        p=f"{threat.space.p:g}",
        radius=threat.space.radius,
        seed=seed,
        weights=_digests(name, folder),
        clean_accuracy=result.clean_accuracy,
        robust_accuracy=result.robust_accuracy,
        interval=(result.interval.low, result.interval.high),
        verdict=str(result.verdict),
        static_accuracy=None if static is None else static.robust_accuracy,
        broken=tuple((result.correct < 0.5).nonzero()[:, 0].tolist()),
        accuracy={row.name: row.robust_accuracy for row in result.rows},
        forward=sum(row.forward for row in result.rows),
        backward=sum(row.backward for row in result.rows),
        seconds=sum(row.seconds for row in result.rows),
        versions=result.versions,
    )


def _digests(name: str, folder: str | Path) -> dict[str, str]:
    record = entry(name, folder)
    digests = {name: record.sha256}
    if record.defense:
        base = folder if record.net in names(folder) else WEIGHTS
        digests[record.net] = entry(record.net, base).sha256
    return digests
