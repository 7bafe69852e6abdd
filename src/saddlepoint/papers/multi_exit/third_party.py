"""The multi-exit network that others trained: triple-wins, a ResNet-38 with seven exits.

Hu et al. 2020 trained it with PGD at the radius 8/255 on all training images of CIFAR-10, so the
images of the game are test images as well, other ones than those that are scored.
"""

from __future__ import annotations

import torch

from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Confident, LowEntropy, MultiExit, Strategy, intervals
from saddlepoint.defenses.gates import exit_logits
from saddlepoint.engine.folding import folded
from saddlepoint.engine.forms import ChannelsLast
from saddlepoint.evaluation import Episode, FixedPoints
from saddlepoint.games.exit_game import columns_of
from saddlepoint.games.payoffs import ExitGame
from saddlepoint.papers.multi_exit.experiment import MultiExitExperiment, MultiExitSubject
from saddlepoint.papers.multi_exit.scales import PartialPGD
from saddlepoint.papers.runner import Images
from saddlepoint.runs.work import torch_threads

NETWORK = "cifar10/triplewins_rdi_resnet38"
DATA = "cifar10"
SPACE = Linf(8 / 255)


def triple_wins(experiment: MultiExitExperiment) -> MultiExitSubject:
    """Return the third-party network with the images of its game and those that are scored.

    Batch normalization is folded and channels come last, which changes outputs by rounding only.
    The gates are calibrated on the images of the game.
    """
    net, _ = folded(experiment.runner.load_third_party(NETWORK))
    base = MultiExit(ChannelsLast(net.requires_grad_(False)))
    setting = experiment.setting
    count = setting.game_images + setting.test_images
    images = experiment.test_images(DATA, count, torch.device("cpu"))
    game = images.first(setting.game_images)
    with torch_threads(setting.threads):
        logits = exit_logits(base, game.x, batch_size=setting.batch)
    gates: dict[str, Strategy] = {
        "entropy": LowEntropy.calibrated(logits),
        "confidence": Confident.calibrated(logits),
    }
    return MultiExitSubject(
        name="triple-wins",
        base=base,
        exits=len(logits),
        space=SPACE,
        data=DATA,
        game=game,
        test=Images(images.x[setting.game_images :], images.y[setting.game_images :]),
        gates=gates,
        game_kind="test images that are not scored",
    )


def interval_game(
    experiment: MultiExitExperiment, subject: MultiExitSubject, images: Images
) -> tuple[ExitGame, dict[str, Episode]]:
    """Play the game whose rows attack neighboring exits; every set of exits is a column.

    Args:
        experiment: plays the attacks.
        subject: the network.
        images: the images of the game.

    Returns:
        The game, and the episodes of its rows by the name of the attacked exits ("3+4").
    """
    attack = PartialPGD(experiment.setting.payoff)
    rows = intervals(subject.exits)
    clean, *episodes = experiment.play(
        subject,
        [FixedPoints(), *map(attack, rows)],
        images,
        seed=experiment.request.seed,
        answers=columns_of(subject.subsets),
    )
    game = ExitGame.of(subject.subsets, rows, episodes, subject.exits, clean)
    names = ("+".join(map(str, row)) for row in rows)
    return game, dict(zip(names, episodes, strict=True))
