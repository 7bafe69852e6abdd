"""SOAP: online adversarial purification with a self-supervised auxiliary loss."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Context, Trace
from saddlepoint.zoo.adaptive.auxiliary_tasks import AuxiliaryTask, HeadTask, LabelConsistency
from saddlepoint.zoo.adaptive.fitting import Batch, Phase, minimize, seeded
from saddlepoint.zoo.adaptive.gradient_steps import AscentStep, Direction, KnownDirections
from saddlepoint.zoo.adaptive.purification import Purifier

RADII = tuple(number * 4 / 255 for number in range(11))  # 0 to 40/255


class SOAP(Purifier):
    """Minimize an auxiliary loss around x, then classify the minimizer.

    d = argmin_d L_aux(x + d)  with  ||d||_inf <= radius and x + d in the box.

    The minimization is signed gradient descent from x, once for each of several radii; the radius
    with the lowest final L_aux is used (Shi et al. 2020; Croce et al. 2022, Sec. 3.5, Eq. 4-5).
    In the released code the loss that selects the radius is a mean over the batch, so that all
    examples of a batch share one radius. With `coupled=False` each example has its own.

    The published numbers, 83.7 % clean and 54.5 % under FGSM, are those of an old PyTorch with
    wrong gradients; see `LabelConsistency` for the option that emulates it.

    The views are the iterates at the selected radius. Radii that the steps cannot reach do not
    constrain the descent and give the same result, so only one of them is tried.

    Args:
        net: Classifier f: [N, ...] -> [N, C] in eval mode.
        task: Auxiliary task with the loss L_aux; None: `LabelConsistency()`.
        radii: Candidate Linf radii, in units of the input.
        steps: Number of descent steps for each radius.
        step_size: Length of a step, in units of the input.
        coupled: Whether all examples of a batch share one radius.
        box: Lower and upper bound of the input.
        direction: Maps the gradient to the step direction.
    """

    def __init__(
        self,
        net: nn.Module,
        task: AuxiliaryTask | None = None,
        *,
        radii: Sequence[float] = RADII,
        steps: int = 5,
        step_size: float = 4 / 255,
        coupled: bool = True,
        box: tuple[float, float] = (0.0, 1.0),
        direction: Direction = torch.sign,
    ) -> None:
        super().__init__(net, steps)
        if not radii or min(radii) < 0:
            raise ValueError(
                f"SOAP needs at least one radius and no negative ones, got {list(radii)}."
            )
        self.task = task or LabelConsistency()
        self.radii = tuple(radii)
        self.coupled = coupled and steps > 0
        self.ascent = AscentStep(step_size, Linf(max(radii), box=box), direction)

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        """Purify x and return the logits at every iterate."""
        directions = self._directions()
        radius = self._select(x, directions) if self.steps else x.new_zeros(len(x))

        def step(t: int, v: Tensor) -> Tensor:  # noqa: ARG001
            return self.ascent.move(v, directions(v), x, radius)

        return self.classify_iterates(step, x, ctx)

    def select_radius(self, x: Tensor) -> Tensor:
        """Return the radius [N] of each example. The selection has no gradient."""
        return self._select(x, self._directions())

    def _directions(self) -> KnownDirections:
        return KnownDirections(self.ascent, lambda v: -self.task.loss(self.net, v))

    @torch.no_grad()
    def _select(self, x: Tensor, directions: KnownDirections) -> Tensor:
        radii = x.new_tensor(self._distinct_radii())
        if len(radii) == 1:
            return radii.expand(len(x))
        losses = torch.stack(
            [
                self.task.loss(self.net, self._purify(x, radius.expand(len(x)), directions))
                for radius in radii
            ]
        )  # [R, N]
        if self.coupled:
            losses = losses.mean(1, keepdim=True).expand_as(losses)
        return radii[losses.argmin(0)]

    def _distinct_radii(self) -> list[float]:
        """Return the radii with different results.

        The total length of the steps is known in advance only for signed steps.
        """
        signed = self.ascent.direction is torch.sign
        reachable = self.steps * self.ascent.step_size if signed else max(self.radii)
        return sorted({min(radius, reachable) for radius in self.radii})

    def _purify(self, x: Tensor, radius: Tensor, directions: KnownDirections) -> Tensor:
        v = x
        for _ in range(self.steps if radius.any() else 0):
            v = self.ascent.move(v, directions(v), x, radius)
        return v

    def fit(
        self,
        x: Tensor,
        *,
        epochs: int = 10,
        batch_size: int = 128,
        learning_rate: float = 1e-3,
        seed: int = 0,
    ) -> SOAP:
        """Train a copy of the task's head with Adam; the network is unchanged.

        Args:
            x: [M, ...] training images.
            epochs: Number of passes over the images.
            batch_size: Upper bound of the batch size.
            learning_rate: Learning rate of Adam.
            seed: Seed of the order of the images and of all noise.

        Returns:
            A new defense with the trained head.

        Raises:
            TypeError: If the task has no head.
        """
        if not isinstance(self.task, HeadTask):
            raise TypeError(
                f"{type(self.task).__name__} has no head to train. Use SOAP without fitting, or "
                "`fit_jointly` to train a copy of the network on the task."
            )
        task = self.task.copy_for_training()
        net = self.net
        optimizer = torch.optim.Adam(task.head.parameters(), lr=learning_rate)

        def losses(batch: Batch) -> Tensor:
            return task.head_training_loss(net, x[batch.rows], batch.keys)

        phase = Phase(epochs, batch_size, learning_rate)
        with seeded(seed):
            minimize(losses, optimizer, len(x), phase, seed, x.device)
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
        """Train copies of the network and of the task's head on CE + weight L_aux with Adam.

        This is the training of Shi et al. 2020.

        Args:
            x: [M, ...] training images.
            y: [M] labels.
            weight: Weight of the auxiliary loss.
            epochs: Number of passes over the images.
            batch_size: Upper bound of the batch size.
            learning_rate: Learning rate of Adam.
            seed: Seed of the order of the images and of all noise.

        Returns:
            A new defense with the trained network and head.
        """
        net = copy.deepcopy(self.net).train()
        task: AuxiliaryTask = self.task
        if isinstance(task, HeadTask):
            task = task.copy_for_training()
        heads = [task.head] if isinstance(task, HeadTask) else []
        optimizer = torch.optim.Adam(
            chain(net.parameters(), *(head.parameters() for head in heads)), lr=learning_rate
        )

        def losses(batch: Batch) -> Tensor:
            loss, logits = task.training_pass(net, x[batch.rows], batch.keys)
            return cross_entropy(logits, y[batch.rows]).mean(0) + weight * loss

        phase = Phase(epochs, batch_size, learning_rate)
        with seeded(seed):
            minimize(losses, optimizer, len(x), phase, seed, x.device)
        for module in (net, *heads):
            module.eval()
        return self._with(net, task)

    def at_radius(self, radius: float) -> SOAP:
        """Return the same defense with a single radius; its examples are independent."""
        return self._with(self.net, self.task, radii=(radius,), coupled=False)

    def decouple(self, x: Tensor) -> SOAP:
        """Return the defense at the radius that the batch x selects."""
        return self.at_radius(float(self.select_radius(x)[0])) if self.coupled else self

    def _with(
        self,
        net: nn.Module,
        task: AuxiliaryTask,
        *,
        radii: Sequence[float] | None = None,
        coupled: bool = True,
    ) -> SOAP:
        """Return the same defense with another network and task, or with other radii."""
        space = self.ascent.space
        assert space is not None
        return SOAP(
            net,
            task,
            radii=self.radii if radii is None else radii,
            steps=self.steps,
            step_size=self.ascent.step_size,
            coupled=self.coupled and coupled,
            box=space.box,
            direction=self.ascent.direction,
        )
