"""The monotone equilibrium network as a defense."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice, repeat

import torch
from torch import Tensor

from saddlepoint.attacks.spaces import Ball
from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.zoo.deq.splitting import (
    Iterate,
    PeacemanRachford,
    Splitting,
    equilibrium,
    iterates,
    solve_monotone,
)
from saddlepoint.zoo.nets.monotone import MonotoneNet

_METHOD = PeacemanRachford()


class MonotoneDEQ(Defense):
    """Predicts from the equilibrium z = relu(W z + U x + u) of a `MonotoneNet`.

    The equilibrium is found by operator splitting (Winston & Kolter 2020). The last view is
    "final", at the equilibrium; its gradient, at the site "solve", is that of the implicit function
    theorem. Before it come the solver's first states "solve/1", ..., "solve/{early_views}", with
    the gradient of the steps that were run. An example that has not converged after the method's
    last step is still classified; `convergence` reports which ones these are.

    Args:
        net: The network.
        method: The splitting method; `PeacemanRachford()` by default.
        early_views: Number of early solver states that are views, 0 or more.

    Raises:
        ValueError: `early_views` is negative.
    """

    def __init__(
        self, net: MonotoneNet, *, method: Splitting = _METHOD, early_views: int = 8
    ) -> None:
        if early_views < 0:
            raise ValueError(
                f"MonotoneDEQ needs early_views >= 0, got early_views={early_views}. "
                "Use 0 for none."
            )
        self.net = net
        self.method = method
        self.early_views = early_views
        self.reads = frozenset({"final"})

    @classmethod
    def from_tensors(
        cls,
        A: Tensor,  # noqa: N803
        B: Tensor,  # noqa: N803
        U: Tensor,  # noqa: N803
        u: Tensor,
        C: Tensor,  # noqa: N803
        c: Tensor,
        *,
        m: float,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        method: Splitting = _METHOD,
        early_views: int = 8,
    ) -> MonotoneDEQ:
        """Return the defense with trained tensors; see `MonotoneNet.from_tensors`."""
        return cls(
            MonotoneNet.from_tensors(A, B, U, u, C, c, m=m, mean=mean, std=std),
            method=method,
            early_views=early_views,
        )

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        """Return the early views that are read, and the view "final"."""
        bias = self.net.inject(x)
        weight = self.net.weight
        kept = {n: name for n in range(1, self.early_views + 1) if ctx.keeps(name := f"solve/{n}")}
        states = islice(self._states(weight, bias), max(kept, default=0) + 1)
        views = [View(kept[n], self.net.head(state)) for n, state in enumerate(states) if n in kept]
        final = ctx.through("solve", partial(equilibrium, self.method, weight), bias)
        return Trace((*views, View("final", self.net.head(final))))

    def convergence(self, x: Tensor) -> Iterate:
        """Return the equilibrium, the relative residual and the number of steps per example."""
        return solve_monotone(self.method, self.net.weight, self.net.inject(x).detach())

    @property
    def certificate(self) -> str:
        """The method of the certified bound, as it is shown beside it."""
        return "the Lipschitz bound of a monotone equilibrium, if the solver reaches it"

    def certified_margins(self, logits: Tensor, x: Tensor, y: Tensor, space: Ball) -> Tensor:
        """Return lower bounds of the margin over a perturbation set, [N].

        z = relu(W z + U x + u) with I - W strongly monotone with constant m has the Lipschitz
        constant ||U|| / m (Pabbaraju et al. 2021).

        Args:
            logits: outputs at x, [N, C]; the bound is that of the exact equilibrium.
            x: inputs, [N, ...].
            y: labels, [N].
            space: the perturbation set.
        """
        net = self.net
        with torch.no_grad():
            std = net.normalize.std
            std = std.expand(x.shape[1:]).flatten() if x.ndim > 2 else std.flatten()
            # In pixels: inputs are divided by the standard deviation.
            slope = float(torch.linalg.matrix_norm(net.inputs.weight / std, 2)) / net.m
            reach = slope * space.euclidean_radius(x[0].numel())
            weight = net.outputs.weight
            steep = torch.linalg.vector_norm(weight[y][:, None] - weight, dim=2)  # [N, C]
            least: Tensor = logits.gather(1, y[:, None]) - logits - steep * reach
            return least.scatter(1, y[:, None], torch.inf).amin(1)

    def _states(self, weight: Tensor, bias: Tensor) -> Iterator[Tensor]:
        """Yield states without end; when all rows have converged, the last state is repeated."""
        last = bias
        for iterate in iterates(self.method, weight, bias):
            last = iterate.state
            yield last
        yield from repeat(last)
