"""The probe stage: check the target and its data, measure traits, and prepare it for attacks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from saddlepoint.audits.cells import with_fewer_rows
from saddlepoint.audits.planning.facts import TargetFacts
from saddlepoint.audits.probes.findings import findings_of
from saddlepoint.audits.probes.hidden import find_hidden
from saddlepoint.audits.probes.levels import find_levels, with_levels
from saddlepoint.audits.probes.operations import Replaced, replace_operations
from saddlepoint.audits.probes.probe import measure_traits
from saddlepoint.audits.probes.probe_target import ROWS, ProbeTarget
from saddlepoint.audits.probes.rare_coupling import with_rare_coupling
from saddlepoint.audits.probes.recognition import Recognized, recognize
from saddlepoint.audits.probes.sanity import Unusual, unusual_accuracy, unusual_radius
from saddlepoint.audits.probes.traits import COUPLING, GRADIENT_MODE, TraitName, Traits
from saddlepoint.audits.request import AuditRequest
from saddlepoint.audits.target.admission import Target, TargetError, check_target_class
from saddlepoint.audits.target.instrument import Instrumented, Stateless
from saddlepoint.audits.target.pixel_grid import on_grid
from saddlepoint.audits.target.rounding import alike, relevant
from saddlepoint.audits.target.saturation import saturation
from saddlepoint.audits.target.surrogates import SurrogateOperations
from saddlepoint.audits.target.wrappers import LogProbabilities, NoGradient, ValueWithoutGrad
from saddlepoint.audits.verdict import Level, Symptom, SymptomName
from saddlepoint.defenses import BlackBox, Context, Defense, MultiExit, Plain

# Traits with places where BPDA gives better gradients than the exact ones.
_BROKEN = (
    TraitName.NO_GRADIENT,
    TraitName.NON_FINITE_GRADIENTS,
    TraitName.ZERO_GRADIENTS,
    TraitName.WRONG_GRADIENTS,
    TraitName.HIDDEN_SCORES,
)


@dataclass(frozen=True)
class Probed:
    """A checked target, ready for attacks, with measured facts and findings."""

    defense: Defense
    facts: TargetFacts
    findings: tuple[Symptom, ...]
    classes: int  # without the reject class
    recognized: tuple[Recognized, ...] = ()


def probe_stage(request: AuditRequest) -> Probed:
    """Check and probe the target of a request.

    Raises:
        TargetError: the data or the target violates a rule that every attack relies on, or the
            clean accuracy or the radius looks like a mistake. The message names the rule or the
            likely mistake, and the fix.
        MemoryError: there is not enough memory for a single image.
    """
    return with_fewer_rows(lambda rows: _probe(request, rows), ROWS)


def _probe(request: AuditRequest, rows: int) -> Probed:
    """Check and probe the target with at most this number of images."""
    target = ProbeTarget.of(request.target, request.x, request.y, request.threat.space, rows)
    check_target_class(request.threat.target_class, target.classes)
    radius = unusual_radius(request.threat.space, request.x)
    unusual = [*_unusual(request, radius)]
    traits = measure_traits(target)
    traits = with_rare_coupling(target, traits, request.x, min(rows * 8, request.batch_size))
    if TraitName.CHANGES_INPUT in traits:
        raise TargetError(
            f"the {target.kind} modifies its input in place. Copy it first: x = x.clone()."
        )
    if target.declares or isinstance(target.defense, MultiExit):
        _check_declarations(target, traits)
    unusual += _unusual(request, unusual_accuracy(request, target, traits))
    _, ctx = target.trace()
    places = [site for name in _BROKEN if name in traits for site in traits[name].places]
    replaced = replace_operations(target, traits, tuple(dict.fromkeys(places)))
    hidden = find_hidden(target, traits)
    defense = _prepared(target.original, target, traits, replaced)
    levels = find_levels(target, traits)
    traits = with_levels(traits, levels)
    facts = TargetFacts(
        traits,
        frozenset(ctx.solve_info),
        replaced.bypassed,
        hidden.branches,
        hidden.exits,
        hidden.jump,
        hidden.unrecorded,
        levels=levels,
        saturation=_saturation(target),
        eight_bit=on_grid(request.x),
        replaced=replaced,
    )
    findings = (*unusual, *findings_of(target, facts))
    recognized = recognize(request.target, target, facts)
    return Probed(defense, facts, findings, target.classes, recognized)


def _unusual(request: AuditRequest, found: Unusual | None) -> Iterator[Symptom]:
    """What looks like a mistake of the request: an error, or a finding if it is allowed."""
    if found is None:
        return
    if found.stop and not request.allow_unusual:
        raise TargetError(
            f"{found.message} If this is intended, pass allow_unusual=True (--allow-unusual)."
        )
    yield Symptom(SymptomName.UNUSUAL, Level.WARNING, found.message)


def _saturation(target: ProbeTarget) -> float | None:
    if target.defense.grants != "gradient" or target.adapts:
        return None
    return saturation(target.defense, target.x, Context(target.keys()), target.classes)


def undeclared(target: ProbeTarget, traits: Traits) -> Defense:
    """The defense of a target that declares nothing, by the measured traits of its behavior."""
    return _prepared(target.original, target, traits, Replaced())


def _prepared(
    original: Target | None, target: ProbeTarget, traits: Traits, replaced: Replaced
) -> Defense:
    """The defense that attacks run against: the same outputs, with usable gradients."""
    random = TraitName.RANDOM in traits
    coupled = any(name in traits for name in COUPLING)
    defense: Defense
    if target.declares or isinstance(target.defense, MultiExit):
        defense = target.to_defense(original)
    elif isinstance(target.defense, BlackBox):
        assert callable(original), "a black box is a callable"
        classes = target.defense.classes
        defense = BlackBox(original, classes=classes, random=random, coupled=coupled)
    else:
        operations = [str(operation) for operation in replaced.operations]
        sites = tuple(site for site in replaced.bypassed if site not in operations)
        defense = _prepared_net(target, traits, sites, random=random, coupled=coupled)
    if replaced.operations:
        defense = SurrogateOperations(defense, replaced.operations)
    if any(name in traits for name in GRADIENT_MODE):
        defense = ValueWithoutGrad(defense)
    if TraitName.NO_GRADIENT in traits and not replaced.bypassed:
        defense = NoGradient(defense)
    return defense


def _prepared_net(
    target: ProbeTarget,
    traits: Traits,
    bypassed: tuple[str, ...],
    *,
    random: bool,
    coupled: bool,
) -> Defense:
    assert target.module is not None, "only a module has no declarations"
    defense: Defense
    if target.stateful(traits):
        defense = Stateless(target.module, bypassed, random=random, coupled=coupled)
    elif bypassed:
        defense = Instrumented(target.module, bypassed, random=random, coupled=coupled)
    else:
        defense = Plain(target.module, random=random, coupled=coupled)
    # Where the softmax is bypassed, a logarithm would only be one more place to lose gradients.
    if TraitName.PROBABILITIES in traits and not bypassed:
        defense = LogProbabilities(defense)
    return defense


def _check_declarations(target: ProbeTarget, traits: Traits) -> None:
    """Raise an error if declarations of a Defense contradict what was measured."""
    if TraitName.STATE in traits:
        raise TargetError(
            "the defense gives different outputs for two calls with the same randomness. Draw all "
            "randomness from `ctx` (ctx.randn_like(x), ctx.shared_seed()) and return a new object "
            f"from `adapt` instead of modifying self. ({traits[TraitName.STATE].evidence})"
        )
    if traits[TraitName.RANDOM].denied:
        raise TargetError(
            "the defense declares random=False, but its outputs change with the random seed. "
            "Set random = True."
        )
    if traits[TraitName.ADAPTS].denied:
        raise TargetError(
            "the defense declares memory='none', but `adapt` changes its outputs "
            f"({traits[TraitName.ADAPTS].evidence}), which attacks would not anticipate. Set "
            "memory = 'batch' on the class, or 'stream' if later batches see the adapted model."
        )
    reads = target.defense.reads
    if reads is not None and not alike(target.answer, target.query(keep=reads)):
        raise TargetError(
            f"the defense declares that its answer reads only {sorted(reads)}, but the answer "
            "changes when no other views are requested. Set reads = None on the class."
        )
    _check_decoupled(target)
    for name in COUPLING:
        if traits[name].denied:
            raise TargetError(
                "the defense declares that rows are independent, but they are not "
                f"({name}: {traits[name].evidence}). Set coupled = True on the class (or memory, "
                "if `adapt` is the reason)."
            )


def _check_decoupled(target: ProbeTarget) -> None:
    """Raise an error if `decouple` returns a defense with other outputs at the same batch."""
    defense = target.defense
    if not defense.coupled or defense.random or defense.memory != "none":
        return
    with torch.no_grad():
        fixed = defense.decouple(target.x)
        if fixed is None:
            return
        outputs = fixed.respond(target.x, Context(target.keys()))
    # Optimizers at inference amplify rounding errors beyond `alike`, as reordered rows show.
    differs = not alike(target.answer, outputs) and relevant(target.answer, outputs)
    if fixed.coupled or differs:
        raise TargetError(
            "the defense returns from `decouple` a defense with coupled rows, or with other "
            "outputs at the same batch. Return a defense with independent rows and the same "
            "outputs, or None."
        )
