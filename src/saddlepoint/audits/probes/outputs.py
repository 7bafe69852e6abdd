"""What the answers are made of: probabilities, steps, several views, other views than the last."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from saddlepoint.audits.probes.probe_target import ProbeTarget, alike, gap
from saddlepoint.audits.probes.traits import Trait, TraitName, absent, observed, present, unmeasured
from saddlepoint.audits.target.instrument import SCORES, heard
from saddlepoint.defenses import Plain

_MOST = 0.9  # of the rows
_TINY = 1e-4  # of the box: far below any pixel, far above the rounding of single precision


def outputs(subject: ProbeTarget) -> Iterator[Trait]:
    """The form of the answers."""
    with torch.no_grad():
        answer = subject.look()
    scores = subject.defense.grants != "decision"
    yield observed(
        TraitName.PROBABILITIES, scores and probabilities(answer), len(subject), "answers are not negative and sum to one",
        f"answers go from {answer.amin().item():.2g} to {answer.amax().item():.2g}",
    )  # fmt: skip
    yield _hidden(subject)
    yield _quantized(subject, answer)
    yield from _views(subject, answer)


def probabilities(answer: Tensor) -> bool:
    return bool((answer >= 0).all() and ((answer.sum(1) - 1).abs() < 1e-3).all())


def _hidden(subject: ProbeTarget) -> Trait:
    """Do scores tell which class comes second? Where they do not, no loss knows where to go; a layer inside may."""
    name = TraitName.HIDDEN_SCORES
    n = len(subject)
    if subject.defense.grants == "decision":
        return unmeasured(name, "the target answers with labels")
    near = subject.space.sample(subject.x, subject.keys(13))
    with torch.no_grad():
        share = (
            torch.cat([_second_hidden(subject.look(x)) for x in (subject.x, near)])
            .double()
            .mean()
            .item()
        )
    if share < _MOST:
        return absent(
            name,
            2 * n,
            f"{100 * (1 - share):.0f} % of {2 * n} answers tell which class comes second",
        )
    evidence = (
        f"{100 * share:.0f} % of {2 * n} answers give all classes but the first the same score"
    )
    return present(name, evidence, places=_telling(subject, near) if subject.opaque else ())


def _second_hidden(answer: Tensor) -> Tensor:
    """[N] bool; of two classes the other one is the second."""
    ranked = answer.double().sort(dim=1, descending=True).values
    return (ranked[:, 1] <= ranked[:, -1] + 1e-6 * ranked.abs().amax(1)) & (answer.shape[1] > 2)


def _telling(subject: ProbeTarget, near: Tensor) -> tuple[str, ...]:
    """The last layer that ranks first what is answered and does not hide what comes second, as a site."""
    subject = subject.fresh()  # one call of a net that remembers is its first
    assert isinstance(subject.defense, Plain), "only a net has layers to look into"
    names = {module: name for name, module in subject.defense.net.named_modules() if name}
    found = list[set[str]]()
    for x in (subject.x, near):
        with torch.no_grad(), heard(names) as given:
            answer = subject.look(x)
        ranked = {
            names[layer]: out
            for layer, out in given.items()
            if isinstance(out, Tensor) and out.shape == answer.shape
        }
        same = {
            name: out
            for name, out in ranked.items()
            if torch.equal(out.argmax(1), answer.argmax(1))
        }
        found.append(
            {
                name
                for name, out in same.items()
                if float(_second_hidden(out).double().mean()) < _MOST
            }
        )
    last = [name for name in names.values() if all(name in telling for telling in found)][-1:]
    return tuple(f"{SCORES}{name}" for name in last)


def _quantized(subject: ProbeTarget, answer: Tensor) -> Trait:
    """Piecewise constant: equal to the last bit a little way off, and not further away."""
    name = TraitName.QUANTIZED
    n = len(subject)
    low, high = subject.space.box
    radius = min(
        subject.space.radius * subject.x[0].numel() ** (-1 / subject.space.p) or 1 / 255,
        0.2 * (high - low),
    )
    if answer.dtype in (torch.float16, torch.bfloat16):
        return unmeasured(name, f"{answer.dtype} has steps of its own")
    if subject.defense.grants == "decision":
        return unmeasured(name, "the target answers with labels")
    equal = {
        step: _equal(subject, answer, step) for step in (_TINY * (high - low), radius / 32, radius)
    }
    flat = [step for step, share in list(equal.items())[:2] if share >= _MOST]
    if equal[radius] >= _MOST:
        return unmeasured(
            name,
            f"{100 * equal[radius]:.0f} % of {n} answers do not change at all within the radius",
        )
    if flat:
        still = 100 * equal[flat[-1]]
        moved = 100 * equal[radius]
        return present(
            name, f"{still:.0f} % of {n} answers are the same to the last bit after steps of {flat[-1]:.2g}, {moved:.0f} % after "
            f"steps of {radius:.2g}", amount=flat[-1],
        )  # fmt: skip
    return absent(name, n, f"answers change with steps of {min(equal):.2g}")


def _equal(subject: ProbeTarget, answer: Tensor, step: float) -> float:
    """The share of answers that a step of that size along random signs leaves as they are."""
    x = subject.x + step * subject.keys(11).signs(tuple(subject.x.shape[1:]), subject.x.dtype)
    with torch.no_grad():
        moved = subject.look(x.clamp(*subject.space.box))
    return float((moved == answer).all(1).double().mean())


def _views(subject: ProbeTarget, answer: Tensor) -> Iterator[Trait]:
    trace, _ = subject.views()
    answered = answer.argmax(1)
    n = len(subject)
    apart = {
        view.name: float((view.logits.argmax(1) != answered).double().mean())
        for view in trace.views
    }
    differing = tuple(name for name, share in apart.items() if share > 0)
    if len(apart) == 1:
        yield absent(TraitName.VIEWS_DISAGREE, n, "there is one view")
    elif differing:
        most = max(apart, key=lambda name: apart[name])
        yield present(
            TraitName.VIEWS_DISAGREE,
            f"{len(differing)} of {len(apart)} views answer some image otherwise, {most} {100 * apart[most]:.0f} %",
            places=differing, amount=max(apart.values()),
        )  # fmt: skip
    else:
        yield absent(
            TraitName.VIEWS_DISAGREE, n, f"{len(apart)} views answer {n} images alike", amount=0.0
        )
    yield observed(
        TraitName.OTHER_ANSWER, not alike(trace.last, answer), n, f"from its last view to its answer: {gap(trace.last, answer)}",
        "it answers with its last view",
    )  # fmt: skip
