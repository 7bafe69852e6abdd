"""Multi-exit networks at scale real: exits on a robust network that others trained.

Exits are attached to the network of `saddlepoint.papers.adaptive.robust_net`, and all weights are
trained on with one of the methods of Table 3. It was trained on all training images of CIFAR-10, so
the images of the game are test images, other ones than those that are scored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import nn

from saddlepoint.attacks.aims import loss_of_mean
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf, Radii
from saddlepoint.defenses import MultiExit
from saddlepoint.evaluation import FixedPoints
from saddlepoint.papers.adaptive.robust_net import NAME, RADIUS, load_robust_net
from saddlepoint.papers.multi_exit.experiment import MultiExitExperiment, MultiExitSubject
from saddlepoint.papers.multi_exit.nets import SingleExitWrapper
from saddlepoint.papers.multi_exit.scales import SETTINGS, MultiExitSetting
from saddlepoint.papers.multi_exit.third_party_subject import third_party_subject
from saddlepoint.papers.registry import Request
from saddlepoint.papers.runner import Runner
from saddlepoint.papers.third_party import ModelFolder
from saddlepoint.training import (
    FAT,
    MART,
    TRADES,
    Adam,
    Cosine,
    Method,
    OverExits,
    PGDTraining,
    Recipe,
    Shift,
    Standard,
)
from saddlepoint.training.recipe import judge
from saddlepoint.zoo.multi_exit import Attached, attach_exits

SPACE = Linf(RADIUS)
DATA = "cifar10"
CHANNELS = {"stem": 16, "layer1.0": 32, "layer1.1": 32, "layer2.0": 32}  # of the layers with exits
EXITS = len(CHANNELS) + 1
EPOCHS = 3
TRAINING_IMAGES = 20_000
DEV_SHARE = 0.05
_ATTACK = PGD(steps=2, step_size=Radii(0.75))
METHODS: Mapping[str, Method] = {
    "Standard": Standard(),
    "PGD-AT": PGDTraining(_ATTACK),
    "TRADES": TRADES(attack=_ATTACK),
    "MART": MART(attack=_ATTACK),
    "FAT": FAT(attack=_ATTACK),
}
SETTING = replace(SETTINGS["real"], game_images=200, test_images=300, payoff=PGD(10, Radii(1 / 4)))


def open_experiment(
    request: Request, setting: MultiExitSetting | None = None
) -> MultiExitExperiment:
    """Start an experiment with the images and attacks of these networks, `SETTING` by default."""
    chosen = setting or SETTING
    return MultiExitExperiment(request, chosen, Runner(request, chosen.batch, chosen.threads))


def attached_subject(
    experiment: MultiExitExperiment, method: str, *, single: bool = False
) -> MultiExitSubject:
    """Return the network, trained or reused from the output folder, with its images and gates.

    Args:
        experiment: the experiment.
        method: training method of Table 3.
        single: train the network without early exits instead.
    """
    request = experiment.request
    assert request.models is not None, "checked by the request"
    folder = ModelFolder(request.models)
    experiment.runner.weights[NAME] = folder.sha256(NAME)
    recipe = attached_recipe(folder.weight_file(NAME), method, single=single)
    trained = experiment.train(recipe, experiment.training_images(DATA, TRAINING_IMAGES))
    trained.requires_grad_(False)
    base = MultiExit(SingleExitWrapper(trained) if single else trained)
    device = next(trained.parameters()).device
    return third_party_subject(experiment, recipe.name, base, space=SPACE, data=DATA, device=device)


def attached_recipe(file: Path, method: str, *, single: bool = False) -> Recipe:
    """Return how the network of this weight file is trained on.

    Args:
        file: weight file of the third-party network.
        method: training method of Table 3.
        single: without early exits.
    """
    chosen = METHODS[method]
    return Recipe(
        name=f"resnet4b {method}{' single' if single else ''}",
        data=DATA,
        net=partial(_single if single else _attach, file),
        method=chosen if single else OverExits(chosen),
        space=SPACE,
        epochs=EPOCHS,
        n=TRAINING_IMAGES,
        optimizer=Adam(5e-4),
        schedule=Cosine(warmup=0.05),
        augment=Shift(pixels=4, mirror=True),
        select=FixedPoints() if method == "Standard" else judge(loss_of_mean),
        dev_share=DEV_SHARE,
    )


def training_note() -> str:
    """Describe how the networks were made, for the notes of a result."""
    layers = ", ".join(CHANNELS)
    return (
        f"resnet4b: {NAME}, adversarially trained by others at 2/255, with exits of two linear "
        f"layers after {layers}; network and exits were then trained together for {EPOCHS} epochs "
        f"on the first {TRAINING_IMAGES} training images, of which a share of {DEV_SHARE:g} "
        f"selects the epoch, with attacks of {_ATTACK.steps} steps within {SPACE}; without early "
        "exits (single) the same training starts from the same weights"
    )


def _attach(file: Path) -> Attached:
    """Attach exits to the third-party network; all weights can be trained."""
    net = load_robust_net(file).requires_grad_(True)
    return attach_exits(net, {name: _head(width) for name, width in CHANNELS.items()})


def _single(file: Path) -> nn.Module:
    return load_robust_net(file).requires_grad_(True)


def _head(channels: int) -> nn.Sequential:
    """An exit as the network's own: two linear layers on a map of 4 x 4."""
    side = 4
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(side),
        nn.Flatten(),
        nn.Linear(channels * side**2, 100),
        nn.ReLU(),
        nn.Linear(100, 10),
    )
