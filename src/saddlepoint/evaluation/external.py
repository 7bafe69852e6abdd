"""Attacks and points from elsewhere: other libraries, other people, files."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.spaces import Ball, per_example
from saddlepoint.defenses import Access, Context, Defense
from saddlepoint.evaluation.adversary import Adversary
from saddlepoint.evaluation.attack_context import AttackContext
from saddlepoint.evaluation.cost import PassCost
from saddlepoint.evaluation.properties import AdversaryProperties
from saddlepoint.phrases import count
from saddlepoint.rng import Keys, seeded_globals

Outside = Literal["error", "project", "skip"]
AttackFunction = Callable[[nn.Module, Tensor, Tensor], Any]


@dataclass(frozen=True)
class External(Adversary):
    """An attack of another library: any function of a model, images and labels.

        External("torchattacks pgd", lambda model, x, y: torchattacks.PGD(model, eps=8/255)(x, y))

    The model is an `nn.Module` in eval mode from images to logits. It is the defense as it answers,
    adapted to the batch if it adapts. Global random generators are seeded for the call. The
    referee checks and evaluates the points; what the function itself reports is not used.

    Args:
        name: the name shown in tables.
        fn: `fn(model, x, y)` returns one point per image, [N, ...], as a tensor or an array.
        outside: what happens to points outside of the perturbation set. "error": an error, the
            default. "project": they are projected onto it. "skip": the clean image is used, as
            for minimum-norm attacks that found no point within the radius.
        needs: the access of the function: "gradient" (default), "score" or "decision".
    """

    name: str
    fn: AttackFunction
    outside: Outside = "error"
    needs: Access = "gradient"

    @property
    def properties(self) -> AdversaryProperties:
        return AdversaryProperties(self.needs, external=True)

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        model = DefenseAsModule(defense, context.simulated_keys()).eval()
        seed = context.attacker_keys().batch_seed()
        with torch.enable_grad(), seeded_globals(seed, x.device):
            returned = self.fn(model, x.detach().clone(), y.clone())
        context.meter.charge(context.rows, *model.passes_per_example(len(x)))
        points = fitted(self.name, returned, x, context.threat.space, self.outside)
        return AttackResult(points, points)


@dataclass(frozen=True)
class Points(Adversary):
    """Points that were computed elsewhere, such as those that AutoAttack saved.

    Args:
        name: the name shown in tables.
        points: one point per image of the evaluation, in the same order: [N, ...], a tensor or an
            array. Bytes are divided by 255.
        outside: what happens to points outside of the perturbation set: "error" (default),
            "project" or "skip", as in `External`.
        needs: they need no access; leave it "decision".
    """

    name: str
    points: Tensor = field(repr=False)
    outside: Outside = "error"
    needs: Access = "decision"

    def __post_init__(self) -> None:
        points = torch.as_tensor(np.asarray(self.points) if _is_list(self.points) else self.points)
        points = points.float() / 255 if points.dtype == torch.uint8 else points
        object.__setattr__(self, "points", points.detach())

    @property
    def properties(self) -> AdversaryProperties:
        return AdversaryProperties(self.needs, external=True)

    def cost(self, draws: int = 1) -> PassCost:  # noqa: ARG002
        return PassCost(0, 0)

    def move(
        self,
        context: AttackContext,
        defense: Defense,  # noqa: ARG002
        x: Tensor,
        y: Tensor,  # noqa: ARG002
    ) -> AttackResult:
        if int(context.ids.amax()) >= len(self.points):
            raise ValueError(
                f"{self.name} has {count(len(self.points), 'point')}, but image number "
                f"{int(context.ids.amax())} is evaluated. Give one point per image, in order."
            )
        chosen = self.points[context.ids.to(self.points.device)]
        points = fitted(self.name, chosen, x, context.threat.space, self.outside)
        return AttackResult(points, points)


def fitted(name: str, returned: Any, x: Tensor, space: Ball, outside: Outside) -> Tensor:
    """Points of another library as a tensor like `x`; those outside of the set are treated.

    Args:
        name: of the adversary, for messages.
        returned: points, [N, ...], as a tensor or an array.
        x: clean inputs, [N, ...].
        space: the perturbation set.
        outside: "error" leaves points to the referee, which raises an error.

    Raises:
        TypeError: the value is neither a tensor nor an array.
        ValueError: it has another shape than the images.
    """
    if not isinstance(returned, Tensor | np.ndarray):
        raise TypeError(
            f"{name} must return one point per image, a tensor or an array, got "
            f"{type(returned).__name__}. Return only the points, such as `attack(x, y)[1]`."
        )
    points = torch.as_tensor(returned).detach().to(x)
    if points.shape != x.shape:
        raise ValueError(
            f"{name} must return points of the shape of the images {list(x.shape)}, got "
            f"{list(points.shape)}."
        )
    if outside == "project":
        return space.project(points, x)
    if outside == "skip":
        return torch.where(per_example(space.contains(points, x), x), points, x)
    return points


class DefenseAsModule(nn.Module):
    """A defense as an ordinary module from images to logits, which counts its passes.

    Every call draws new randomness. The rows of a call may be any images: other libraries drop
    rows that they have finished.

    Args:
        defense: the defense.
        keys: random keys of the attacker's simulation, [N].
    """

    def __init__(self, defense: Defense, keys: Keys) -> None:
        super().__init__()
        self.defense = (defense,)  # in a tuple: it is no layer
        self.keys = keys
        self.rows_forward = 0
        self.rows_backward = 0
        self.calls = 0
        # Other libraries find device and type by the first parameter.
        self.anchor = nn.Parameter(torch.zeros((), device=keys.base.device))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.rows_forward += len(x)
        rows = torch.arange(len(x), device=x.device) % len(self.keys)
        ctx = Context(self.keys[rows].fold_in(self.calls))
        logits = self.defense[0].respond(x, ctx)
        if logits.requires_grad:
            logits.register_hook(self._count_backward)  # type: ignore[no-untyped-call]
        return logits

    def _count_backward(self, grad: Tensor) -> None:
        self.rows_backward += len(grad)

    def passes_per_example(self, examples: int) -> tuple[int, int]:
        """Forward and backward passes per example, rounded up: which rows were used is unknown."""
        return (
            math.ceil(self.rows_forward / examples),
            math.ceil(self.rows_backward / examples),
        )


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)
