"""The multi-exit network that others trained: triple-wins, a ResNet-38 with seven exits.

Hu et al. 2020 trained it with PGD at the radius 8/255 on all training images of CIFAR-10, so the
images of the game are test images as well, other ones than those that are scored.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf, Radii
from saddlepoint.defenses import MultiExit
from saddlepoint.engine.folding import folded
from saddlepoint.engine.forms import ChannelsLast
from saddlepoint.papers.multi_exit.experiment import MultiExitExperiment, MultiExitSubject
from saddlepoint.papers.multi_exit.third_party_subject import third_party_subject

NETWORK = "cifar10/triplewins_rdi_resnet38"
DATA = "cifar10"
SPACE = Linf(8 / 255)
# The first step is longer than the radius: five steps then leave about as much as PGD-20, also at
# early exits. Three steps of at most 0.8 radii leave clearly more there.
_PAYOFF = PGD(5, Radii(1.4), random_start=False, decreasing=True)


def triple_wins(experiment: MultiExitExperiment) -> MultiExitSubject:
    """Return the third-party network with the images of its game and those that are scored.

    Batch normalization is folded and channels come last, which changes outputs by rounding only.
    The gates are calibrated on the images of the game.
    """
    net, _ = folded(experiment.runner.load_third_party(NETWORK))
    base = MultiExit(ChannelsLast(net.requires_grad_(False)))
    return third_party_subject(
        experiment, "triple-wins", base, space=SPACE, data=DATA, device=torch.device("cpu")
    )


def with_all_rows(experiment: MultiExitExperiment) -> MultiExitExperiment:
    """Return the experiment with games in which every set of exits is attacked."""
    return replace(experiment, setting=replace(experiment.setting, payoff=_PAYOFF, rows="all"))
