"""A module in the form that probes and attacks need: from images to a tensor of logits.

Compiled modules are replaced by their originals, logits are selected from other outputs, and state
outside of a module is separated from it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from saddlepoint.audits.target.admission import Target, TargetError, explain_errors
from saddlepoint.audits.target.copy import copy_target
from saddlepoint.audits.target.functions import standard_function
from saddlepoint.audits.target.logits import (
    FiniteScores,
    FlatScores,
    FloatScores,
    check_binary,
    has_more_dimensions,
    has_negative_infinity,
    is_binary,
    logits_key,
    needs_conversion,
)
from saddlepoint.audits.target.notes import binary_note, converted_note, finite_note, selected_note
from saddlepoint.audits.target.outside import (
    Isolated,
    SharedObjects,
    changed_outside,
    depends_on,
    near_points,
    same_outputs,
)
from saddlepoint.audits.target.rounding import alike, difference
from saddlepoint.audits.target.script_graph import decides_by_values
from saddlepoint.audits.target.training_mode import in_evaluation_mode
from saddlepoint.audits.verdict import Level, Symptom, SymptomName
from saddlepoint.defenses import BinaryLogits, Defense, SelectLogits
from saddlepoint.defenses.generators import seeded

_SEED = 0
_REPEATS = 5
# Code that says how one number per image is read.
BINARY_WRAPPERS = (
    "saddlepoint.defenses.BinaryLogits(net)",
    "saddlepoint.defenses.BinaryProbabilities(net)",
)


class StandardForm(NamedTuple):
    """A target, and what had to be done to get it into this form."""

    target: Target
    notes: tuple[Symptom, ...] = ()


class Frozen(nn.Module):
    """A frozen module of TorchScript as an ordinary module without layers."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.frozen = (net,)  # in a tuple it is no layer
        self.training = False

    def forward(self, x: Tensor) -> Any:
        return self.frozen[0](x)


def standard_form(target: Target, x: Tensor, classes: int = 2) -> StandardForm:
    """The target as a module from images to finite logits.

    Defenses are returned unchanged. Of a module in training mode a copy in evaluation mode is
    returned, if both give the same outputs.

    Args:
        target: the target.
        x: a few images, [N, ...].
        classes: the number of classes that the labels show.

    Raises:
        TargetError: the target raises an error, its outputs may be several things, or they depend
            on training mode.
    """
    notes: list[Symptom] = []
    if callable(target) and not isinstance(target, nn.Module | Defense):
        return StandardForm(*standard_function(target, x, classes))
    if not isinstance(target, nn.Module):
        return StandardForm(target)
    net = _uncompiled(target, x, notes)
    # A frozen module of TorchScript has no training flag.
    if getattr(net, "training", False):
        net = in_evaluation_mode(net, x, notes)
    if any(isinstance(module, torch.jit.ScriptModule) for module in net.modules()):
        notes.append(_scripted())
    if not hasattr(net, "training"):
        net = Frozen(net)
    if decides_by_values(net):
        notes.append(_decides_inside())
    net = _isolated(net, x, notes)
    out = _call_copy(net, x)
    key = logits_key(out, len(x))
    if key is not None:
        notes.append(selected_note(out, key))
        net = SelectLogits(net, key)
        out = _call_copy(net, x)
    if has_more_dimensions(out, len(x)):
        net = FlatScores(net)
        out = _call_copy(net, x)
    if is_binary(out, len(x)):
        check_binary(out, classes, BINARY_WRAPPERS)
        notes.append(binary_note(out))
        net = BinaryLogits(net)
        out = _call_copy(net, x)
    if needs_conversion(out, len(x)):
        notes.append(converted_note(out))
        net = FloatScores(net)
        out = _call_copy(net, x)
    if has_negative_infinity(out):
        notes.append(finite_note())
        net = FiniteScores(net)
    return StandardForm(net, tuple(notes))


