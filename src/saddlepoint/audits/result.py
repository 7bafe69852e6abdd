"""What an audit says, and how it is kept."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from saddlepoint.audits.diagnostics.loss_curve import LossCurve
from saddlepoint.audits.statistics import Interval
from saddlepoint.audits.verdict import (
    CertifiedBound,
    Comparisons,
    Cost,
    Item,
    Level,
    Ruling,
    State,
    StaticNet,
    Symptom,
    Verdict,
    Verification,
    rule,
)
from saddlepoint.evaluation.rejection import no_rejection_scores
from saddlepoint.schema import Migrations, migrated

__all__ = ["SCHEMA", "Audit", "Examples", "Item", "Level", "Row", "State", "Symptom", "Verdict"]

SCHEMA = 4
MIGRATIONS: Migrations = {
    0: lambda record: {
        "data": "",
        "classes": [],
        "command": "",
        **record,
    },  # before audits said where their images are from
    # before they said how objectives rose, and which request they answer
    1: lambda record: {
        **record,
        "run": "",
        "rows": [{**row, "ascent": {}} for row in record["rows"]],
    },
    # before there was a checklist: a verdict of that time rests on none, and cannot be told now
    2: lambda record: {**record, "checklist": [], "compared": {}, "reasons": []},
    # before the loss curve had its present name and the threat was kept as structured data
    3: lambda record: {
        **record,
        "threat_description": {},
        "rows": [_renamed(row) for row in record["rows"]],
    },
}


def _renamed(row: dict[str, Any]) -> dict[str, Any]:
    """A row of schema 3, whose loss curve was called `ascent`."""
    return {"loss_curve" if name == "ascent" else name: value for name, value in row.items()}


_TENSORS = ("x", "y", "worst_points", "correct", "answered")
_DAMAGE = (
    json.JSONDecodeError,
    UnicodeDecodeError,
    TypeError,
    KeyError,
    AttributeError,
    OSError,
    SafetensorError,
)
_LEDGER = ("margin", "size", "forward", "backward", "verified")  # tensors of `Examples`


@dataclass(frozen=True)
class Row:
    """One adversary of the audit."""

    name: str
    robust_accuracy: float  # against this adversary alone; a remedy, which meets only what stands, together with all before it
    running: float  # worst case over this adversary and all before it
    gain: float  # what it took from the running worst case
    attacked: int  # examples it was sent to; where rows are independent, only those answered rightly without it
    forward: float  # passes per example of the whole set
    backward: float
    seconds: float
    copies: int  # attacked examples for which it proposed the clean image itself
    loss_curve: LossCurve = field(default_factory=LossCurve)  # how its objective rose
    reason: str = ""  # why it was sent

    def record(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **asdict(self),
            "loss_curve": {name: list(column) for name, column in asdict(self.loss_curve).items()},
        }


@dataclass(frozen=True)
class Examples:
    """One line per example: how it fell, or what it withstood."""

    winner: tuple[
        str, ...
    ]  # [N] the adversary whose point is the worst; "clean" where none did worse than the image itself
    margin: Tensor  # [N] of the wrong classes at that point: positive where the answer is wrong
    size: Tensor  # [N] of the perturbation, in the threat's norm
    forward: Tensor  # [N] passes spent on it by all adversaries
    backward: Tensor  # [N]
    draws: int  # answers by which each was judged
    verified: Tensor  # [N] bool: asked again, the defense answered as the attack had claimed


def _unscored() -> Tensor:
    return no_rejection_scores().flatten(1, 2)


@dataclass(frozen=True)
class Audit:
    """The outcome of an audit. Robust accuracy is an upper bound: no attack proves that none is stronger."""

    target: str
    threat: str
    budget: str
    seed: int
    n: int
    clean_accuracy: float
    robust_accuracy: float
    interval: Interval  # says itself what it covers: never the strength of the attack
    rows: tuple[Row, ...]
    symptoms: tuple[Symptom, ...]
    versions: dict[str, str]
    x: Tensor  # [N, ...] the clean images
    y: Tensor  # [N]
    worst_points: Tensor  # [N, ...] the adversarial inputs by which the accuracy was judged
    correct: Tensor  # [N] share of draws answered rightly there
    answered: Tensor  # [N] the class answered there most often
    examples: Examples
    seconds: float
    data: str = ""  # the name `load_data` knows the images by, if they came that way
    classes: tuple[str, ...] = ()  # their names; without them, classes are called by number
    command: str = ""  # the command line that made this audit, if one did
    run: str = ""  # the identity of the request it answers, if it was kept as a run
    checklist: tuple[Item, ...] = ()
    compared: Comparisons = field(default_factory=Comparisons)
    # [4, S, N] of each draw: `saddlepoint.evaluation.rejection.scored` at the worst points, then at the clean images they were made from,
    # as the defense is when it meets the points; [4, 0, 0] where nothing is refused, and of audits from before it was kept
    rejection_scores: Tensor = field(default_factory=_unscored)
    # The threat as `describe(Threat)` returns it; empty for records from before it was kept.
    threat_description: Mapping[str, Any] = field(default_factory=dict)
    folder: str = field(
        default="", compare=False
    )  # where it was read from or written to, if it was

    @property
    def ruling(self) -> Ruling:
        return rule(
            self.robust_accuracy,
            self.n,
            self.interval,
            self.checklist,
            self.symptoms,
            self.compared,
        )

    @property
    def verdict(self) -> Verdict:
        return self.ruling.verdict

    @property
    def reasons(self) -> tuple[str, ...]:
        """What the verdict rests on, what refutes a number first."""
        return self.ruling.reasons

    def summary(self) -> str:
        """The verdict in words."""
        level = f"{100 * self.interval.level:.0f} %"
        bound = f"{self.verdict}: at most {100 * self.robust_accuracy:.1f} % robust accuracy ({self.interval}, {level})"
        if self.compared.proven is not None:
            bound += f" and at least {100 * self.compared.proven.accuracy:.1f} %, proven"
        return f"{bound}. The interval covers {self.interval.covers}, not attacks that were not tried.{self._but()}"

    def _but(self) -> str:
        """Why it does not hold, in few words; `reasons` has all of them."""
        if self.verdict == "holds so far":
            return ""
        words = {
            state: [item.name for item in self.checklist if item.state == state]
            for state in ("fail", "not run")
        }
        met = [s.name for s in self.symptoms if s.level == "serious"]
        told = [
            *(
                [self.reasons[0].rstrip(".")]
                if self.verdict == "overstated" or not self.checklist
                else []
            ),
            *([f"failed: {', '.join(words['fail'])}"] if words["fail"] else []),
            *([f"not run: {', '.join(words['not run'])}"] if words["not run"] else []),
            *([f"met: {', '.join(met)}"] if met else []),
        ]
        return f" {'; '.join(told)}."

    def record(self) -> dict[str, Any]:
        """Everything but the images, as plain values."""
        return {
            "schema": SCHEMA,
            "target": self.target,
            "threat": self.threat,
            "threat_description": dict(self.threat_description),
            "budget": self.budget,
            "seed": self.seed,
            "n": self.n,
            "clean_accuracy": self.clean_accuracy,
            "robust_accuracy": self.robust_accuracy,
            "interval": self.interval._asdict(),
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "checklist": [asdict(item) for item in self.checklist],
            "compared": asdict(self.compared),
            "rows": [row.record() for row in self.rows],
            "symptoms": [asdict(symptom) for symptom in self.symptoms],
            "versions": self.versions,
            "winner": list(self.examples.winner),
            "draws": self.examples.draws,
            "seconds": self.seconds,
            "data": self.data,
            "classes": list(self.classes),
            "command": self.command,
            "run": self.run,
        }

    def save(self, path: str | Path) -> Path:
        """Write `audit.json` and `points.safetensors` into the folder `path`."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        ledger = {name: getattr(self.examples, name) for name in _LEDGER}
        tensors = {**{name: getattr(self, name) for name in _TENSORS}, **ledger}
        tensors |= (
            {"rejection_scores": self.rejection_scores} if self.rejection_scores.numel() else {}
        )
        _replace(
            folder / "points.safetensors",
            save({name: t.detach().cpu().contiguous() for name, t in tensors.items()}),
        )
        _replace(folder / "audit.json", (json.dumps(self.record(), indent=1) + "\n").encode())
        return folder

    @classmethod
    def load(cls, path: str | Path) -> Audit:
        """Read what `save` wrote."""
        folder = Path(path)
        if not (folder / "audit.json").is_file():
            raise FileNotFoundError(
                f"no audit.json in {folder}. Give the folder that `Audit.save` or `--out` wrote."
            )
        try:
            return cls._read(folder)
        except _DAMAGE as error:
            raise ValueError(
                f"{folder} holds no whole audit ({type(error).__name__}: {error}). Run the audit again."
            ) from error

    @classmethod
    def _read(cls, folder: Path) -> Audit:
        record = migrated(
            json.loads((folder / "audit.json").read_text(encoding="utf-8")),
            MIGRATIONS,
            SCHEMA,
            str(folder),
        )
        del record["schema"], record["verdict"], record["reasons"]  # they follow from the rest
        record["interval"] = Interval(**record["interval"])
        record["rows"] = tuple(
            Row(**{**row, "loss_curve": LossCurve.read(row["loss_curve"])})
            for row in record["rows"]
        )
        record["symptoms"] = tuple(Symptom(**symptom) for symptom in record["symptoms"])
        record["checklist"] = tuple(Item(**item) for item in record["checklist"])
        record["compared"] = _compared(record["compared"])
        record["classes"] = tuple(record["classes"])
        tensors: dict[str, Any] = load_file(folder / "points.safetensors")
        ledger = {name: tensors[name] for name in _LEDGER}
        examples = Examples(winner=tuple(record.pop("winner")), draws=record.pop("draws"), **ledger)
        found = {name: tensors[name] for name in _TENSORS}
        return cls(
            **record,
            **found,
            examples=examples,
            rejection_scores=tensors.get("rejection_scores", tensors.get("refusal", _unscored())),
            folder=str(folder),
        )

    def verify(self) -> Verification:
        """Put every claimed point to the target again, in a fresh process, from the saved record; raises on any disagreement.

        The target is loaded from the specification of its run, so its code is run. A model in memory has none and does not pass.
        """
        from saddlepoint.runs.verify import confirmed

        if not self.folder:
            raise ValueError(
                "only a kept audit can be verified: give `out=` to the audit, or load it with `Audit.load(folder)`."
            )
        return confirmed(self)

    def to_html(self, path: str | Path) -> Path:
        """Write one self-contained HTML page."""
        from saddlepoint.reports.html import write

        return write(self, Path(path))


def _compared(record: dict[str, Any]) -> Comparisons:
    made = {"static": StaticNet, "cost": Cost, "proven": CertifiedBound}
    return Comparisons(
        **{
            name: made[name](**value) if name in made and value else value
            for name, value in record.items()
        }
    )


def _replace(path: Path, content: bytes) -> None:
    """Whole or not at all: another process may read, or write, at the same time."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
