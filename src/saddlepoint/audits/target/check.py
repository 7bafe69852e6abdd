"""What is verified before anything is attacked: the data, the shape of the answers, and what the target declares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from saddlepoint.attacks.spaces import Ball
from saddlepoint.audits.probes import gradient_mode as watched
from saddlepoint.audits.probes.probe import examine
from saddlepoint.audits.probes.subject import Subject, alike
from saddlepoint.audits.probes.traits import Traits
from saddlepoint.audits.result import Level, Symptom
from saddlepoint.audits.target.admission import Target, TargetError
from saddlepoint.audits.target.branches import Branch, branches
from saddlepoint.audits.target.instrument import Instrumented, Stateless
from saddlepoint.audits.target.wrappers import LogProbabilities, NoGradient, ValueWithoutGrad
from saddlepoint.defenses import BlackBox, Context, Defense, MultiExit, Plain


@dataclass(frozen=True)
class Checked:
    """A target that keeps the rules, with what was learnt about it."""

    defense: Defense
    classes: int
    findings: tuple[Symptom, ...]
    traits: Traits
    solves: frozenset[str] = frozenset()  # sites at which it solves for a fixed point
    around: tuple[str, ...] = ()  # sites around which gradients get further than through them
    branches: tuple[Branch, ...] = ()  # ways that it may take, one of them for each image


def check(target: Target, x: Tensor, y: Tensor, space: Ball) -> Checked:
    """The target as a defense that keeps the rules, or a `TargetError` that says which rule is broken and what to do."""
    subject = Subject.of(target, x, y, space)
    traits = examine(subject)
    if "changes its input" in traits:
        raise TargetError(
            f"the {subject.kind} changes its input in place. Copy it first: x = x.clone()."
        )
    if subject.declares or isinstance(subject.defense, MultiExit):
        _refuse_lies(subject, traits)
    _, ctx = subject.views()
    around = _broken(traits)
    ways = _routes(subject, traits)
    defense = _guised(target, subject, traits, around)
    findings = (*_findings(subject, traits, around), *_of_routes(ways))
    return Checked(
        defense, subject.classes, findings, traits, frozenset(ctx.solve_info), around, ways
    )


def _routes(subject: Subject, traits: Traits) -> tuple[Branch, ...]:
    """Of a net that is a function of the image and has gradients to follow."""
    names = (
        "random",
        "coupled",
        "row order",
        "batch size",
        "state",
        "changes itself",
        "no gradient",
        *watched.ATTACKED,
    )
    if not subject.opaque or any(name in traits for name in names):
        return ()
    return branches(subject.defense, subject.x, subject.y, Context(subject.keys()))


def _of_routes(ways: tuple[Branch, ...]) -> Iterator[Symptom]:
    if ways:
        yield Symptom(
            "hard choices", "note",
            f"the model takes one of several ways for each image, which no gradient knows of: {len(ways)} ways are attacked one by "
            "one, each together with what decides for it.",
        )  # fmt: skip


def _guised(target: Target, subject: Subject, traits: Traits, around: tuple[str, ...]) -> Defense:
    """The target as attacks are to meet it."""
    random = "random" in traits
    coupled = any(name in traits for name in ("coupled", "row order", "batch size"))
    defense: Defense
    if subject.declares or isinstance(subject.defense, MultiExit):
        defense = subject.form(target)
    elif isinstance(subject.defense, BlackBox):
        assert callable(target)
        defense = BlackBox(target, classes=subject.defense.classes, random=random, coupled=coupled)
    else:
        assert subject.module is not None
        if _changes(subject, traits):
            defense = Stateless(subject.module, around, random=random, coupled=coupled)
        elif around:
            defense = Instrumented(subject.module, around, random=random, coupled=coupled)
        else:
            defense = Plain(subject.module, random=random, coupled=coupled)
        # Where gradients are led around what makes probabilities, a logarithm would be one more place to lose them in.
        defense = LogProbabilities(defense) if "probabilities" in traits and not around else defense
    if "grad mode" in traits or "requires grad" in traits:
        defense = ValueWithoutGrad(defense)
    return NoGradient(defense) if "no gradient" in traits and not around else defense


def _changes(subject: Subject, traits: Traits) -> bool:
    """Is it another one after a call? What does not show yet may show after a thousand calls."""
    return ("state" in traits or "changes itself" in traits) and subject.untouched is not None


def _broken(traits: Traits) -> tuple[str, ...]:
    """Sites around which a gradient gets further than through them."""
    names = (
        "no gradient",
        "non-finite gradients",
        "zero gradients",
        "misdirected gradients",
        "hidden scores",
    )
    return tuple(
        dict.fromkeys(site for name in names if name in traits for site in traits[name].places)
    )


def _refuse_lies(subject: Subject, traits: Traits) -> None:
    """A Defense declares what it is: refuse one that is measured to be something else."""
    if "state" in traits:
        raise TargetError(
            "the defense answers differently when asked twice with the same coins. Draw all randomness from `ctx` "
            "(ctx.randn_like(x), ctx.shared_seed()) and return a new object from `adapt` instead of changing self. "
            f"({traits['state'].evidence})"
        )
    if traits["random"].denied:
        raise TargetError(
            "the defense declares random=False, but other coins give other answers. Set random = True."
        )
    if traits["adapts"].denied:
        raise TargetError(
            f"the defense declares memory='none', but `adapt` makes another one of it ({traits['adapts'].evidence}), which attacks "
            "would not anticipate. Set memory = 'batch' on the class, or 'stream' if it keeps what it learned."
        )
    reads = subject.defense.reads
    if reads is not None and not alike(subject.answer, subject.ask(keep=reads)):
        raise TargetError(
            f"the defense declares that its answer reads {sorted(reads)} alone, but it answers differently when nobody asks for "
            "other views. Set reads = None on the class."
        )
    for name in ("coupled", "row order", "batch size"):
        if traits[name].denied:
            raise TargetError(
                f"the defense declares that rows are independent, but they are not ({name}: {traits[name].evidence}). "
                "Set coupled = True on the class (or memory, if `adapt` is the reason)."
            )


_SAID: tuple[tuple[str, str, Level, str], ...] = (  # trait, symptom, how bad, what it means and what to do
    ("changes itself", "changes itself", "warning", "{}: what was learned here stays. Return a new object from `adapt`."),
    ("grad mode", "knows that it is attacked", "serious",
     "{}. Attacks take its values without gradients and its slopes with them, which may be those of something else."),
    ("requires grad", "knows that it is attacked", "serious",
     "{}. Attacks take its values without gradients and its slopes with them, which may be those of something else."),
)  # fmt: skip


def _of_gradients(traits: Traits, around: tuple[str, ...]) -> Iterator[Symptom]:
    """Gradients that are no use, and whether a way around was found."""
    level: Level = "warning" if around else "serious"
    led = f" Attacks lead their gradients around {', '.join(around)} (BPDA)." if around else ""
    advice = " Make the step a layer, or name it with ctx.through in a Defense: a rule such as BPDA can then lead around it."
    if "no gradient" in traits:
        yield Symptom(
            "no gradient",
            level,
            f"{traits['no gradient'].evidence}.{led or ' Only gradient-free attacks are run.'}",
        )
    if "non-finite gradients" in traits:
        yield Symptom(
            "non-finite gradients",
            level,
            f"the gradient is {traits['non-finite gradients'].evidence}.{led}",
        )
    if "zero gradients" in traits:
        why = "saturation, quantization or a detached step"
        yield Symptom(
            "vanishing gradients",
            level,
            f"the gradient is {traits['zero gradients'].evidence}: {why}.{led or advice}",
        )
    if "hidden scores" in traits:
        told = traits["hidden scores"]
        lost = " No loss knows where to go: hand over a target that answers with all its scores."
        inside = f" Attacks look at the {', '.join(told.places)} instead." if told.places else lost
        yield Symptom(
            "hidden scores", "warning" if told.places else "serious", f"{told.evidence}.{inside}"
        )
    if (
        "misdirected gradients" in traits and not around and "sites" not in traits
    ):  # at sites, other rules are tried anyway
        yield Symptom(
            "misdirected gradients",
            level,
            f"{traits['misdirected gradients'].evidence}: they are not the slopes of what is answered.{advice}",
        )


def _findings(subject: Subject, traits: Traits, around: tuple[str, ...]) -> Iterator[Symptom]:
    """What the user should know of what was measured."""
    if isinstance(subject.defense, MultiExit) and not subject.declares:
        yield Symptom(
            "several exits", "note",
            "the model returns a list of logits: it is taken for MultiExit(net), which answers with the last of its exits. Hand "
            "over MultiExit(net, strategy) to audit another answer.",
        )  # fmt: skip
    if not subject.declares:
        yield from _of_a_net(subject, traits)
    if "probabilities" in traits:
        yield Symptom(
            "probabilities", "warning",
            "the defense answers with probabilities; return logits, or their logarithm." if subject.declares else
            "the model answers with probabilities, not logits. Their logarithm is attacked, which gives the same answers; "
            "saturated probabilities still hide gradients: return logits if you can.",
        )  # fmt: skip
    for trait, name, level, message in _SAID:
        if trait in traits and not (trait == "changes itself" and _changes(subject, traits)):
            yield Symptom(name, level, message.format(traits[trait].evidence))
    yield from _of_gradients(traits, around)
    if isinstance(subject.defense, BlackBox) and not subject.declares:
        if subject.defense.grants == "decision":
            yield Symptom(
                "labels only",
                "note",
                "the callable answers with labels: only decision-based attacks are possible.",
            )
        else:
            yield Symptom(
                "no gradient access",
                "note",
                "the target is a callable: only attacks that need no gradients are possible.",
            )


def _of_a_net(subject: Subject, traits: Traits) -> Iterator[Symptom]:
    """A net declares nothing: say what it was taken for."""
    if "random" in traits:
        yield Symptom(
            "random answers", "warning",
            f"{traits['random'].evidence}. The model is treated as random, gradients are averaged and every verdict is judged over "
            "many draws. Its noise belongs to the batch; write a Defense that draws from `ctx` for noise that belongs to the "
            "image.",
        )  # fmt: skip
    if _changes(subject, traits):
        evidence = traits["state" if "state" in traits else "changes itself"].evidence
        yield Symptom(
            "remembers", "warning",
            f"{evidence}. The model is asked each time as it was handed over; what it becomes when it is used is "
            "not audited. Write a Defense with `memory` for that.",
        )  # fmt: skip
    if any(name in traits for name in ("coupled", "row order", "batch size")):
        yield Symptom(
            "coupled rows", "warning",
            "an image's answer changes with its batch mates (batch statistics?): whole batches are attacked and judged together.",
        )  # fmt: skip
    if subject.untouched is None:
        yield Symptom(
            "cannot be copied", "serious" if subject.module is not None else "warning",
            f"the {subject.kind} cannot be copied, so that it was asked itself: what it remembers of earlier calls was not told "
            "apart from what it is, and it may not be the same after this audit. Make copy.deepcopy work on it.",
        )  # fmt: skip
    training = (
        [name for name, module in subject.module.named_modules() if module.training]
        if subject.module
        else []
    )
    if training:
        yield Symptom(
            "training mode inside",
            "warning",
            f"in training mode although the model is not: {training[:5]}.",
        )
