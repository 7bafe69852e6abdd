"""The fully connected monotone equilibrium network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from saddlepoint.zoo.nets.normalize import Normalize


class MonotoneNet(nn.Module):
    """z = relu(W z + U x + u), logits = C z + c (Winston & Kolter 2020).

    W = (1 - m) I - A^T A + B - B^T. The symmetric part of I - W is m I + A^T A, so I - W is
    strongly monotone with constant m > 0. For every x there is exactly one equilibrium, for any
    norm of W, and splitting methods find it.

    Args:
        image: Channels, height and width of the image.
        size: Dimension D of the state.
        classes: Number of classes.
        m: The constant of strong monotonicity, above 0.
        mean: Mean of the pixels per channel.
        std: Standard deviation of the pixels per channel.

    Raises:
        ValueError: `m` is not positive.
    """

    def __init__(
        self,
        *,
        image: tuple[int, int, int] = (1, 28, 28),
        size: int = 100,
        classes: int = 10,
        m: float = 1.0,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
    ) -> None:
        super().__init__()
        if not m > 0:
            raise ValueError(
                f"MonotoneNet needs m > 0, got m={m}: otherwise no equilibrium is guaranteed."
            )
        self.size = size
        self.m = m
        self.normalize = Normalize(mean, std)
        self.inputs = nn.Linear(math.prod(image), size)
        self.outputs = nn.Linear(size, classes)
        self.A, self.B = (nn.Linear(size, size, bias=False).weight for _ in range(2))

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
    ) -> MonotoneNet:
        """Return a network with trained tensors, in eval mode and in their dtype.

        Pixels x are normalized to (x - mean) / std per channel and then flattened to K numbers.

        Args:
            A: [R, D].
            B: [D, D].
            U: [D, K].
            u: [D].
            C: [C, D].
            c: [C].
            m: The constant of strong monotonicity, above 0.
            mean: Mean of the pixels per channel.
            std: Standard deviation of the pixels per channel.

        Raises:
            ValueError: The shapes do not match, or `m` is not positive.
        """
        size = A.shape[-1]
        inputs = U.shape[-1]
        classes = C.shape[0]
        found = [tuple(t.shape) for t in (A, B, U, u, C, c)]
        wanted = [
            (len(A), size),
            (size, size),
            (size, inputs),
            (size,),
            (classes, size),
            (classes,),
        ]
        if found != wanted:
            raise ValueError(
                f"expected A [R, D], B [D, D], U [D, K], u [D], C [C, D] and c [C], here {wanted}, "
                f"found {found}. Transpose or rename the tensors."
            )
        net = cls(image=(1, 1, inputs), size=size, classes=classes, m=m, mean=mean, std=std).to(A)
        net.A, net.B = (nn.Parameter(t.detach().clone()) for t in (A, B))
        net.inputs.load_state_dict({"weight": U, "bias": u})
        net.outputs.load_state_dict({"weight": C, "bias": c})
        return net.eval()

    @property
    def weight(self) -> Tensor:
        """W [D, D]."""
        identity = torch.eye(self.size, dtype=self.A.dtype, device=self.A.device)
        return (1 - self.m) * identity - self.A.T @ self.A + self.B - self.B.T

    def inject(self, x: Tensor) -> Tensor:
        """Return U x + u, [N, ...] -> [N, D]."""
        return cast(Tensor, self.inputs(self.normalize(x).flatten(1)))

    def start(self, u: Tensor) -> Tensor:
        """Return the initial state, zeros [N, D]."""
        return u.new_zeros(u.shape)

    def cell(self, z: Tensor, u: Tensor) -> Tensor:
        """Apply the cell once, [N, D] and [N, D] -> [N, D]."""
        return (z @ self.weight.T + u).relu()

    def head(self, z: Tensor) -> Tensor:
        """Return the logits of a state, [N, D] -> [N, C]."""
        return cast(Tensor, self.outputs(z))
