"""What a page is about: the audit, and what its run folder adds to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from saddlepoint.audits.result import Audit
from saddlepoint.reports.markup import Markup
from saddlepoint.reports.published import NOTHING, Published
from saddlepoint.runs.inspect import answers
from saddlepoint.runs.store import Store, StoreError


@dataclass(frozen=True)
class Subject:
    """An audit, with as much of its run as there is. Sections read it; what is not there is not told."""

    audit: Audit
    record: Mapping[str, Any] = field(
        default_factory=dict
    )  # run.json; empty where the audit was not kept as a run
    nearest: Tensor | None = (
        None  # [N] the least size at which any attack fooled each image, inf where none did
    )
    published: Published = NOTHING
    home: str = ""  # the address of the page that lists this one among others

    @classmethod
    def of(cls, audit: Audit, folder: Path, home: str = "") -> Subject:
        """With what the folder says about this audit; a record of another one is none."""
        record = _record(folder)
        told = record if _belongs(audit, record, folder) else {}
        return cls(audit, told, _nearest(folder, told, audit.n), Published.read(folder), home)


class Part(NamedTuple):
    """A section of a page."""

    title: str
    body: tuple[Markup, ...]


Section = Callable[[Subject], Part | None]  # nothing, where there is nothing to say


def kept(folder: Path) -> Audit:
    """The audit of a run. What an earlier request left in the folder is refused: it is not what run.json asks for."""
    audit = Audit.load(folder)
    record = _record(folder)
    if record and not _belongs(audit, record, folder):
        asked = record.get("target", {}).get("name", "something else")
        raise ValueError(
            f"{folder} holds the audit of {audit.target}, but its run.json asks for another one, of {asked}, that has not "
            "finished. Give the command of that run again, or copy audit.json and points.safetensors into a folder of their own."
        )
    return audit


def _belongs(audit: Audit, record: dict[str, Any], folder: Path) -> bool:
    asked = record.get("target", {}).get("name"), record.get("seed"), record.get("examples")
    return asked == (audit.target, audit.seed, audit.n) and answers(
        audit.run, Store(folder), record
    )


def _record(folder: Path) -> dict[str, Any]:
    return Store(folder).run() if (folder / "run.json").is_file() else {}


def _nearest(folder: Path, record: Mapping[str, Any], n: int) -> Tensor | None:
    """[N] from the cells.

    Only where images are answered alone and always alike: a point that fooled once, in other company or by luck, says nothing.
    """
    if record.get("unit") != "example" or record.get("random") is not False:
        return None
    store = Store(folder)
    found = torch.full((n,), torch.inf, dtype=torch.float64)
    for key in record.get("cells", ()):
        try:
            first, last = store.record(key)["rows"]
            # One column of many: the points of all attacks together may not fit into memory.
            with safe_open(store.cells / f"{key}.safetensors", framework="pt") as cell:
                size = cell.get_tensor("size").double()
                right = cell.get_tensor("correct")[0]
        except (StoreError, SafetensorError, OSError, KeyError):
            return None  # a store that was thinned out or damaged
        fooled = torch.where(right < 0.5, size, torch.inf)
        found[first : last + 1] = found[first : last + 1].minimum(fooled)
    return found
