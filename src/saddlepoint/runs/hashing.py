"""Hashes that identify cells: of the target, the data, the adversary and the settings."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache, partial
from types import CellType, CodeType
from typing import Any

import torch
from torch import Tensor, nn

from saddlepoint.audits import Plan
from saddlepoint.audits.cells import AttackCell, Job, Measurement, with_fewer_rows
from saddlepoint.defenses import Context, Defense
from saddlepoint.describe import describe, digest
from saddlepoint.rng import Keys
from saddlepoint.runs.store import versions

_PROBE_ROWS = 16
_DEPTH = 8


def tensor_digest(*tensors: Tensor) -> str:
    """SHA-256 of types, shapes and bytes."""
    state = hashlib.sha256()
    for t in tensors:
        state.update(f"{t.dtype} {tuple(t.shape)} ".encode())
        if t.is_quantized:
            state.update(repr(t.qscheme()).encode())
            state.update(t.dequantize().contiguous().numpy().data)
            continue
        state.update(t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return state.hexdigest()


def target_digest(plan: Plan, source: str = "") -> str:
    """SHA-256 of a target: its parameters, settings, source code and some outputs.

    Some nets keep tensors where they cannot be found, so the outputs for a few images are included,
    rounded to half precision.

    Args:
        plan: the plan with the prepared target.
        source: the source code of the target, if it is known.
    """
    logits = with_fewer_rows(lambda rows: _logits(plan.job, rows), _PROBE_ROWS)
    return digest(
        {
            "value": _fingerprint(plan.job.defense, 0),
            "source": source,
            "answers": tensor_digest(logits.half()),
        }
    )


def _logits(job: Job, rows: int) -> Tensor:
    x = job.x[:rows]
    with torch.no_grad():
        return job.defense.respond(x, Context(Keys.of(0, torch.arange(len(x), device=x.device))))


def cell_keys(
    plan: Plan, target: str, threads: int, cells: Sequence[AttackCell]
) -> dict[AttackCell, str]:
    """The key of each attack cell: a hash of everything that its content depends on."""
    job = plan.job
    groups = job.groups
    data = {g: _rows(job, groups[g]) for g in sorted({g for g, _ in cells})}
    adversaries = {a: _fingerprint(plan.adversaries[a], 0) for a in sorted({a for _, a in cells})}
    shared = _shared(job, target, threads)
    return {
        (g, a): digest({**shared, "data": data[g], "adversary": adversaries[a]}) for g, a in cells
    }


def measurement_key(job: Job, measurement: Measurement, target: str, threads: int) -> str:
    """The key of a measurement: a hash of everything that its result depends on."""
    about = {
        "data": _rows(job, measurement.rows),
        "measurement": _fingerprint(measurement, 0),
    }
    return digest({**_shared(job, target, threads), **about})


def _rows(job: Job, rows: Tensor) -> str:
    # A slice is no copy, and most measurements are of all images, in order.
    in_order = torch.equal(rows.cpu(), torch.arange(len(rows)))
    x = job.x[: len(rows)] if in_order else job.x[rows]
    return tensor_digest(x, job.y[rows], rows)


def _shared(job: Job, target: str, threads: int) -> dict[str, Any]:
    shared = {
        "target": target,
        "threat": describe(job.threat),
        "seed": job.seed,
        "batch": job.batch_size,
        "threads": threads,
        # Another version may attack differently, or round differently.
        "versions": list(versions().values()),
    }
    if job.faster is not None:
        shared["engine"] = job.engine.form
    if job.answers is not None:
        shared["answers"] = _fingerprint(job.answers, 0)
    return shared


def _fingerprint(value: Any, depth: int) -> Any:
    """Plain data that changes with the value: bytes of tensors, class and fields of objects."""
    if isinstance(value, Tensor):
        return tensor_digest(value)
    if isinstance(value, nn.Module):
        # The state of quantized modules also has types, tuples and packed weights.
        state = {name: _fingerprint(t, depth + 1) for name, t in value.state_dict().items()}
        # A changed forward pass may keep all outputs and change gradients: include its source.
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
    """What a function holds besides its code: closure, defaults, attributes and its object."""
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
    """The source code; cached, since finding a class parses its whole file."""
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        return ""
