"""The adapters on a linear net, with a worst case known in closed form."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch
from tests.references import peers
from torch import Tensor, nn

BUDGETS: dict[str, dict[str, Any]] = {
    "pgd": {"steps": 20, "step": 0.1},
    "apgd-ce": {"steps": 20, "restarts": 1},
    "apgd-dlr": {"steps": 20, "restarts": 1},
    "apgd-t": {"steps": 20, "targets": 9},
    "fab": {"steps": 10, "restarts": 1},
    "fab-t": {"steps": 10, "targets": 9},
    "fmn": {"steps": 100},
    "cw": {"searches": 5, "steps": 50, "rate": 0.01},
    "square": {"queries": 20, "rescaled": True},
}
RADIUS = {"linf": 0.008, "l2": 0.04, "l1": 0.15}
ORDER = {"linf": math.inf, "l2": 2.0, "l1": 1.0}
DUAL = {"linf": 1.0, "l2": 2.0, "l1": math.inf}
CELLS = [
    (kind, peer)
    for kind, by_peer in peers.ATTACKS.items()
    if not kind.startswith("autoattack")  # its parts are tested separately
    for peer in by_peer
]


class LinearProblem(NamedTuple):
    """A linear net with images and labels."""

    net: nn.Module
    x: Tensor
    y: Tensor


@pytest.mark.parametrize(("kind", "peer"), CELLS)
def test_no_peer_breaks_an_image_that_is_certified(kind: str, peer: str) -> None:
    problem = linear()
    certified = slack(problem, kind) > 1
    assert certified.sum() >= 5
    assert not broken(problem, kind, peer)[certified].any()


@pytest.mark.parametrize(
    ("kind", "peer"), [cell for cell in CELLS if cell[0].startswith(("apgd", "fab", "pgd"))]
)
def test_every_gradient_attack_breaks_an_image_that_needs_half_the_radius(
    kind: str, peer: str
) -> None:
    # Half the radius is enough for these images. The other half is a margin for short runs and for
    # untargeted losses. FMN is not tested: its first step has length 1, far more than these images
    # need.
    problem = linear()
    # Short runs in L1 spread their budget over many pixels, and the worst case needs one.
    enough = 0.2 if kind.endswith("l1") else 0.5
    vulnerable = slack(problem, kind) < enough
    assert vulnerable.sum() >= 5
    assert broken(problem, kind, peer)[vulnerable].all()


def test_an_adapter_restores_the_global_generator() -> None:
    skip_missing("torchattacks")
    problem = linear()
    before = torch.get_rng_state()
    broken(problem, "pgd-linf", "torchattacks")
    assert torch.equal(before, torch.get_rng_state())


def linear() -> LinearProblem:
    """Ten classes on 8x8 images near gray, so that the unit box is never active.

    The labels are the predictions of the net.
    """
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(64, 10)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(10, 64, generator=generator))
        layer.bias.copy_(-0.5 * layer.weight.sum(dim=1))
    net = nn.Sequential(nn.Flatten(), layer)
    x = 0.5 + 0.08 * torch.randn(40, 1, 8, 8, generator=generator)
    return LinearProblem(net, x, net(x).argmax(dim=1).detach())


@torch.no_grad()
def slack(problem: LinearProblem, kind: str) -> Tensor:
    """min over classes j of (z_y - z_j) / (radius * dual norm of w_y - w_j).

    Below 1 an adversarial point exists.
    """
    weight = problem.net[1].weight  # type: ignore[index]
    logits = problem.net(problem.x)
    norm = kind.rsplit("-", 1)[1]
    gap = logits.gather(1, problem.y[:, None]) - logits  # [N, C]
    difference = weight[problem.y][:, None] - weight[None]  # [N, C, d]
    steepest = torch.linalg.vector_norm(difference, ord=DUAL[norm], dim=2)  # [N, C]
    ratio = gap / (RADIUS[norm] * steepest)
    return ratio.scatter(1, problem.y[:, None], math.inf).amin(dim=1)


def broken(problem: LinearProblem, kind: str, peer: str) -> Tensor:
    """Whether the peer finds a misclassified point inside the ball, [N]."""
    skip_missing(peer)
    attack, norm = kind.rsplit("-", 1)
    points = peers.ATTACKS[kind][peer](
        problem.net, problem.x.clone(), problem.y.clone(), RADIUS[norm], seed=0, **BUDGETS[attack]
    )
    length = torch.linalg.vector_norm((points - problem.x).flatten(1), ord=ORDER[norm], dim=1)
    return (problem.net(points).argmax(dim=1) != problem.y) & (length <= RADIUS[norm] * (1 + 1e-4))


def skip_missing(peer: str) -> None:
    """Skip the test if the peer is not installed."""
    reason = peers.why_missing(peer)
    if reason is not None:
        pytest.skip(reason)
