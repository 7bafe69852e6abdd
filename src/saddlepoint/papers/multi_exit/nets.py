"""The networks of the experiments at every scale, as recipes. What is named `-single` is the same backbone without early exits."""

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
from saddlepoint.zoo.multi_exit import Staged, msdnet, resnet18, vgg16, vit_b16, vit_small
from saddlepoint.zoo.nets.resnet import seven_exit_resnet

Build = Callable[[], Staged]


class Single(nn.Module):
    """The backbone and its last classifier alone: what a network with early exits is compared with."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        net = build()
        self.net = nn.Sequential(net.stem, *net.stages, net.heads[-1])

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)
        return logits


class Listed(nn.Module):
    """An ordinary network as one with a single exit."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> list[Tensor]:
        return [self.net(x)]


def recipes(scale: Scale) -> Mapping[str, Recipe]:
    """By name: `resnet-18`, `vgg-16`, `msdnet`, `vit`, `seven`; `vgg-16 TRADES` and its like; `resnet-18 single`."""
    kit = _KITS[scale]
    trained = dict.fromkeys(kit.bases, kit.methods["PGD-AT"])
    trained |= {
        f"vgg-16 {method}": how for method, how in kit.methods.items() if method != "PGD-AT"
    }
    made = {name: kit.exits(name, method) for name, method in trained.items()}
    made |= {
        f"{name} single": kit.single(name, method)
        for name, method in trained.items()
        if name not in ("msdnet", "vit")
    }
    return {**made, "seven": kit.seven}


@dataclass(frozen=True)
class _Composer:
    """What a scale trains: runs without method and network, how each network is built, the attack of every method."""

    bases: Mapping[str, tuple[Recipe, Build]]
    attack: PGD
    seven: Recipe

    @property
    def methods(self) -> Mapping[str, Method]:
        """The ways to train of Table 3; the other tables have PGD-AT."""
        return {
            "Standard": Standard(),
            "PGD-AT": PGDTraining(self.attack),
            "TRADES": TRADES(attack=self.attack),
            "MART": MART(attack=self.attack),
            "FAT": FAT(attack=self.attack),
        }

    def exits(self, name: str, method: Method) -> Recipe:
        basis, build = self.bases[name.partition(" ")[0]]
        return replace(
            basis, name=name, net=build, method=OverExits(method), select=_chooser(method)
        )

    def single(self, name: str, method: Method) -> Recipe:
        basis, build = self.bases[name.partition(" ")[0]]
        return replace(
            basis,
            name=f"{name} single",
            net=partial(Single, build),
            method=method,
            select=_chooser(method),
        )


def _chooser(method: Method) -> Adversary:
    return FixedPoints() if isinstance(method, Standard) else judge(loss_of_mean)


def _run(data: str, radius: float, epochs: int, **other: object) -> Recipe:
    """A run whose name, network and method are put in later."""
    return replace(Recipe("", data, nn.Identity, Standard(), Linf(radius), epochs), **other)  # type: ignore[arg-type]


def _tiny() -> _Composer:
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
    }
    seven = replace(
        run, name="seven", net=partial(seven_exit_resnet, 2, in_channels=1), method=OverExits(PGDTraining(attack)),
        select=judge(loss_of_mean),
    )  # fmt: skip
    return _Composer(bases, attack, seven)


def _small() -> _Composer:
    cifar = _run(
        "cifar10", 8 / 255, 10, n=5500, dev_share=1 / 11, batch_size=64, optimizer=SGD(rate=0.05), schedule=Cosine(warmup=0.1),
        augment=Shift(pixels=4, mirror=True),
    )  # fmt: skip
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
    }
    return _Composer(bases, PGD(steps=2, step_size=Radii(0.75)), recipe("cifar-exits"))


def _paper() -> _Composer:
    """Full networks and data. How the authors trained is in an appendix that was not available: this is the usual PGD-AT."""
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
    }
    return _Composer(bases, PGD(steps=10, step_size=Radii(1 / 4)), recipe("cifar-exits"))


_KITS: Mapping[Scale, _Composer] = {"tiny": _tiny(), "small": _small(), "paper": _paper()}
