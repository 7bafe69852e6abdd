"""The bytes of a stored cell: a sealed record and its tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from saddlepoint.atomic import sha256_hex
from saddlepoint.audits.cells import Values
from saddlepoint.evaluation import Episode
from saddlepoint.passes import PassCount
from saddlepoint.phrases import count
from saddlepoint.reading import json_object

CELL_SCHEMA = 5  # of the record of a cell
_NONE = PassCount()
_RENAMED = {"ascent": "loss_curve", "refusal": "rejection_scores"}  # tensors, since schema 5
_TENSORS = tuple(f.name for f in fields(Episode) if f.name not in ("adversary", "seconds"))
_ROW_TENSORS = ("points", "batch", "size", "copies", "forward", "backward")  # [N, ...]
_COLUMN_TENSORS = ("correct", "chosen", "answered", "margin")  # [D, N]


@dataclass(frozen=True)
class PackedCell:
    """The bytes of a stored cell. The same work gives the same bytes with every executor."""

    key: str
    record: bytes
    tensors: bytes
    seconds: float  # not part of the bytes
    passes: PassCount = _NONE  # through the target; not part of the bytes

    @classmethod
    def of_episode(
        cls, key: str, episode: Episode, about: dict[str, Any], seconds: float
    ) -> PackedCell:
        """Pack the result of an attack cell; `about` is added to its record."""
        tensors = {name: getattr(episode, name) for name in _TENSORS}
        return cls._of(key, {"adversary": episode.adversary, **about}, tensors, seconds)

    @classmethod
    def of_values(cls, key: str, name: str, values: Values, seconds: float) -> PackedCell:
        """Pack the result of a measurement."""
        return cls._of(key, {"measurement": name}, values, seconds)

    @classmethod
    def _of(
        cls, key: str, about: dict[str, Any], tensors: Mapping[str, Tensor], seconds: float
    ) -> PackedCell:
        content = save({name: t.detach().cpu().contiguous() for name, t in tensors.items()})
        record = {"schema": CELL_SCHEMA, "key": key, **about, "tensors": sha256_hex(content)}
        return cls(key, sealed(record), content, seconds)

    def episode(self) -> Episode:
        """The result of an attack cell.

        Raises:
            ValueError: The tensors do not have the shapes of an episode.
            TypeError: Tensors are missing.
        """
        adversary = json_object(self.record, f"cell {self.key[:12]}")["adversary"]
        episode = Episode(adversary=adversary, seconds=self.seconds, **_tensors(self.tensors))
        _check_shapes(episode)
        return episode

    def values(self) -> Values:
        """The result of a measurement."""
        return _tensors(self.tensors)


def sealed(record: dict[str, Any]) -> bytes:
    """The record as JSON with a hash of its content, so that a change is detected."""
    seal = sha256_hex(json.dumps(record, sort_keys=True).encode())
    return (json.dumps({**record, "seal": seal}, sort_keys=True, indent=1) + "\n").encode()


def _tensors(content: bytes) -> dict[str, Tensor]:
    """The tensors of a cell by their present names."""
    return {_RENAMED.get(name, name): tensor for name, tensor in load(content).items()}


def _check_shapes(episode: Episode) -> None:
    n = len(episode.points) if episode.points.ndim > 1 else 0
    wrong = [
        name
        for name in (*_ROW_TENSORS, *_COLUMN_TENSORS)
        if not _fits(getattr(episode, name), n, columns=name in _COLUMN_TENSORS)
    ]
    if wrong or not n:
        raise ValueError(f"{', '.join(wrong) or 'points'}: not the shapes of {count(n, 'image')}")


def _fits(tensor: Tensor, n: int, *, columns: bool) -> bool:
    if columns:
        return tensor.ndim == 2 and tensor.shape[1] == n
    return tensor.ndim > 0 and len(tensor) == n
