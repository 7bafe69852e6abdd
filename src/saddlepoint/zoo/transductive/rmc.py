"""Runtime masking and cleansing: before every answer the network is tuned on the training images that look like the question."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Ball, Linf
from saddlepoint.defenses import Context, Defense, Plain, Trace, View
from saddlepoint.evaluation import AttackContext, Direct, Threat
from saddlepoint.rng import Keys
from saddlepoint.training.descent import passes, permutation
from saddlepoint.training.inner_attack import evaluating
from saddlepoint.training.recipe import Adam, Augment, Shift
from saddlepoint.zoo.transductive.features import features, penultimate

_SPLIT, _CALIBRATION, _ADAPT, _CALIBRATE = range(
    1, 5
)  # each use of randomness tosses its own coins


@dataclass(frozen=True)
class Library:
    """D': training images, first every one as it is but for augmentation, then copies that an attack on the base net changed."""

    x: Tensor  # [M, ...]
    y: Tensor  # [M]
    features: Tensor  # [M, F] of the base net; never refreshed
    clean: int  # how many of the first ones no attack has touched

    @classmethod
    def build(
        cls,
        base: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        space: Ball | None = None,
        attack: PGD | None = None,
        copies: int = 4,
        augment: Augment | None = None,
        seed: int = 0,
        batch_size: int = 256,
    ) -> Library:
        """|D| images and `copies` times as many attacked ones, each pass with augmentation of its own (Chen et al. 2022, A.2).

        Defaults are those for CIFAR-10: Linf 8/255, PGD-40 with steps of 1/255, 4 copies, shifts by 4 pixels and mirrors. For
        MNIST: Linf(0.3), PGD(100, 0.01), one copy and `unchanged`.
        """
        if copies < 0:
            raise ValueError(f"the number of attacked copies must not be negative, got {copies}.")
        threat = Threat(space or Linf(8 / 255))
        direct = Direct("pgd", attack or PGD(steps=40, step_size=1 / 255), loss=cross_entropy)
        change = augment or Shift(4, mirror=True)
        ids = torch.arange(len(x), device=x.device)
        shelves = []
        with evaluating(base):
            for k in range(copies + 1):
                seen = change(x, Keys.of(seed, ids).fold_in(k))
                for rows in torch.split(ids, batch_size) if k else ():
                    context = AttackContext.open(threat, ids[rows], seed + k)
                    point = direct.move(
                        context, Plain(base), seen[rows], y[rows]
                    ).max_loss_point.detach()
                    seen = seen.index_copy(0, rows, point)
                shelves.append(seen)
            whole = torch.cat(shelves)
            return cls(
                whole,
                y.repeat(copies + 1),
                features(base, whole, penultimate(base), batch_size=batch_size),
                len(x),
            )

    def nearest(self, feature: Tensor, count: int) -> Tensor:
        """[count] rows by Euclidean distance in feature space, the nearest first."""
        # Products of matrices would be faster and round differently where many are close.
        distance = torch.cdist(
            feature[None], self.features, compute_mode="donot_use_mm_for_euclid_dist"
        )[0]  # [M]
        return distance.argsort(stable=True)[:count]


@dataclass(frozen=True)
class Tuning:
    """How the network learns from some of the library: Adam on the cross-entropy, batch norm in train mode."""

    epochs: int = 100  # at most
    patience: int = 5  # epochs without a lower loss on what is held out
    rate: float = 2.5e-5  # 2e-4 for MNIST
    batch_size: int = 128  # at most
    enough: float = math.inf  # the training loss below which patience counts: the paper names none, the released code has 0.01


class Rows(NamedTuple):
    """Rows of the library: those that are trained on, and those that say when to stop."""

    train: Tensor
    held: Tensor


class State(NamedTuple):
    """What learning leaves behind: a network and what Adam remembers of its gradients."""

    net: nn.Module
    adam: dict[str, Any]


