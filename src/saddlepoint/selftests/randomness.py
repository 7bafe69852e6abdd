"""Randomized defenses.

Their robust accuracy is the expected accuracy at the point where it is smallest. All of them draw
from torch's global generator, as users' models do.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from saddlepoint.selftests.case import Case, Truth
from saddlepoint.selftests.exact import mixture
from saddlepoint.selftests.problem import (
    Problem,
    live,
    relabeled,
    toward,
    two_classes,
    worst_corner,
    worst_margins,
)

SIGMA = 0.4
_LOGIT_SCALE = 2.0  # factor on the logits of the problem
_SIDE = 4
_CANVAS = 5


class InputNoise(nn.Module):
    """x + sigma n, where n is standard normal noise."""

    def forward(self, x: Tensor) -> Tensor:
        return x + SIGMA * torch.randn_like(x)


class GumbelNoise(nn.Module):
    """z plus Gumbel noise: its argmax is class c with probability softmax(z)_c."""

    def forward(self, z: Tensor) -> Tensor:
        return z - torch.empty_like(z).exponential_().log()


class ActiveDropout(nn.Module):
    """A linear net on pixels minus 1/2, with dropout active at test time.

    Dropout keeps each quarter of the pixels with probability 1/2.
    """

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = weight  # [d], of the margin

    def forward(self, x: Tensor) -> Tensor:
        return live(nn.functional.dropout(self.contributions(x), 0.5, training=True).sum(1))

    def contributions(self, x: Tensor) -> Tensor:
        """[N, 4]: the contribution of each quarter of the pixels to the margin."""
        return ((x.flatten(1) - 0.5) * self.weight.to(x.dtype)).view(len(x), _SIDE, -1).sum(2)


class ResizeAndPad(nn.Module):
    """Random resizing and padding, then a linear net (Xie et al. 2018).

    At every call the image is resized to 4x4 or 5x5 pixels and placed on an empty 5x5 canvas.
    """

    def __init__(self) -> None:
        super().__init__()
        self.canvas = torch.randn(_CANVAS, _CANVAS, generator=torch.Generator().manual_seed(11))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.heads().to(x.dtype)
        return self.logits(x, weights[int(torch.randint(0, len(weights), ()))])

    def logits(self, x: Tensor, weight: Tensor) -> Tensor:
        """Logits of the linear net with these margin weights [d]."""
        return live((x.flatten(1) - 0.5) @ weight)

    def heads(self) -> Tensor:
        """[5, 16]: margin weights on the pixels for each size and position, equally likely."""
        basis = torch.eye(_SIDE**2).view(-1, 1, _SIDE, _SIDE)
        resized = nn.functional.interpolate(
            basis, size=_CANVAS, mode="bilinear", align_corners=False
        )
        margin = _CANVAS - _SIDE
        padded = [
            nn.functional.pad(basis, (j, margin - j, i, margin - i))
            for i, j in itertools.product(range(margin + 1), repeat=2)
        ]
        images = (*padded, resized)
        return torch.stack([(image[:, 0] * self.canvas).sum((1, 2)) for image in images])


def noise_truth(problem: Problem) -> Truth:
    """Phi(margin / (sigma ||w||)), smallest at the worst corner.

    The noise changes the margin by a normal number of standard deviation sigma ||w||.
    """
    margin = -worst_margins(problem.weight, problem.bias, *problem.box(), problem.y)
    std = SIGMA * (problem.weight[0] - problem.weight[1]).double().norm()
    return Truth.of(torch.special.ndtr(margin / std), random=True)


def _gumbel_truth(problem: Problem) -> Truth:
    """softmax(z)_y, which increases with the margin of y: smallest at the worst corner."""
    corner = worst_corner(problem.weight, *problem.box(), problem.y)
    z = _LOGIT_SCALE * (corner @ problem.weight.double().T + problem.bias.double())
    return Truth.of(z.softmax(1).gather(1, problem.y[:, None]), random=True)


def _dropout_truth(problem: Problem) -> Truth:
    """The mean over all masks at the worst corner.

    Masking keeps the signs of the weights, so one corner is the worst for all masks.
    """
    corner = worst_corner(problem.weight, *problem.box(), problem.y)
    quarters = ActiveDropout(_margin_weight(problem)).contributions(corner)  # [N, 4]
    correct = [
        live(2 * (quarters * torch.tensor(mask)).sum(1)).argmax(1) == problem.y
        for mask in itertools.product((0.0, 1.0), repeat=quarters.shape[1])
    ]
    return Truth.of(torch.stack(correct).double().mean(0), random=True)


def _resize_truth(problem: Problem) -> Truth:
    """A mixture of five linear nets with probability 1/5 each and different worst corners."""
    heads = ResizeAndPad().heads()
    probabilities = [1 / len(heads)] * len(heads)
    biases = -0.5 * heads.sum(1)
    correct = mixture(heads, biases, probabilities, *problem.box(), toward(problem.y))
    return Truth.of(correct, random=True)


def _resize_problem() -> Problem:
    net = ResizeAndPad()
    return relabeled(two_classes(radius=0.05), lambda x: net.logits(x, net.heads().mean(0)))


def _margin_weight(problem: Problem) -> Tensor:
    return problem.weight[0] - problem.weight[1]


CASES = (
    Case(
        "lucky noise",
        "noise on the input misclassifies one draw in four by chance",
        two_classes,
        lambda p: nn.Sequential(InputNoise(), p.net()).eval(),
        noise_truth,
    ),
    Case(
        "noisy logits",
        "the prediction is sampled from the softmax",
        two_classes,
        lambda p: nn.Sequential(p.net(_LOGIT_SCALE), GumbelNoise()).eval(),
        _gumbel_truth,
    ),
    Case(
        "dropout left on",
        "dropout removes half of the net in every call",
        two_classes,
        lambda p: ActiveDropout(_margin_weight(p)).eval(),
        _dropout_truth,
    ),
    Case(
        "resize and pad",
        "the image is resized and padded at random in every call",
        _resize_problem,
        lambda _: ResizeAndPad().eval(),
        _resize_truth,
    ),
)
