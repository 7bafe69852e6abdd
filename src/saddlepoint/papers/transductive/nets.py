"""Training recipes of the networks, for every scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, pad

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf, Radii
from saddlepoint.evaluation import Direct, FixedPoints
from saddlepoint.papers.registry import Scale
from saddlepoint.training import (
    MART,
    TRADES,
    Adam,
    Cosine,
    HalfAdversarial,
    Nesterov,
    PGDTraining,
    Piecewise,
    Recipe,
    Shift,
    Standard,
)
from saddlepoint.zoo.nets import dann_cifar, dann_mnist, lenet, resnet
from saddlepoint.zoo.transductive.tadv import cifar_recipe, mnist_recipe

Build = Callable[[], nn.Module]


def small_cnn(
    channels: int = 16, hidden: int = 100, *, side: int = 28, colors: int = 1, classes: int = 10
) -> nn.Sequential:
    """Two strided convolutions and two dense layers, all but the last with batch norm.

    RMC uses such a base network for MNIST (Chen et al. 2022, A.2.1, which gives no sizes).

    Args:
        channels: channels of the first convolution; the second has twice as many.
        hidden: width of the first dense layer.
        side: height and width of the images, in pixels.
        colors: channels of the images.
        classes: number of outputs.

    Returns:
        A network that maps [N, colors, side, side] to logits [N, classes].
    """
    flat = 2 * channels * (side // 4) ** 2
    return nn.Sequential(
        nn.Conv2d(colors, channels, 4, stride=2, padding=1),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.Conv2d(channels, 2 * channels, 4, stride=2, padding=1),
        nn.BatchNorm2d(2 * channels),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(flat, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


class HighPass(nn.Module):
    """High-pass filter: 10 (x - mean of the 3 x 3 pixels around x).

    It keeps noise and edges. The factor 10 gives them about the magnitude of pixel values.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Filter images [N, C, H, W]; the border is replicated."""
        return 10 * (x - avg_pool2d(pad(x, (1, 1, 1, 1), mode="replicate"), 3, stride=1))


class Absolute(nn.Module):
    """Elementwise absolute value as a layer."""

    def forward(self, x: Tensor) -> Tensor:
        """|x|, with the shape of `x`."""
        return x.abs()


def high_pass_net(channels: int = 12, *, colors: int = 3, classes: int = 2) -> nn.Sequential:
    """Two convolutions on the high-pass filtered image, averaged over all pixels.

    The network detects the noise of a perturbation and ignores the content of the image. A
    discriminator between a few hundred and a few thousand images must not be able to memorize them.
    Absolute values and a saturating activation after a high-pass filter come from steganalysis, the
    detection of messages hidden in images (Xu et al. 2016).

    Args:
        channels: channels of the first convolution; the second has twice as many.
        colors: channels of the images.
        classes: number of outputs.

    Returns:
        A network that maps [N, colors, H, W] to logits [N, classes].
    """
    wide = 2 * channels
    return nn.Sequential(
        HighPass(),
        nn.Conv2d(colors, channels, 3, padding=1, bias=False),
        Absolute(),
        nn.BatchNorm2d(channels),
        nn.Tanh(),
        nn.Conv2d(channels, wide, 3, stride=2, padding=1),
        nn.BatchNorm2d(wide),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(wide, classes),
    )


def recipes(scale: Scale) -> Mapping[str, Recipe]:
    """All recipes of a scale.

    Args:
        scale: size of the networks and of the training.

    Returns:
        Recipes by name, such as `mnist standard`, `mnist madry`, `mnist tadv`, `mnist dann`,
        `mnist half` and `signs`.
    """
    return {one.name: one for one in _SCALES[scale]()}


def _standard(run: Recipe, name: str, net: Build) -> Recipe:
    return replace(run, name=name, net=net, method=Standard(), select=FixedPoints())


def _tiny() -> tuple[Recipe, ...]:
    net = partial(small_cnn, 4, 24, side=8)
    attack = PGD(1)
    run = Recipe(
        "digits madry",
        "digits",
        net,
        PGDTraining(attack),
        Linf(0.1),
        3,
        n=200,
        batch_size=32,
        optimizer=Adam(5e-3),
        select=Direct("pgd-2", attack, loss=cross_entropy),
    )
    return (
        run,
        _standard(run, "digits standard", net),
        _standard(run, "digits dann", partial(dann_mnist, 4, 16, side=8, kernel=3, padding=1)),
        replace(
            run,
            name="digits tadv",
            net=partial(lenet, 2, 16, side=8),
            method=HalfAdversarial(attack),
            epochs=1,
        ),
        replace(run, name="digits half", method=HalfAdversarial(attack)),
        _standard(run, "signs", net),
    )


def _small() -> tuple[Recipe, ...]:
    net = partial(small_cnn, 8, 64)
    attack = PGD(3, Radii(0.5))
    run = Recipe(
        "mnist madry",
        "mnist",
        net,
        PGDTraining(attack),
        Linf(0.3),
        12,
        n=5500,
        dev_share=1 / 11,
        batch_size=64,
        optimizer=Adam(4e-3),
        schedule=Cosine(warmup=0.1),
    )
    return (
        run,
        replace(_standard(run, "mnist standard", net), epochs=4),
        replace(
            _standard(run, "mnist dann", partial(dann_mnist, 8, 32)), epochs=4, optimizer=Adam(1e-3)
        ),
        replace(
            run,
            name="mnist tadv",
            method=HalfAdversarial(attack),
            n=2200,
            dev_share=1 / 22,
            epochs=6,
        ),
        replace(run, name="mnist trades", method=TRADES(attack=attack)),
        replace(
            run,
            name="mnist half",
            method=HalfAdversarial(attack),
            n=3300,
            dev_share=1 / 33,
            epochs=8,
        ),
        replace(
            _standard(run, "signs", partial(resnet, (1, 1, 1), 8)),
            data="gtsrb10",
            space=Linf(8 / 255),
            epochs=8,
        ),
    )


def _paper() -> tuple[Recipe, ...]:
    """The authors' settings, with two exceptions.

    The epoch is selected on a held-out part of the training set. DENT has three base networks
    trained here instead of the seven of the paper.
    """
    mnist = Recipe(
        "mnist madry",
        "mnist",
        partial(small_cnn, 32, 1024),
        PGDTraining(PGD(40, 0.01)),
        Linf(0.3),
        100,
        dev_share=0.04,
        optimizer=Adam(1e-3),
        schedule=Piecewise(at=()),
    )
    cifar = Recipe(
        "cifar10 madry",
        "cifar10",
        partial(resnet, (3, 4, 6, 3)),
        PGDTraining(PGD(10, 2 / 255)),
        Linf(8 / 255),
        100,
        dev_share=0.04,
        optimizer=Nesterov(rate=0.1, momentum=0.9, weight_decay=1e-4),
        schedule=Piecewise(at=(0.5, 0.75, 0.9)),
        augment=Shift(4, mirror=True),
    )
    wide = replace(cifar, net=partial(resnet, (2, 2, 2, 2)))
    attack = PGD(10, 2 / 255)
    return (
        mnist,
        _standard(mnist, "mnist standard", mnist.net),
        _standard(mnist, "mnist dann", dann_mnist),
        replace(mnist_recipe(), name="mnist tadv"),
        cifar,
        _standard(cifar, "cifar10 standard", cifar.net),
        _standard(replace(cifar, batch_size=64), "cifar10 dann", dann_cifar),
        replace(cifar_recipe(), name="cifar10 tadv"),
        replace(wide, name="cifar10 pgd-at"),
        replace(wide, name="cifar10 trades", method=TRADES(attack=attack)),
        replace(wide, name="cifar10 mart", method=MART(attack=attack)),
        replace(_standard(mnist, "signs", wide.net), data="gtsrb", space=Linf(8 / 255), epochs=10),
    )


_SCALES: Mapping[Scale, Callable[[], tuple[Recipe, ...]]] = {
    "tiny": _tiny,
    "small": _small,
    "paper": _paper,
}
