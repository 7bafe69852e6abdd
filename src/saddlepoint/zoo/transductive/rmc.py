"""RMC: fine-tunes the network on the nearest training images before each prediction."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from saddlepoint import phrases
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Ball, Linf
from saddlepoint.defenses import Context, Defense, Plain, Trace, View, eval_mode
from saddlepoint.evaluation import AttackContext, Direct, Threat
from saddlepoint.rng import Keys
from saddlepoint.training.loop import cross_entropy_epochs, permutation
from saddlepoint.training.recipe import Adam, Augment, Shift
from saddlepoint.zoo.layers import features, penultimate

# Folded into the random keys: each use of randomness has its own draws.
_SPLIT, _CALIBRATION, _ADAPT, _CALIBRATE = range(1, 5)


@dataclass(frozen=True)
class Library:
    """D': augmented training images, followed by copies that were attacked on the base network."""

    x: Tensor  # [M, ...]
    y: Tensor  # [M]
    features: Tensor  # [M, F] of the base network; never recomputed
    clean: int  # number of images at the start that were not attacked

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
        """Build the library: |D| clean images and `copies` times as many attacked ones.

        Each pass over the data has its own augmentation (Chen et al. 2022, A.2). The defaults are
        those for CIFAR-10. For MNIST use Linf(0.3), PGD(100, 0.01), one copy and `unchanged`.

        Args:
            base: The network that is attacked and that computes the features.
            x: Training images [N, ...].
            y: Labels [N].
            space: The perturbation set; Linf(8/255) by default.
            attack: The attack; PGD-40 with steps of 1/255 by default.
            copies: Number of attacked copies of each image.
            augment: The augmentation; shifts by 4 pixels and mirroring by default.
            seed: Decides the augmentation and the attacks.
            batch_size: Number of images per forward pass.

        Raises:
            ValueError: `copies` is negative.
        """
        if copies < 0:
            raise ValueError(f"the number of attacked copies must not be negative, got {copies}.")
        threat = Threat(space or Linf(8 / 255))
        direct = Direct("pgd", attack or PGD(steps=40, step_size=1 / 255), loss=cross_entropy)
        augment = augment or Shift(4, mirror=True)
        ids = torch.arange(len(x), device=x.device)
        parts = []
        with eval_mode(base):
            for k in range(copies + 1):
                images = augment(x, Keys.of(seed, ids).fold_in(k))
                for rows in torch.split(ids, batch_size) if k else ():
                    context = AttackContext.open(threat, ids[rows], seed + k)
                    move = direct.move(context, Plain(base), images[rows], y[rows])
                    images = images.index_copy(0, rows, move.max_loss_point.detach())
                parts.append(images)
            whole = torch.cat(parts)
            return cls(
                whole,
                y.repeat(copies + 1),
                features(base, whole, penultimate(base), batch_size=batch_size),
                len(x),
            )

    def nearest(self, feature: Tensor, count: int) -> Tensor:
        """Return the rows [count] with the smallest Euclidean distance, the nearest first.

        Args:
            feature: The features [F] of the query.
            count: Number of rows.
        """
        # Matrix products would be faster, but they round differently where many distances are
        # close.
        distance = torch.cdist(
            feature[None], self.features, compute_mode="donot_use_mm_for_euclid_dist"
        )[0]  # [M]
        return distance.argsort(stable=True)[:count]


@dataclass(frozen=True)
class Tuning:
    """Settings of the fine-tuning: Adam on the cross-entropy, batch norm in train mode."""

    epochs: int = 100  # at most
    patience: int = 5  # epochs without a lower validation loss before it stops
    rate: float = 2.5e-5  # learning rate; 2e-4 for MNIST
    batch_size: int = 128  # at most
    # It stops early only if the training loss is below this. The paper has no such condition; the
    # released code uses 0.01.
    enough: float = math.inf


class Rows(NamedTuple):
    """Rows of the library."""

    train: Tensor  # used for fine-tuning
    validation: Tensor  # used to decide when to stop


class TunedState(NamedTuple):
    """The state after fine-tuning."""

    net: nn.Module
    adam: dict[str, Any]  # state dict of Adam; empty before the first step


