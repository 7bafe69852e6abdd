"""Is the gradient the slope of the answer? Compared with differences along random directions and along itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from saddlepoint.attacks.losses import Loss, cross_entropy, margin, refusing
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.audits.probes.gradient_check import SCALES, rounding, unfaithful
from saddlepoint.audits.probes.probe_target import ProbeTarget
from saddlepoint.audits.probes.sites import crossings, functions, killers, layers
from saddlepoint.audits.probes.traits import Trait, TraitName, absent, observed, present, unmeasured
from saddlepoint.gradients import BPDA, Backprop, Rule

NAMES = (
    TraitName.NO_GRADIENT, TraitName.NON_FINITE_GRADIENTS, TraitName.ZERO_GRADIENTS, TraitName.WRONG_GRADIENTS, TraitName.NOISY_GRADIENTS, TraitName.SATURATED_LOGITS,
    TraitName.SITES,
)  # fmt: skip
_AGREES = 0.5  # mean agreement of gradients and differences; 1 where they are equal, 0.8 where one is twice the other
_AFAR = 0.25  # the same at a distance, where no gradient is exact
_FEW = 0.1
_MANY = 0.5  # of the rows
_DRAWS = 4  # gradients of a random target that are compared
_MOST_DRAWS = 64
_MOST_LAYERS = 32  # that are looked into, from the input on


@dataclass(frozen=True)
class Look:
    """A place to look from: images moved off the edges of the box, so that both sides of a difference lie in it."""

    subject: ProbeTarget
    rules: Mapping[str, Rule] = field(default_factory=dict)
    loss: Loss = margin

    @property
    def radius(self) -> float:
        low, high = self.subject.space.box
        size = self.subject.space.radius * self.subject.x[0].numel() ** (
            -1 / self.subject.space.p
        )  # per pixel
        return min(size or 1 / 255, 0.2 * (high - low))

    @property
    def x(self) -> Tensor:
        low, high = self.subject.space.box
        return self.subject.x.clamp(low + self.radius / 2, high - self.radius / 2)

    @property
    def away(self) -> Look:
        """Another place in the set: a gradient may be right on the images alone."""
        subject = self.subject
        return replace(
            self, subject=replace(subject, x=subject.space.sample(subject.x, subject.keys(13)))
        )

    @property
    def objective(self) -> AttackObjective:
        return AttackObjective([self.subject.aimed_at], self.subject.y, self.loss, rules=self.rules)

    def grad(self, seed: int = 0) -> Tensor:
        return Backprop().value_and_grad(self.objective, self.x, self.subject.keys(seed)).grad

    def value(self, x: Tensor) -> Tensor:
        """[N] the margin."""
        return (
            Backprop()
            .evaluate(replace(self.objective, loss=margin, rules={}), x, self.subject.keys())
            .value
        )

    def rise(self, grad: Tensor) -> Tensor:
        """[N] by how much a step along the signs of the gradient raises the margin."""
        return self.value(
            self.x + self.radius / 2 * grad.nan_to_num(0.0, 0.0, 0.0).sign()
        ) - self.value(self.x)


def slopes(subject: ProbeTarget) -> Iterator[Trait]:
    """Missing, not finite, zero, misdirected or noisy gradients, and losses that saturate."""
    if subject.defense.grants != "gradient":
        yield from (unmeasured(name, "the target gives no gradients") for name in NAMES)
        return
    look = Look(subject)
    n = len(subject)
    sites = _sites(subject)
    yield sites
    try:
        grad = look.grad()
    except (ValueError, RuntimeError) as error:
        first = str(error).splitlines()[0]
        none = "no gradient reaches the input"
        yield present(
            NAMES[0],
            none if first.startswith(none) else f"{none} ({first})",
            places=killers(subject),
        )
        yield from (unmeasured(name, "there is no gradient") for name in NAMES[1:-1])
        return
    yield absent(NAMES[0], n, "a gradient reaches the input")
    bad = ~grad.isfinite().flatten(1).all(1)
    zero = (grad == 0).flatten(1).all(1)
    places = killers(subject) if bool((bad | zero).any()) else ()
    yield observed(
        NAMES[1],
        bool(bad.any()),
        n,
        f"NaN or infinite on {int(bad.sum())} of {n} images",
        f"finite on {n} images",
    )
    flat = observed(
        NAMES[2],
        bool(zero.any()),
        n,
        f"exactly zero on {int(zero.sum())} of {n} images",
        f"non-zero on {n} images",
    )
    yield replace(flat, places=places if flat.present else (), amount=float(zero.double().mean()))
    yield _misdirected(
        look, torch.where(grad.isfinite(), grad, 0.0), ~(bad | zero), named=bool(sites.present)
    )
    yield _noisy(look)
    yield _saturated(look)


def _sites(subject: ProbeTarget) -> Trait:
    """Where the attacker may choose how gradients cross, and the identity could stand in."""
    sites = tuple(crossing.site for crossing in crossings(subject) if crossing.keeps_shape)
    if not sites:
        return absent(NAMES[6], 1, "it names no step that maps something to something like it")
    return present(
        NAMES[6], f"{len(sites)} named steps around which a gradient could be led", places=sites
    )


def _misdirected(look: Look, grad: Tensor, usable: Tensor, *, named: bool) -> Trait:
    """Differences m against products p with the gradient: 2 m p / (m^2 + p^2) is 1 where they are equal, -1 where opposite."""
    if not usable.any():
        return unmeasured(NAMES[3], "no image has a gradient that could point anywhere")
    agreement = {scale: _agreement(look, grad, scale, usable) for scale in SCALES}
    known = {scale: value for scale, value in agreement.items() if not math.isnan(value)}
    if not known:
        return unmeasured(NAMES[3], "all differences drown in rounding")
    best = max(known.values())
    far = max([value for scale, value in known.items() if scale > min(SCALES)], default=1.0)
    shares = ", ".join(
        f"{value:.2f} over {2 * scale * look.radius:.2g}" for scale, value in known.items()
    )
    told_so = f"gradients and differences agree by {shares}"
    here, away = torch.zeros(2, len(grad), dtype=torch.bool, device=grad.device)
    if not named:  # at named sites other rules are tried anyway
        here = _astray(look, grad) & usable
        away = _astray(look.away, _gradient(look.away))
    if (here | away).any():
        told_so += f"; along random directions they are another slope on {int(here.sum())} of {len(grad)} images and "
        told_so += f"{int(away.sum())} points near them"
    # A gradient that is right nearby and wrong from afar follows a ripple: no attack gets anywhere along it.
    wrong = best < _AGREES or far < _AFAR or _several(here) or _several(away)
    place, rows = (look.away, away) if away.sum() > here.sum() else (look, here)
    better = _better_around(
        place, rows if _several(rows) else torch.ones_like(rows), suspicious=wrong
    )
    if not wrong and not better:
        return absent(NAMES[3], 2 * int(usable.sum()), told_so, amount=best)
    if better:
        told_so += f"; around {', '.join(better)} it leads further"
    return Trait(NAMES[3], True, told_so, min(1.0, 1 - min(best, far) / 2), None, better, best)


def _astray(look: Look, grad: Tensor) -> Tensor:  # [N] bool
    return unfaithful(look.value, look.x, grad, look.radius, look.subject.keys(7))


def _gradient(look: Look) -> Tensor:
    """Zero where there is none, or no number: off the images a target may have none though it has one on them."""
    try:
        return look.grad().nan_to_num(0.0, 0.0, 0.0)
    except (ValueError, RuntimeError):
        return torch.zeros_like(look.x)


def _several(rows: Tensor) -> bool:
    """More than an odd one, or all there are."""
    return bool(rows.all()) or int(rows.sum()) > max(1, _FEW * len(rows))


def _agreement(look: Look, grad: Tensor, scale: float, usable: Tensor) -> float:
    """Mean over rows, along the gradient's signs and along random ones; nan where nothing rises above rounding."""
    x = look.x
    step = scale * look.radius
    parts = []
    for along in (grad.sign(), look.subject.keys(7).signs(tuple(x.shape[1:]), x.dtype)):
        up = look.value(x + step * along)
        down = look.value(x - step * along)
        measured = (up - down).double()
        predicted = 2 * step * (grad * along).flatten(1).sum(1).double()
        told_apart = usable & (
            torch.maximum(measured.abs(), predicted.abs()) > rounding(up, down, x.dtype)
        )
        both = measured.square() + predicted.square()
        parts.append(
            (2 * measured * predicted / both.clamp(min=torch.finfo(torch.float64).tiny))[told_apart]
        )
    agreement = torch.cat(parts)
    return float(agreement.mean()) if len(agreement) else math.nan


