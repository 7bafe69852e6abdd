"""The nine adaptive defenses of Croce et al. 2022 on the digits.

Settings are those of their papers. Lengths that were published for a radius of 8/255 are multiplied by `SCALE`, to be the same in
units of the digits' radius; auxiliary networks are small, and see the few training images more often.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor, nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Defense
from saddlepoint.evaluation import Direct
from saddlepoint.gradients import BPDA, Rule
from saddlepoint.zoo.adaptive import (
    ATLD,
    SOAP,
    SODEF,
    AdaptiveDenoising,
    AIDPurifier,
    AntiAdversary,
    ClosedLoopControl,
    ContrastiveReversal,
    Discriminator,
    HedgeDefense,
    ScoreNet,
    constant,
)
from saddlepoint.zoo.adaptive.atld import LatentTraining, LogitDiscriminator
from saddlepoint.zoo.adaptive.closed_loop import Linear, PrincipalComponents
from saddlepoint.zoo.adaptive.contrastive import contrastive_head
from saddlepoint.zoo.adaptive.learning import Phase, seeded
from saddlepoint.zoo.adaptive.sodef import SineField, StableODE, StableTraining
from saddlepoint.zoo.embedded.base import RADIUS, SCALE, Kit, gathered, restored

_FEATURES = 48
_CLASSES = 10  # of DigitsCNN


@dataclass(frozen=True)
class SODEFKit(Kit):
    """The ODE is a quarter as wide as the released one, which has 64 dimensions and 256 hidden units."""

    name: str = "digits-sodef"
    base: str = "digits-pgd"
    width: int = 16
    hidden: int = 128
    field_widths: tuple[int, ...] = (64, 64)
    training: StableTraining = field(
        default_factory=lambda: StableTraining(
            embed=Phase(epochs=60, batch_size=128, rate=1e-3),
            settle=Phase(epochs=20, batch_size=32, rate=1e-2),
            read=Phase(epochs=60, batch_size=128, rate=1e-2),
        )
    )
    kind: ClassVar[type[Defense]] = SODEF

    def learn(self, net: nn.Module, x: Tensor, y: Tensor, seed: int) -> dict[str, Tensor]:
        body = SODEF(net, self._body(seed)).fit(x, y, training=self.training, seed=seed).body
        assert body is not None
        return gathered(body=body)

    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> SODEF:
        return SODEF(net, restored("body", self._body(0), weights))

    def rules(self) -> dict[str, Rule]:
        return {"ode": BPDA()}

    def _body(self, seed: int) -> StableODE:
        with seeded(seed):
            body = StableODE.over(_FEATURES, _CLASSES, width=self.width, hidden=self.hidden)
            return StableODE(body.embed, SineField(self.width, self.field_widths), body.head)


@dataclass(frozen=True)
class ClosedLoopKit(Kit):
    """Controls the normalized input and the last hidden layer: the components of wider layers would take megabytes."""

    name: str = "digits-closed-loop"
    base: str = "digits-standard"
    layers: tuple[str, ...] = ("layers.0", "layers.10")
    embedding: PrincipalComponents = field(default_factory=PrincipalComponents)
    kind: ClassVar[type[Defense]] = ClosedLoopControl

    def learn(self, net: nn.Module, x: Tensor, y: Tensor, seed: int) -> dict[str, Tensor]:
        learnt = (
            ClosedLoopControl(net, self.layers)
            .fit(x, y, learner=self.embedding, seed=seed)
            .embeddings
        )
        assert learnt is not None
        return {
            f"{name}.{part}": getattr(found, part)
            for name, found in learnt.items()
            if isinstance(found, Linear)
            for part in ("basis", "mean")
        }

    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> ClosedLoopControl:
        found = {
            name: Linear(weights[f"{name}.basis"], weights[f"{name}.mean"]) for name in self.layers
        }
        return ClosedLoopControl(net, self.layers, embeddings=found)

    def rules(self) -> dict[str, Rule]:
        return {"control": BPDA()}


class Purifying(Kit):
    """Defenses that move the input at the site `purify`, which an attacker takes for the identity."""

    def rules(self) -> dict[str, Rule]:
        return {"purify": BPDA()}


@dataclass(frozen=True)
class HedgeKit(Purifying):
    """Scaled: the radius and the step, half of it."""

    name: str = "digits-hedge"
    base: str = "digits-pgd"
    reach: float = RADIUS
    step_size: float = 4 / 255 * SCALE
    kind: ClassVar[type[Defense]] = HedgeDefense

    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> HedgeDefense:  # noqa: ARG002
        return HedgeDefense(net, radius=self.reach, step_size=self.step_size)


@dataclass(frozen=True)
class AntiAdversaryKit(Purifying):
    """The step, 0.15, is the published one: it was never in units of a radius."""

    name: str = "digits-anti-adversary"
    base: str = "digits-pgd"
    kind: ClassVar[type[Defense]] = AntiAdversary

    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> AntiAdversary:  # noqa: ARG002
        return AntiAdversary(net)


@dataclass(frozen=True)
class SOAPKit(Purifying):
    """Scaled: the radii and the step. The network was not trained for the task, and few digits look like their mirror image."""

    name: str = "digits-soap"
    base: str = "digits-standard"
    step_size: float = 4 / 255 * SCALE  # and the distance of the radii
    radii: int = 11
    kind: ClassVar[type[Defense]] = SOAP

    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> SOAP:  # noqa: ARG002
        return SOAP(
            net,
            radii=[number * self.step_size for number in range(self.radii)],
            step_size=self.step_size,
        )


@dataclass(frozen=True)
class ContrastiveKit(Kit):
    """Scaled: the radius, twice the attacker's, and the step. Negatives are the other digits of the batch, as released."""

    name: str = "digits-contrastive"
    base: str = "digits-pgd"
    measured_on: int = 16  # an answer takes 40 steps on four views each
    draws: int = 2
    attack_steps: int = 5
    reach: float = 2 * RADIUS
    step_size: float = 2 / 255 * SCALE
    phase: Phase = field(default_factory=lambda: Phase(epochs=20, batch_size=128, rate=1e-3))
    kind: ClassVar[type[Defense]] = ContrastiveReversal

    def learn(self, net: nn.Module, x: Tensor, y: Tensor, seed: int) -> dict[str, Tensor]:  # noqa: ARG002
        head = ContrastiveReversal(net, self._head(seed)).fit(x, phase=self.phase, seed=seed).head
        assert head is not None
        return gathered(head=head)

    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> ContrastiveReversal:
        head = restored("head", self._head(0), weights)
        return ContrastiveReversal(net, head, radius=self.reach, step_size=self.step_size)

    def rules(self) -> dict[str, Rule]:
        return {"reverse": BPDA()}

    def _head(self, seed: int) -> nn.Module:
        with seeded(seed):
            return contrastive_head(_FEATURES)


