"""Probes the form of outputs: probabilities, hidden scores, piecewise constant outputs, views."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from saddlepoint.audits.probes.probe_target import ProbeTarget
from saddlepoint.audits.probes.traits import Trait, TraitName, absent, observed, present, unmeasured
from saddlepoint.audits.target.hooks import record_outputs
from saddlepoint.audits.target.instrument import SCORES
from saddlepoint.audits.target.rounding import alike, difference
from saddlepoint.defenses import Plain
from saddlepoint.phrases import agree, count, count_of, number, percent

_MOST = 0.9  # fraction of images
_JUMP = 0.2  # of the lead of the first class, and of the change after a large step
_SOME = 0.25  # fraction of images
_SMALL = 1e-3  # scores below it do not change a cross-entropy visibly
_TINY = 1e-4  # of the box: far below a pixel level, far above rounding in single precision


def probe_outputs(target: ProbeTarget) -> Iterator[Trait]:
    """The form of the answer and of the views."""
    with torch.no_grad():
        answer = target.query_unadapted()
    low = answer.amin().item()
    high = answer.amax().item()
    yield observed(
        TraitName.PROBABILITIES,
        target.defense.grants != "decision"
        and (_are_probabilities(answer) or _are_densities(answer)),
        len(target),
        "outputs are non-negative and sum to one"
        if _are_probabilities(answer)
        else f"outputs are non-negative, and below {number(_SMALL)} on most images, like densities",
        f"outputs range from {number(low)} to {number(high)}",
    )
    yield _hidden_scores(target)
    yield from _near_images(target, answer)
    yield from _views(target, answer)


def _are_probabilities(answer: Tensor) -> bool:
    return bool((answer >= 0).all() and ((answer.sum(1) - 1).abs() < 1e-3).all())


def _are_densities(answer: Tensor) -> bool:
    """Non-negative scores that are too small for losses of differences on most images."""
    return bool((answer >= 0).all() and (answer > 0).any() and answer.amax(1).median() < _SMALL)


def _hidden_scores(target: ProbeTarget) -> Trait:
    """Whether outputs give all classes except the predicted one the same score.

    Then no loss has a direction, but a layer inside a net may rank the classes.
    """
    name = TraitName.HIDDEN_SCORES
    if target.defense.grants == "decision":
        return unmeasured(name, "the target returns labels")
    n = 2 * len(target)
    near = target.space.sample(target.x, target.keys(13))
    with torch.no_grad():
        hidden = torch.cat([_second_hidden(target.query_unadapted(x)) for x in (target.x, near)])
    share = hidden.double().mean().item()
    if share < _MOST:
        return absent(
            name, n, f"{percent(1 - share, 0)} of {count(n, 'output')} rank the other classes"
        )
    evidence = f"{percent(share, 0)} of {count(n, 'output')} give all other classes the same score"
    places = _ranking_layer(target, near) if target.opaque else ()
    return present(name, evidence, places=places)


def _second_hidden(scores: Tensor) -> Tensor:
    """[n] bool: all classes except the first have the same score; False for two classes."""
    ranked = scores.double().sort(dim=1, descending=True).values
    equal = ranked[:, 1] <= ranked[:, -1] + 1e-6 * ranked.abs().amax(1)
    return equal & (scores.shape[1] > 2)


def _ranking_layer(target: ProbeTarget, near: Tensor) -> tuple[str, ...]:
    """The last layer that predicts the same classes and ranks the others, as a site."""
    target = target.fresh_copy()  # the first call of a net that keeps state
    assert isinstance(target.defense, Plain), "only a net has layers"
    names = {module: name for name, module in target.defense.net.named_modules() if name}
    candidates = list(names.values())
    for x in (target.x, near):
        with torch.no_grad(), record_outputs(names) as outputs:
            answer = target.query_unadapted(x)
        ranking = {names[layer] for layer, out in outputs.items() if _ranks(out, answer)}
        candidates = [name for name in candidates if name in ranking]
    return tuple(f"{SCORES}{name}" for name in candidates[-1:])


def _ranks(out: object, answer: Tensor) -> bool:
    """Whether the output of a layer predicts the classes of the answer and ranks the others."""
    if not isinstance(out, Tensor) or out.shape != answer.shape:
        return False
    same = torch.equal(out.double().argmax(1), answer.argmax(1))
    return same and float(_second_hidden(out).double().mean()) < _MOST


def _near_images(target: ProbeTarget, answer: Tensor) -> Iterator[Trait]:
    """Whether outputs are constant near images, or jump next to them."""
    if target.defense.grants == "decision":
        for name in (TraitName.QUANTIZED, TraitName.JUMPS):
            yield unmeasured(name, "the target returns labels")
        return
    after = _after_steps(target)
    yield _quantized(target, answer, after)
    yield _jumps(target, answer, after)


def _after_steps(target: ProbeTarget) -> dict[float, Tensor]:
    """Outputs [n, C] after a tiny, a small and a large step along random signs, by step."""
    low, high = target.space.box
    radius = target.pixel_radius
    signs = target.keys(11).signs(tuple(target.x.shape[1:]), target.x.dtype)
    found = {}
    for step in (_TINY * (high - low), radius / 32, radius):
        with torch.no_grad():
            found[step] = target.query_unadapted((target.x + step * signs).clamp(low, high))
    return found


def _quantized(target: ProbeTarget, answer: Tensor, after: dict[float, Tensor]) -> Trait:
    """Whether outputs are exactly equal after a small step, but not after a large one."""
    name = TraitName.QUANTIZED
    n = len(target)
    if answer.dtype in (torch.float16, torch.bfloat16):
        return unmeasured(name, f"{answer.dtype} itself is too coarse")
    unchanged = {s: float((out == answer).all(1).double().mean()) for s, out in after.items()}
    *small, radius = unchanged
    moved = unchanged[radius]
    if moved >= _MOST:
        still = round(moved * n)
        evidence = (
            f"{count_of(still, n, 'output')} {agree(still, 'does', 'do')} not change within the "
            "radius"
        )
        return unmeasured(name, evidence)
    flat = [step for step in small if unchanged[step] >= _MOST]
    if not flat:
        return absent(name, n, f"outputs change after steps of {number(min(unchanged))}")
    still = round(unchanged[flat[-1]] * n)
    evidence = (
        f"{count_of(still, n, 'output')} {agree(still, 'is', 'are')} exactly equal after steps of "
        f"{number(flat[-1])}, {percent(moved, 0)} after steps of {number(radius)}"
    )
    return present(name, evidence, amount=flat[-1])


def _jumps(target: ProbeTarget, answer: Tensor, after: dict[float, Tensor]) -> Trait:
    """Whether a tiny step from an image changes the output almost as much as a large one."""
    n = len(target)
    tiny, *_, radius = after
    changes = {s: (out - answer).double().abs().amax(1) for s, out in after.items()}
    ranked = answer.double().sort(dim=1, descending=True).values
    lead = ranked[:, 0] - ranked[:, 1]
    jumped = (changes[tiny] > _JUMP * lead) & (changes[tiny] > _JUMP * changes[radius])
    share = float(jumped.double().mean())
    evidence = (
        f"a step of {number(tiny)} changes {count_of(int(jumped.sum()), n, 'output')} by more than "
        f"{percent(_JUMP, 0)} of the lead of the predicted class, and of the change after a step "
        f"of {number(radius)}"
    )
    return observed(TraitName.JUMPS, share > _SOME, n, evidence, evidence)


def _views(target: ProbeTarget, answer: Tensor) -> Iterator[Trait]:
    """Whether views disagree with the answer, and whether the last view is the answer."""
    name = TraitName.VIEWS_DISAGREE
    n = len(target)
    trace, _ = target.trace()
    predicted = answer.argmax(1)
    other = {v.name: float((v.logits.argmax(1) != predicted).double().mean()) for v in trace.views}
    disagreeing = tuple(view for view, share in other.items() if share > 0)
    if len(other) == 1:
        yield absent(name, n, "there is one view")
    elif disagreeing:
        most = max(other, key=lambda view: other[view])
        yield present(
            name,
            f"{count_of(len(disagreeing), len(other), 'view')} "
            f"{agree(len(disagreeing), 'predicts', 'predict')} another class for some image, "
            f"{most} for {percent(other[most], 0)}",
            places=disagreeing,
            amount=other[most],
        )
    else:
        evidence = f"{count(len(other), 'view')} predict the same classes for {count(n, 'image')}"
        yield absent(name, n, evidence, amount=0.0)
    yield observed(
        TraitName.OTHER_ANSWER,
        not alike(trace.last, answer),
        n,
        f"the answer differs from the last view: {difference(trace.last, answer)}",
        "it answers with its last view",
    )
