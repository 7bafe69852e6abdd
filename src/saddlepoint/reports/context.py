"""The data that a report is written from: the audit and what its run folder adds to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from saddlepoint.audits.result import Audit
from saddlepoint.reading import ReadError
from saddlepoint.reports.markup import Markup
from saddlepoint.reports.published import NO_RESULTS, Published
from saddlepoint.runs.store import Store, StoreError, is_record_of
from saddlepoint.runs.unfinished import check_finished


@dataclass(frozen=True)
class ReportContext:
    """An audit and as much of its run as is available. Sections omit what is not available."""

    audit: Audit
    # Content of run.json; empty if the audit was not saved as a run.
    record: Mapping[str, Any] = field(default_factory=dict)
    # [N] smallest perturbation size known to change the prediction of each image to a wrong one,
    # inf where none is known; None if it cannot be known.
    smallest_sizes: Tensor | None = None
    published: Published = NO_RESULTS
    index_url: str = ""  # URL of the leaderboard that lists this report; empty: none

    @classmethod
    def load(cls, audit: Audit, folder: Path, index_url: str = "") -> ReportContext:
        """Collect what a run folder contains about an audit.

        Args:
            audit: The audit to report on.
            folder: The run folder. A run.json of another audit is ignored.
            index_url: URL of the leaderboard that lists this report. Default: none.

        Raises:
            StoreError: run.json is damaged.
            ValueError: published.toml is not valid.
        """
        found = _read_run(folder)
        record = found if _is_run_of(audit, found, folder) else {}
        sizes = _of_record(audit)
        if sizes is None:
            sizes = _smallest_sizes(folder, record, audit.n)
        return cls(audit, record, sizes, Published.read(folder), index_url)


class Section(NamedTuple):
    """One section of a page."""

    title: str
    body: tuple[Markup, ...]
    folded: bool = False  # only the title is shown until the reader clicks it


SectionWriter = Callable[[ReportContext], Section | None]  # None: the section does not apply


def load_audit(folder: Path) -> Audit:
    """Load the audit of a run folder.

    Raises:
        ValueError: The audit in the folder belongs to an earlier run than run.json, or is damaged.
        UnfinishedError: The run in the folder is not finished.
        FileNotFoundError: The folder contains no audit.
    """
    if (folder / "run.json").is_file() and not (folder / "audit.json").is_file():
        check_finished(folder)
    audit = Audit.load(folder)
    record = _read_run(folder)
    if record and not _is_run_of(audit, record, folder):
        other = record.get("target", {}).get("name", "another target")
        raise ValueError(
            f"{folder} contains the audit of {audit.target}, but its run.json describes another "
            f"audit, of {other}, that has not finished. Repeat the command of that run to finish "
            "it, or copy audit.json and points.safetensors into another folder."
        )
    return audit


def _is_run_of(audit: Audit, record: dict[str, Any], folder: Path) -> bool:
    requested = record.get("target", {}).get("name"), record.get("seed"), record.get("examples")
    return requested == (audit.target, audit.seed, audit.n) and is_record_of(
        audit.run, Store(folder), record
    )


def _read_run(folder: Path) -> dict[str, Any]:
    return Store(folder).run() if (folder / "run.json").is_file() else {}


def _of_record(audit: Audit) -> Tensor | None:
    sizes = audit.examples.smallest
    return sizes.cpu().double() if len(sizes) else None


def _smallest_sizes(folder: Path, record: Mapping[str, Any], n: int) -> Tensor | None:
    """Return [N] the smallest successful perturbation of each image over all cells of a run.

    For records of earlier versions, which do not have it. None if the defense is randomized or if
    its predictions depend on the batch: a point that was misclassified once, by chance or in
    another batch, says nothing about the image.
    """
    if record.get("unit") != "example" or record.get("random") is not False:
        return None
    store = Store(folder)
    smallest = torch.full((n,), torch.inf, dtype=torch.float64)
    for key in record.get("cells", ()):
        try:
            first, last = store.record(key)["rows"]
            cell = load(store.cell_file(f"{key}.safetensors"))
            size = cell["size"].double()
            correct = cell["correct"][0]
        except (StoreError, SafetensorError, ReadError, OSError, KeyError):
            return None  # some cells were removed or damaged
        successful = torch.where(correct < 0.5, size, torch.inf)
        smallest[first : last + 1] = smallest[first : last + 1].minimum(successful)
    return smallest
