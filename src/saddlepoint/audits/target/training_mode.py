"""Modules in training mode: they are accepted if evaluation mode gives the same outputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from saddlepoint.audits.target.admission import TargetError, check_output, explain_errors
from saddlepoint.audits.target.copy import copy_target
from saddlepoint.audits.target.outside import all_tensors, near_points, same_outputs
from saddlepoint.audits.verdict import Level, Symptom, SymptomName
from saddlepoint.defenses.generators import seeded
from saddlepoint.phrases import names

_SEEDS = (0, 1, 2)


def in_evaluation_mode(net: nn.Module, x: Tensor, notes: list[Symptom]) -> nn.Module:
    """A copy in evaluation mode of a module in training mode, if its mode changes nothing.

    Outputs are compared at images and at points near them, each with three seeds, and parameters
    and buffers before and after these calls.

    Args:
        net: a module in training mode.
        x: a few images, [N, ...].
        notes: a note is appended if the module is accepted.

    Raises:
        TargetError: its mode changes outputs or buffers, or it cannot be copied.
    """
    try:
        training = copy_target(net)
        evaluation = copy_target(net).eval()
    except Exception as error:  # user classes may raise anything
        raise _rejected("it cannot be copied to compare both modes") from error
    before = {name: value.clone() for name, value in training.state_dict().items()}
    for points in (x, near_points(x)):
        for seed in _SEEDS:
            expected = _call(evaluation, points, seed)
            found = _call(training, points, seed)
            tensors = list(all_tensors(expected))
            if not tensors:
                raise _rejected("its outputs are no tensors that could be compared")
            # NaN differs from itself. It is an error of its own, whatever the mode.
            for tensor in tensors if points is x else ():
                if tensor.ndim == 2 and tensor.is_floating_point():
                    check_output(tensor, x)
            if not same_outputs(expected, found):
                raise _rejected(
                    "its outputs differ from those in evaluation mode, by batch statistics, "
                    "dropout or its own code"
                )
    after = training.state_dict()
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    if changed:
        raise _rejected(f"each call changes {names([f'`{name}`' for name in changed[:3]])}")
    notes.append(
        Symptom(
            SymptomName.IN_TRAINING_MODE,
            Level.NOTE,
            "the model is in training mode. Evaluation mode gives the same outputs and was used.",
        )
    )
    return evaluation


def _rejected(reason: str) -> TargetError:
    return TargetError(
        f"the model is in training mode, and {reason}. Call net.eval() first, in the function that "
        "returns the model."
    )


def _call(net: nn.Module, x: Tensor, seed: int) -> Any:
    with torch.no_grad(), explain_errors("model", x), seeded(net, seed, x.device):
        return net(x.clone())
