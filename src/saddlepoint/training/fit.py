"""The training loop, written once for every method."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from saddlepoint.describe import describe
from saddlepoint.evaluation import Adversary, FixedPoints, Threat, play
from saddlepoint.rng import Keys
from saddlepoint.solvers import EquilibriumModel
from saddlepoint.training import checkpoint
from saddlepoint.training.descent import batches, descend, hidden_randomness, permutation
from saddlepoint.training.inner_attack import evaluating
from saddlepoint.training.method import Learner, Learning, Method
from saddlepoint.training.multi_exit_view import MultiExitView, Stacked, exits_of
from saddlepoint.training.recipe import Recipe

_SPLIT, _ORDER, _AUGMENT, _CRAFT, _HIDDEN, _METHOD = range(
    1, 7
)  # each use of randomness tosses its own coins


class Epoch(NamedTuple):
    """One pass over the training set, and what the dev set says after it."""

    number: int  # from 1
    loss: float  # mean over the training examples, as they were met
    clean: float  # accuracy on the dev set
    selected: float  # accuracy on the dev set against the recipe's `select`
    residual: float | None = (
        None  # of a network that solves for a fixed point: mean relative residual on the dev set
    )


Progress = Callable[[Epoch], None]


class Split(NamedTuple):
    """Rows of the training set: those that are trained on, and those that choose the epoch."""

    train: Tensor
    dev: Tensor


@dataclass(frozen=True)
class Trained:
    """The network of the best epoch, in eval mode, and how it came about."""

    net: nn.Module
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
    """A trained copy of `net`: theta <- theta - rate(t) grad mean_i loss_i(theta), the epoch chosen on a part of x set aside.

    The result is a function of the weights given, the data, the recipe and the seed. With a folder `out` the state is kept after
    every epoch, and a run that was killed goes on from there to the bits it would have had. Without `device` it is that of `net`.
    """
    _refuse_bad(x, y, recipe)
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
    while not run.over:
        run.advance()
        if path:
            checkpoint.save(path, identity, run.state())
        if progress:
            progress(run.history[-1])
    return run.result()


def split(count: int, share: float, seed: int) -> Split:
    """A share of the rows 0..count-1, at least one, set aside by the seed; both parts in increasing order."""
    order = permutation(Keys.of(seed, torch.arange(count)).fold_in(_SPLIT))
    size = max(round(share * count), 1)
    return Split(order[size:].sort().values, order[:size].sort().values)


@dataclass
class _Run:
    """The one thing that changes while training: weights, the optimizer's memory, the best epoch so far."""

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
        exits = _exits(net, x, y)
        parts = split(len(x), recipe.dev_share, seed)
        if not len(parts.train):
            raise ValueError(
                f"{len(x)} examples leave none to train on beside a dev share of {recipe.dev_share}. Give more examples."
            )
        optimizer = recipe.optimizer.over(net.parameters())
        method = recipe.method
        if isinstance(method, Learning):
            method = method.begin(
                exits, optimizer, Keys.of(seed, torch.arange(1)).fold_in(_METHOD).batch_seed()
            )
        return cls(net, x, y, recipe, seed, parts, optimizer, {}, None, [], exits, method)

    @property
    def over(self) -> bool:
        stale = len(self.history) - (self.best.number if self.best else 0)
        return len(self.history) >= self.recipe.epochs or stale >= self.recipe.patience

    def advance(self) -> None:
        """One epoch: every training example once, then the dev set."""
        number = len(self.history) + 1
        with hidden_randomness(
            self._keys(self.split.train, _HIDDEN, number).batch_seed(), self.x.device
        ):
            loss = self._train(number)
        clean, selected = (
            self._accuracy(adversary) for adversary in (FixedPoints(), self.recipe.select)
        )
        epoch = Epoch(number, loss, clean, selected, self._residual())
        # On a small dev set robust accuracies often tie: the clean one decides, then the earlier epoch.
        if self.best is None or (selected, clean) > (self.best.selected, self.best.clean):
            self.best = epoch
            self.best_weights = checkpoint.copied(self.net.state_dict())
        self.history.append(epoch)

    def _train(self, number: int) -> float:
        order = self.split.train[permutation(self._keys(self.split.train, _ORDER, number))]
        parts = batches(order, self.recipe.batch_size)
        self.net.train()
        total = 0.0
        for k, rows in enumerate(parts):
            done = (number - 1 + k / len(parts)) / self.recipe.epochs
            for group in self.optimizer.param_groups:
                group["lr"] = self.recipe.optimizer.rate * self.recipe.schedule.factor(done)
            during = f"{self.recipe.name}, epoch {number}, batch {k + 1}"
            total += descend(self.optimizer, self._losses(rows, number), during=during)
        return total / len(order)

    def _losses(self, rows: Tensor, number: int) -> Tensor:  # [B]
        here = rows.to(self.x.device)
        x = self.recipe.augment(self.x[here], self._keys(rows, _AUGMENT, number))
        # A list of logits has no arithmetic; stacked, methods written for one exit give losses [L, B], to be reduced by another.
        net = Stacked(self.net) if self.exits > 1 else self.net
        losses = self.method.loss(
            net, x, self.y[here], self.recipe.space, self._keys(rows, _CRAFT, number)
        )
        if losses.shape != rows.shape:
            raise ValueError(
                f"{self.recipe.name}: the method gives losses {list(losses.shape)} for {len(rows)} examples, expected "
                f"[{len(rows)}]. The network has {self.exits} exits: train several with OverExits(method)."
            )
        return losses

    def _accuracy(self, adversary: Adversary) -> float:
        rows = self.split.dev.to(self.x.device)
        with evaluating(self.net):
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
        with evaluating(self.net):
            rows = self.split.dev.to(self.x.device)
            parts = torch.split(self.x[rows], self.recipe.batch_size)
            return float(torch.cat([self.net.settled(part).residual for part in parts]).mean())

    def _keys(self, rows: Tensor, use: int, epoch: int) -> Keys:
        """An example's coins depend on its place in the data, not on its batch."""
        return Keys.of(self.seed, rows.to(self.x.device)).fold_in(use).fold_in(epoch)

    def state(self) -> checkpoint.State:
        return {
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "best_weights": self.best_weights,
            "history": [list(epoch) for epoch in self.history],
            "best": self.best.number if self.best else 0,
            "method": self.method.state() if isinstance(self.method, Learner) else {},
        }

    def restore(self, state: checkpoint.State) -> None:
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.best_weights = state["best_weights"]
        self.history = [Epoch(*row) for row in state["history"]]
        self.best = self.history[state["best"] - 1]
        if isinstance(self.method, Learner):
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


