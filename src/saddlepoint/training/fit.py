"""Train a network by a recipe: `fit`."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from saddlepoint import phrases
from saddlepoint.defenses import eval_mode
from saddlepoint.describe import describe
from saddlepoint.evaluation import Adversary, FixedPoints, Threat, play
from saddlepoint.rng import Keys
from saddlepoint.solvers import EquilibriumModel
from saddlepoint.training import checkpoint
from saddlepoint.training.loop import permutation, split_batches, train_epoch
from saddlepoint.training.method import Method, MethodRun, ScheduledMethod, StatefulMethod
from saddlepoint.training.multi_exit_view import MultiExitView, StackedExits, exit_logits
from saddlepoint.training.recipe import Recipe, scheduled_rate

# Folded into the random keys: each use of randomness has its own draws.
_SPLIT, _ORDER, _AUGMENT, _ATTACK, _DROPOUT, _METHOD = range(1, 7)


class Epoch(NamedTuple):
    """The results of one epoch."""

    number: int  # from 1
    loss: float  # mean over the training examples, each measured before its own step
    clean: float  # clean accuracy on the dev set
    selected: float  # accuracy on the dev set against the recipe's `select`
    # Mean relative residual on the dev set, for networks that solve for a fixed point.
    residual: float | None = None


Progress = Callable[[Epoch], None]


class Split(NamedTuple):
    """Row numbers of the training set, split in two."""

    train: Tensor  # used for training
    dev: Tensor  # used to choose the epoch


@dataclass(frozen=True)
class Trained:
    """A trained network and the history of its training."""

    net: nn.Module  # with the weights of the best epoch, in eval mode
    best: Epoch
    history: tuple[Epoch, ...]
    split: Split


def fit(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    recipe: Recipe,
    *,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = True,
    progress: Progress | None = None,
    device: str | torch.device | None = None,
) -> Trained:
    """Train a copy of a network: theta <- theta - rate(t) grad mean_i loss_i(theta).

    Part of the data is set aside as the dev set, which decides the epoch that is kept. The result
    is a function of the initial weights, the data, the recipe and the seed.

    Args:
        net: The network with its initial weights; it is not changed. Its output is [N, C], or one
            [N, C] per exit.
        x: Floating-point examples [N, ...] inside the box of the recipe's perturbation set.
        y: int64 labels [N].
        recipe: The recipe.
        seed: Decides the split, the order of the examples, augmentation, attacks and dropout.
        out: A folder for the checkpoint that is written after every epoch. By default none is
            written. A run that was killed continues from it and ends with the same bits.
        resume: Continue from the checkpoint in `out` if there is one.
        progress: Called after every epoch.
        device: Where to train; the device of `net` by default.

    Returns:
        The trained network and the history of the epochs.

    Raises:
        ValueError: The data do not fit the network or the recipe, or `out` holds a checkpoint of
            another run.
        FloatingPointError: A loss is not finite.
    """
    _check_data(x, y, recipe)
    net = copy.deepcopy(net)
    device = (
        torch.device(device)
        if device is not None
        else next((p.device for p in net.parameters()), x.device)
    )
    net = net.to(device)
    x = x.to(device)
    y = y.to(device)
    run = _Run.begin(net, x, y, recipe, seed)
    path = Path(out) / "checkpoint.pt" if out is not None else None
    identity = _identity(net, x, y, recipe, seed)
    if path and resume and (state := checkpoint.load(path, identity, device)):
        run.restore(state)
    while not run.finished:
        run.advance()
        if path:
            checkpoint.save(path, identity, run.state())
        if progress:
            progress(run.history[-1])
    return run.result()


def split(count: int, share: float, seed: int) -> Split:
    """Split the rows 0..count-1 at random; both parts are in increasing order.

    Args:
        count: Number of rows.
        share: Share of the rows for the dev set, which has at least one row.
        seed: Decides the split.
    """
    order = permutation(Keys.of(seed, torch.arange(count)).fold_in(_SPLIT))
    size = max(round(share * count), 1)
    return Split(order[size:].sort().values, order[:size].sort().values)


@dataclass
class _Run:
    """The changing state of a training run: weights, optimizer, and the best epoch so far."""

    net: nn.Module
    x: Tensor
    y: Tensor
    recipe: Recipe
    seed: int
    split: Split
    optimizer: torch.optim.Optimizer
    best_weights: checkpoint.Weights
    best: Epoch | None
    history: list[Epoch]
    exits: int
    method: Method

    @classmethod
    def begin(cls, net: nn.Module, x: Tensor, y: Tensor, recipe: Recipe, seed: int) -> _Run:
        exits = _count_exits(net, x, y)
        parts = split(len(x), recipe.dev_share, seed)
        if not len(parts.train):
            raise ValueError(
                f"{phrases.count(len(x), 'example')} with a dev share of {recipe.dev_share} "
                f"{phrases.agree(len(x), 'leaves', 'leave')} none to train on. Give more examples."
            )
        optimizer = recipe.optimizer.over(net.parameters())
        method = recipe.method
        if isinstance(method, StatefulMethod):
            method_seed = Keys.of(seed, torch.arange(1)).fold_in(_METHOD).batch_seed()
            method = method.begin(exits, optimizer, method_seed)
        return cls(net, x, y, recipe, seed, parts, optimizer, {}, None, [], exits, method)

    @property
    def finished(self) -> bool:
        without_improvement = len(self.history) - (self.best.number if self.best else 0)
        return (
            len(self.history) >= self.recipe.epochs or without_improvement >= self.recipe.patience
        )

    def advance(self) -> None:
        """Train one epoch and measure the network on the dev set."""
        number = len(self.history) + 1
        loss = self._train(number)
        clean, selected = (
            self._accuracy(adversary) for adversary in (FixedPoints(), self.recipe.select)
        )
        epoch = Epoch(number, loss, clean, selected, self._residual())
        # Robust accuracies on a small dev set often tie. Then the clean accuracy decides, and then
        # the earlier epoch.
        if self.best is None or (selected, clean) > (self.best.selected, self.best.clean):
            self.best = epoch
            self.best_weights = checkpoint.copy_weights(self.net.state_dict())
        self.history.append(epoch)

    def _train(self, number: int) -> float:
        """Train on every training example once and return the mean loss."""
        order = self.split.train[permutation(self._keys(self.split.train, _ORDER, number))]
        self.net.train()
        total = train_epoch(
            self.optimizer,
            split_batches(order, self.recipe.batch_size),
            lambda rows, done: (self._losses(rows, number, done),),
            epoch=number,
            epochs=self.recipe.epochs,
            seed=self._keys(self.split.train, _DROPOUT, number).batch_seed(),
            device=self.x.device,
            name=self.recipe.name,
            learning_rate=scheduled_rate(self.recipe.optimizer, self.recipe.schedule),
        )
        return total / len(order)

    def _losses(self, rows: Tensor, number: int, done: float) -> Tensor:  # [B]
        rows_on_device = rows.to(self.x.device)
        x = self.recipe.augment(self.x[rows_on_device], self._keys(rows, _AUGMENT, number))
        # Methods need one tensor of logits. On stacked exits a method for one exit gives losses
        # [L, B], which `OverExits` reduces.
        net = StackedExits(self.net) if self.exits > 1 else self.net
        method = self.method
        if isinstance(method, ScheduledMethod):
            method = method.at(done)
        losses = method.loss(
            net, x, self.y[rows_on_device], self.recipe.space, self._keys(rows, _ATTACK, number)
        )
        if losses.shape != rows.shape:
            raise ValueError(
                f"{self.recipe.name}: the method returned losses {list(losses.shape)} for "
                f"{phrases.count(len(rows), 'example')}, expected [{len(rows)}]. The network has "
                f"{phrases.count(self.exits, 'exit')}: train several exits with OverExits(method)."
            )
        return losses

    def _accuracy(self, adversary: Adversary) -> float:
        rows = self.split.dev.to(self.x.device)
        with eval_mode(self.net):
            threat = Threat(self.recipe.space)
            episode = play(
                MultiExitView(self.net),
                adversary,
                self.x[rows],
                self.y[rows],
                threat,
                ids=rows,
                seed=self.seed,
            )
        return float(episode.correct.mean())

    def _residual(self) -> float | None:
        if not isinstance(self.net, EquilibriumModel):
            return None
        with eval_mode(self.net):
            rows = self.split.dev.to(self.x.device)
            parts = torch.split(self.x[rows], self.recipe.batch_size)
            return float(torch.cat([self.net.convergence(part).residual for part in parts]).mean())

    def _keys(self, rows: Tensor, use: int, epoch: int) -> Keys:
        """Return keys that depend on an example's place in the data, not on its batch."""
        return Keys.of(self.seed, rows.to(self.x.device)).fold_in(use).fold_in(epoch)

    def state(self) -> checkpoint.State:
        return {
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "best_weights": self.best_weights,
            "history": [list(epoch) for epoch in self.history],
            "best": self.best.number if self.best else 0,
            "method": self.method.state() if isinstance(self.method, MethodRun) else {},
        }

    def restore(self, state: checkpoint.State) -> None:
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.best_weights = state["best_weights"]
        self.history = [Epoch(*row) for row in state["history"]]
        self.best = self.history[state["best"] - 1]
        if isinstance(self.method, MethodRun):
            self.method.restore(state["method"])

    def result(self) -> Trained:
        assert self.best is not None
        self.net.load_state_dict(self.best_weights)
        return Trained(self.net.eval(), self.best, tuple(self.history), self.split)


