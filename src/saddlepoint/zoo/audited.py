"""Audit records of the packaged models: what `saddlepoint zoo` prints as their accuracy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from saddlepoint.atomic import write_atomic
from saddlepoint.phrases import count
from saddlepoint.zoo.embedded import kit
from saddlepoint.zoo.records import WEIGHTS, entry, names

FOLDER = "audits"  # of the records, inside the folder of the models


@dataclass(frozen=True)
class AuditRecord:
    """The result of an audit of a model of the zoo, with the command that made it."""

    name: str
    command: str
    budget: str
    data: str
    n: int  # the first images of the test set
    p: str  # the norm: "2", "inf"
    radius: float  # in units of the input
    seed: int
    weights: Mapping[str, str]  # SHA-256 by model: this one and, for a defense, its network
    clean_accuracy: float
    robust_accuracy: float  # an upper bound
    interval: tuple[float, float]  # 95 %, over images
    verdict: str
    static_accuracy: float | None  # of the static network on all points of the audit; None: none
    broken: tuple[int, ...]  # images with more wrong than correct draws at their worst point
    accuracy: Mapping[str, float]  # by attack
    forward: float  # passes per image of all attacks
    backward: float
    seconds: float  # of all attacks
    versions: Mapping[str, str]

    def stale(self, folder: str | Path = WEIGHTS) -> bool:
        """Whether the weights of a folder, or else of the package, are not those audited."""
        for name, sha256 in self.weights.items():
            place = next((one for one in (folder, WEIGHTS) if name in names(one)), None)
            if place is None or entry(name, place).sha256 != sha256:
                return True
        return False

    def accuracy_on(self, n: int) -> float:
        """The robust accuracy on the first `n` images, of a deterministic model.

        Raises:
            ValueError: fewer images were audited.
        """
        if n > self.n:
            raise ValueError(
                f"{self.name} was audited on {count(self.n, 'image')}, fewer than {n}."
            )
        return 1 - sum(image < n for image in self.broken) / n


def audited(name: str, folder: str | Path = WEIGHTS) -> AuditRecord | None:
    """Read the audit record of a model; None if it was not audited.

    Args:
        name: The name of the model.
        folder: The folder with the models; by default that of the package.

    Raises:
        ValueError: The record cannot be read.
    """
    path = Path(folder) / FOLDER / f"{name}.json"
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        typed = {"interval": tuple(record["interval"]), "broken": tuple(record["broken"])}
        return AuditRecord(**{**record, **typed})
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path} is not the audit record of a model ({error}). Run `saddlepoint zoo --measure "
            f"{name}` again."
        ) from error


def keep_audit(record: AuditRecord, folder: str | Path = WEIGHTS) -> Path:
    """Write an audit record beside the models of a folder.

    Returns:
        The file.
    """
    path = Path(folder) / FOLDER / f"{record.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(asdict(record), indent=1)
    write_atomic(path, f"{text}\n".encode())
    return path


def weaker_than_static(record: AuditRecord, static: AuditRecord) -> bool:
    """Whether the attacks on a defense break fewer images of its static net than those on the net.

    The accuracy of the defense must not be compared with that of its network then: the defense may
    only seem more robust because its attacks were weaker.

    Args:
        record: The audit of the defense.
        static: The audit of its static network, on at least as many of the first images.
    """
    if record.static_accuracy is None:
        return True
    return record.static_accuracy > static.accuracy_on(record.n)


def objection(record: AuditRecord, folder: str | Path = WEIGHTS) -> str:
    """Why the robust accuracy of a record must not be shown; empty if it may be.

    Args:
        record: The audit of a model of the folder.
        folder: The folder with the models; by default that of the package.
    """
    if record.stale(folder):
        return "audited with other weights"
    known = entry(record.name, folder)
    if not known.defense or kit(record.name).trains_network:
        return ""
    static = audited(known.net, folder) or audited(known.net)
    if static is None or static.n < record.n:
        return f"audit {known.net} first"
    return "attacks weaker than on its network" if weaker_than_static(record, static) else ""
