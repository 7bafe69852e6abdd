"""How the defenses and their auxiliary networks are fitted at each scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from saddlepoint.papers.registry import Scale
from saddlepoint.zoo.adaptive.closed_loop import PrincipalComponents
from saddlepoint.zoo.adaptive.fitting import Phase
from saddlepoint.zoo.adaptive.sodef import StableTraining


def _phase(epochs: int, rate: float, milestones: tuple[int, ...] = ()) -> Phase:
    """Make a training phase with batches of 128 images."""
    return Phase(epochs=epochs, batch_size=128, rate=rate, milestones=milestones)


@dataclass(frozen=True)
class FitSetting:
    """Sizes, steps and training of the defenses at one scale; the defaults are the papers'."""

    images: int | None = None  # training images to fit on; None: all
    # Images from which correctly classified ones are taken for the bases of closed-loop control.
    basis_images: int | None = 8000
    sodef_training: StableTraining = field(default_factory=StableTraining)
    sodef_widths: tuple[int, int] = (64, 2048)  # of the state, and of the layer before it
    # Layers with closed-loop controls: the normalized image, the stem, and three stages.
    controlled_layers: tuple[str, ...] = ("0.0", "0", "1", "2", "3")
    components: PrincipalComponents = field(default_factory=PrincipalComponents)
    # Layers of AID's discriminator: the stem and the three groups, two of which are off.
    aid_layers: tuple[str, ...] = ("net.0", "net.1", "net.2", "net.3")
    aid_off: tuple[str, ...] = ("net.1", "net.3")
    aid_off_svhn: tuple[str, ...] = ("net.1", "net.2")  # the same on SVHN
    aid_width: int = 1024  # of the discriminator
    aid_steps: int = 10  # of purification
    hedge_steps: int = 20
    soap_steps: int = 5  # of purification, for each radius
    soap_training: Phase = field(default_factory=lambda: _phase(200, 1e-3))
    reversal: tuple[int, int] = (40, 4)  # steps and views of contrastive reversal
    reversal_training: Phase = field(default_factory=lambda: _phase(200, 1e-4))
    atld_discriminator: tuple[int, int] = (28, 5)  # depth and widening factor
    atld_training: Phase = field(default_factory=lambda: _phase(200, 0.1, milestones=(60, 90)))
    score_net: tuple[int, int] = (128, 6)  # width and blocks
    score_training: Phase = field(default_factory=lambda: _phase(500, 1e-4))
    denoising: tuple[int, int] = (10, 10)  # steps and runs of adaptive denoising

    def __str__(self) -> str:
        """Describe what differs between the scales."""
        count = "all" if self.images is None else f"the first {self.images}"
        steps, views = self.reversal
        denoising_steps, runs = self.denoising
        return (
            f"defenses are fitted on {count} training images; steps: hedge {self.hedge_steps}, "
            f"AID {self.aid_steps}, SOAP {self.soap_steps} per radius, contrastive reversal "
            f"{steps} with {views} views, adaptive denoising {denoising_steps} with {runs} runs "
            "(the paper: 20, 10, 5, 40 with 4, 10 with 10)"
        )


def _tiny() -> FitSetting:
    short = Phase(epochs=2, batch_size=64, rate=2e-3)
    return FitSetting(
        images=200,
        sodef_training=StableTraining(short, Phase(1, 100, 1e-2), short),
        sodef_widths=(12, 24),
        basis_images=200,
        components=PrincipalComponents(samples=60),
        aid_layers=("2", "5"),
        aid_off=(),
        aid_off_svhn=(),
        aid_width=16,
        aid_steps=3,
        hedge_steps=4,
        soap_steps=2,
        soap_training=short,
        reversal=(2, 2),
        reversal_training=short,
        atld_discriminator=(10, 1),
        atld_training=Phase(2, 64, 1e-2),
        score_net=(4, 1),
        score_training=short,
        denoising=(2, 2),
    )


def _small() -> FitSetting:
    return FitSetting(
        images=3000,
        sodef_training=StableTraining(settle=Phase(epochs=3, batch_size=50, rate=1e-2)),
        sodef_widths=(32, 256),
        aid_layers=("2", "5"),
        aid_off=(),
        aid_off_svhn=(),
        aid_width=64,
        soap_training=Phase(5, 64, 1e-3),
        reversal=(10, 2),
        reversal_training=Phase(5, 128, 1e-3),
        atld_discriminator=(10, 1),
        atld_training=Phase(8, 64, 2e-2, milestones=(5, 7)),
        score_net=(8, 1),
        score_training=Phase(4, 64, 2e-3),
        denoising=(5, 2),
    )


FITS: Mapping[Scale, FitSetting] = {"tiny": _tiny(), "small": _small(), "paper": FitSetting()}
