"""Multiscale deep equilibrium models in several sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from saddlepoint.defenses import Solver
from saddlepoint.zoo.deq.model import AFTER, DEQ, FINAL, METHOD, State, Unrolled
from saddlepoint.zoo.nets.mdeq import (
    MDEQNet,
    mdeq_cifar,
    mdeq_digits,
    mdeq_large,
    mdeq_mnist,
    mdeq_xl,
)

Size = Literal["large", "xl", "cifar", "mnist", "digits"]
_SIZES: Mapping[Size, Callable[[], MDEQNet]] = {
    "large": mdeq_large,
    "xl": mdeq_xl,
    "cifar": mdeq_cifar,
    "mnist": mdeq_mnist,
    "digits": mdeq_digits,
}


class MDEQ(DEQ):
    """A multiscale equilibrium network (Bai, Koltun & Kolter 2020) as a defense, in eval mode.

    The weights are random. Load trained ones with `MDEQ("large").net.load_state_dict(...)`. For
    another network use `DEQ`.

    Args:
        size: "large" and "xl" are the networks of Yang et al. 2022 for 32x32 color images, with 11
            and 49 million parameters. "cifar", "mnist" and "digits" are small networks of the same
            kind.
        method: The solver; see `DEQ`.
        after: The steps from the solver's best state to the final state; see `DEQ`.
        state: The state from which the model predicts; see `DEQ`.

    Raises:
        ValueError: `size` is not one of these.
    """

    def __init__(
        self,
        size: Size = "large",
        *,
        method: Solver = METHOD,
        after: Unrolled = AFTER,
        state: State = FINAL,
    ) -> None:
        if size not in _SIZES:
            raise ValueError(
                f"MDEQ supports the sizes {', '.join(_SIZES)}, got {size!r}. "
                "For other networks use DEQ(net)."
            )
        super().__init__(_SIZES[size]().eval(), method=method, after=after, state=state)
        self.size = size
