"""SODEF as a defense, and its training."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.zoo.adaptive.feature_extraction import Features
from saddlepoint.zoo.adaptive.fitting import Batch, Phase, chunks, minimize, seeded
from saddlepoint.zoo.adaptive.sodef.neural_ode import Dopri5, Integrator, StableODE
from saddlepoint.zoo.adaptive.sodef.stability import Stability, simplex
from saddlepoint.zoo.adaptive.validation import require_eval_mode, require_labeled_data


@dataclass(frozen=True)
class StableTraining:
    """The three training phases of SODEF; each phase freezes the parameters of the others.

    1. `embed` trains the embedding on the cross-entropy of <embed(features), a_k> with fixed
       vectors a_k that are far apart. Its learning rate is our choice; the released one is for
       another embedding.
    2. `settle` trains the field on `stability` at z(0). The released code uses the Jacobians of
       half of each batch.
    3. `read` trains the head on the cross-entropy at z(time).

    All other epochs, batch sizes and learning rates are those of the released code.
    """

    embed: Phase = field(default_factory=lambda: Phase(epochs=5, batch_size=128, rate=1e-3))
    settle: Phase = field(default_factory=lambda: Phase(epochs=20, batch_size=32, rate=1e-2))
    read: Phase = field(default_factory=lambda: Phase(epochs=10, batch_size=128, rate=1e-2))
    stability: Stability = field(default_factory=Stability)


_DOPRI5 = Dopri5()
_TRAINING = StableTraining()


class SODEF(Defense):
    """Pass the features of a network through a stable neural ODE before classification.

    z(0) = embed(features),  dz/dt = field(z),  logits = head(z(time)).

    Kang et al. 2021, as reviewed by Croce et al. 2022, Sec. 3.2. The field is trained to have a
    stable equilibrium at every training feature, so that the flow removes small changes of z(0).

    The time interval is divided into `segments` equal parts. Each part passes through the site
    "ode" and gives a view: "ode/0" is the head at z(0), the last view is the final output. A
    contracting flow makes gradients vanish; `BPDA()` at "ode" replaces its backward pass by the
    identity. The released code computes gradients by the adjoint ODE; here the solver's own steps
    are differentiated.

    Args:
        net: Network [N, ...] -> [N, C] in eval mode.
        body: Embedding, field and head; None: created by `fit`.
        layer: Layer that gives the features: its output is averaged over positions. None: the
            features are the input of the network's last linear layer.
        time: Length of the integration interval.
        segments: Number of parts.
        integrator: ODE solver.
    """

    def __init__(
        self,
        net: nn.Module,
        body: StableODE | None = None,
        *,
        layer: str | None = None,
        time: float = 5.0,
        segments: int = 1,
        integrator: Integrator = _DOPRI5,
    ) -> None:
        if time < 0 or segments < 1:
            raise ValueError(
                f"SODEF needs time >= 0 and segments >= 1, got time={time} and segments={segments}."
            )
        require_eval_mode(net, role="network", owner="SODEF")
        self.net = net
        self.body = body
        self.features = Features(net, layer)
        self.time = time
        self.segments = segments
        self.integrator = integrator
        self.coupled = integrator.coupled and time > 0
        self.static = net

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        """Return the logits of the head after every segment of the ODE."""
        body = self._fitted_body()
        z = body.embed(self.features(x))
        views = [View("ode/0", body.head(z))] if ctx.keeps("ode/0") else []
        for k in range(1, self.segments + 1):
            z = ctx.through("ode", partial(self._flow, body), z)
            if ctx.keeps(f"ode/{k}") or k == self.segments:
                views.append(View(f"ode/{k}", body.head(z)))
        return Trace(tuple(views))

    def fit(
        self, x: Tensor, y: Tensor, *, training: StableTraining = _TRAINING, seed: int = 0
    ) -> SODEF:
        """Train the ODE, or a copy of the given one further; the network is unchanged.

        Args:
            x: [M, ...] training images.
            y: [M] labels.
            training: Settings of the three phases.
            seed: Seed of the minibatches and the initial weights.

        Returns:
            A new defense with the trained ODE.
        """
        require_labeled_data(x, y)
        features = self.features.of(x)
        body = self._new_body(x, features, seed) if self.body is None else copy.deepcopy(self.body)
        _train_embedding(body, features, y, training.embed, seed)
        with torch.no_grad():
            z = body.embed(features)
        _train_field(body, z, training, seed)
        self._train_head(body, z, y, training.read, seed)
        return SODEF(
            self.net,
            body.eval(),
            layer=self.features.layer,
            time=self.time,
            segments=self.segments,
            integrator=self.integrator,
        )

    def _fitted_body(self) -> StableODE:
        if self.body is None:
            raise RuntimeError(
                "SODEF has no trained ODE yet. Call fit: SODEF(net).fit(x, y), "
                "or pass one: SODEF(net, body)."
            )
        return self.body

    def _flow(self, body: StableODE, z: Tensor) -> Tensor:
        return self.integrator(body.field, z, self.time / self.segments) if self.time else z

    def _new_body(self, x: Tensor, features: Tensor, seed: int) -> StableODE:
        with torch.no_grad():
            classes = self.net(x[:1]).shape[1]
        with seeded(seed):
            return StableODE.over(features.shape[1], classes).to(features)

    def _train_head(self, body: StableODE, z: Tensor, y: Tensor, phase: Phase, seed: int) -> None:
        with torch.no_grad():
            for _ in range(self.segments):
                z = torch.cat([self._flow(body, part) for part in chunks(z, phase.batch_size)])
        optimizer = torch.optim.Adam(body.head.parameters(), phase.rate, eps=1e-4, amsgrad=True)

        def loss(batch: Batch) -> Tensor:
            return cross_entropy(body.head(z[batch.rows]), y[batch.rows])

        minimize(loss, optimizer, len(y), phase, seed + 2, z.device)


def _train_embedding(body: StableODE, features: Tensor, y: Tensor, phase: Phase, seed: int) -> None:
    width = body.embed(features[:1]).shape[1]
    classes = body.head(features.new_zeros(1, width)).shape[1]
    anchors = simplex(classes, width, seed).to(features)
    optimizer = torch.optim.Adam(body.embed.parameters(), phase.rate, eps=1e-2, amsgrad=True)

    def loss(batch: Batch) -> Tensor:
        return cross_entropy(body.embed(features[batch.rows]) @ anchors.T, y[batch.rows])

    minimize(loss, optimizer, len(y), phase, seed, features.device)


def _train_field(body: StableODE, z: Tensor, training: StableTraining, seed: int) -> None:
    phase = training.settle
    optimizer = torch.optim.Adam(body.field.parameters(), phase.rate, eps=1e-3, amsgrad=True)

    def loss(batch: Batch) -> Tensor:
        return training.stability.loss(body.field, z[batch.rows])

    minimize(loss, optimizer, len(z), phase, seed + 1, z.device)
