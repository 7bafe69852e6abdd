"""Recipes of the nine adaptive defenses of Croce et al. 2022 on the digits.

The settings are those of their papers. Lengths published for a radius of 8/255 are multiplied by
`SCALE`, so that they are equal in units of the digits' radius. The auxiliary networks are smaller
and are trained for more epochs, because there are fewer training images.
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
from saddlepoint.zoo.adaptive.closed_loop import LinearEmbedding, PrincipalComponents
from saddlepoint.zoo.adaptive.contrastive import contrastive_head
from saddlepoint.zoo.adaptive.fitting import Phase, seeded
from saddlepoint.zoo.adaptive.sodef import SineField, StableODE, StableTraining
from saddlepoint.zoo.embedded.base import RADIUS, SCALE, Kit, load_prefixed_state, prefixed_state

_FEATURES = 48  # width of the penultimate layer of DigitsCNN
_CLASSES = 10


@dataclass(frozen=True)
class SODEFKit(Kit):
    """SODEF with an ODE a quarter as wide as the released one.

    The released ODE has 64 dimensions and 256 hidden units.
    """

    name: str = "digits-sodef"
    base: str = "digits-pgd"
    width: int = 16  # dimension of the ODE
    hidden: int = 128  # width of the embedding's hidden layer
    field_widths: tuple[int, ...] = (64, 64)  # hidden widths of the field
    training: StableTraining = field(
        default_factory=lambda: StableTraining(
            embed=Phase(epochs=60, batch_size=128, rate=1e-3),
            settle=Phase(epochs=20, batch_size=32, rate=1e-2),
            read=Phase(epochs=60, batch_size=128, rate=1e-2),
        )
    )
    kind: ClassVar[type[Defense]] = SODEF

    def learn(self, net: nn.Module, x: Tensor, y: Tensor, seed: int) -> dict[str, Tensor]:
        """Train the ODE."""
        body = SODEF(net, self._body(seed)).fit(x, y, training=self.training, seed=seed).body
        assert body is not None
        return prefixed_state(body=body)

    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> SODEF:
        """Build SODEF with the trained ODE."""
        return SODEF(net, load_prefixed_state("body", self._body(0), weights))

    def rules(self) -> dict[str, Rule]:
        """Replace the backward pass of the ODE by the identity."""
        return {"ode": BPDA()}

    def _body(self, seed: int) -> StableODE:
        with seeded(seed):
            body = StableODE.over(_FEATURES, _CLASSES, width=self.width, hidden=self.hidden)
            return StableODE(body.embed, SineField(self.width, self.field_widths), body.head)


@dataclass(frozen=True)
class ClosedLoopKit(Kit):
    """Closed-loop control of the normalized input and the last hidden layer.

    The principal components of wider layers would take megabytes.
    """

    name: str = "digits-closed-loop"
    base: str = "digits-standard"
    layers: tuple[str, ...] = ("layers.0", "layers.10")
    embedding: PrincipalComponents = field(default_factory=PrincipalComponents)
    kind: ClassVar[type[Defense]] = ClosedLoopControl

    def learn(self, net: nn.Module, x: Tensor, y: Tensor, seed: int) -> dict[str, Tensor]:
        """Fit the linear embeddings."""
        defense = ClosedLoopControl(net, self.layers).fit(x, y, learner=self.embedding, seed=seed)
        assert defense.embeddings is not None
        return {
            f"{name}.{part}": getattr(embedding, part)
            for name, embedding in defense.embeddings.items()
            if isinstance(embedding, LinearEmbedding)
            for part in ("basis", "mean")
        }

    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> ClosedLoopControl:
        """Build closed-loop control with the fitted embeddings."""
        embeddings = {
            name: LinearEmbedding(weights[f"{name}.basis"], weights[f"{name}.mean"])
            for name in self.layers
        }
        return ClosedLoopControl(net, self.layers, embeddings=embeddings)

    def rules(self) -> dict[str, Rule]:
        """Treat the controls as constants."""
        return {"control": BPDA()}


class PurifierKit(Kit):
    """Recipe of a defense that purifies the input at the site `purify`."""

    def rules(self) -> dict[str, Rule]:
        """Replace the backward pass of the purification by the identity."""
        return {"purify": BPDA()}


@dataclass(frozen=True)
class HedgeKit(PurifierKit):
    """Hedge defense with scaled radius and step size; the step size is half the radius."""

    name: str = "digits-hedge"
    base: str = "digits-pgd"
    reach: float = RADIUS  # radius of the purification
    step_size: float = 4 / 255 * SCALE
    kind: ClassVar[type[Defense]] = HedgeDefense

    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> HedgeDefense:  # noqa: ARG002
        """Build the hedge defense."""
        return HedgeDefense(net, radius=self.reach, step_size=self.step_size)


@dataclass(frozen=True)
class AntiAdversaryKit(PurifierKit):
    """Anti-adversary with the published step size 0.15, which does not depend on a radius."""

    name: str = "digits-anti-adversary"
    base: str = "digits-pgd"
    kind: ClassVar[type[Defense]] = AntiAdversary

    def defend(
        self,
        net: nn.Module,
        weights: Mapping[str, Tensor],  # noqa: ARG002
    ) -> AntiAdversary:
        """Build the anti-adversary."""
        return AntiAdversary(net)


@dataclass(frozen=True)
class SOAPKit(PurifierKit):
    """SOAP with scaled radii and step size.

    The network was not trained for label consistency, and few digits resemble their mirror image.
    """

    name: str = "digits-soap"
    base: str = "digits-standard"
    step_size: float = 4 / 255 * SCALE  # also the difference between consecutive radii
    radii: int = 11  # number of radii, starting at 0
    kind: ClassVar[type[Defense]] = SOAP

    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> SOAP:  # noqa: ARG002
        """Build SOAP."""
        return SOAP(
            net,
            radii=[number * self.step_size for number in range(self.radii)],
            step_size=self.step_size,
        )


@dataclass(frozen=True)
class ContrastiveKit(Kit):
    """Contrastive reversal with scaled radius, twice the attacker's, and scaled step size.

    As in the released code, the negatives are the other digits of the batch.
    """

    name: str = "digits-contrastive"
    base: str = "digits-pgd"
    measured_on: int = 16  # few, because a prediction takes 40 steps on four views each
    draws: int = 2
    attack_steps: int = 5
    reach: float = 2 * RADIUS  # radius of the purification
    step_size: float = 2 / 255 * SCALE
    phase: Phase = field(default_factory=lambda: Phase(epochs=20, batch_size=128, rate=1e-3))
    kind: ClassVar[type[Defense]] = ContrastiveReversal

    def learn(
        self,
        net: nn.Module,
        x: Tensor,
        y: Tensor,  # noqa: ARG002
        seed: int,
    ) -> dict[str, Tensor]:
        """Train the contrastive head."""
        head = ContrastiveReversal(net, self._head(seed)).fit(x, phase=self.phase, seed=seed).head
        assert head is not None
        return prefixed_state(head=head)

    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> ContrastiveReversal:
        """Build contrastive reversal with the trained head."""
        head = load_prefixed_state("head", self._head(0), weights)
        return ContrastiveReversal(net, head, radius=self.reach, step_size=self.step_size)

    def rules(self) -> dict[str, Rule]:
        """Replace the backward pass of the purification by the identity."""
        return {"reverse": BPDA()}

    def _head(self, seed: int) -> nn.Module:
        with seeded(seed):
            return contrastive_head(_FEATURES)


@dataclass(frozen=True)
class ATLDKit(Kit):
    """ATLD with scaled lengths and a WRN-10-1 as discriminator.

    A copy of the network is trained further together with the discriminator.
    """

    name: str = "digits-atld"
    base: str = "digits-lenet"
    reach: float = RADIUS  # size of the single step and radius of the purification
    depth: int = 10  # of the discriminator
    widen: int = 1  # widening factor of the discriminator
    training: LatentTraining = field(
        default_factory=lambda: LatentTraining(
            Phase(epochs=40, batch_size=64, rate=0.02, milestones=(20, 30)), radius=RADIUS
        )
    )
    kind: ClassVar[type[Defense]] = ATLD
    trains_network: ClassVar[bool] = True

    def learn(self, net: nn.Module, x: Tensor, y: Tensor, seed: int) -> dict[str, Tensor]:
        """Train a copy of the network and the discriminator."""
        fitted = ATLD(net, self._discriminator(seed)).fit(x, y, training=self.training, seed=seed)
        assert fitted.discriminator is not None
        return prefixed_state(net=fitted.net, discriminator=fitted.discriminator)

    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> ATLD:
        """Build ATLD with the trained network and discriminator."""
        trained = load_prefixed_state("net", copy.deepcopy(net), weights)
        discriminator = load_prefixed_state("discriminator", self._discriminator(0), weights)
        return ATLD(trained, discriminator, step_size=self.reach, radius=self.reach)

    def rules(self) -> dict[str, Rule]:
        """Replace the backward pass of the purification by the identity."""
        return {"imt": BPDA()}

    def _discriminator(self, seed: int) -> LogitDiscriminator:
        with seeded(seed):
            return LogitDiscriminator(_CLASSES, depth=self.depth, widen=self.widen).eval()


@dataclass(frozen=True)
class AIDKit(PurifierKit):
    """AID-purifier with scaled radius and step size.

    The discriminator uses the first and the last convolution and has a width of 64, not 1024.
    """

    name: str = "digits-aid"
    base: str = "digits-pgd"
    reach: float = RADIUS  # radius of the purification and of the training attack
    step_size: float = 0.004 / 0.031 * RADIUS  # of the training attack
    layers: tuple[str, ...] = ("layers.2", "layers.7")
    channels: tuple[int, ...] = (16, 48)  # of these layers
    width: int = 64
    epochs: int = 40  # over 1297 images: as many steps as one epoch over 50 000
    kind: ClassVar[type[Defense]] = AIDPurifier

    def learn(self, net: nn.Module, x: Tensor, y: Tensor, seed: int) -> dict[str, Tensor]:
        """Train the discriminator."""
        adversary = Direct("pgd", PGD(steps=10, step_size=self.step_size), loss=cross_entropy)
        untrained = self._purifier(net, self._discriminator(seed))
        fitted = untrained.fit(
            x, y, adversary=adversary, space=Linf(self.reach), epochs=self.epochs, seed=seed
        )
        return prefixed_state(discriminator=fitted.discriminator)

    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> AIDPurifier:
        """Build the AID-purifier with the trained discriminator."""
        return self._purifier(
            net, load_prefixed_state("discriminator", self._discriminator(0), weights)
        )

    def _purifier(self, net: nn.Module, discriminator: Discriminator) -> AIDPurifier:
        return AIDPurifier(net, discriminator, radius=self.reach)

    def _discriminator(self, seed: int) -> Discriminator:
        with seeded(seed):
            return Discriminator(self.layers, self.channels, width=self.width).eval()


@dataclass(frozen=True)
class DenoisingKit(Kit):
    """Adaptive denoising with the published noise, which is in units of the input."""

    name: str = "digits-denoising"
    base: str = "digits-standard"
    measured_on: int = 16  # few, because a prediction takes ten runs of ten steps
    draws: int = 2
    attack_steps: int = 5
    width: int = 16  # of the score network
    epochs: int = 100
    learning_rate: float = 1e-3
    kind: ClassVar[type[Defense]] = AdaptiveDenoising

    def learn(
        self,
        net: nn.Module,
        x: Tensor,
        y: Tensor,  # noqa: ARG002
        seed: int,
    ) -> dict[str, Tensor]:
        """Train the score network."""
        untrained = AdaptiveDenoising(net, self._score(seed))
        fitted = untrained.fit(x, epochs=self.epochs, learning_rate=self.learning_rate, seed=seed)
        return prefixed_state(score=fitted.score)

    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> AdaptiveDenoising:
        """Build adaptive denoising with the trained score network."""
        return AdaptiveDenoising(net, load_prefixed_state("score", self._score(0), weights))

    def rules(self) -> dict[str, Rule]:
        """Bypass the noise and treat the step sizes as constants."""
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
