"""The base class of defenses, and two defenses for ordinary models.

A user implements one class with one method, `trace`. A model that adapts to test data also
implements `adapt`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from saddlepoint.defenses.context import Context
from saddlepoint.defenses.generators import seeded
from saddlepoint.defenses.trace import Trace, View
from saddlepoint.phrases import count

Memory = Literal["none", "batch", "stream"]
Unit = Literal["example", "batch", "stream"]
Access = Literal["decision", "score", "gradient"]


class Defense(ABC):
    """A classifier that may iterate, choose an exit, purify its input or adapt at test time.

    The attributes below are declarations by the user. An audit measures them before it attacks, and
    raises an error if a measurement contradicts a declaration.
    """

    # Rows of one `trace` call influence each other, by batch statistics or a shared stopping rule.
    coupled: bool = False
    # Two calls with different random keys may give different outputs.
    random: bool = False
    # What `adapt` changes: "none"; "batch", a model for this batch; "stream", a model for this and
    # all later batches.
    memory: Memory = "none"
    # The highest access that the defense supports, whatever the threat model allows.
    grants: Access = "gradient"
    # It may abstain. Logits are then [N, C + 1], and the last column is the reject class.
    rejects: bool = False
    # The underlying static model, if there is one.
    static: nn.Module | None = None
    # Names of the views that `answer` uses. `trace` always returns them, as its last views.
    # None: all views.
    reads: frozenset[str] | None = None

    @property
    def unit(self) -> Unit:
        """The smallest group of examples that must be evaluated, compared and resumed together."""
        if self.memory != "none":
            return self.memory
        return "batch" if self.coupled else "example"

    def adapt(self, x: Tensor, ctx: Context) -> Defense:  # noqa: ARG002
        """Adapt to an unlabeled batch. The default returns the defense itself.

        Args:
            x: the batch, [N, ...].
            ctx: random keys and gradient rules of this call.

        Returns:
            The adapted defense. It must be a new object unless nothing is adapted: `self` must not
            change.
        """
        return self

    def restrict(self, rows: Tensor) -> Defense:  # noqa: ARG002
        """The adapted defense for some rows of the batch it adapted to.

        Override it if rows have parameters of their own.

        Args:
            rows: positions in the batch, [M].
        """
        return self

    def decouple(self, x: Tensor) -> Defense | None:  # noqa: ARG002
        """The defense with everything that rows share fixed at its value for a batch.

        Override it where rows influence each other only by shared values, such as batch statistics
        or one choice for all rows. An attack on few rows is then cheaper, because other rows need
        not be evaluated with them.

        Args:
            x: the batch, [N, ...].

        Returns:
            A defense with independent rows. Row k of its input takes the place of row k of `x`;
            `restrict` selects rows. At `x` its outputs are those of this defense. None, the
            default, if all rows have to be evaluated together.
        """
        return None

    @abstractmethod
    def trace(self, x: Tensor, ctx: Context) -> Trace:
        """Run the model and return its intermediate and final outputs as views, the final one last.

        Args:
            x: inputs, [N, ...].
            ctx: random keys, the gradient rule that the attacker uses at each named step (site),
                and the views that are needed.
        """

    def answer(self, trace: Trace, ctx: Context) -> Tensor:  # noqa: ARG002
        """The final output, [N, C]. Override it to vote, mix exits or exit early.

        Args:
            trace: the views of `trace`.
            ctx: random keys of this call.
        """
        return trace.last

    def respond(self, x: Tensor, ctx: Context) -> Tensor:
        """The final output for the inputs `x`, [N, ...]: adapt, trace, answer. Returns [N, C]."""
        adapted = self.adapt(x, ctx)
        return adapted.answer(adapted.trace(x, ctx), ctx)


class Plain(Defense):
    """An ordinary network: one view, named "final".

    A network may draw from global generators, by dropout or noise layers, or from generators that
    it keeps. They are seeded from the context's keys and restored afterwards, so that a call is a
    function of its keys. Such noise depends on the composition of the batch.

    Args:
        net: a module from [N, ...] to logits [N, C].
        random: the network draws random numbers; default False.
        coupled: rows of a batch influence each other; default False.
    """

    def __init__(self, net: nn.Module, *, random: bool = False, coupled: bool = False) -> None:
        self.net = net
        self.random = random
        self.coupled = coupled
        self.static = net

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        if not self.random:
            with _annotate_errors():
                return Trace((View("final", checked_logits(self.net(x), x)),))
        with seeded(self.net, ctx.shared_seed(), x.device), _annotate_errors():
            return Trace((View("final", checked_logits(self.net(x), x)),))


class BlackBox(Defense):
    """A callable that can be queried but not differentiated: one view, named "final".

    Args:
        fn: from a batch of images [N, ...] to logits [N, C], or to labels [N] if `classes` is set.
        classes: number of classes of a callable that returns labels; default None, logits.
        random: two calls may give different outputs; default False.
        coupled: rows of a batch influence each other; default False.
    """

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
        with torch.no_grad(), _annotate_errors():
            out = self.fn(x.detach())
        if self.classes is not None:
            # Under attack the callable may return a label that did not occur when classes were
            # counted.
            classes = max(self.classes, int(out.amax()) + 1)
            out = nn.functional.one_hot(out.long(), classes).to(x.dtype)
        return Trace((View("final", checked_logits(out, x)),))


class OutputError(ValueError):
    """A target returned something else than logits [N, C], perhaps after many valid outputs."""


def checked_logits(out: object, x: Tensor) -> Tensor:
    """The output of a target for the images `x`, [N, ...].

    Raises:
        OutputError: it is not a tensor [N, C].
    """
    if isinstance(out, Tensor) and out.ndim == 2 and len(out) == len(x):
        return out
    found = f"shape {list(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
    raise OutputError(
        f"the target must return logits of shape [{len(x)}, C] for {count(len(x), 'image')} at "
        f"every call, got {found}"
    )


@contextmanager
def _annotate_errors() -> Iterator[None]:
    """Add advice to errors that the target raises, such as a solver that fails on some input."""
    try:
        yield
    except Exception as error:
        error.add_note(
            "The target itself raised this error. Attacks query any point of the threat set, so "
            "the target has to return an output for all of them. Where it cannot, let it return "
            "NaN for these rows: NaN counts as misclassified."
        )
        raise