class RMC(Defense):
    """Runtime masking and cleansing: F* = argmin_F sum loss(F, x, y) over the K nearest of D'.

    Wu et al. 2020; Chen et al. 2022, Example 1. For each test point in turn:

    1. The fixed base network computes its features, and the K nearest images in D' are selected. A
       quarter of the nearest fifth is the validation set. The rest is the training set.
    2. The network is fine-tuned on them and classifies the point.
    3. The network is calibrated on K clean images, drawn with replacement, of which an eighth is
       the validation set. The next point starts from there.

    The state of Adam is kept throughout. With K = 1024: 204 nearest, 153 + 820 = 973 for training
    and 51 for validation; 896 and 128 for the calibration. The weights of the last epoch are used,
    not those of the best one, as in the released code.

    A batch is a short stream. Every row is classified by the network that was tuned for it, and the
    calibration after the last row is passed on. The games of the paper have batches of one, so an
    attacker can also search for each image separately. The batches of an epoch differ in size by at
    most one, so that none is too small for batch norm.

    Args:
        base: The network before adaptation.
        library: The images D'.
        neighbors: K.
        tuning: The settings of the fine-tuning; those for CIFAR-10 by default.
        near: The share of the neighbors from which the validation set is drawn.

    Raises:
        ValueError: The library has fewer than `neighbors` images, or `near` of them is less than
            two.
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
                f"RMC cannot use {phrases.count(neighbors, 'neighbor')} from a library of "
                f"{phrases.count(len(library.x), 'image')}. Build a larger library or use fewer "
                "neighbors."
            )
        if math.floor(near * neighbors) < 2:
            raise ValueError(
                f"the nearest {near:g} of {phrases.count(neighbors, 'neighbor')} is less than two "
                "images, one for training and one for validation. Use more neighbors."
            )
        self.base = base
        self.library = library
        self.neighbors = neighbors
        self.near = near
        self.tuning = tuning or Tuning()
        self.static = base
        self.state = TunedState(base, {})
        self.nets: tuple[nn.Module, ...] = (base,)  # one per row of the adapted batch

    def adapt(self, x: Tensor, ctx: Context) -> RMC:
        """Return the defense after adapting to the rows of x [N, ...] in turn."""
        state = self.state
        nets = []
        with eval_mode(self.base):
            points = features(self.base, x.detach(), penultimate(self.base))
        for point, seed in zip(points, ctx.randint(2**53).tolist(), strict=True):
            state = self._tuned(state, self.neighborhood(point, seed), seed, _ADAPT)
            nets.append(state.net)
            state = self._tuned(state, self.calibration(seed), seed, _CALIBRATE)
        adapted = copy.copy(self)
        adapted.state = state
        adapted.nets = tuple(nets)
        adapted.coupled = len(nets) > 1
        return adapted

    def trace(self, x: Tensor, ctx: Context) -> Trace:  # noqa: ARG002
        """Return the output of the network of each row."""
        return Trace((View("final", _classify_rows(self.nets, x)),))

    def neighborhood(self, feature: Tensor, seed: int) -> Rows:
        """Return the K nearest images; a quarter of the nearest share is for validation.

        Args:
            feature: The features [F] of the test point.
            seed: Decides which images are for validation.
        """
        order = self.library.nearest(feature, self.neighbors)
        split = math.floor(self.near * len(order))
        near = order[:split]
        far = order[split:]
        keys = Keys.of(seed, torch.arange(len(near))).fold_in(_SPLIT)
        shuffled = near[permutation(keys).to(near.device)]
        validation = math.ceil(0.25 * len(near))
        return Rows(torch.cat([shuffled[validation:], far]), shuffled[:validation])

    def calibration(self, seed: int) -> Rows:
        """Return K clean images, drawn with replacement; an eighth of them is for validation.

        Args:
            seed: Decides which images are drawn.
        """
        keys = Keys.of(seed, torch.arange(self.neighbors)).fold_in(_CALIBRATION)
        drawn = keys.integers(self.library.clean).to(self.library.y.device)
        validation = math.ceil(0.125 * self.neighbors)
        return Rows(drawn[validation:], drawn[:validation])

    def _tuned(self, state: TunedState, rows: Rows, seed: int, use: int) -> TunedState:
        """Return the state after fine-tuning on these rows; the given state is not changed."""
        net = copy.deepcopy(state.net).requires_grad_(True)
        adam = Adam(self.tuning.rate).over(net.parameters())
        if state.adam:
            adam.load_state_dict(copy.deepcopy(state.adam))
        epochs = cross_entropy_epochs(
            net,
            adam,
            self.library.x[rows.train],
            self.library.y[rows.train],
            batch_size=self.tuning.batch_size,
            seed=Keys.of(seed, torch.arange(1)).fold_in(use).batch_seed(),
            name="RMC",
        )
        lowest = math.inf
        without_improvement = 0
        for loss in islice(epochs, self.tuning.epochs):
            validation = self._loss(net, rows.validation)
            without_improvement = 0 if validation < lowest else without_improvement + 1
            lowest = validation if validation < lowest else lowest
            if without_improvement >= self.tuning.patience and loss < self.tuning.enough:
                break
        return TunedState(net.eval(), adam.state_dict())

    def _loss(self, net: nn.Module, rows: Tensor) -> float:
        with eval_mode(net), torch.no_grad():
            return float(cross_entropy(net(self.library.x[rows]), self.library.y[rows]).mean())


def _classify_rows(nets: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Return the logits [N, C] of one network for all rows, or of one network per row."""
    if len(nets) == 1:
        logits: Tensor = nets[0](x)
        return logits
    if len(nets) != len(x):
        raise ValueError(
            f"this defense was adapted to {phrases.count(len(nets), 'image')} and received "
            f"{len(x)}. Pass as many images, or adapt again."
        )
    return torch.cat([net(row[None]) for net, row in zip(nets, x, strict=True)])