class RMC(Defense):
    """F* = argmin_F sum loss(F, x, y) over the K of D' nearest to the test point (Wu et al. 2020; Chen et al. 2022, Example 1).

    For each test point in turn: features by the fixed base net; of its K nearest in D' the nearest fifth gives a quarter to be held
    out, the rest is trained on; the tuned network answers; then K clean images drawn with replacement, an eighth of them held out,
    calibrate it, and there the next point begins. Adam's memory goes along. With K = 1024: 204 nearest, 153 + 820 = 973 trained on
    and 51 held out; 896 and 128 to calibrate. No epoch's weights are restored, as in the released code.

    A batch is a short stream: every row is answered by the network tuned for it, and the last one's calibration is passed on. The
    paper's games have batches of one, which also lets an attacker search for each image by itself.
    Batches of an epoch are of equal size to within one, so that none is too small for batch norm.
    """

    random = True
    memory = "stream"

    def __init__(
        self,
        base: nn.Module,
        library: Library,
        *,
        neighbors: int = 1024,
        tuning: Tuning | None = None,
        near: float = 0.2,
    ) -> None:
        if not 1 <= neighbors <= len(library.x):
            raise ValueError(
                f"RMC was asked for the {neighbors} nearest of {len(library.x)} images. Build a larger library or take fewer "
                "neighbors."
            )
        if math.floor(near * neighbors) < 2:
            raise ValueError(
                f"of {neighbors} neighbors the nearest {near:g} is less than two images, one to learn from and one to hold out. "
                "Take more neighbors."
            )
        self.base = base
        self.library = library
        self.neighbors = neighbors
        self.near = near
        self.tuning = tuning or Tuning()
        self.static = base
        self.state = State(base, {})
        self.answering: tuple[nn.Module, ...] = (base,)  # one for every row that was adapted to

    def adapt(self, x: Tensor, ctx: Context) -> RMC:
        state = self.state
        nets = []
        with evaluating(self.base):
            points = features(self.base, x.detach(), penultimate(self.base))
        for point, seed in zip(points, ctx.randint(2**53).tolist(), strict=True):
            state = self._tuned(state, self.around(point, seed), seed, _ADAPT)
            nets.append(state.net)
            state = self._tuned(state, self.calibration(seed), seed, _CALIBRATE)
        adapted = copy.copy(self)
        adapted.state = state
        adapted.answering = tuple(nets)
        adapted.coupled = len(nets) > 1
        return adapted

    def trace(self, x: Tensor, ctx: Context) -> Trace:  # noqa: ARG002
        return Trace((View("final", _each(self.answering, x)),))

    def around(self, feature: Tensor, seed: int) -> Rows:
        """The K nearest: of the nearest fifth a quarter is held out, drawn by the seed."""
        order = self.library.nearest(feature, self.neighbors)
        near = order[: (split := math.floor(self.near * len(order)))]
        far = order[split:]
        mixed = near[
            permutation(Keys.of(seed, torch.arange(len(near))).fold_in(_SPLIT)).to(near.device)
        ]
        held = math.ceil(0.25 * len(near))
        return Rows(torch.cat([mixed[held:], far]), mixed[:held])

    def calibration(self, seed: int) -> Rows:
        """K clean images, drawn with replacement; an eighth of them is held out."""
        drawn = (
            Keys.of(seed, torch.arange(self.neighbors))
            .fold_in(_CALIBRATION)
            .integers(self.library.clean)
        )
        drawn = drawn.to(self.library.y.device)
        held = math.ceil(0.125 * self.neighbors)
        return Rows(drawn[held:], drawn[:held])

    def _tuned(self, state: State, rows: Rows, seed: int, use: int) -> State:
        """A network that has learned from these rows, and the memory of its Adam; the given state stays as it is."""
        net = copy.deepcopy(state.net).requires_grad_(True)
        adam = Adam(self.tuning.rate).over(net.parameters())
        if state.adam:
            adam.load_state_dict(copy.deepcopy(state.adam))
        library = self.library
        tuning = self.tuning
        order = Keys.of(seed, torch.arange(1)).fold_in(use).batch_seed()
        x = library.x[rows.train]
        y = library.y[rows.train]
        lowest = math.inf
        stale = 0
        for loss in islice(
            passes(net, adam, x, y, batch_size=tuning.batch_size, seed=order, during="RMC"),
            tuning.epochs,
        ):
            with evaluating(net), torch.no_grad():
                held = float(cross_entropy(net(library.x[rows.held]), library.y[rows.held]).mean())
            lowest, stale = (held, 0) if held < lowest else (lowest, stale + 1)
            if stale >= tuning.patience and loss < tuning.enough:
                break
        return State(net.eval(), adam.state_dict())


def _each(nets: Sequence[nn.Module], x: Tensor) -> Tensor:
    """[N, C]: one network answers every row, or each its own."""
    if len(nets) == 1:
        logits: Tensor = nets[0](x)
        return logits
    if len(nets) != len(x):
        raise ValueError(
            f"this defense was adapted to {len(nets)} images and is asked about {len(x)}. Ask about as many, or adapt."
        )
    return torch.cat([net(row[None]) for net, row in zip(nets, x, strict=True)])
