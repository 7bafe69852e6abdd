"""Findings of the probes that a user should know."""

from __future__ import annotations

from collections.abc import Iterator

from saddlepoint.audits.planning.facts import TargetFacts
from saddlepoint.audits.probes.gradient_check import Check
from saddlepoint.audits.probes.probe_target import ProbeTarget
from saddlepoint.audits.probes.traits import COUPLING, TraitName, Traits
from saddlepoint.audits.target.control_flow import Jump
from saddlepoint.audits.target.exits import HiddenExits
from saddlepoint.audits.verdict import Level, Symptom, SymptomName
from saddlepoint.defenses import BlackBox, MultiExit
from saddlepoint.phrases import agree, count, how_often, names, times


def findings_of(target: ProbeTarget, facts: TargetFacts) -> Iterator[Symptom]:
    """All findings about a target."""
    traits = facts.traits
    yield from target.notes
    if isinstance(target.defense, MultiExit) and not target.declares:
        yield Symptom(
            SymptomName.SEVERAL_EXITS,
            Level.NOTE,
            "the model returns a list of logits and is treated as MultiExit(net), which answers "
            "with its last exit. Pass MultiExit(net, strategy) to audit another answer.",
        )
    if not target.declares:
        yield from _of_undeclared(target, traits)
    if TraitName.PROBABILITIES in traits:
        yield _probabilities(target)
    yield from _of_self_changes(target, traits)
    yield from _of_gradient_mode(traits)
    if facts.unrecorded:
        yield Symptom(
            SymptomName.HIDDEN_DECISIONS,
            Level.WARNING,
            "hidden exits and decisions were not searched, because the model raises an error while "
            f"its operations are recorded ({facts.unrecorded}).",
        )
    if facts.saturation is not None:
        yield Symptom(
            SymptomName.SATURATED_SOFTMAX,
            Level.SERIOUS,
            "a softmax inside the model selects one of its entries with almost no weight for the "
            "others, so that gradients do not show the others. Attacks also use gradients at a "
            "higher temperature, which may not be the best one.",
        )
    if TraitName.UNUSED_LAYERS in traits:
        yield Symptom(
            SymptomName.UNUSED_LAYERS,
            Level.SERIOUS,
            f"{traits[TraitName.UNUSED_LAYERS].evidence}, and Python code decides what runs: an "
            "attacker who reads the code may find images for which these layers answer. Pass the "
            "model without them, or a Defense that returns every branch as a view.",
        )
    if TraitName.JUMPS in traits:
        yield _jumps(facts)
    yield from _of_gradients(facts)
    if isinstance(target.defense, BlackBox) and not target.declares:
        yield _of_black_box(target.defense)
    if facts.branches:
        yield Symptom(
            SymptomName.HARD_BRANCHES,
            Level.NOTE,
            "the model selects one of several branches for each image, which gradients do not "
            f"show. The budgets standard and thorough attack {_branches(len(facts.branches))} that "
            "select it.",
        )
    if facts.exits is not None:
        yield _hidden_exits(facts.exits)
    if facts.jump is not None:
        yield _hidden_decisions(facts.jump)


def _hidden_exits(hidden: HiddenExits) -> Symptom:
    role = "selects one of them for each image" if hidden.selected else "computes its answer from"
    left_out = f" {hidden.left_out} more are not attacked." if hidden.left_out else ""
    return Symptom(
        SymptomName.HIDDEN_EXITS,
        Level.NOTE,
        f"the model computes class scores {how_often(len(hidden))} and {role}"
        f"{'' if hidden.selected else ' them'}, which gradients of its answer do not show "
        f"({hidden.places}). The budgets standard and thorough attack them one by one, in pairs "
        f"and together; every point is judged by the answer of the model.{left_out}",
    )


def _hidden_decisions(jump: Jump) -> Symptom:
    place = f" at {jump.place}" if jump.place else ""
    return Symptom(
        SymptomName.HIDDEN_DECISIONS,
        Level.SERIOUS,
        f"the model runs different operations for different images, and its output jumps by "
        f"{times(jump.size)} the typical lead of the predicted class where they change{place}. "
        "Gradients do not show what lies behind such a border, and no exits or branches were found "
        "that could be attacked. Pass a Defense that returns the result of each path as a view.",
    )


def _branches(n: int) -> str:
    one_by_one = agree(n, "", " one by one, each")
    return f"{count(n, 'branch')}{one_by_one} together with the scores"