def _refuse_bad(x: Tensor, y: Tensor, recipe: Recipe) -> None:
    low, high = recipe.space.box
    if not x.is_floating_point() or x.ndim < 2 or y.dtype != torch.int64 or y.shape != x.shape[:1]:
        raise ValueError(
            f"fit needs floating-point x [N, ...] and int64 labels y [N], got x {x.dtype} {list(x.shape)} and "
            f"y {y.dtype} {list(y.shape)}."
        )
    if len(x) < 2:
        raise ValueError(
            f"fit needs at least two examples, one to train on and one to choose the epoch by, got {len(x)}."
        )
    if not ((x >= low) & (x <= high)).all():
        raise ValueError(
            f"inputs must lie in the box [{low:g}, {high:g}] of the perturbation set, found {x.min():g}..{x.max():g}. "
            "Scale them, and put normalization into the network."
        )


def _exits(net: nn.Module, x: Tensor, y: Tensor) -> int:
    """How many exits the network has; one that cannot be trained on this data is refused."""
    with evaluating(net), torch.no_grad():
        exits = exits_of(net, x[:2])
    shapes = sorted({tuple(logits.shape) for logits in exits})
    fit_for_use = len(shapes) == 1 and len(shapes[0]) == 2 and shapes[0][0] == 2
    if not fit_for_use or not 0 <= int(y.min()) <= int(y.max()) < shapes[0][1]:
        found = " and ".join(str(list(shape)) for shape in shapes)
        raise ValueError(
            f"the network answers {found} to two examples and labels are {int(y.min())}..{int(y.max())}: "
            "expected logits [2, C] with C above every label. Check the network's last layer and the labels."
        )
    return len(exits)
