"""Adversarial points of one attack, without an evaluation: for training loops and experiments."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.losses import Loss
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.square import Square
from saddlepoint.audits.inputs import AnyTarget, read_target
from saddlepoint.audits.target.admission import check_data, check_output, explain_errors
from saddlepoint.audits.target.functions import standard_function
from saddlepoint.audits.target.logits import check_binary, is_binary, logits_key
from saddlepoint.audits.target.standard_form import BINARY_WRAPPERS
from saddlepoint.defenses import (
    BinaryLogits,
    BlackBox,
    Defense,
    MultiExit,
    Plain,
    SelectLogits,
    eval_mode,
)
from saddlepoint.evaluation import AttackContext, Direct, Threat
from saddlepoint.evaluation.input_checks import require_legal_points
from saddlepoint.evaluation.masks import MaskedPixels
from saddlepoint.evaluation.targeted_goal import TowardClass

_QUERIES = 1000  # of Square, where there are no gradients
_ROWS = 2  # images on which the form of the output is determined


def attack_points(
    target: AnyTarget,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    *,
    method: Attack[Any] | None,
    loss: Loss,
    seed: int,
) -> Tensor:
    """The points of one attack on one batch.

    A module runs in eval mode and has its own modes again afterwards; no `.grad` changes.

    Args:
        target: a module, a `Defense`, a callable, or the path of an ONNX file.
        x: clean images, [N, ...].
        y: labels, [N].
        threat: the threat model.
        method: the attack; None: PGD, or Square with 1000 queries if the target has no gradients.
        loss: per-example loss that is maximized.
        seed: of the attacker's random keys.

    Raises:
        TargetError: data or outputs violate a rule that every attack relies on.
    """
    check_data(x, y, threat.space)
    clean = x.detach()
    found = read_target(target)
    context = AttackContext.open(threat, torch.arange(len(x), device=x.device), seed)
    with eval_mode(found) if isinstance(found, nn.Module) else nullcontext(), torch.enable_grad():
        defense = _defense(found, clean, y)
        chosen = method or (PGD() if defense.grants == "gradient" else Square(_QUERIES))
        labels = y.long()
        if threat.mask is not None:
            defense = MaskedPixels(defense, threat.mask, clean)
        if threat.target_class is not None:
            defense = TowardClass(defense, threat.target_class)
            labels = torch.zeros_like(labels)
        points = Direct("attack", chosen, loss=loss).move(context, defense, clean, labels).point
    require_legal_points("the attack", points.detach(), clean, threat)
    return points.detach() if threat.mask is None else threat.mask.apply(points.detach(), clean)


def _defense(target: Any, x: Tensor, y: Tensor) -> Defense:
    """The target as a defense. The form of its output is determined with one small batch."""
    classes = int(y.amax()) + 1
    rows = x[:_ROWS]
    if isinstance(target, Defense):
        return target
    if not isinstance(target, nn.Module):
        function = standard_function(target, rows, classes).function
        with torch.no_grad():
            out = function(rows)
        labels = isinstance(out, Tensor) and not out.is_floating_point() and out.ndim == 1
        return BlackBox(function, classes=max(classes, int(out.amax()) + 1) if labels else None)
    out = _output(target, rows)
    if isinstance(out, list):
        return MultiExit(target)
    net = target
    key = logits_key(out, len(rows))
    if key is not None:
        net = SelectLogits(target, key)
        out = _output(net, rows)
    if is_binary(out, len(rows)):
        check_binary(out, classes, BINARY_WRAPPERS)
        net = BinaryLogits(net)
        out = _output(net, rows)
    check_output(out, rows)
    return Plain(net)


def _output(net: nn.Module, x: Tensor) -> Any:
    with torch.no_grad(), explain_errors("model", x):
        return net(x)