@dataclass(frozen=True)
class ATLDKit(Kit):
    """A copy of the network learns too, from where the network stands. Scaled: all lengths. The discriminator is a WRN-10-1."""

    name: str = "digits-atld"
    base: str = "digits-lenet"
    reach: float = RADIUS  # of its one step
    depth: int = 10
    widen: int = 1
    training: LatentTraining = field(
        default_factory=lambda: LatentTraining(
            Phase(epochs=40, batch_size=64, rate=0.02, milestones=(20, 30)), radius=RADIUS
        )
    )
    kind: ClassVar[type[Defense]] = ATLD

    def learn(self, net: nn.Module, x: Tensor, y: Tensor, seed: int) -> dict[str, Tensor]:
        learnt = ATLD(net, self._discriminator(seed)).fit(x, y, training=self.training, seed=seed)
        assert learnt.discriminator is not None
        return gathered(net=learnt.net, discriminator=learnt.discriminator)

    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> ATLD:
        trained = restored("net", copy.deepcopy(net), weights)
        discriminator = restored("discriminator", self._discriminator(0), weights)
        return ATLD(trained, discriminator, step_size=self.reach, radius=self.reach)

    def rules(self) -> dict[str, Rule]:
        return {"imt": BPDA()}

    def _discriminator(self, seed: int) -> LogitDiscriminator:
        with seeded(seed):
            return LogitDiscriminator(_CLASSES, depth=self.depth, widen=self.widen).eval()


@dataclass(frozen=True)
class AIDKit(Purifying):
    """Scaled: radius and step. The discriminator looks at the first and at the last convolution, and is 64 units wide, not 1024."""

    name: str = "digits-aid"
    base: str = "digits-pgd"
    reach: float = RADIUS  # of the purifier, and of the attacks that it learns from
    step_size: float = 0.004 / 0.031 * RADIUS  # of those attacks
    layers: tuple[str, ...] = ("layers.2", "layers.7")
    channels: tuple[int, ...] = (16, 48)
    width: int = 64
    epochs: int = 40  # of 1297 images: as many steps as one epoch of 50 000
    kind: ClassVar[type[Defense]] = AIDPurifier

    def learn(self, net: nn.Module, x: Tensor, y: Tensor, seed: int) -> dict[str, Tensor]:
        adversary = Direct("pgd", PGD(steps=10, step_size=self.step_size), loss=cross_entropy)
        untrained = self._purifier(net, self._discriminator(seed))
        learnt = untrained.fit(
            x, y, adversary=adversary, space=Linf(self.reach), epochs=self.epochs, seed=seed
        )
        return gathered(discriminator=learnt.discriminator)

    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> AIDPurifier:
        return self._purifier(net, restored("discriminator", self._discriminator(0), weights))

    def _purifier(self, net: nn.Module, discriminator: Discriminator) -> AIDPurifier:
        return AIDPurifier(net, discriminator, radius=self.reach)

    def _discriminator(self, seed: int) -> Discriminator:
        with seeded(seed):
            return Discriminator(self.layers, self.channels, width=self.width).eval()


@dataclass(frozen=True)
class DenoisingKit(Kit):
    """Nothing is scaled: the noise is in units of the input."""

    name: str = "digits-denoising"
    base: str = "digits-standard"
    measured_on: int = 16  # an answer is ten runs of ten steps
    draws: int = 2
    attack_steps: int = 5
    width: int = 16
    epochs: int = 100
    learning_rate: float = 1e-3
    kind: ClassVar[type[Defense]] = AdaptiveDenoising

    def learn(self, net: nn.Module, x: Tensor, y: Tensor, seed: int) -> dict[str, Tensor]:  # noqa: ARG002
        untrained = AdaptiveDenoising(net, self._score(seed))
        learnt = untrained.fit(x, epochs=self.epochs, learning_rate=self.learning_rate, seed=seed)
        return gathered(score=learnt.score)

    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> AdaptiveDenoising:
        return AdaptiveDenoising(net, restored("score", self._score(0), weights))

    def rules(self) -> dict[str, Rule]:
        return {"noise": BPDA(), "step size": BPDA(constant)}

    def _score(self, seed: int) -> ScoreNet:
        with seeded(seed):
            return ScoreNet(1, width=self.width).eval()


ADAPTIVE: tuple[Kit, ...] = (
    SODEFKit(),
    ClosedLoopKit(),
    HedgeKit(),
    AntiAdversaryKit(),
    SOAPKit(),
    ContrastiveKit(),
    ATLDKit(),
    AIDKit(),
    DenoisingKit(),
)
