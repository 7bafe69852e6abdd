"""What makes two pieces of work the same: hashes of target, data and adversary."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache, partial
from importlib.metadata import version
from types import CellType, CodeType
from typing import Any

import torch
from torch import Tensor, nn

from saddlepoint.audits.cells import Job
from saddlepoint.audits.plan import Plan
from saddlepoint.defenses import Context, Defense
from saddlepoint.describe import describe, digest
from saddlepoint.evaluation import Adversary
from saddlepoint.rng import Keys

_PROBE_ROWS = 16
_DEPTH = 8


def tensor_digest(*tensors: Tensor) -> str:
    """SHA-256 of types, shapes and bytes."""
    state = hashlib.sha256()
    for t in tensors:
        state.update(f"{t.dtype} {tuple(t.shape)} ".encode())
        state.update(t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return state.hexdigest()


def target_digest(plan: Plan, source: str = "") -> str:
    """SHA-256 of all that can be seen of a target: its parameters and settings, its source text, and how it answers.

    Some nets hide their tensors where nothing finds them, so the answers to a few images count too, to half precision.
    """
    rows = slice(0, _PROBE_ROWS)
    x = plan.job.x[rows]
    with torch.no_grad():
        logits = plan.job.defense.respond(
            x, Context(Keys.of(0, torch.arange(len(x), device=x.device)))
        )
    return digest(
        {
            "value": _fingerprint(plan.job.defense, 0),
            "source": source,
            "answers": tensor_digest(logits.half()),
        }
    )


def cell_keys(
    plan: Plan, target: str, threads: int, cells: Sequence[tuple[int, int]] | None = None
) -> dict[tuple[int, int], str]:
    """The name of every cell, or of some: a hash of everything its content depends on."""
    job = plan.job
    groups = plan.job.groups
    cells = plan.cells if cells is None else cells
    data = {g: _rows(job, groups[g]) for g in sorted({g for g, _ in cells})}
    adversaries = {a: _fingerprint(plan.adversaries[a], 0) for a in sorted({a for _, a in cells})}
    shared = _shared(job, target, threads)
    return {
        (g, a): digest({**shared, "data": data[g], "adversary": adversaries[a]}) for g, a in cells
    }


def trial_key(job: Job, adversary: Adversary, rows: Tensor, target: str, threads: int) -> str:
    """The name of a trial on some rows, made as that of a cell is; its defense may be a part of the target."""
    about = {
        "defense": _fingerprint(job.defense, 0),
        "data": _rows(job, rows),
        "adversary": _fingerprint(adversary, 0),
    }
    return digest({**_shared(job, target, threads), **about})


def _rows(job: Job, rows: Tensor) -> str:
    return tensor_digest(job.x[rows], job.y[rows], rows)


def _shared(job: Job, target: str, threads: int) -> dict[str, Any]:
    shared = {
        "target": target,
        "threat": describe(job.threat),
        "seed": job.seed,
        "batch": job.batch_size,
        "threads": threads,
    }
    if job.answers is not None:
        shared["answers"] = _fingerprint(job.answers, 0)
    shared["versions"] = [
        version("saddlepoint"),
        torch.__version__,
    ]  # another version may attack, or round, in another way
    return shared


def _fingerprint(value: Any, depth: int) -> Any:
    """Plain data that changes when the value does: tensors by their bytes, objects by their class and fields."""
    if isinstance(value, Tensor):
        return tensor_digest(value)
    if isinstance(value, nn.Module):
        state = {name: tensor_digest(t) for name, t in value.state_dict().items()}
        # The forward pass may be written anew and answer as before: with another gradient it is another target.
        kinds = {type(module) for module in value.modules()}
        sources = sorted({_source(kind) for kind in kinds})  # sorted: classes may share a name
        return {
            "class": type(value).__qualname__,
            "text": repr(value),
            "state": state,
            "sources": sources,
        }
    if depth > _DEPTH:
        return describe(value)
    if isinstance(value, Mapping):
        return {str(k): _fingerprint(v, depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_fingerprint(v, depth + 1) for v in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {
            "class": type(value).__qualname__,
            **{f.name: _fingerprint(getattr(value, f.name), depth + 1) for f in fields(value)},
        }
    if isinstance(value, Defense):
        own = {k: _fingerprint(v, depth + 1) for k, v in sorted(vars(value).items())}
        return {"class": type(value).__qualname__, "source": _source(type(value)), "fields": own}
    if isinstance(value, partial):
        return {
            "partial": [
                _fingerprint(part, depth + 1) for part in (value.func, value.args, value.keywords)
            ]
        }
    if callable(value) and not isinstance(value, type):
        name = getattr(value, "__qualname__", type(value).__qualname__)
        return {
            "name": name,
            "source": _source(value),
            "holds": [_fingerprint(held, depth + 1) for held in _held(value)],
        }
    return describe(value)


def _held(function: Any) -> list[Any]:
    """What a function carries along beside its text: the variables it was made with, defaults, fields, the object it belongs to."""
    filled = [
        cell.cell_contents
        for cell in getattr(function, "__closure__", None) or ()
        if cell != CellType()
    ]
    return [
        *filled,
        *(
            getattr(function, name, None)
            for name in ("__defaults__", "__kwdefaults__", "__dict__", "__self__")
        ),
    ]


def _source(thing: Any) -> str:
    text = getattr(inspect.unwrap(thing), "__code__", thing) if callable(thing) else thing
    return _text(text) if isinstance(text, type | CodeType) else ""


@lru_cache(maxsize=1024)
def _text(thing: type | CodeType) -> str:
    """Kept: finding a class means parsing its whole file, and a network has many layers of few classes."""
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        return ""
