"""SOAP: online adversarial purification by a task without labels."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Context, Trace
from saddlepoint.zoo.adaptive.inner import Ascent, Direction, Purifier, shown, walk
from saddlepoint.zoo.adaptive.learning import Batch, Phase, minimize, seeded
from saddlepoint.zoo.adaptive.tasks import Headed, LabelConsistency, Task

RADII = tuple(number * 4 / 255 for number in range(11))


class SOAP(Purifier):
    """argmin_d L_aux(x + d) with ||d||_inf <= radius and x + d in the box, then f(x + d); of several radii the best.

    Shi et al. 2020; Croce et al. 2022, Sec. 3.5, Eq. 4-5: signed descent from x itself, once for each radius, of which that with
    the least L_aux is taken. In the released code the loss that picks the radius is a mean over the batch, so that all rows share
    one: `coupled=False` lets every row pick its own. The views are the iterates at the radius picked. A radius that the steps
    cannot reach binds nowhere: all such are one.
    """

    def __init__(
        self,
        net: nn.Module,
        task: Task | None = None,
        *,
        radii: Sequence[float] = RADII,  # in units of the input
        steps: int = 5,
        step_size: float = 4 / 255,
        coupled: bool = True,
        box: tuple[float, float] = (0.0, 1.0),
        direction: Direction = torch.sign,
    ) -> None:
        super().__init__(net, steps)
        if not radii or min(radii) < 0:
            raise ValueError(f"SOAP needs at least one radius, none below 0, got {list(radii)}.")
        self.task = task or LabelConsistency()
        self.radii = tuple(radii)
        self.coupled = coupled and steps > 0
        self.ascent = Ascent(step_size, Linf(max(radii), box=box), direction)

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        radius = self.picked(x) if self.steps else x.new_zeros(len(x))

        def step(t: int, v: Tensor) -> Tensor:  # noqa: ARG001
            return self._step(v, x, radius)

        return shown(walk(step, x, self.steps, ctx), self.net, self.steps, ctx)

    @torch.no_grad()
    def picked(self, x: Tensor) -> Tensor:
        """[N] the radius of each row: a choice, through which no gradient comes."""
        radii = x.new_tensor(self._distinct())
        losses = torch.stack(
            [self.task.loss(self.net, self._end(x, radius.expand(len(x)))) for radius in radii]
        )  # [R, N]
        if self.coupled:
            losses = losses.mean(1, keepdim=True).expand_as(losses)
        return radii[losses.argmin(0)]

    def _distinct(self) -> list[float]:
        """Radii that differ in what can be reached; only signed steps have a length that is known before."""
        reach = (
            self.steps * self.ascent.step_size
            if self.ascent.direction is torch.sign
            else max(self.radii)
        )
        return sorted({min(radius, reach) for radius in self.radii})

    def _end(self, x: Tensor, radius: Tensor) -> Tensor:
        v = x
        for _ in range(self.steps if radius.any() else 0):
            v = self._step(v, x, radius)
        return v

    def _step(self, v: Tensor, x: Tensor, radius: Tensor) -> Tensor:
        return self.ascent(lambda u: -self.task.loss(self.net, u), v, x, radius)

    def fit(
        self,
        x: Tensor,
        *,
        epochs: int = 10,
        batch_size: int = 128,
        learning_rate: float = 1e-3,
        seed: int = 0,
    ) -> SOAP:
        """The same with a head that has learned its task on x, by Adam; the net stays as it is."""
        if not isinstance(self.task, Headed):
            raise TypeError(
                f"{type(self.task).__name__} has no network of its own to fit: use SOAP as it is, or `fit_jointly` to train a copy "
                "of the net for the task too."
            )
        task = self.task.beginning()
        net = self.net
        optimizer = torch.optim.Adam(task.head.parameters(), lr=learning_rate)

        def losses(batch: Batch) -> Tensor:
            return task.practice_alone(net, x[batch.rows], batch.keys)

        with seeded(seed):
            minimize(
                losses, optimizer, len(x), Phase(epochs, batch_size, learning_rate), seed, x.device
            )
        task.head.eval()
        return self._with(net, task)

    def fit_jointly(
        self,
        x: Tensor,
        y: Tensor,
        *,
        weight: float = 1.0,
        epochs: int = 10,
        batch_size: int = 128,
        learning_rate: float = 1e-3,
        seed: int = 0,
    ) -> SOAP:
        """The same with a net, and a head, trained on CE + weight L_aux, by Adam: how Shi et al. 2020 train. Copies learn."""
        net = copy.deepcopy(self.net).train()
        task: Task = self.task.beginning() if isinstance(self.task, Headed) else self.task
        heads = [task.head] if isinstance(task, Headed) else []
        optimizer = torch.optim.Adam(
            chain(net.parameters(), *(head.parameters() for head in heads)), lr=learning_rate
        )

        def losses(batch: Batch) -> Tensor:
            loss, logits = task.practice(net, x[batch.rows], batch.keys)
            return cross_entropy(logits, y[batch.rows]).mean(0) + weight * loss

        with seeded(seed):
            minimize(
                losses, optimizer, len(x), Phase(epochs, batch_size, learning_rate), seed, x.device
            )
        for module in (net, *heads):
            module.eval()
        return self._with(net, task)

    def _with(self, net: nn.Module, task: Task) -> SOAP:
        space = self.ascent.space
        assert space is not None
        return SOAP(
            net, task, radii=self.radii, steps=self.steps, step_size=self.ascent.step_size, coupled=self.coupled,
            box=space.box, direction=self.ascent.direction,
        )  # fmt: skip
