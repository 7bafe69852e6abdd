"""What the answers are made of: probabilities, steps, several views, other views than the last."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from saddlepoint.auditing.probes.subject import Subject, alike, gap
from saddlepoint.auditing.traits import Trait, seen, told, unseen, untold

_MOST = 0.9  # of the rows
_TINY = 1e-4  # of the box: far below any pixel, far above the rounding of single precision


def outputs(subject: Subject) -> Iterator[Trait]:
    """The form of the answers."""
    with torch.no_grad():
        answer = subject.look()
    scores = subject.defense.grants != "decision"
    yield told(
        "probabilities", scores and probabilities(answer), len(subject), "answers are not negative and sum to one",
        f"answers go from {answer.amin().item():.2g} to {answer.amax().item():.2g}",
    )  # fmt: skip
    yield _quantised(subject, answer)
    yield from _views(subject, answer)


def probabilities(answer: Tensor) -> bool:
    return bool((answer >= 0).all() and ((answer.sum(1) - 1).abs() < 1e-3).all())


def _quantised(subject: Subject, answer: Tensor) -> Trait:
    """Piecewise constant: equal to the last bit a little way off, and not further away."""
    name, n = "quantised", len(subject)
    low, high = subject.space.box
    radius = min(subject.space.radius * subject.x[0].numel() ** (-1 / subject.space.p) or 1 / 255, 0.2 * (high - low))
    if answer.dtype in (torch.float16, torch.bfloat16):
        return untold(name, f"{answer.dtype} has steps of its own")
    if subject.defense.grants == "decision":
        return untold(name, "the target answers with labels")
    equal = {step: _equal(subject, answer, step) for step in (_TINY * (high - low), radius / 32, radius)}
    flat = [step for step, share in list(equal.items())[:2] if share >= _MOST]
    if equal[radius] >= _MOST:
        return untold(name, f"{100 * equal[radius]:.0f} % of {n} answers do not change at all within the radius")
    if flat:
        still, moved = 100 * equal[flat[-1]], 100 * equal[radius]
        return seen(
            name, f"{still:.0f} % of {n} answers are the same to the last bit after steps of {flat[-1]:.2g}, {moved:.0f} % after "
            f"steps of {radius:.2g}", amount=flat[-1],
        )  # fmt: skip
    return unseen(name, n, f"answers change with steps of {min(equal):.2g}")


def _equal(subject: Subject, answer: Tensor, step: float) -> float:
    """The share of answers that a step of that size along random signs leaves as they are."""
    x = subject.x + step * subject.coins(11).signs(tuple(subject.x.shape[1:]), subject.x.dtype)
    with torch.no_grad():
        moved = subject.look(x.clamp(*subject.space.box))
    return float((moved == answer).all(1).double().mean())


def _views(subject: Subject, answer: Tensor) -> Iterator[Trait]:
    trace, _ = subject.views()
    answered, n = answer.argmax(1), len(subject)
    apart = {view.name: float((view.logits.argmax(1) != answered).double().mean()) for view in trace.views}
    differing = tuple(name for name, share in apart.items() if share > 0)
    if len(apart) == 1:
        yield unseen("views disagree", n, "there is one view")
    elif differing:
        most = max(apart, key=lambda name: apart[name])
        yield seen(
            "views disagree",
            f"{len(differing)} of {len(apart)} views answer some image otherwise, {most} {100 * apart[most]:.0f} %",
            places=differing, amount=max(apart.values()),
        )  # fmt: skip
    else:
        yield unseen("views disagree", n, f"{len(apart)} views answer {n} images alike", amount=0.0)
    yield told(
        "answers otherwise", not alike(trace.last, answer), n, f"from its last view to its answer: {gap(trace.last, answer)}",
        "it answers with its last view",
    )  # fmt: skip