def _better_around(look: Look, rows: Tensor, *, suspicious: bool) -> tuple[str, ...]:
    """Sites around which a gradient leads further than through them; of a suspicious module, its best layer or function."""
    subject = look.subject
    through = look.rise(look.grad())
    if not subject.opaque:
        sites = [crossing.site for crossing in crossings(subject) if crossing.keeps_shape]
        return tuple(site for site in sites if _gain(look, site, through, rows) > 0)
    if not suspicious:
        return ()
    inner = [crossing.site for crossing in layers(subject) if crossing.keeps_shape][:_MOST_LAYERS]
    gains = {}
    for site in (*inner, *functions(subject)):
        gains[site] = _gain(replace(look, subject=subject.opened(site)), site, through, rows)
    best = max(gains, key=lambda site: gains[site], default=None)
    return (best,) if best is not None and gains[best] > 0 else ()


def _gain(look: Look, site: str, through: Tensor, rows: Tensor) -> float:
    """How much more a step along the gradient around the site raises the margin of the rows; 0 where chance could have made it, or
    where there is no gradient: what is written for no_grad may do what no graph can record, such as changing parameters.
    """
    try:
        grad = replace(look, rules={site: BPDA()}).grad()
    except torch.OutOfMemoryError:
        raise
    except (ValueError, RuntimeError):
        return 0.0
    gain = (look.rise(grad) - through).double()[rows]
    error = float(gain.std()) / math.sqrt(len(gain)) if len(gain) > 1 else 0.0
    return float(gain.mean()) if float(gain.mean()) > 2 * error else 0.0


