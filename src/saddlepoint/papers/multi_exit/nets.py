"""Training recipes of the networks, for every scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor, nn

from saddlepoint.attacks.aims import loss_of_mean
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf, Radii
from saddlepoint.evaluation import Adversary, FixedPoints
from saddlepoint.papers.registry import Scale
from saddlepoint.training import (
    FAT,
    MART,
    SGD,
    TRADES,
    Adam,
    Cosine,
    LearnedWeights,
    Method,
    OverExits,
    PGDTraining,
    Piecewise,
    Recipe,
    Shift,
    Standard,
)
from saddlepoint.training.recipe import judge
from saddlepoint.zoo import recipe
from saddlepoint.zoo.multi_exit import (
    RANet,
    Staged,
    l2w_den,
    msdnet,
    ranet,
    resnet18,
    vgg16,
    vit_b16,
    vit_small,
    wrn34_10,
)
from saddlepoint.zoo.nets.resnet import seven_exit_resnet

Build = Callable[[], Staged | RANet]


class SingleExitNet(nn.Module):
    """The backbone of a multi-exit network with its last classifier only.

    It is the baseline with which a network with early exits is compared.

    Args:
        build: builds the multi-exit network.
    """

    def __init__(self, build: Build) -> None:
        super().__init__()
        net = build()
        assert isinstance(net, Staged), "only networks with a single chain of stages"
        self.net = nn.Sequential(net.stem, *net.stages, net.heads[-1])

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, C] of images [N, ...]."""
        logits: Tensor = self.net(x)
        return logits


