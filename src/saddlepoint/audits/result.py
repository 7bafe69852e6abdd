"""The result of an audit, and how it is saved and loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, zeros

from saddlepoint.atomic import write_atomic
from saddlepoint.audits.diagnostics.loss_curve import LossCurve
from saddlepoint.audits.evidence import Row
from saddlepoint.audits.notebook import as_dataframe, as_html
from saddlepoint.audits.plots import plot_audit
from saddlepoint.audits.probes.recognition import Recognized
from saddlepoint.audits.profile import GIVEN_TARGET, CostEntry, Engine, Profile, Stage
from saddlepoint.audits.record_fields import read_record
from saddlepoint.audits.records import OLD_SCORES, SCHEMA
from saddlepoint.audits.statistics import Interval
from saddlepoint.audits.verdict import (
    CertifiedBound,
    Comparisons,
    Conclusion,
    Cost,
    Item,
    ItemName,
    Level,
    State,
    StaticNet,
    Symptom,
    SymptomName,
    Verdict,
    decide,
)
from saddlepoint.evaluation.rejection import no_rejection_scores
from saddlepoint.phrases import at_least, at_most, count, percent
from saddlepoint.reading import read_bytes
from saddlepoint.schema import SchemaError
from saddlepoint.tensor_files import write_tensors

__all__ = ["Audit", "Examples", "Item", "Level", "Row", "State", "Symptom", "Verdict"]

_LARGEST = 64 * 2**30  # bytes of points.safetensors
_TENSORS = ("x", "y", "worst_points", "correct", "answered")
_DAMAGE_ERRORS = (
    json.JSONDecodeError,
    UnicodeDecodeError,
    TypeError,
    KeyError,
    ValueError,
    AttributeError,
    OSError,
    SafetensorError,
)
_EXAMPLE_TENSORS = ("margin", "size", "forward", "backward", "verified")  # tensors of `Examples`


@dataclass(frozen=True)
class Examples:
    """One entry per image."""

    winner: tuple[str, ...]  # [N] the attack with the worst point; "clean" if none was worse
    margin: Tensor  # [N] of the wrong classes at that point: positive if misclassified
    size: Tensor  # [N] of the perturbation, in the norm of the threat model
    forward: Tensor  # [N] passes of all attacks
    backward: Tensor  # [N]
    draws: int  # over which each image was evaluated
    verified: Tensor  # [N] bool: a second evaluation gave the same output
    # [N] size of the smallest perturbation known to change the prediction to a wrong one: 0 if the
    # clean image is misclassified, inf if no error is known. [0] for randomized defenses and
    # coupled rows, where it is not defined, and in old records.
    smallest: Tensor = field(default_factory=lambda: zeros(0))


def _no_scores() -> Tensor:
    return no_rejection_scores().flatten(1, 2)


@dataclass(frozen=True, repr=False)
class Audit:
    """The result of an audit. Robust accuracy is an upper bound: a stronger attack may exist."""

    target: str
    threat: str
    budget: str
    seed: int
    n: int
    clean_accuracy: float
    robust_accuracy: float
    interval: Interval  # covers sampling of images, never the strength of attacks
    rows: tuple[Row, ...]
    symptoms: tuple[Symptom, ...]
    versions: dict[str, str]
    x: Tensor  # [N, ...] clean images
    y: Tensor  # [N]
    worst_points: Tensor  # [N, ...] adversarial inputs by which accuracy was computed
    correct: Tensor  # [N] fraction of draws classified correctly there
    answered: Tensor  # [N] the most frequent prediction there
    examples: Examples
    seconds: float
    data: str = ""  # name of the data set, as `load_data` knows it
    classes: tuple[str, ...] = ()  # names of the classes; empty: numbers are shown
    command: str = ""  # the command line of the audit, if there was one
    run: str = ""  # identity of the stored run, if there is one
    recognized: tuple[Recognized, ...] = ()  # in the target; empty in old records
    checklist: tuple[Item, ...] = ()
    compared: Comparisons = field(default_factory=Comparisons)
    # [4, S, N] per draw: `evaluation.rejection.rejection_scores` at the worst points, then at their
    # clean images in the same adapted state. [4, 0, 0] for a defense that never rejects.
    rejection_scores: Tensor = field(default_factory=_no_scores)
    # The threat model as plain values; empty in records from before it was saved.
    threat_description: Mapping[str, Any] = field(default_factory=dict)
    stages: tuple[CostEntry, ...] = ()  # time and passes by stage; empty in old records
    engine: Engine = GIVEN_TARGET  # the form of the target that attacks ran on
    folder: str = field(default="", compare=False)  # where it was loaded from or saved to
    report_seconds: float = field(default=0.0, compare=False)  # that writing the report took

    def __repr__(self) -> str:
        return (
            f"<Audit of {self.target}, {self.threat.partition(',')[0]}, "
            f"{count(self.n, 'image')}: clean {percent(self.clean_accuracy)}, "
            f"robust {at_most(self.robust_accuracy)}, {self.verdict}>"
        )

    def _repr_html_(self) -> str:
        return as_html(self)

    def to_dataframe(self) -> Any:
        """One line per image: label, winning attack, margin, size, passes. Needs pandas.

        Returns:
            A `pandas.DataFrame` of `n` lines.

        Raises:
            ImportError: pandas is not installed.
        """
        return as_dataframe(self)

    def plot(self, ax: Any = None) -> Any:
        """Draw the accuracy after each attack. Needs matplotlib (extra `plots`).

        Args:
            ax: the axes; default: new ones.

        Returns:
            The axes.

        Raises:
            ImportError: matplotlib is not installed and no axes are given.
        """
        return plot_audit(self, ax)

    @property
    def cost(self) -> Profile:
        """Seconds, and forward and backward passes per image, by stage and by attack.

        `print(audit.cost)` shows a table.
        """
        stages = self.stages
        if self.report_seconds:
            report = CostEntry(Stage.REPORT.value, self.report_seconds, 0.0, 0.0)
            stages = (*stages, report)
        attacks = [CostEntry(r.name, r.seconds, r.forward, r.backward) for r in self.rows]
        return Profile(stages, tuple(attacks), self.engine)

    @property
    def conclusion(self) -> Conclusion:
        """The verdict with all reasons."""
        return decide(
            self.robust_accuracy,
            self.n,
            self.interval,
            self.checklist,
            self.symptoms,
            self.compared,
        )

    @property
    def verdict(self) -> Verdict:
        """Credible, overstated or inconclusive."""
        return self.conclusion.verdict

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons of the verdict; those that refute a number come first."""
        return self.conclusion.reasons

    def estimate(self) -> str:
        """The robust accuracy with its interval, in one sentence, and what the interval covers."""
        level = percent(self.interval.level, 0)
        bound = f"robust accuracy {at_most(self.robust_accuracy)} ({self.interval}, {level})"
        if self.compared.proven is not None:
            bound += f" and {at_least(self.compared.proven.accuracy)}, certified"
        return f"{bound}. The interval covers {self.interval.covers}, not stronger attacks."

    def summary(self) -> str:
        """The verdict in one paragraph."""
        return f"{self.verdict}: {self.estimate()}{self._problems()}"

    def _problems(self) -> str:
        """Why the verdict is not credible, in few words; `reasons` has all of them."""
        if self.verdict is Verdict.CREDIBLE:
            return ""
        # Quoted: some names are sentences.
        failed = [f"'{item.name}'" for item in self.checklist if item.state is State.FAIL]
        not_run = [f"'{item.name}'" for item in self.checklist if item.state is State.NOT_RUN]
        serious = [s.name for s in self.symptoms if s.level is Level.SERIOUS]
        parts = []
        if self.verdict is Verdict.OVERSTATED or not self.checklist:
            parts.append(self.reasons[0].rstrip("."))
        if failed:
            parts.append(f"failed: {', '.join(failed)}")
        if not_run:
            parts.append(f"not run: {', '.join(not_run)}")
        if serious:
            parts.append(f"serious: {', '.join(serious)}")
        text = "; ".join(parts)
        return f" {text[:1].upper()}{text[1:]}."

    def record(self) -> dict[str, Any]:
        """Everything except the images, as plain values."""
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
            "rows": [_row_record(row) for row in self.rows],
            "symptoms": [asdict(symptom) for symptom in self.symptoms],
            "versions": self.versions,
            "winner": list(self.examples.winner),
            "draws": self.examples.draws,
            "seconds": self.seconds,
            "stages": [asdict(stage) for stage in self.stages],
            "engine": asdict(self.engine),
            "data": self.data,
            "classes": list(self.classes),
            "command": self.command,
            "run": self.run,
            "recognized": [asdict(one) for one in self.recognized],
        }

    def save(self, path: str | Path) -> Path:
        """Write `audit.json` and `points.safetensors` into the folder `path`, and return it."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: getattr(self, name) for name in _TENSORS}
        tensors |= {name: getattr(self.examples, name) for name in _EXAMPLE_TENSORS}
        if self.examples.smallest.numel():
            tensors["smallest"] = self.examples.smallest
        if self.rejection_scores.numel():
            tensors["rejection_scores"] = self.rejection_scores
        write_tensors(folder / "points.safetensors", tensors)
        text = json.dumps(self.record(), indent=1) + "\n"
        write_atomic(folder / "audit.json", text.encode())
        return folder

    @classmethod
    def load(cls, path: str | Path) -> Audit:
        """Read what `save` wrote, in this or an older version.

        Raises:
            FileNotFoundError: the folder has no audit.json.
            ValueError: the files are damaged, or were written by a newer version.
        """
        folder = Path(path)
        if not (folder / "audit.json").is_file():
            advice = "Give the folder that `Audit.save` or `--out` wrote."
            if (folder / "run.json").is_file():
                advice = "Its run is not finished. Run the same audit again to continue."
            raise FileNotFoundError(f"no audit.json in {folder}. {advice}")
        try:
            return cls._read(folder)
        except SchemaError:
            raise  # the record is complete, but this version cannot read it
        except _DAMAGE_ERRORS as error:
            raise ValueError(
                f"{folder} holds no complete audit ({type(error).__name__}: {error}). "
                "Run the audit again."
            ) from error

    @classmethod
    def _read(cls, folder: Path) -> Audit:
        record = read_record(folder)
        del record["schema"], record["verdict"], record["reasons"]  # they follow from the rest
        record["interval"] = Interval(**record["interval"])
        record["rows"] = tuple(_read_row(row) for row in record["rows"])
        record["symptoms"] = tuple(_read_symptom(symptom) for symptom in record["symptoms"])
        record["checklist"] = tuple(_read_item(item) for item in record["checklist"])
        record["compared"] = _read_comparisons(record["compared"])
        record["recognized"] = tuple(Recognized(**one) for one in record["recognized"])
        record["classes"] = tuple(record["classes"])
        record["engine"] = Engine(**record["engine"])
        record["stages"] = tuple(CostEntry(**stage) for stage in record["stages"])
        tensors: dict[str, Any] = load(read_bytes(folder / "points.safetensors", _LARGEST))
        _check_shapes(tensors, record["n"], len(record["winner"]))
        per_example = {name: tensors[name] for name in _EXAMPLE_TENSORS}
        if "smallest" in tensors:
            per_example["smallest"] = tensors["smallest"]
        winner = tuple(record.pop("winner"))
        examples = Examples(winner=winner, draws=record.pop("draws"), **per_example)
        scores = tensors.get("rejection_scores", tensors.get(OLD_SCORES, _no_scores()))
        return cls(
            **record,
            **{name: tensors[name] for name in _TENSORS},
            examples=examples,
            rejection_scores=scores,
            folder=str(folder),
        )


def conclusion_of(record: Mapping[str, Any]) -> Conclusion:
    """The verdict that follows from the other fields of a record (`record_fields.read_record`)."""
    return decide(
        record["robust_accuracy"],
        record["n"],
        Interval(**record["interval"]),
        tuple(_read_item(item) for item in record["checklist"]),
        tuple(_read_symptom(symptom) for symptom in record["symptoms"]),
        _read_comparisons(record["compared"]),
    )


def _check_shapes(tensors: Mapping[str, Tensor], n: int, winners: int) -> None:
    """Check that there is one entry per image.

    Raises:
        ValueError: A tensor has another shape.
    """
    if winners != n:
        raise ValueError(
            f"winner: expected one entry for each of {count(n, 'image')}, found {winners}"
        )
    optional = [name for name in ("smallest",) if name in tensors]
    for name in (*_TENSORS, *_EXAMPLE_TENSORS, *optional):
        shape = list(tensors[name].shape)
        images = name in ("x", "worst_points")
        if shape[:1] != [n] or (len(shape) == 1) == images:
            raise ValueError(f"points.safetensors, {name}: expected {n}, found {shape}")
    if tensors["x"].shape != tensors["worst_points"].shape:
        raise ValueError("points.safetensors: images and worst points have different shapes")


def _row_record(row: Row) -> dict[str, Any]:
    curve = {name: list(column) for name, column in asdict(row.loss_curve).items()}
    return {**asdict(row), "loss_curve": curve}


def _read_row(row: dict[str, Any]) -> Row:
    return Row(**{**row, "loss_curve": LossCurve.read(row["loss_curve"])})


def _read_symptom(record: dict[str, Any]) -> Symptom:
    return Symptom(SymptomName(record["name"]), Level(record["level"]), record["message"])


def _read_item(record: dict[str, Any]) -> Item:
    return Item(ItemName(record["name"]), State(record["state"]), record["evidence"])


def _read_comparisons(record: dict[str, Any]) -> Comparisons:
    kinds = {"static": StaticNet, "cost": Cost, "proven": CertifiedBound}
    values = {}
    for name, value in record.items():
        values[name] = kinds[name](**value) if name in kinds and value else value
    return Comparisons(**values)
