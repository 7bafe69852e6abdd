"""Networks that others trained on all training images, with images for a game and for scoring.

The images of the game are test images, other ones than those that are scored.
"""

from __future__ import annotations

import torch

from saddlepoint.attacks.spaces import Ball
from saddlepoint.defenses import Confident, LowEntropy, MultiExit, Strategy
from saddlepoint.defenses.gates import exit_logits
from saddlepoint.papers.multi_exit.experiment import MultiExitExperiment, MultiExitSubject
from saddlepoint.papers.runner import Images
from saddlepoint.runs.work import torch_threads


def third_party_subject(
    experiment: MultiExitExperiment,
    name: str,
    base: MultiExit,
    *,
    space: Ball,
    data: str,
    device: torch.device,
) -> MultiExitSubject:
    """Return a network with its images, and gates that are calibrated on the images of the game.

    Args:
        experiment: the experiment, whose setting has the numbers of images.
        name: name of the network.
        base: the network.
        space: allowed perturbations.
        data: name of the data set; its first test images are those of the game.
        device: of the network.
    """
    setting = experiment.setting
    images = experiment.test_images(data, setting.game_images + setting.test_images, device)
    game = images.first(setting.game_images)
    with torch_threads(setting.threads):
        logits = exit_logits(base, game.x, batch_size=setting.batch)
    gates: dict[str, Strategy] = {
        "entropy": LowEntropy.calibrated(logits),
        "confidence": Confident.calibrated(logits),
    }
    return MultiExitSubject(
        name=name,
        base=base,
        exits=len(logits),
        space=space,
        data=data,
        game=game,
        test=Images(images.x[setting.game_images :], images.y[setting.game_images :]),
        gates=gates,
        game_kind="test images that are not scored",
    )
