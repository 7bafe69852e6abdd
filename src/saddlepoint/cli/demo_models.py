"""The models of `saddlepoint demo`, each with an evaluation as its authors would make it.

Four defenses lean on the same small network with standard training, so that their robust accuracy
is known to be low: the question is which evaluation finds it. The fifth network is adversarially
trained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.defenses import Context, Defense, MultiExit, Plain, Trace, View
from saddlepoint.defenses.gates import Confident
from saddlepoint.evaluation import Adversary, Direct, Transfer
from saddlepoint.zoo import load
from saddlepoint.zoo.adaptive import AntiAdversary
from saddlepoint.zoo.transductive.tent import BatchStatistics

_SMALL = "digits-small-standard"  # the network inside the defenses
STEPS = 20  # of the PGD of every authors' evaluation
_PGD = Direct(f"pgd-{STEPS}", PGD(STEPS), loss=cross_entropy)
_THRESHOLD = 0.9  # confidence at which the first exit answers
_NOISE = 0.1  # standard deviation, in units of the input
_LEVELS = 4  # gray levels above black


@dataclass(frozen=True)
class DemoModel:
    """One line of the demonstration.

    Attributes:
        name: a short name, also of its folder.
        title: what the model is, in a few words.
        mistake: the evaluation of the authors in one sentence, with a source.
        why: why the audit differs from it, or agrees, in one sentence.
        build: makes the target that is audited.
        authors: makes the adversary of the authors' evaluation.
        forward: makes the defense as its forward pass alone shows it; AutoAttack attacks this.
            Default: the defense itself.
    """

    name: str
    title: str
    mistake: str
    why: str
    build: Callable[[], Defense | nn.Module]
    authors: Callable[[], Adversary]
    forward: Callable[[], Defense] | None = None


class RandomizedDiscretization(Defense):
    """Adds noise and rounds pixels to a few gray levels: round(k (x + s n)) / k.

    In the manner of Zhang and Liang 2019, where cluster centers replace noisy pixels.

    Args:
        net: the classifier, in eval mode.
        noise: standard deviation s of the noise n.
        levels: gray levels k above black.
    """

    random = True

    def __init__(self, net: nn.Module, noise: float = _NOISE, levels: int = _LEVELS) -> None:
        self.net = net
        self.static = net
        self.noise = noise
        self.levels = levels

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        """Return the logits of the rounded image."""
        noise = self.noise * ctx.randn_like(x)
        rounded = ctx.through(
            "round", lambda v: (self.levels * (v + noise)).round() / self.levels, x
        )
        return Trace((View("final", self.net(rounded)),))


class NetCascade(nn.Module):
    """Two networks as two exits: the second one is for images of which the first is unsure.

    Args:
        first: the small network, [N, ...] -> [N, C].
        last: the larger network.
    """

    def __init__(self, first: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.first = first
        self.last = last

    def forward(self, x: Tensor) -> list[Tensor]:
        return [self.first(x), self.last(x)]


class GatedCascade(nn.Module):
    """The cascade as an ordinary module: the logits of the exit that answers.

    Args:
        net: the cascade.
        threshold: confidence at which the first exit answers.
    """

    def __init__(self, net: NetCascade, threshold: float = _THRESHOLD) -> None:
        super().__init__()
        self.net = net
        self.threshold = threshold

    def forward(self, x: Tensor) -> Tensor:
        first, last = self.net(x)
        confident = first.softmax(-1).amax(-1, keepdim=True) >= self.threshold
        return torch.where(confident, first, last)


def _cascade() -> NetCascade:
    return NetCascade(load(_SMALL), load("digits-standard")).eval()


def _from_substitute() -> Adversary:
    return Transfer(_PGD, Plain(load("digits-standard")))


MODELS = (
    DemoModel(
        "purifier",
        "anti-adversary purifier",
        "PGD through the purifier, and no attack transferred from the network inside it, as in "
        "Alfarra et al. 2022 (Croce et al. 2022, Sec. 3.8).",
        "The purifier moves an image toward the class that the network already predicts. This "
        "flattens the loss, but the defense misclassifies the points that its network "
        "misclassifies.",
        lambda: AntiAdversary(load(_SMALL)),
        lambda: _PGD,
    ),
    DemoModel(
        "random",
        "noise and gray levels",
        "PGD on the exact gradient of one random draw, which is zero through rounding: the "
        "shattered and stochastic gradients of Athalye et al. 2018.",
        "The audit replaces the backward pass of the rounding by the identity and averages "
        "gradients over draws.",
        lambda: RandomizedDiscretization(load(_SMALL)),
        lambda: _PGD,
    ),
    DemoModel(
        "early-exit",
        "early-exit cascade",
        "PGD on the last exit only, the single attack of Hu et al. 2020.",
        "Most images leave at the first exit, which an attack on the last exit never evaluates; "
        "the audit attacks each exit and the gate.",
        lambda: MultiExit(_cascade(), Confident((_THRESHOLD,))),
        lambda: _PGD,
        lambda: Plain(GatedCascade(_cascade())),
    ),
    DemoModel(
        "adapted",
        "test-time batch norm",
        "PGD on a substitute network and transfer, because attacks through adaptation are said to "
        "be infeasible (an argument that Croce et al. 2022, Sec. 3.3, refute).",
        "The statistics of the batch are differentiable: the audit attacks the network and the "
        "adaptation together.",
        lambda: BatchStatistics(load(_SMALL)),
        _from_substitute,
    ),
    DemoModel(
        "robust",
        "adversarially trained",
        "PGD, as in Madry et al. 2018.",
        "Nothing hides the gradient, so the evaluations agree up to a few points.",
        lambda: load("digits-pgd"),
        lambda: _PGD,
    ),
)
