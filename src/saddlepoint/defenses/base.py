"""What a user implements: one class and one method; a second one if the model learns from test data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from saddlepoint.defenses.context import Context
from saddlepoint.defenses.trace import Trace, View
from saddlepoint.rng import seeded_globals

Memory = Literal["none", "batch", "stream"]
Unit = Literal["example", "batch", "stream"]
Access = Literal["decision", "score", "gradient"]


class Defense(ABC):
    """A classifier that may iterate, choose, purify or learn at test time.

    The facts below are declarations. An audit measures them before it attacks and refuses a defense that declares otherwise.
    """

    coupled: bool = False  # do rows of one `trace` call influence each other (batch statistics, a shared stopping rule)?
    random: bool = False  # do two calls with other coins answer differently?
    memory: Memory = "none"  # what `adapt` leaves behind: nothing, a model for this batch, a model for all that follow
    grants: Access = (
        "gradient"  # the most that can be asked of it, whatever the threat model allows
    )
    rejects: bool = (
        False  # may it refuse to answer? Then logits are [N, C + 1], and the last column says so
    )
    static: nn.Module | None = None  # the underlying static model, if there is one
    reads: frozenset[str] | None = (
        None  # views that `answer` looks at, and which `trace` always shows, last; None: all
    )

    @property
    def unit(self) -> Unit:
        """The smallest group of examples that must be answered, compared and resumed as one."""
        if self.memory != "none":
            return self.memory
        return "batch" if self.coupled else "example"

    def adapt(self, x: Tensor, ctx: Context) -> Defense:  # noqa: ARG002
        """The defense that answers after seeing the unlabeled batch `x`: a new object, never self changed."""
        return self

    def restrict(self, rows: Tensor) -> Defense:  # noqa: ARG002
        """The same defense for some rows of the batch it adapted to. Override where rows have parameters of their own."""
        return self

    @abstractmethod
    def trace(self, x: Tensor, ctx: Context) -> Trace:
        """Every answer held on the way, the final one last."""

    def answer(self, trace: Trace, ctx: Context) -> Tensor:  # noqa: ARG002
        """[N, C]: what is answered, given the views. Override to vote, mix or exit early."""
        return trace.last

    def respond(self, x: Tensor, ctx: Context) -> Tensor:
        """[N, C]: adapt, trace, answer."""
        adapted = self.adapt(x, ctx)
        return adapted.answer(adapted.trace(x, ctx), ctx)


class Plain(Defense):
    """A network as it is: one view.

    Randomness hidden in the network (dropout left on, noise layers) is drawn from global generators; they are seeded from the
    context's coins and put back, so that a call is a function of its coins and nothing leaks out. Such noise depends on the batch.
    """

    def __init__(self, net: nn.Module, *, random: bool = False, coupled: bool = False) -> None:
        self.net = net
        self.random = random
        self.coupled = coupled
        self.static = net

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        if not self.random:
            with _answering():
                return Trace((View("final", self.net(x)),))
        with seeded_globals(ctx.shared_seed(), x.device), _answering():
            return Trace((View("final", self.net(x)),))


class BlackBox(Defense):
    """Any callable from a batch of images to logits [N, C], or to labels [N]: only queries, no gradients."""

    def __init__(
        self,
        fn: Callable[[Tensor], Tensor],
        *,
        classes: int | None = None,
        random: bool = False,
        coupled: bool = False,
    ) -> None:
        self.fn = fn
        self.classes = classes
        self.random = random
        self.coupled = coupled
        self.grants = "score" if classes is None else "decision"

    def trace(self, x: Tensor, ctx: Context) -> Trace:  # noqa: ARG002
        with torch.no_grad(), _answering():
            out = self.fn(x.detach())
        if self.classes is not None:
            # Attacked, it may answer with a class that nobody had seen when classes were counted.
            out = nn.functional.one_hot(out.long(), max(self.classes, int(out.amax()) + 1)).to(
                x.dtype
            )
        return Trace((View("final", out),))


@contextmanager
def _answering() -> Iterator[None]:
    """What a target raises, such as a solver that gives up on a point of an attack, is told with what to do about it."""
    try:
        yield
    except Exception as error:
        error.add_note(
            "The target itself raised this. Attacks ask about any point of the threat set, and it has to answer them all; where it "
            "cannot, let it return NaN for these rows: no number is a wrong answer."
        )
        raise