def _probabilities(target: ProbeTarget) -> Symptom:
    message = (
        "the model outputs probabilities, not logits. Their logarithm is attacked, which gives the "
        "same predictions. Saturated probabilities still hide gradients: return logits if you can."
    )
    if target.declares:
        message = "the defense outputs probabilities; return logits, or their logarithm."
    return Symptom(SymptomName.PROBABILITIES, Level.WARNING, message)


def _of_self_changes(target: ProbeTarget, traits: Traits) -> Iterator[Symptom]:
    if TraitName.CHANGES_ITSELF in traits and not target.stateful(traits):
        yield Symptom(
            SymptomName.CHANGES_ITSELF,
            Level.WARNING,
            f"{traits[TraitName.CHANGES_ITSELF].evidence}: changes persist between calls. "
            "Return a new object from `adapt`.",
        )


def _jumps(facts: TargetFacts) -> Symptom:
    evidence = facts.traits[TraitName.JUMPS].evidence
    grid = ""
    if facts.eight_bit:
        grid = " Attacks in Linf also search among images with 8-bit pixel values."
    return Symptom(
        SymptomName.JUMPS,
        Level.SERIOUS,
        f"{evidence}: the model treats the images differently from points next to them, or depends "
        f"on a hash of the pixels. A gradient says nothing about such a choice.{grid}",
    )


def _of_gradient_mode(traits: Traits) -> Iterator[Symptom]:
    for name in (TraitName.GRAD_MODE, TraitName.REQUIRES_GRAD):
        if name in traits:
            yield Symptom(
                SymptomName.GRADIENT_MODE,
                Level.SERIOUS,
                f"{traits[name].evidence}. Attacks use outputs computed without gradients and "
                "gradients computed with them, which may belong to different functions.",
            )


def _of_gradients(facts: TargetFacts) -> Iterator[Symptom]:
    """Unusable gradients, and whether BPDA at some sites replaces them."""
    traits = facts.traits
    bypassed = facts.bypassed
    level = Level.WARNING if bypassed else Level.SERIOUS
    bypass = ""
    if bypassed:
        bypass = f" Attacks replace the backward pass at {_sites(facts)} (BPDA)."
    advice = (
        " Make the step a layer, or name it with ctx.through in a Defense, so that a rule such as "
        "BPDA can replace its backward pass."
    )
    if TraitName.NO_GRADIENT in traits:
        evidence = traits[TraitName.NO_GRADIENT].evidence
        consequence = bypass or " Only attacks without gradients are run."
        yield Symptom(SymptomName.NO_GRADIENT, level, f"{evidence}.{consequence}")
    if TraitName.NON_FINITE_GRADIENTS in traits:
        evidence = traits[TraitName.NON_FINITE_GRADIENTS].evidence
        yield Symptom(
            SymptomName.NON_FINITE_GRADIENTS, level, f"the gradient is {evidence}.{bypass}"
        )
    if TraitName.ZERO_GRADIENTS in traits:
        evidence = traits[TraitName.ZERO_GRADIENTS].evidence
        cause = "saturation, quantization or a detached step"
        yield Symptom(
            SymptomName.ZERO_GRADIENTS,
            level,
            f"the gradient is {evidence}: {cause}.{bypass or advice}",
        )
    if TraitName.HIDDEN_SCORES in traits:
        yield _hidden_scores(traits)
    yield from _of_replaced(facts, advice)


def _of_replaced(facts: TargetFacts, advice: str) -> Iterator[Symptom]:
    """Wrong gradients, operations with surrogates, and operations without one."""
    traits = facts.traits
    replaced = facts.replaced
    wrong = TraitName.WRONG_GRADIENTS in traits
    evidence = traits[TraitName.WRONG_GRADIENTS].evidence if wrong else ""
    if replaced.check is Check.WRONG:
        yield Symptom(
            SymptomName.WRONG_GRADIENTS,
            Level.SERIOUS,
            f"{evidence or 'gradients differ from finite differences of the outputs'}: they are "
            f"not the gradients of the outputs, with no rule that was tried.{_lines(facts)}"
            f"{advice}",
        )
    elif wrong and not facts.bypassed and TraitName.SITES not in traits:
        yield Symptom(
            SymptomName.WRONG_GRADIENTS,
            Level.SERIOUS,
            f"{evidence}: they are not the gradients of the outputs.{_lines(facts)}{advice}",
        )
    elif replaced.lost and replaced.check is Check.UNKNOWN:
        yield Symptom(
            SymptomName.WRONG_GRADIENTS,
            Level.SERIOUS,
            f"a part of the gradient is lost, for which no surrogate is known.{_lines(facts)}"
            f"{advice}",
        )
    elif wrong and replaced.operations:
        yield Symptom(
            SymptomName.WRONG_GRADIENTS,
            Level.WARNING,
            f"{evidence}. Attacks replace the backward pass at {_sites(facts)} (BPDA).",
        )


