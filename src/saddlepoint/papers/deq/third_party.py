"""Monotone equilibrium networks that others trained, with the solvers of the paper's networks.

The paper trains one network per solver. Here each network is one of two third-party networks, and
only the solver differs. All were trained without an adversary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

from torch import Tensor, nn

from saddlepoint.attacks.spaces import Linf
from saddlepoint.papers.deq.nets import ITERATIONS, exact, unrolled
from saddlepoint.papers.deq.subjects import DEQSubject
from saddlepoint.papers.runner import Images, Runner
from saddlepoint.papers.third_party import OPAQUE
from saddlepoint.zoo.deq import Solved
from saddlepoint.zoo.nets.equilibrium import Equilibrium
from saddlepoint.zoo.nets.monotone import MonotoneNet

DATA = "mnist"
SPACE = Linf(0.075)  # at the radius 0.1, PGD-20 leaves less than 20 % of both networks
LARGE = "mnist/mondeq_jli_fc100"
OTHER = "mnist/mondeq_semi_m20"
_NETWORKS = (
    f"third-party networks: {LARGE} for the paper's networks exact and unrolled, {OTHER} for "
    "unrolled-xl and vanilla, all trained without an adversary and for another solver; only the "
    "solver of the forward pass and the gradient differ between networks of the same weights. The "
    "paper's numbers in brackets are those of"
)


class _Loaded(Protocol):
    """What the loader of a monotone network returns."""

    sd: Mapping[str, Tensor]  # A, B, U, u, C, c
    W: Tensor  # [D, D]
    alpha: float  # step of the forward-backward splitting that converges for W
    mean: Tensor
    std: Tensor


class ForwardBackwardNet(MonotoneNet):
    """A monotone network whose cell is a step of forward-backward splitting.

    z <- relu((1 - step) z + step (W z + u)) has the same equilibrium as z = relu(W z + u) for every
    step > 0 (Winston & Kolter 2020, Sec. 3.2), and is a contraction for a small one.
    """

    step: float = 1.0

    def cell(self, z: Tensor, u: Tensor) -> Tensor:
        """Apply the cell once, [N, D] and [N, D] -> [N, D]."""
        return ((1 - self.step) * z + self.step * (z @ self.weight.T + u)).relu()


def monotone(net: nn.Module, *, splitting: bool) -> MonotoneNet:
    """Return a loaded monotone network as an equilibrium network with named layers.

    Args:
        net: the loaded network, with its tensors in `sd`.
        splitting: use a step of forward-backward splitting as cell, with the loader's step.
    """
    loaded = cast(_Loaded, net)
    A = loaded.sd["A"]  # noqa: N806
    # W = (1 - m) I - A^T A + B - B^T, and the diagonal of B - B^T is zero.
    m = float((1 - (loaded.W + A.T @ A).diagonal()).mean())
    kind = ForwardBackwardNet if splitting else MonotoneNet
    tensors = [loaded.sd[name] for name in ("A", "B", "U", "u", "C", "c")]
    mean, std = (values.flatten().tolist() for values in (loaded.mean, loaded.std))
    found = kind.from_tensors(*tensors, m=m, mean=mean, std=std)
    if isinstance(found, ForwardBackwardNet):
        found.step = loaded.alpha
    return found.requires_grad_(False)


@dataclass(frozen=True)
class _Choice:
    """The weights and the solver of a network of the paper."""

    name: str  # of the third-party network
    solved: Callable[[Callable[[], Equilibrium]], Solved]
    splitting: bool = False  # solve the forward-backward step: Broyden diverges on W itself


def _choices() -> Mapping[str, _Choice]:
    found = {
        f"exact-{name}": _Choice(LARGE, partial(exact, forward=forward, backward=backward))
        for name, (forward, backward) in ITERATIONS.items()
    }
    found["unrolled"] = _Choice(LARGE, partial(unrolled, forward=8))
    found["unrolled-xl"] = _Choice(OTHER, partial(unrolled, forward=8), splitting=True)
    found["vanilla"] = _Choice(OTHER, partial(exact, forward=18, backward=20), splitting=True)
    return found


CHOICES = _choices()


def note(names: Collection[str]) -> str:
    """Say which networks these are, and which networks the paper's numbers are of.

    Args:
        names: names of the paper's networks.
    """
    if set(names) == {"vanilla"}:
        return f"{_NETWORKS} a CIFAR-10 network trained without an adversary"
    return f"{_NETWORKS} adversarially trained CIFAR-10 networks"


def subject(runner: Runner, name: str, test: Images, dev: Images) -> DEQSubject:
    """Return the third-party network in place of the paper's network of this name.

    Args:
        runner: loads the weights.
        name: name of the paper's network: a key of `CHOICES`.
        test: images of the reported accuracies.
        dev: other images, on which states and attacks are selected.
    """
    choice = CHOICES[name]
    net = monotone(runner.load_third_party(choice.name, loader=OPAQUE), splitting=choice.splitting)
    solved = choice.solved(lambda: net)
    selection = "test images that are not scored"
    return DEQSubject(name, solved.eval(), SPACE, DATA, dev, test, selection)
