"""Closed-loop control as a defense."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, nn

from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.zoo.adaptive.closed_loop.embedding import (
    Embedding,
    EmbeddingLearner,
    LinearEmbedding,
    PrincipalComponents,
    mean_square_residual,
)
from saddlepoint.zoo.adaptive.feature_extraction import visit_layers
from saddlepoint.zoo.adaptive.fitting import chunks
from saddlepoint.zoo.adaptive.gradient_steps import adam_step, initial_adam_state, input_gradient
from saddlepoint.zoo.adaptive.validation import require_eval_mode, require_labeled_data
from saddlepoint.zoo.layers import check_known_layers

INPUT = "input"  # layer name of the image itself
_PCA = PrincipalComponents()


class ControlledPass(NamedTuple):
    """One forward pass with controls."""

    state: Tensor  # [N, 3, width] controls and moments of Adam from which the pass started
    controls: Tensor  # [N, width] the controls, with the gradient of the loss
    logits: Tensor  # [N, C]
    loss: Tensor  # [N]


class SharedValues(NamedTuple):
    """What the rows of a batch share."""

    rows: int  # of the batch: its loss is a mean over them
    centers: Sequence[Mapping[str, Tensor]]  # of each pass by layer, [*shape]
    best: int  # the pass with the lowest loss


class ClosedLoopControl(Defense):
    """Add controls u_i to the outputs of named layers and optimize them at inference.

    min_u sum_i mean (h_i - E_i(h_i))^2,  h_i = (output of layer i under earlier controls) + u_i,

    by Adam from u = 0. E_i is an embedding of the training activations of layer i: a projection
    onto principal components, or an auto-encoder (Chen et al. 2021; Croce et al. 2022, Sec. 3.3
    and B.2). The view "control/t" is the network with the controls after t updates, so
    "control/0" is the static network; "final" uses the controls with the lowest loss. The paper's
    5 iterations are 5 forward passes with 4 updates between them: `steps=4`.

    Each update passes through the site "control", where the state is the controls and not the
    image. Under `BPDA()` the controls are constants, and the gradient is that of the network run
    with these controls, as in Croce et al. One forward pass per iteration gives both the logits
    and the gradient of the update: with the paper's settings 5 forward and 4 backward passes
    (Sec. 3.3). Only exact gradients through the updates repeat the pass inside the site.

    As in the released code, projections are centered on the mean of the batch, and the best update
    is the one with the lowest loss over the batch. With `per_example` the center is the mean of
    the training data, and each example has its own loss and best update.

    Args:
        net: Classifier [N, ...] -> [N, C] in eval mode.
        layers: Names of `net.named_modules()`, or "input" for the image. For a network that
            normalizes its input first, the normalization layer gives the input that the paper
            controls.
        embeddings: One embedding per layer; None: created by `fit`.
        steps: Number of updates.
        rate: Learning rate of Adam. Sec. 3.3 and the released code have 5e-3, B.2 has 1e-3.
        per_example: Whether examples are independent.
    """

    def __init__(
        self,
        net: nn.Module,
        layers: Sequence[str],
        *,
        embeddings: Mapping[str, Embedding] | None = None,
        steps: int = 4,
        rate: float = 5e-3,
        per_example: bool = False,
    ) -> None:
        if not layers or isinstance(layers, str):
            raise ValueError(
                "ClosedLoopControl needs a list of layer names, such as ['input', 'layer1'], "
                f"got {layers!r}."
            )
        if steps < 0 or rate <= 0:
            raise ValueError(
                "ClosedLoopControl needs steps >= 0 and rate > 0, "
                f"got steps={steps} and rate={rate}."
            )
        require_eval_mode(net, role="network", owner="ClosedLoopControl")
        check_known_layers(net, layers, beside=(INPUT,))
        if embeddings is not None and set(embeddings) != set(layers):
            raise ValueError(
                f"every layer needs an embedding: the layers are {sorted(layers)}, "
                f"the embeddings are for {sorted(embeddings)}."
            )
        self.net = net
        self.layers = tuple(layers)
        self.embeddings = embeddings
        self.steps = steps
        self.rate = rate
        self.per_example = per_example
        self.coupled = not per_example and steps > 0
        self.static = net
        self._shared: SharedValues | None = None  # None: the values of the batch at hand

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        """Return the logits after every update, and last those with the lowest loss."""
        logits, losses = self._passes(x, ctx)
        views = [
            View(name, part) for t, part in enumerate(logits) if ctx.keeps(name := f"control/{t}")
        ]
        return Trace((*views, View("final", self._best_logits(logits, losses))))

    def decouple(self, x: Tensor) -> ClosedLoopControl:
        """Return the defense with the centers and the best update of the batch x.

        The gradient of the loss does not depend on how the center follows from the rows: deviations
        from it add up to zero.
        """
        if not self.coupled:
            return self
        centers: list[dict[str, Tensor]] = [{} for _ in range(self.steps + 1)]
        with torch.no_grad():
            _, losses = self._passes(x, Context.seeded(0, len(x)), centers)
            best = int(torch.stack(losses).mean(1).argmin())
        fixed = copy.copy(self)
        fixed._shared = SharedValues(len(x), centers, best)
        fixed.coupled = False
        return fixed

    def _passes(
        self, x: Tensor, ctx: Context, centers: Sequence[dict[str, Tensor]] | None = None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Run all updates.

        Args:
            x: [N, ...] images.
            ctx: Context of the call.
            centers: Filled with the centers of each pass by layer; None: they are not needed.

        Returns:
            Logits [N, C] and loss [N] of each pass.
        """
        embeddings = self._fitted_embeddings()
        width = sum(math.prod(embedding.shape) for embedding in embeddings.values())
        state = initial_adam_state(x.new_zeros(len(x), width))
        logits = list[Tensor]()
        losses = list[Tensor]()
        for t in range(self.steps + 1):
            last = self._pass_with_gradient(x, state, t, None if centers is None else centers[t])
            logits.append(last.logits if torch.is_grad_enabled() else last.logits.detach())
            losses.append(last.loss.detach())
            if t < self.steps:
                state = ctx.through("control", partial(self._update, x, t + 1, last), state)
        return logits, losses

    def fit(
        self, x: Tensor, y: Tensor, *, learner: EmbeddingLearner = _PCA, seed: int = 0
    ) -> ClosedLoopControl:
        """Fit the embeddings to activations of correctly classified training images.

        Args:
            x: [M, ...] training images.
            y: [M] labels.
            learner: Fits one embedding per layer.
            seed: Seed of the learner.

        Returns:
            A new defense with the embeddings.

        Raises:
            ValueError: If fewer than two images are classified correctly.
        """
        require_labeled_data(x, y)
        with torch.no_grad():
            correct = torch.cat([self.net(part) for part in chunks(x)]).argmax(1) == y
        chosen = x[correct][: learner.samples]
        if len(chosen) < 2:
            raise ValueError(
                "fit needs at least two images that the network classifies correctly, "
                f"found {len(chosen)} among {len(x)}. Give more images, or check the labels."
            )
        activations = self._activations(chosen)
        return ClosedLoopControl(
            self.net,
            self.layers,
            embeddings={name: learner.learn(h, seed) for name, h in activations.items()},
            steps=self.steps,
            rate=self.rate,
            per_example=self.per_example,
        )

    def _fitted_embeddings(self) -> Mapping[str, Embedding]:
        if self.embeddings is None:
            raise RuntimeError(
                "ClosedLoopControl has no embeddings yet. Call fit: "
                "ClosedLoopControl(net, layers).fit(x, y), or pass `embeddings`."
            )
        return self.embeddings

    def _pass_with_gradient(
        self, x: Tensor, state: Tensor, t: int, centers: dict[str, Tensor] | None
    ) -> ControlledPass:
        """Run the network so that the loss can be differentiated by the controls."""
        with torch.enable_grad():
            controls = state[:, 0]
            if not controls.requires_grad:
                controls = controls.detach().requires_grad_()
            logits, loss = self._controlled_pass(x, controls, t, centers)
        return ControlledPass(state, controls, logits, loss)

    def _controlled_pass(
        self, x: Tensor, controls: Tensor, t: int, centers: dict[str, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Run pass t of the network with controls [N, width], concatenated over the layers.

        The centers of this pass are stored in `centers` by layer.

        Returns:
            Logits [N, C] and loss [N].
        """
        embeddings = self._fitted_embeddings()
        ends = accumulate(math.prod(embeddings[name].shape) for name in self.layers)
        flat = torch.tensor_split(controls, tuple(ends)[:-1], dim=1)
        control = dict(zip(self.layers, flat, strict=True))
        losses = list[Tensor]()

        def steer(name: str, output: Tensor) -> Tensor:
            h = output + control[name].view_as(output)
            embedding = embeddings[name]
            center = None if self._shared is None else self._shared.centers[t].get(name)
            losses.append(
                mean_square_residual(embedding, h, per_example=self.per_example, center=center)
            )
            if centers is not None and isinstance(embedding, LinearEmbedding):
                centers[name] = embedding.center(h.detach(), per_example=self.per_example)
            return h

        logits = _steered(self.net, self.layers, steer, x)
        return logits, torch.stack(losses).sum(0)

    def _update(self, x: Tensor, t: int, last: ControlledPass, state: Tensor) -> Tensor:
        """Apply Adam's t-th update to the controls.

        The gradient is that of the last pass. A rule that differentiates the update, or evaluates
        it elsewhere, needs a pass of its own.
        """

        def objective(losses: Tensor) -> Tensor:
            if self._shared is not None:
                return losses.sum() / self._shared.rows
            return losses.sum() if self.per_example else losses.mean()

        if torch.is_grad_enabled() or state is not last.state:
            grad = input_gradient(
                lambda controls: objective(self._controlled_pass(x, controls, t - 1)[1]),
                state[:, 0],
            )
        else:
            with torch.enable_grad():
                value = objective(last.loss)
            (grad,) = torch.autograd.grad(value, last.controls, retain_graph=True)
        return adam_step(state, grad, t, self.rate)

    def _best_logits(self, logits: Sequence[Tensor], losses: Sequence[Tensor]) -> Tensor:
        """Return the logits [N, C] of the pass with the lowest loss."""
        stacked = torch.stack(list(losses))  # [T, N]
        rows = stacked.shape[1]
        if self._shared is not None:
            return logits[self._shared.best]
        best = stacked.argmin(0) if self.per_example else stacked.mean(1).argmin().expand(rows)
        selected: Tensor = torch.stack(list(logits))[best, torch.arange(rows, device=best.device)]
        return selected

    def _activations(self, x: Tensor) -> dict[str, Tensor]:
        """Return the outputs [M, ...] of the controlled layers without controls."""
        recorded: dict[str, list[Tensor]] = {name: [] for name in self.layers}

        def record(name: str, output: Tensor) -> Tensor:
            recorded[name].append(output)
            return output

        with torch.no_grad():
            for part in chunks(x):
                _steered(self.net, self.layers, record, part)
        return {name: torch.cat(outputs) for name, outputs in recorded.items()}


def _steered(
    net: nn.Module, names: Sequence[str], steer: Callable[[str, Tensor], Tensor], x: Tensor
) -> Tensor:
    """Run the network with the output of each named layer replaced by steer(name, output)."""
    layers = [name for name in names if name != INPUT]
    if INPUT in names:
        # A copy: a layer that works in place must not change the steered image.
        x = steer(INPUT, x).clone()
    return visit_layers(net, layers, lambda name, _, output: steer(name, output), x)
