"""Targets, data and threat models as people have them, for every function and command.

`audit`, `probe`, `evaluate`, `attack`, `curve` and `compare` read their arguments here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from saddlepoint.attacks.radius import parse_radius
from saddlepoint.attacks.spaces import Ball, Linf
from saddlepoint.audits.probes.probe import BEHAVIOR
from saddlepoint.audits.probes.probe_target import ProbeTarget
from saddlepoint.audits.probes.stage import undeclared
from saddlepoint.audits.probes.traits import Traits
from saddlepoint.audits.target.admission import Target, TargetError, placed
from saddlepoint.audits.target.onnx_model import OnnxModel
from saddlepoint.data.batches import LabeledImages, collect
from saddlepoint.data.record import DataError
from saddlepoint.defenses import Defense
from saddlepoint.evaluation import Threat

# A target, or the path of an ONNX file; callables may return anything that can be converted.
AnyTarget = nn.Module | Defense | Callable[[Tensor], Any] | str | Path
AnyThreat = Threat | Ball | float | str
_NORMS = {"linf": "sp.Linf('8/255')", "l2": "sp.L2(0.5)", "l1": "sp.L1(12)"}


def read_threat(threat: AnyThreat) -> Threat:
    """The threat model that an argument stands for.

    Args:
        threat: a threat model, a perturbation set, or an Linf radius: 0.031 or "8/255".

    Raises:
        ValueError: it is none of these. For a norm without a radius the error shows the code.
    """
    if isinstance(threat, Threat):
        return threat
    if isinstance(threat, Ball):
        return Threat(threat)
    if isinstance(threat, str):
        name = threat.lower().replace("_", "").replace("∞", "inf").replace("-", "")
        if name in _NORMS:
            raise ValueError(
                f"threat={threat!r} is a norm without a radius. Write threat={_NORMS[name]} for "
                "pixels in [0, 1]."
            )
        try:
            return Threat(Linf(parse_radius(threat)))
        except ValueError:
            raise ValueError(
                f"a threat is sp.Linf('8/255'), sp.L2(0.5), sp.L1(12), an sp.Threat, or an Linf "
                f"radius such as '8/255', got {threat!r}."
            ) from None
    if isinstance(threat, int | float):
        return Threat(Linf(threat))
    raise TypeError(
        "a threat is a perturbation set such as sp.Linf('8/255'), an sp.Threat, or an Linf radius "
        f"such as 0.031, got {type(threat).__name__}."
    )


def read_data(x: object, y: object = None, *, n: int | None = None) -> LabeledImages:
    """Images and labels as tensors (`saddlepoint.data.batches.collect`).

    Raises:
        TargetError: they cannot be read.
    """
    try:
        return collect(x, y, n=n)
    except DataError as error:
        raise TargetError(str(error)) from error


def read_target(target: AnyTarget, device: str | torch.device | None = None) -> Target:
    """The target, with an ONNX file loaded, on a device.

    Args:
        target: a module, a `Defense`, a callable, or the path of an ONNX file.
        device: where a module is moved; None: nowhere.

    Raises:
        TargetError: it is a path of something else, or a session instead of a path.
    """
    if isinstance(target, str | Path):
        if not str(target).endswith(".onnx"):
            raise TargetError(
                "a target is an nn.Module, a saddlepoint.Defense, a callable on batches of images "
                f"or the path of an .onnx file, got the text {str(target)!r}. Load the model first."
            )
        return OnnxModel(str(target))
    if hasattr(target, "get_inputs") and hasattr(target, "run"):
        raise TargetError(
            "a session of onnxruntime cannot be copied or stored; pass the path of its file: "
            "sp.audit('model.onnx', ...)."
        )
    return target if device is None else placed(target, device)


def target_name(target: AnyTarget) -> str:
    """The name of a target if none is given: its class, or its file."""
    return Path(target).name if isinstance(target, str | Path) else type(target).__name__


def read_defense(target: AnyTarget, x: Tensor, y: Tensor, space: Ball) -> Defense:
    """The target as a defense, for functions that do not audit it.

    A target that declares nothing is called a few times, to measure whether it is randomized,
    whether rows of a batch influence each other, and whether calls change it.

    Args:
        target: a module, a `Defense`, a callable, or the path of an ONNX file.
        x: images, [N, ...]; the first ones are used.
        y: labels, [N].
        space: the perturbation set.

    Raises:
        TargetError: the target or its outputs violate a rule that every attack relies on.
    """
    found = read_target(target)
    if isinstance(found, Defense):
        return found
    probed = ProbeTarget.of(found, x, y, space)
    traits = Traits(tuple(trait for probe in BEHAVIOR for trait in probe(probed)))
    return undeclared(probed, traits)