def _noisy(look: Look) -> Trait:
    """How many gradients must be averaged until their mean is more signal than noise?

    |E g|^2 is estimated by the mean of <g_j, g_k> over j != k; what |g|^2 has beyond it is noise, which n draws divide by n.
    """
    name = NAMES[4]
    grads = torch.stack(
        [look.grad(seed).nan_to_num(0.0, 0.0, 0.0).flatten(1) for seed in range(_DRAWS)]
    ).double()  # [K, N, d]
    if torch.equal(grads[0], grads[1]):
        return absent(name, _DRAWS, "the same with other coins", amount=1.0)
    power = grads.square().sum(2).mean(0)  # [N]
    signal = (grads.sum(0).square().sum(1) - _DRAWS * power) / (_DRAWS * (_DRAWS - 1))
    total = float(power.sum())
    kept = float(signal.sum())
    draws = (
        _MOST_DRAWS
        if kept <= total / (_MOST_DRAWS + 1)
        else max(1, math.ceil((total - kept) / kept))
    )
    share = max(kept, 0.0) / max(total, torch.finfo(torch.float64).tiny)
    evidence = f"{100 * share:.0f} % of one gradient is signal: {draws} draws make it more signal than noise"
    return Trait(name, True, evidence, _DRAWS / (_DRAWS + 1), None, (), float(draws))


def _saturated(look: Look) -> Trait:
    """Where the cross-entropy of a right answer rounds to zero, a step along its gradient may lead nowhere.

    One that still leads half as far as a step along the margin's gradient does is no trouble.
    """
    name = NAMES[5]
    subject = look.subject
    with torch.no_grad():
        logits = refusing(subject.look(), subject.y, subject.defense.rejects)
    ahead = margin(logits, subject.y) < 0
    if not ahead.any():
        return unmeasured(name, "no image is answered rightly")
    flat = float(
        ((cross_entropy(logits, subject.y) == 0) & ahead).double().sum() / ahead.double().sum()
    )
    rises = [
        look.rise(replace(look, loss=loss).grad())[ahead].mean().item()
        for loss in (cross_entropy, margin)
    ]
    evidence = (
        f"the cross-entropy is exactly 0 on {100 * flat:.0f} % of the images that are answered rightly, and a step along its "
        f"gradient raises the margin by {rises[0]:.2g}, where one along the margin's own raises it by {rises[1]:.2g}"
    )
    return observed(
        name, flat > _MANY and rises[0] < rises[1] / 2, int(ahead.sum()), evidence, evidence
    )