def _uncompiled(net: nn.Module, x: Tensor, notes: list[Symptom]) -> nn.Module:
    """The original of a compiled module: its layers can be observed, and it can be copied."""
    original = getattr(net, "_orig_mod", None)
    if not isinstance(original, nn.Module):
        return net
    compiled = _call_copy(net, x)
    same = _call_copy(original, x)
    text = "the model is compiled; attacks use the original module inside of it"
    level = Level.NOTE
    if not (isinstance(compiled, Tensor) and isinstance(same, Tensor)):
        text += ". Their outputs are no tensors and were not compared."
    elif alike(compiled, same):
        text += ", which has the same outputs."
    else:
        level = Level.SERIOUS
        text += f", but its outputs differ: {difference(compiled, same)}. Pass the one you deploy."
    notes.append(Symptom(SymptomName.COMPILED, level, text))
    return original


def _isolated(net: nn.Module, x: Tensor, notes: list[Symptom]) -> nn.Module:
    """The net with every call in the same state outside of it, if calls depend on that state."""

    def call(copied: nn.Module) -> None:
        _call(copied, x)
        _call(copied, near_points(x).requires_grad_())  # images may be known already

    try:
        copied = copy_target(net)
    except Exception:  # user classes may raise anything; a probe reports it
        return net
    shared = changed_outside(net, copied, call)
    # Where outputs cannot be repeated, nothing can be compared. A probe reports that.
    if not shared or not _repeatable(net, x, shared):
        return net
    shared = _emptied(net, x, shared)
    places = ", ".join(shared.places[:3])
    text = f"a call changes {places} outside of the model, which all calls of this process share. "
    if not depends_on(net, shared, x):
        text += "Outputs and gradients did not depend on it."
        notes.append(Symptom(SymptomName.OUTSIDE_STATE, Level.NOTE, text))
        return net
    text += (
        "For the audit every call starts in the same state: outputs that depend on earlier images "
        "are not audited."
    )
    notes.append(Symptom(SymptomName.OUTSIDE_STATE, Level.WARNING, text))
    return Isolated(net, shared)


def _repeatable(net: nn.Module, x: Tensor, shared: SharedObjects) -> bool:
    """Whether copies give equal outputs with the same seed and the same state outside of them."""
    first = _call_copy(Isolated(net, shared), x)
    others = (_call_copy(Isolated(net, shared), x) for _ in range(_REPEATS))
    return all(same_outputs(first, other) for other in others)


def _emptied(net: nn.Module, x: Tensor, shared: SharedObjects) -> SharedObjects:
    """With empty containers where that does not change outputs: entries may have no gradients."""
    expected = _call_copy(Isolated(net, shared), x)
    for k in range(len(shared.contents)):
        other = shared.emptied(k)
        try:
            out = _call_copy(Isolated(net, other), x)
        except TargetError:  # the code of the net needs the entries
            continue
        if same_outputs(expected, out):
            shared = other
    return shared


def _scripted() -> Symptom:
    return Symptom(
        SymptomName.SCRIPTED,
        Level.NOTE,
        "the model is compiled by TorchScript: steps inside of it cannot be observed, and their "
        "backward passes cannot be replaced. Pass the original module if gradients fail.",
    )


def _decides_inside() -> Symptom:
    return Symptom(
        SymptomName.HIDDEN_DECISIONS,
        Level.SERIOUS,
        "code of TorchScript chooses by numbers from tensors which operations run. Attacks follow "
        "the gradients of the operations that ran and do not see the choice. Pass the original "
        "module.",
    )


def _call_copy(net: nn.Module, x: Tensor) -> Any:
    """The output of a copy, so that the net does not change; of the net if it has no copy."""
    try:
        net = copy_target(net)
    except Exception:  # user classes may raise anything; a probe reports it
        return _call(net, x)
    return _call(net, x)


def _call(net: nn.Module, x: Tensor) -> Any:
    with (
        torch.set_grad_enabled(x.requires_grad),
        explain_errors("model", x),
        seeded(net, _SEED, x.device),
    ):
        return net(x.clone())
