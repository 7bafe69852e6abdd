"""Defenses that toss coins. Their robust accuracy is the expectation, at the point where that is least."""

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

_SIGMA = 0.4
_SURE = 2.0  # times the problem's logits
_SIDE = 4
_CANVAS = 5

# All of these draw from torch's own generator, as users' models do.


class Noise(nn.Module):
    """x + sigma n."""

    def forward(self, x: Tensor) -> Tensor:
        return x + _SIGMA * torch.randn_like(x)


class Gumbel(nn.Module):
    """z + Gumbel noise, whose argmax is class c with probability softmax(z)_c."""

    def forward(self, z: Tensor) -> Tensor:
        return z - torch.empty_like(z).exponential_().log()


class Dropping(nn.Module):
    """A linear net on gray-centerd pixels of which dropout, left on, keeps each quarter with probability 1/2."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = weight  # [d]: of the margin

    def forward(self, x: Tensor) -> Tensor:
        return live(nn.functional.dropout(self.rows(x), 0.5, training=True).sum(1))

    def rows(self, x: Tensor) -> Tensor:
        """[N, 4]: what each quarter of the pixels adds to the margin."""
        return ((x.flatten(1) - 0.5) * self.weight.to(x.dtype)).view(len(x), _SIDE, -1).sum(2)


class ResizeAndPad(nn.Module):
    """The image resized to 4 or 5 pixels a side and put on an empty canvas of 5, drawn for every call (Xie et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.canvas = torch.randn(_CANVAS, _CANVAS, generator=torch.Generator().manual_seed(11))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.heads().to(x.dtype)
        return self.answer(x, weights[int(torch.randint(0, len(weights), ()))])

    def answer(self, x: Tensor, weight: Tensor) -> Tensor:
        return live((x.flatten(1) - 0.5) @ weight)

    def heads(self) -> Tensor:
        """[5, 16]: the margin's weight on the pixels for each size and place, all equally likely."""
        basis = torch.eye(_SIDE**2).view(-1, 1, _SIDE, _SIDE)
        larger = nn.functional.interpolate(
            basis, size=_CANVAS, mode="bilinear", align_corners=False
        )
        places = list(itertools.product(range(_CANVAS - _SIDE + 1), repeat=2))
        placed = [
            nn.functional.pad(basis, (j, _CANVAS - _SIDE - j, i, _CANVAS - _SIDE - i))
            for i, j in places
        ]
        return torch.stack([(image[:, 0] * self.canvas).sum((1, 2)) for image in (*placed, larger)])


def _noise(problem: Problem) -> Truth:
    """Noise moves the margin by a normal number of size sigma ||w||: Phi(margin / (sigma ||w||)), least at the corner."""
    margin = -worst_margins(problem.weight, problem.bias, *problem.box(), problem.y)
    spread = _SIGMA * (problem.weight[0] - problem.weight[1]).double().norm()
    return Truth.of(torch.special.ndtr(margin / spread), random=True)


def _gumbel(problem: Problem) -> Truth:
    """softmax(z)_y, which grows with the margin of y: least at the corner where that is."""
    corner = worst_corner(problem.weight, *problem.box(), problem.y)
    z = _SURE * (corner @ problem.weight.double().T + problem.bias.double())
    return Truth.of(z.softmax(1).gather(1, problem.y[:, None]), random=True)


def _dropping(problem: Problem) -> Truth:
    """Every mask has the weights' signs, so that one corner is worst for all of them; each is tried there."""
    corner = worst_corner(problem.weight, *problem.box(), problem.y)
    rows = Dropping(_margin_weight(problem)).rows(corner)  # [N, 4]
    right = [
        live(2 * (rows * torch.tensor(mask)).sum(1)).argmax(1) == problem.y
        for mask in itertools.product((0.0, 1.0), repeat=rows.shape[1])
    ]
    return Truth.of(torch.stack(right).double().mean(0), random=True)


def _resized(problem: Problem) -> Truth:
    """Five linear nets, each with probability 1/5, no two of which agree on the worst corner."""
    heads = ResizeAndPad().heads()
    share = mixture(
        heads, -0.5 * heads.sum(1), [1 / len(heads)] * len(heads), *problem.box(), toward(problem.y)
    )
    return Truth.of(share, random=True)


def _for_resizing() -> Problem:
    net = ResizeAndPad()
    return relabeled(two_classes(radius=0.05), lambda x: net.answer(x, net.heads().mean(0)))


def _margin_weight(problem: Problem) -> Tensor:
    return problem.weight[0] - problem.weight[1]


CASES = (
    Case(
        "lucky noise",
        "one draw in four is wrong by chance",
        two_classes,
        lambda p: nn.Sequential(Noise(), p.net()).eval(),
        _noise,
    ),
    Case(
        "noisy logits",
        "the answer is drawn from the softmax",
        two_classes,
        lambda p: nn.Sequential(p.net(_SURE), Gumbel()).eval(),
        _gumbel,
    ),
    Case(
        "dropout left on",
        "half of the net is missing in every call",
        two_classes,
        lambda p: Dropping(_margin_weight(p)).eval(),
        _dropping,
    ),
    Case(
        "resize and pad",
        "no two calls see the same image",
        _for_resizing,
        lambda _: ResizeAndPad().eval(),
        _resized,
    ),
)