def _identity(
    net: nn.Module, x: Tensor, y: Tensor, recipe: Recipe, seed: int
) -> checkpoint.Identity:
    return {
        "recipe": json.dumps(describe(recipe), sort_keys=True),
        "seed": str(seed),
        "data": checkpoint.digest(x, y),
        "initial network": checkpoint.digest(*net.state_dict().values()),
    }


def _check_data(x: Tensor, y: Tensor, recipe: Recipe) -> None:
    low, high = recipe.space.box
    if not x.is_floating_point() or x.ndim < 2 or y.dtype != torch.int64 or y.shape != x.shape[:1]:
        raise ValueError(
            f"fit needs floating-point x [N, ...] and int64 labels y [N], got x {x.dtype} "
            f"{list(x.shape)} and y {y.dtype} {list(y.shape)}."
        )
    if len(x) < 2:
        raise ValueError(
            f"fit needs at least two examples, one for training and one for the dev set, "
            f"got {len(x)}."
        )
    if not ((x >= low) & (x <= high)).all():
        raise ValueError(
            f"inputs must lie in the box [{low:g}, {high:g}] of the perturbation set, found values "
            f"in {x.min():g}..{x.max():g}. Scale them, and put normalization into the network."
        )


def _count_exits(net: nn.Module, x: Tensor, y: Tensor) -> int:
    """Return the number of exits; raise if the network cannot be trained on this data."""
    with eval_mode(net), torch.no_grad():
        exits = exit_logits(net, x[:2])
    shapes = sorted({tuple(logits.shape) for logits in exits})
    are_logits = len(shapes) == 1 and len(shapes[0]) == 2 and shapes[0][0] == 2
    if not are_logits or not 0 <= int(y.min()) <= int(y.max()) < shapes[0][1]:
        found = " and ".join(str(list(shape)) for shape in shapes)
        raise ValueError(
            f"the network outputs {found} for two examples and the labels are "
            f"{int(y.min())}..{int(y.max())}: expected logits [2, C] with C above every label. "
            "Check the network's last layer and the labels."
        )
    return len(exits)
