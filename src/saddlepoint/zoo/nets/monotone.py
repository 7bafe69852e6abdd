"""The fully connected monotone equilibrium network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from saddlepoint.zoo.nets.normalize import Normalize


class MonotoneNet(nn.Module):
    """z = relu(W z + U x + u), logits = C z + c, with W = (1 - m) I - A^T A + B - B^T (Winston & Kolter 2020).

    The symmetric part of I - W is m I + A^T A, so that I - W is strongly monotone with constant m > 0: for every x there is exactly
    one equilibrium, however large W is, and splitting methods find it.
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
                f"MonotoneNet needs m > 0, got m={m}: otherwise nothing promises an equilibrium."
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
        """The network of trained tensors, in eval mode and in their type: A [R, D], B [D, D], U [D, K], u [D], C [C, D], c [C].

        Pixels x are normalized to (x - mean) / std per channel, then flattened to K numbers.
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
                f"expected A [R, D], B [D, D], U [D, K], u [D], C [C, D] and c [C], here {wanted}, found {found}. "
                "Transpose or rename the tensors."
            )
        net = cls(image=(1, 1, inputs), size=size, classes=classes, m=m, mean=mean, std=std).to(A)
        net.A, net.B = (nn.Parameter(t.detach().clone()) for t in (A, B))
        net.inputs.load_state_dict({"weight": U, "bias": u})
        net.outputs.load_state_dict({"weight": C, "bias": c})
        return net.eval()

    @property
    def weight(self) -> Tensor:  # [D, D]
        identity = torch.eye(self.size, dtype=self.A.dtype, device=self.A.device)
        return (1 - self.m) * identity - self.A.T @ self.A + self.B - self.B.T

    def inject(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.inputs(self.normalize(x).flatten(1)))

    def start(self, u: Tensor) -> Tensor:
        return u.new_zeros(u.shape)

    def cell(self, z: Tensor, u: Tensor) -> Tensor:
        return (z @ self.weight.T + u).relu()

    def head(self, z: Tensor) -> Tensor:
        return cast(Tensor, self.outputs(z))