class SingleExitWrapper(nn.Module):
    """Wraps an ordinary network as a multi-exit network with one exit.

    Args:
        net: the network.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> list[Tensor]:
        """A list with the logits [N, C] of images [N, ...]."""
        return [self.net(x)]


def recipes(scale: Scale) -> Mapping[str, Recipe]:
    """All recipes of a scale.

    Args:
        scale: size of the networks and of the training.

    Returns:
        Recipes by the name of the network: `resnet-18`, `vgg-16`, `msdnet`, `vit`, `wrn-34-10`,
        `ranet`, `resnet-18-tiny-imagenet` and `seven` are trained with PGD-AT, `l2w-den` with
        learned weights of PGD-AT's losses. `vgg-16 TRADES` and similar names are trained with
        another method of Table 3. `resnet-18 single`, `vgg-16 single` and `vgg-16 TRADES single`
        and similar names are the same backbone without early exits.
    """
    networks = _NETWORKS[scale]
    methods = dict.fromkeys(networks.bases, networks.methods["PGD-AT"])
    methods |= {
        f"vgg-16 {name}": method for name, method in networks.methods.items() if name != "PGD-AT"
    }
    built = {name: networks.multi_exit(name, method) for name, method in methods.items()}
    built |= {
        f"{name} single": networks.single_exit(name, method)
        for name, method in methods.items()
        if name == "resnet-18" or name.startswith("vgg-16")
    }
    return {**built, "l2w-den": networks.l2w_den, "seven": networks.seven}


@dataclass(frozen=True)
class _Networks:
    """The networks that one scale trains."""

    # By network: a recipe without name, network and method, and the function that builds the
    # network.
    bases: Mapping[str, tuple[Recipe, Build]]
    attack: PGD  # attack of every adversarial training method
    den: tuple[Recipe, Build]  # the same for the network that becomes an L2W-DEN
    seven: Recipe  # of the seven-exit network

    @property
    def l2w_den(self) -> Recipe:
        """Recipe of L2W-DEN: an MSDNet whose losses are weighted by a learned function."""
        basis, build = self.den
        method = LearnedWeights(attack=self.attack)
        return replace(basis, name="l2w-den", net=build, method=method, select=judge(loss_of_mean))

    @property
    def methods(self) -> Mapping[str, Method]:
        """The training methods of Table 3; the other tables use PGD-AT."""
        return {
            "Standard": Standard(),
            "PGD-AT": PGDTraining(self.attack),
            "TRADES": TRADES(attack=self.attack),
            "MART": MART(attack=self.attack),
            "FAT": FAT(attack=self.attack),
        }

    def multi_exit(self, name: str, method: Method) -> Recipe:
        """Recipe of a network with all its exits."""
        basis, build = self.bases[name.partition(" ")[0]]
        return replace(
            basis, name=name, net=build, method=OverExits(method), select=_selection_attack(method)
        )

    def single_exit(self, name: str, method: Method) -> Recipe:
        """Recipe of the same backbone with the last exit only."""
        basis, build = self.bases[name.partition(" ")[0]]
        return replace(
            basis,
            name=f"{name} single",
            net=partial(SingleExitNet, build),
            method=method,
            select=_selection_attack(method),
        )


def _selection_attack(method: Method) -> Adversary:
    """Attack on the held-out images by which the epoch is selected; no attack for `Standard`."""
    return FixedPoints() if isinstance(method, Standard) else judge(loss_of_mean)


def _run(data: str, radius: float, epochs: int, **other: object) -> Recipe:
    """A recipe without name, network and method, which the caller replaces."""
    empty = Recipe("", data, nn.Identity, Standard(), Linf(radius), epochs)
    return replace(empty, **other)  # type: ignore[arg-type]


def _tiny() -> _Networks:
    run = _run("digits", 0.05, 3, n=200, batch_size=64, dev_share=0.1, optimizer=Adam(1e-2))
    attack = PGD(steps=1)
    bases: dict[str, tuple[Recipe, Build]] = {
        "resnet-18": (run, partial(resnet18, 4, (1, 1, 1, 1), in_channels=1)),
        "vgg-16": (run, partial(vgg16, 4, (1, 1, 1, 1, 1), in_channels=1)),
        "msdnet": (
            run,
            partial(
                msdnet,
                5,
                growing=False,
                channels=4,
                growth=2,
                factors=(1, 2),
                head_width=8,
                in_channels=1,
            ),
        ),
        "vit": (run, partial(vit_small, 8, 4, 12, 4, 3, in_channels=1)),
        "wrn-34-10": (run, partial(wrn34_10, 1, 16, in_channels=1)),
        "ranet": (
            run,
            partial(ranet, step=1, channels=4, growth=2, head_width=8, in_channels=1),
        ),
        "resnet-18-tiny-imagenet": (run, partial(resnet18, 4, (1, 1, 1, 1), in_channels=1)),
    }
    den = partial(l2w_den, 5, channels=4, growth=2, head_width=8, in_channels=1)
    seven = replace(
        run,
        name="seven",
        net=partial(seven_exit_resnet, 2, in_channels=1),
        method=OverExits(PGDTraining(attack)),
        select=judge(loss_of_mean),
    )
    return _Networks(bases, attack, (run, den), seven)


def _small() -> _Networks:
    cifar = _run(
        "cifar10",
        8 / 255,
        10,
        n=5500,
        dev_share=1 / 11,
        batch_size=64,
        optimizer=SGD(rate=0.05),
        schedule=Cosine(warmup=0.1),
        augment=Shift(pixels=4, mirror=True),
    )
    mnist = _run(
        "mnist",
        0.3,
        8,
        n=4400,
        dev_share=1 / 11,
        batch_size=64,
        optimizer=SGD(rate=0.05),
        schedule=Cosine(warmup=0.1),
    )
    bases: dict[str, tuple[Recipe, Build]] = {
        "resnet-18": (cifar, partial(resnet18, 8)),
        "vgg-16": (mnist, partial(vgg16, 8, in_channels=1)),
        "msdnet": (
            replace(cifar, epochs=8),
            partial(msdnet, 5, growing=False, channels=4, growth=2, head_width=16),
        ),
        "vit": (replace(cifar, optimizer=Adam(2e-3)), partial(vit_small, width=48, depth=4)),
        "wrn-34-10": (cifar, partial(wrn34_10, 1, 16)),
        "ranet": (
            replace(cifar, epochs=8),
            partial(ranet, step=1, channels=4, growth=2, head_width=16),
        ),
        "resnet-18-tiny-imagenet": (
            replace(cifar, data="tiny-imagenet"),
            partial(resnet18, 8, classes=200),
        ),
    }
    den = partial(l2w_den, 5, channels=4, growth=2, head_width=16)
    attack = PGD(steps=2, step_size=Radii(0.75))
    return _Networks(bases, attack, (replace(cifar, epochs=8), den), recipe("cifar-exits"))


def _paper() -> _Networks:
    """Full networks and data.

    The authors describe their training in an appendix that was not available. These are the usual
    settings of PGD-AT.
    """
    cifar = _run(
        "cifar10",
        8 / 255,
        110,
        dev_share=0.04,
        schedule=Piecewise(at=(100 / 110, 105 / 110)),
        augment=Shift(pixels=4, mirror=True),
    )
    svhn = replace(cifar, data="svhn", optimizer=SGD(rate=0.01), augment=Shift(pixels=4))
    bases: dict[str, tuple[Recipe, Build]] = {
        "resnet-18": (cifar, resnet18),
        "vgg-16": (svhn, vgg16),
        "msdnet": (cifar, msdnet),
        "vit": (replace(cifar, optimizer=SGD(rate=0.1), epochs=40), vit_b16),
        "wrn-34-10": (cifar, wrn34_10),
        "ranet": (cifar, ranet),
        "resnet-18-tiny-imagenet": (
            replace(cifar, data="tiny-imagenet"),
            partial(resnet18, classes=200),
        ),
    }
    attack = PGD(steps=10, step_size=Radii(1 / 4))
    return _Networks(bases, attack, (cifar, l2w_den), recipe("cifar-exits"))


_NETWORKS: Mapping[Scale, _Networks] = {"tiny": _tiny(), "small": _small(), "paper": _paper()}