def _sites(facts: TargetFacts) -> str:
    """All sites where backward passes are replaced, operations with source and surrogate."""
    operations = {str(operation): operation for operation in facts.replaced.operations}
    texts = []
    for site in facts.bypassed:
        operation = operations.get(site)
        text = site
        if operation is not None:
            text = f"{site} (`{operation.line.text}`) by {operation.surrogate}"
        texts.append(text)
    return ", ".join(texts)


def _lines(facts: TargetFacts) -> str:
    """The lines where gradients are lost, as a sentence."""
    lost = [f"{op.line} ({op.function})" for op in facts.replaced.lost]
    return f" Gradients are cut at {', '.join(lost)}." if lost else ""


def _hidden_scores(traits: Traits) -> Symptom:
    trait = traits[TraitName.HIDDEN_SCORES]
    if trait.places:
        layers = names(trait.places)
        message = f"{trait.evidence}. Attacks use the {layers} instead."
        return Symptom(SymptomName.HIDDEN_SCORES, Level.WARNING, message)
    message = f"{trait.evidence}. No loss has a direction: pass a target that outputs all scores."
    return Symptom(SymptomName.HIDDEN_SCORES, Level.SERIOUS, message)


def _of_black_box(defense: BlackBox) -> Symptom:
    if defense.grants == "decision":
        return Symptom(
            SymptomName.LABELS_ONLY,
            Level.NOTE,
            "the callable returns labels: only decision-based attacks are possible.",
        )
    return Symptom(
        SymptomName.NO_GRADIENT_ACCESS,
        Level.NOTE,
        "the target is a callable: only attacks without gradients are possible.",
    )


def _of_undeclared(target: ProbeTarget, traits: Traits) -> Iterator[Symptom]:
    """A net declares nothing: report how it is treated."""
    if TraitName.RANDOM in traits:
        yield Symptom(
            SymptomName.RANDOM_OUTPUTS,
            Level.WARNING,
            f"{traits[TraitName.RANDOM].evidence}. The model is treated as randomized: gradients "
            "are averaged, and robust accuracy is evaluated over many draws: if images share a "
            "draw, as many as its variance requires. Its noise belongs to the batch; write a "
            "Defense that draws from `ctx` for noise that belongs to the image.",
        )
    if TraitName.UNSEEDED in traits:
        yield Symptom(
            SymptomName.UNSEEDED,
            Level.SERIOUS,
            "fresh copies of the model give other outputs with the same seed: it draws from a "
            "source that no seed reaches, such as a clock. Draws cannot be repeated. Effects of "
            "earlier calls, of other rows and of recorded gradients cannot be separated from this "
            "noise.",
        )
    if target.stateful(traits):
        name = TraitName.STATE if TraitName.STATE in traits else TraitName.CHANGES_ITSELF
        yield Symptom(
            SymptomName.STATEFUL,
            Level.WARNING,
            f"{traits[name].evidence}. Every call uses a copy of the model in its initial state; "
            "the state that it reaches in use is not audited. Write a Defense with `memory` for "
            "that.",
        )
    if any(name in traits for name in COUPLING):
        yield Symptom(
            SymptomName.COUPLED_ROWS,
            Level.WARNING,
            "the output for an image depends on the other images of its batch (batch statistics?): "
            "whole batches are attacked and evaluated together.",
        )
    if target.unused_copy is None:
        yield Symptom(
            SymptomName.NOT_COPYABLE,
            Level.SERIOUS if target.module is not None else Level.WARNING,
            f"the {target.kind} cannot be copied, so the original was used: state from earlier "
            "calls could not be separated from the model, and this audit may have changed it. Make "
            "copy.deepcopy work on it.",
        )
    if target.module is not None:
        training = [name for name, module in target.module.named_modules() if module.training]
        if training:
            yield Symptom(
                SymptomName.TRAINING_MODE,
                Level.WARNING,
                f"submodules in training mode although the model is not: {names(training, 5)}.",
            )
