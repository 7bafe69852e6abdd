"""What is verified before anything is attacked: the data, the shape of the answers, and what the target declares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from saddlepoint.attack.goal import Goal
from saddlepoint.attack.loss import cross_entropy
from saddlepoint.attack.space import Ball
from saddlepoint.auditing.answering import Answering, answers_otherwise
from saddlepoint.auditing.result import Symptom
from saddlepoint.coins import Coins
from saddlepoint.defense import BlackBox, Context, Defense, MultiExit, Plain, Trace, View
from saddlepoint.gradients import Backprop
from saddlepoint.locate import told

_PROBE_ROWS = 16  # enough to see a rule broken, cheap for any model
_COUPLED = Symptom(
    "coupled rows", "warning",
    "an image's answer changes when its batch mates leave (batch statistics?): whole batches are attacked and judged together.",
)  # fmt: skip


class TargetError(ValueError):
    """The target, or the data given with it, breaks a rule that every attack relies on."""


@dataclass(frozen=True)
class Checked:
    """A target that keeps the rules, with what was learnt about it."""

    defense: Defense
    classes: int
    findings: tuple[Symptom, ...]
    solves: frozenset[str] = frozenset()  # sites at which it solves for a fixed point


class Logarithm(Defense):
    """log p of a net that answers with probabilities: softmax(log p) = p, so no answer changes and no loss saturates twice."""

    def __init__(self, inner: Plain) -> None:
        self.inner, self.random, self.coupled, self.static = inner, inner.random, inner.coupled, inner.static

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        p = self.inner.trace(x, ctx).last
        return Trace((View("final", p.clamp(min=torch.finfo(p.dtype).tiny).log()),))


def check(target: nn.Module | Defense | Callable[[Tensor], Tensor], x: Tensor, y: Tensor, space: Ball) -> Checked:
    """The target as a defence that keeps the rules, or a `TargetError` that says which rule is broken and what to do."""
    if torch.is_inference_mode_enabled():
        raise TargetError("inside torch.inference_mode() no gradient can be taken. Audit outside of it; torch.no_grad() is fine.")
    check_data(x, y, space)
    rows, y = x[:_PROBE_ROWS].detach().clone(), y.long()  # a copy can be differentiated even if x was made in inference mode
    if isinstance(target, Defense):
        defense, findings = target, list(_declared(target, rows))
    elif isinstance(target, nn.Module):
        _refuse_training(target)
        answered = _unmutated(target, rows)
        defense, findings = _several(target, answered, rows) if isinstance(answered, list) else _measured(target, rows)
    elif callable(target):
        defense, findings = _black_box(target, rows, int(y.amax()) + 1)
    else:
        raise TargetError(
            f"a target is an nn.Module, a saddlepoint.Defense or a callable on batches of images, got {type(target).__name__}."
        )
    classes = _respond(defense, rows).shape[1] - defense.rejects
    if int(y.amax()) >= classes:
        raise TargetError(f"labels go up to {int(y.amax())}, but the target answers with {classes} classes (0 to {classes - 1}).")
    if defense.grants == "gradient":
        findings.extend(_gradient(defense, rows, y[:_PROBE_ROWS]))
        if any(f.name == "no gradient" for f in findings):
            defense = Ungraded(defense)
    return Checked(defense, classes, tuple(findings), _solves(defense, rows))


def check_data(x: Tensor, y: Tensor, space: Ball) -> None:
    """Images finite and in the box, labels one whole number per image."""
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        raise TargetError(f"x and y must be torch tensors, got {type(x).__name__} and {type(y).__name__}. Use torch.as_tensor.")
    if not x.is_floating_point() or x.ndim < 2:
        raise TargetError(
            f"x must be floating point of shape [N, ...], got {x.dtype} {list(x.shape)}. Scale images: x.float() / 255."
        )
    if y.ndim != 1 or len(y) != len(x) or not len(x):
        hint = " These look one-hot: use y.argmax(1)." if y.ndim == 2 else ""
        raise TargetError(f"y must have one label per image, shape [{len(x)}], got shape {list(y.shape)}.{hint}")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise TargetError(f"labels must be whole numbers, got {y.dtype}. Use y.long().")
    if int(y.amin()) < 0:
        raise TargetError(f"labels must not be negative, got {int(y.amin())}.")
    if not x.isfinite().all():
        bad = int((~x.isfinite()).flatten(1).any(1).sum())
        raise TargetError(f"x holds NaN or infinite values in {bad} of {len(x)} images.")
    low, high = space.box
    if bool((x < low).any() | (x > high).any()):
        raise TargetError(
            f"x must lie in [{low:g}, {high:g}], found [{x.amin():.4g}, {x.amax():.4g}]. Give raw pixels in [0, 1] and put the "
            "normalisation inside the model: perturbations are measured in pixels."
        )


def _refuse_training(net: nn.Module) -> None:
    if net.training:
        raise TargetError(
            "the model is in training mode, where batch statistics and dropout change its answers. Call net.eval() first."
        )


def _unmutated(net: nn.Module, x: Tensor) -> object:
    """What the model answers; one that changes its input is refused."""
    given = x.clone()
    answered: object = _call(net, given)
    if not torch.equal(given, x):
        raise TargetError(
            "the model changes its input in place, so an attack would perturb something else than it measures. "
            "Copy it first: x = x.clone()."
        )
    return answered


def _measured(net: nn.Module, x: Tensor) -> tuple[Defense, list[Symptom]]:
    """An nn.Module declares nothing: measure whether it is random and whether rows influence each other."""
    first, again = _logits(_call(net, x), len(x)), _call(net, x)
    findings = []
    random = not _close(first, again)
    if random:
        gap = (first - again).abs().amax().item()
        findings.append(
            Symptom(
                "random answers", "warning",
                f"two calls on the same images differ by up to {gap:.2g}: the model is treated as random, gradients are averaged "
                "and every verdict is judged over many draws. Its noise belongs to the batch; write a Defense that draws from "
                "`ctx` for noise that belongs to the image.",
            )
        )  # fmt: skip
    coupled = not random and len(x) > 1 and not _close(first[:1], _call(net, x[:1]))
    if coupled:
        findings.append(_COUPLED)
    plain = Plain(net, random=random, coupled=coupled)
    training = [name for name, module in net.named_modules() if module.training]
    if training:
        findings.append(Symptom("training mode inside", "warning", f"in training mode although the model is not: {training[:5]}."))
    if not _probabilities(first):
        return plain, findings
    findings.append(
        Symptom(
            "probabilities", "warning",
            "the model answers with probabilities, not logits. Their logarithm is attacked, which gives the same answers; "
            "saturated probabilities still hide gradients: return logits if you can.",
        )
    )  # fmt: skip
    return Logarithm(plain), findings


def _several(net: nn.Module, exits: list[object], x: Tensor) -> tuple[Defense, list[Symptom]]:
    """A list is what a network with several exits returns; a tuple may be logits and something else, and is refused."""
    for logits in exits or [None]:
        _logits(logits, len(x))
    defense = MultiExit(net)
    note = Symptom(
        "several exits", "note",
        f"the model returns a list of {len(exits)} logits: it is taken for MultiExit(net), which answers with the last of its "
        "exits. Hand over MultiExit(net, strategy) to audit another answer.",
    )  # fmt: skip
    return defense, [note, *_declared(defense, x)]


def _declared(defense: Defense, x: Tensor) -> Iterator[Symptom]:
    """A Defense declares what it is: refuse one that is measured to be something else."""
    given = x.clone()
    first = _logits(_respond(defense, given), len(x))
    if not torch.equal(given, x):
        raise TargetError("the defence changes its input in place. Copy it first: x = x.clone().")
    if not _close(first, _respond(defense, x)):
        raise TargetError(
            "the defence answers differently when asked twice with the same coins. Draw all randomness from `ctx` "
            "(ctx.randn_like(x), ctx.shared_seed()) and return a new object from `adapt` instead of changing self."
        )
    if not defense.random and not _close(first, _respond(defense, x, seed=1)):
        raise TargetError("the defence declares random=False, but other coins give other answers. Set random = True.")
    if defense.reads is not None and not _close(first, _respond(defense, x, keep=defense.reads)):
        raise TargetError(
            f"the defence declares that its answer reads {sorted(defense.reads)} alone, but it answers differently when nobody "
            "asks for other views. Set reads = None on the class."
        )
    hidden = isinstance(defense, Plain) and defense.random  # noise inside a net is drawn for the batch, and says so
    # Only who declares independent rows is asked about one alone: a defence that learns from a batch may need two.
    if defense.unit == "example" and not hidden and len(x) > 1 and not _close(first[:1], alone := _respond(defense, x[:1])):
        gap = (first[:1] - alone).abs().amax().item()
        raise TargetError(
            f"the defence declares that rows are independent, but row 0 moves by {gap:.2g} when its batch mates leave. "
            "Set coupled = True on the class (or memory, if `adapt` is the reason)."
        )
    if _probabilities(first):
        yield Symptom("probabilities", "warning", "the defence answers with probabilities; return logits, or their logarithm.")
    if defense.memory != "none":
        yield Symptom(
            "adapts at test time", "serious",
            "the defence learns from the images it is asked about, and the attacks of this audit aim at it as it stands before "
            "that: an attacker who anticipates the adaptation can do better.",
        )  # fmt: skip


def _black_box(fn: Callable[[Tensor], Tensor], x: Tensor, labels: int) -> tuple[Defense, list[Symptom]]:
    given = x.clone()
    with torch.no_grad(), _told("callable", x):
        out, again, alone = fn(given), fn(x.clone()), fn(x[:1].clone())
    if not torch.equal(given, x):
        raise TargetError("the callable changes its input in place. Copy it first: x = x.clone().")
    random = not (isinstance(out, Tensor) and isinstance(again, Tensor) and _close(out, again))
    coupled = not random and out.ndim > 0 and len(x) > 1 and not _close(out[:1], alone)
    findings = [_COUPLED] if coupled else []
    if isinstance(out, Tensor) and out.ndim == 1 and len(out) == len(x) and not out.is_floating_point():
        classes = max(labels, int(out.amax()) + 1)
        note = Symptom("labels only", "note", "the callable answers with labels: only decision-based attacks are possible.")
        return BlackBox(fn, classes=classes, random=random, coupled=coupled), [*findings, note]
    _logits(out, len(x))
    note = Symptom("no gradient access", "note", "the target is a callable: only attacks that need no gradients are possible.")
    return BlackBox(fn, random=random, coupled=coupled), [*findings, note]


def _gradient(defense: Defense, x: Tensor, y: Tensor) -> Iterator[Symptom]:
    """Does a usable gradient reach the input?"""
    coins = Coins.of(0, torch.arange(len(x), device=x.device))
    aimed_at = Answering(defense) if answers_otherwise(defense) else defense
    try:
        grad = Backprop().slope(Goal([aimed_at], y, cross_entropy), x, coins).grad
    except (ValueError, RuntimeError) as error:
        first = str(error).splitlines()[0]
        yield Symptom("no gradient", "serious", f"no gradient reaches the input ({first}): only gradient-free attacks are run.")
        return
    bad, zero = ~grad.isfinite().flatten(1).all(1), (grad == 0).flatten(1).all(1)
    if bad.any():
        yield Symptom("non-finite gradients", "serious", f"the gradient is NaN or infinite on {int(bad.sum())} of {len(x)} images.")
    if zero.any():
        yield Symptom(
            "vanishing gradients", "serious",
            f"the gradient of the cross-entropy is exactly zero on {int(zero.sum())} of {len(x)} images: saturation, quantisation "
            "or a detached step. Name the step with ctx.through and give it a rule such as BPDA.",
        )  # fmt: skip


class Ungraded(Defense):
    """A defence whose gradients cannot be had, seen through its answers."""

    grants = "score"

    def __init__(self, inner: Defense) -> None:
        self.inner, self.coupled, self.random, self.memory = inner, inner.coupled, inner.random, inner.memory
        self.static, self.rejects = inner.static, inner.rejects

    def adapt(self, x: Tensor, ctx: Context) -> Defense:
        return Ungraded(self.inner.adapt(x, ctx))

    def restrict(self, rows: Tensor) -> Defense:
        return Ungraded(self.inner.restrict(rows))

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        return self.inner.trace(x, ctx)

    def answer(self, trace: Trace, ctx: Context) -> Tensor:
        return self.inner.answer(trace, ctx)


def _call(net: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad(), _told("model", x):
        return cast(Tensor, net(x))


def _respond(defense: Defense, x: Tensor, seed: int = 0, keep: frozenset[str] | None = None) -> Tensor:
    with torch.no_grad(), _told("defence", x):
        return defense.respond(x, Context(Coins.of(seed, torch.arange(len(x), device=x.device)), keep=keep))


def _solves(defense: Defense, x: Tensor) -> frozenset[str]:
    ctx = Context(Coins.of(0, torch.arange(len(x), device=x.device)), keep=defense.reads)
    with torch.no_grad():
        defense.respond(x, ctx)
    return frozenset(ctx.endings)


@contextmanager
def _told(kind: str, x: Tensor) -> Iterator[None]:
    """A target that fails on clean images most often was made for images of another shape: say so."""
    try:
        yield
    except Exception as error:
        raise TargetError(
            f"the {kind} raised {told(error)} when asked about images of shape {list(x.shape)}. Does it fit the data?"
        ) from error


def _logits(out: object, n: int) -> Tensor:
    if not isinstance(out, Tensor):
        raise TargetError(
            f"the target must answer with a tensor of logits [N, C], got {type(out).__name__}. Return logits alone, "
            "or a list of them, one per exit."
        )
    if out.ndim != 2 or len(out) != n or out.shape[1] < 2 or not out.is_floating_point():
        raise TargetError(f"the target must answer with floating-point logits [{n}, C >= 2], got {out.dtype} {list(out.shape)}.")
    if not out.isfinite().all():
        raise TargetError(
            f"the target answers with NaN or infinite logits on {int((~out.isfinite()).any(1).sum())} of {n} clean images."
        )
    return out


def _probabilities(logits: Tensor) -> bool:
    return bool((logits >= 0).all() and ((logits.sum(1) - 1).abs() < 1e-3).all())


def _close(a: Tensor, b: Tensor) -> bool:
    # Kernels add up in another order for another batch size: a few hundred roundings at the scale of the logits. Nets in half
    # precision add up in single, so that only the results of layers are rounded.
    if not a.is_floating_point() or a.shape != b.shape:
        return torch.equal(a, b)
    eps, scale = torch.finfo(a.dtype).eps, float(a.abs().amax().clamp(min=1.0))
    return bool((a.double() - b.double()).abs().amax() <= (2e3 if eps < 1e-6 else 32) * eps * scale)
