"""SODEF as a defense, and how it is trained."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.zoo.adaptive.layers import Features, refuse_training
from saddlepoint.zoo.adaptive.learning import Phase, minimize, parts, refuse_data, seeded
from saddlepoint.zoo.adaptive.sodef.flow import Dopri5, Integrator, StableODE
from saddlepoint.zoo.adaptive.sodef.stability import Stability, simplex


@dataclass(frozen=True)
class StableTraining:
    """Three phases, each with the others' parameters frozen; numbers of epochs, batches and rates are those of the released code.

    1. the embedding, by the cross-entropy of <embed(features), a_k> with fixed far-apart a_k; its rate is ours, the released one
       is for another embedding;
    2. the field, by `stability` at z(0); the released code takes the Jacobians of half of a batch;
    3. the head, by the cross-entropy at z(time).
    """

    embed: Phase = field(default_factory=lambda: Phase(epochs=5, batch_size=128, rate=1e-3))
    settle: Phase = field(default_factory=lambda: Phase(epochs=20, batch_size=32, rate=1e-2))
    read: Phase = field(default_factory=lambda: Phase(epochs=10, batch_size=128, rate=1e-2))
    stability: Stability = field(default_factory=Stability)


_DOPRI5 = Dopri5()
_TRAINING = StableTraining()


class SODEF(Defense):
    """Answers with head(z(time)), where dz/dt = field(z) starts at z(0) = embed(features of the network) (Kang et al. 2021).

    The field is trained to have a stable equilibrium at every training feature, so that the flow undoes small changes of z(0). As
    reviewed by Croce et al. 2022, Sec. 3.2. The interval is integrated in `segments` equal parts, each a crossing of the site "ode"
    and a view: "ode/0" is the head on z(0), the last one the answer. A contracting flow makes gradients vanish: `BPDA()` at "ode"
    takes it for the identity. The released code takes gradients by the adjoint ODE; here the solver's own steps are differentiated.

    Features are what the network's last linear layer is given, or what `layer` gives, averaged over positions.
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
        refuse_training(net)
        self.net = net
        self.body = body
        self.features = Features(net, layer)
        self.time = time
        self.segments = segments
        self.integrator = integrator
        self.coupled = integrator.coupled and time > 0
        self.static = net

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        body = self._fitted()
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
        """This defense with a trained ODE; the network stays as it is. A body that was given is trained further, in a copy."""
        refuse_data(x, y)
        features = self.features.of(x)
        body = self._new(x, features, seed) if self.body is None else copy.deepcopy(self.body)
        self._embed(body, features, y, training.embed, seed)
        with torch.no_grad():
            z = body.embed(features)
        _settle(body, z, training, seed)
        self._read(body, z, y, training.read, seed)
        return SODEF(
            self.net,
            body.eval(),
            layer=self.features.layer,
            time=self.time,
            segments=self.segments,
            integrator=self.integrator,
        )

    def _fitted(self) -> StableODE:
        if self.body is None:
            raise RuntimeError(
                "SODEF has no trained ODE yet. Call fit: SODEF(net).fit(x, y), or give one: SODEF(net, body)."
            )
        return self.body

    def _flow(self, body: StableODE, z: Tensor) -> Tensor:
        return self.integrator(body.field, z, self.time / self.segments) if self.time else z

    def _new(self, x: Tensor, features: Tensor, seed: int) -> StableODE:
        with torch.no_grad():
            classes = self.net(x[:1]).shape[1]
        with seeded(seed):
            return StableODE.over(features.shape[1], classes).to(features)

    def _embed(self, body: StableODE, features: Tensor, y: Tensor, phase: Phase, seed: int) -> None:
        width = body.embed(features[:1]).shape[1]
        anchors = simplex(body.head(features.new_zeros(1, width)).shape[1], width, seed).to(
            features
        )
        optimizer = torch.optim.Adam(body.embed.parameters(), phase.rate, eps=1e-2, amsgrad=True)
        minimize(
            lambda batch: cross_entropy(body.embed(features[batch.rows]) @ anchors.T, y[batch.rows]),
            optimizer, len(y), phase, seed, features.device,
        )  # fmt: skip

    def _read(self, body: StableODE, z: Tensor, y: Tensor, phase: Phase, seed: int) -> None:
        with torch.no_grad():
            for _ in range(self.segments):
                z = torch.cat([self._flow(body, part) for part in parts(z, phase.batch_size)])
        optimizer = torch.optim.Adam(body.head.parameters(), phase.rate, eps=1e-4, amsgrad=True)
        minimize(
            lambda batch: cross_entropy(body.head(z[batch.rows]), y[batch.rows]),
            optimizer,
            len(y),
            phase,
            seed + 2,
            z.device,
        )


def _settle(body: StableODE, z: Tensor, training: StableTraining, seed: int) -> None:
    optimizer = torch.optim.Adam(
        body.field.parameters(), training.settle.rate, eps=1e-3, amsgrad=True
    )
    minimize(
        lambda batch: training.stability.loss(body.field, z[batch.rows]),
        optimizer, len(z), training.settle, seed + 1, z.device,
    )  # fmt: skip
