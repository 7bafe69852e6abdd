"""Closed-loop control as a defense."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, nn

from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.zoo.adaptive.closed_loop.embedding import Embedding, Learner, PrincipalComponents
from saddlepoint.zoo.adaptive.descent import adam, at_rest, slope
from saddlepoint.zoo.adaptive.layers import INPUT, refuse_training, steered
from saddlepoint.zoo.adaptive.learning import parts, refuse_data
from saddlepoint.zoo.layers import refuse_unknown

_PCA = PrincipalComponents()


class Pass(NamedTuple):
    """One pass of the network under controls."""

    logits: Tensor  # [N, C]
    loss: Tensor  # [N]


class ClosedLoopControl(Defense):
    """Adds controls u_i to the outputs of named layers and answers under those that bring activations nearest to training data.

    min_u sum_i mean (h_i - E_i(h_i))^2,  h_i = (output of layer i under the controls before it) + u_i,  by Adam from u = 0.

    E_i is an embedding of layer i: a projection on principal components, or an auto-encoder (Chen et al. 2021; Croce et al. 2022,
    Sec. 3.3 and B.2). "control/t" is the network under the controls after t updates, so "control/0" is the static network; "final"
    answers with the controls of lowest loss. The paper's 5 iterations are 5 passes with 4 updates between them: `steps=4`.

    An update crosses the site "control", where the state is the controls and not the image: under `BPDA()` the controls are
    constants, and the gradient is that of the network run with them, as Croce et al. take it.

    As released, projections are centerd on the batch's mean and the best of the updates is the one of lowest loss over the batch.
    With `per_example` the center is the mean of the training data, and loss and best update are each row's own.
    `layers` are names of `net.named_modules()`; "input" is the image itself, and of a network that normalizes first its normalizer
    gives the input that the paper controls.
    """

    def __init__(
        self,
        net: nn.Module,
        layers: Sequence[str],
        *,
        embeddings: Mapping[str, Embedding] | None = None,
        steps: int = 4,
        rate: float = 5e-3,  # Sec. 3.3; B.2 says 1e-3, the released code 5e-3
        per_example: bool = False,
    ) -> None:
        if not layers or isinstance(layers, str):
            raise ValueError(
                f"ClosedLoopControl needs a list of layer names, such as ['input', 'layer1'], got {layers!r}."
            )
        if steps < 0 or rate <= 0:
            raise ValueError(
                f"ClosedLoopControl needs steps >= 0 and rate > 0, got steps={steps} and rate={rate}."
            )
        refuse_training(net)
        refuse_unknown(net, layers, beside=(INPUT,))
        if embeddings is not None and set(embeddings) != set(layers):
            raise ValueError(
                f"every layer needs an embedding: layers are {sorted(layers)}, embeddings are {sorted(embeddings)}."
            )
        self.net = net
        self.layers = tuple(layers)
        self.embeddings = embeddings
        self.steps = steps
        self.rate = rate
        self.per_example = per_example
        self.coupled = not per_example and steps > 0
        self.static = net

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        embeddings = self._fitted()
        width = sum(math.prod(embedding.shape) for embedding in embeddings.values())
        state = at_rest(x.new_zeros(len(x), width))
        passes = [self._pass(x, state[:, 0])]
        for t in range(1, self.steps + 1):
            state = ctx.through("control", partial(self._update, x, t), state)
            passes.append(self._pass(x, state[:, 0]))
        views = [
            View(name, p.logits) for t, p in enumerate(passes) if ctx.keeps(name := f"control/{t}")
        ]
        return Trace((*views, View("final", self._best(passes))))

    def fit(
        self, x: Tensor, y: Tensor, *, learner: Learner = _PCA, seed: int = 0
    ) -> ClosedLoopControl:
        """This defense with embeddings learnt from training images that the network answers rightly."""
        refuse_data(x, y)
        with torch.no_grad():
            right = torch.cat([self.net(part) for part in parts(x)]).argmax(1) == y
        chosen = x[right][: learner.samples]
        if len(chosen) < 2:
            raise ValueError(
                f"embeddings are learnt from images that the network answers rightly, found {len(chosen)} among {len(x)}. "
                "Give more images, or check the labels."
            )
        embeddings = {name: learner.learn(h, seed) for name, h in self._activations(chosen).items()}
        return ClosedLoopControl(
            self.net,
            self.layers,
            embeddings=embeddings,
            steps=self.steps,
            rate=self.rate,
            per_example=self.per_example,
        )

    def _fitted(self) -> Mapping[str, Embedding]:
        if self.embeddings is None:
            raise RuntimeError(
                "ClosedLoopControl has no embeddings yet. Call fit: ClosedLoopControl(net, layers).fit(x, y), or give them."
            )
        return self.embeddings

    def _pass(self, x: Tensor, controls: Tensor) -> Pass:
        """The network under controls [N, width], and how far its activations are off."""
        embeddings = self._fitted()
        ends = accumulate(math.prod(embeddings[name].shape) for name in self.layers)
        flat = torch.tensor_split(controls, tuple(ends)[:-1], dim=1)
        control = dict(zip(self.layers, flat, strict=True))
        losses = list[Tensor]()

        def steer(name: str, given: Tensor) -> Tensor:
            h = given + control[name].view_as(given)
            off = embeddings[name].residual(h, alone=self.per_example)
            losses.append(off.square().flatten(1).mean(1))
            return h

        logits = steered(self.net, self.layers, steer, x)
        return Pass(logits, torch.stack(losses).sum(0))

    def _update(self, x: Tensor, t: int, state: Tensor) -> Tensor:
        """Adam's t-th update of controls."""

        def loss(controls: Tensor) -> Tensor:
            losses = self._pass(x, controls).loss
            return losses if self.per_example else losses.mean()

        return adam(state, slope(loss, state[:, 0]), t, self.rate)

    def _best(self, passes: Sequence[Pass]) -> Tensor:
        logits = torch.stack([p.logits for p in passes])  # [T, N, C]
        losses = torch.stack([p.loss for p in passes]).detach()  # [T, N]
        best = (
            losses.argmin(0)
            if self.per_example
            else losses.mean(1).argmin().expand(losses.shape[1])
        )
        answered: Tensor = logits[best, torch.arange(losses.shape[1], device=best.device)]
        return answered

    def _activations(self, x: Tensor) -> dict[str, Tensor]:
        found: dict[str, list[Tensor]] = {name: [] for name in self.layers}

        def note(name: str, given: Tensor) -> Tensor:
            found[name].append(given)
            return given

        with torch.no_grad():
            for part in parts(x):
                steered(self.net, self.layers, note, part)
        return {name: torch.cat(given) for name, given in found.items()}
