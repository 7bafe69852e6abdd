"""All symptoms and all checklist items, each with its text."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from saddlepoint.audits.probes.traits import TraitName


class SymptomName(StrEnum):
    """All symptoms, each with advice and the trait that it points to.

    A symptom is a sign that attacks were weaker than they could be, or a fact about the target that
    the reader of the number has to know.
    """

    advice: str
    trait: TraitName | None

    def __new__(cls, value: str, advice: str = "", trait: TraitName | None = None) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.advice = advice
        member.trait = trait
        return member

    # Found by probes.
    UNUSUAL = "looks like a mistake"
    HARD_BRANCHES = "hard branches"
    JUMPS = "outputs jump"
    UNUSED_LAYERS = "unused layers"
    SATURATED_SOFTMAX = "saturated softmax"
    HIDDEN_EXITS = "hidden exits"
    HIDDEN_DECISIONS = "hidden decisions"
    NO_GRADIENT = "no gradient"
    NON_FINITE_GRADIENTS = "non-finite gradients"
    ZERO_GRADIENTS = "vanishing gradients"
    HIDDEN_SCORES = "hidden scores"
    WRONG_GRADIENTS = "misdirected gradients"
    SEVERAL_EXITS = "several exits"
    PROBABILITIES = "probabilities"
    CHANGES_ITSELF = "changes itself"
    GRADIENT_MODE = "output depends on gradient mode"
    LABELS_ONLY = "labels only"
    NO_GRADIENT_ACCESS = "no gradient access"
    RANDOM_OUTPUTS = "random outputs"
    UNSEEDED = (
        "randomness without a seed",
        "Draw from torch's generators, or write a Defense that draws from `ctx`.",
        TraitName.UNSEEDED,
    )
    STATEFUL = "stateful"
    COUPLED_ROWS = "coupled rows"
    NOT_COPYABLE = "cannot be copied"
    COMPILED = "compiled"
    SCRIPTED = "scripted"
    SELECTED_LOGITS = "selected logits"
    OUTSIDE_STATE = "state outside the model"
    TRAINING_MODE = "training mode inside"
    IN_TRAINING_MODE = "training mode"
    NOT_ANTICIPATED = "adaptation not anticipated"
    # Found in the outcomes of attacks.
    BLACK_BOX_STRONGER = (
        "black box beats white box",
        "Find the step that hides the gradients and give it a rule (BPDA), or estimate gradients "
        "from scores (SPSA).",
        TraitName.ZERO_GRADIENTS,
    )
    NOT_CONVERGED = "not converged", "Use a larger budget: it would break more images."
    LOSS_INCREASING = (
        "loss still increasing",
        "Give the attack more steps or queries, or the audit a larger budget.",
    )
    CLEAN_COPIES = "clean copies"
    REJECTIONS = "rejections"
    OUT_OF_MEMORY = "memory"
    RESCORING_DISAGREES = "re-scoring disagrees"
    TRANSFER_STRONGER = (
        "transfer beats white box",
        "Replace the backward pass of what the defense adds (BPDA with the identity), or aim at "
        "its intermediate views.",
        TraitName.ZERO_GRADIENTS,
    )
    TRANSFER_FAILS = "transfer fails"
    EXTERNAL_STRONGER = (
        "points from elsewhere are stronger",
        "Use a larger budget, and look at these points: they show what the attacks of the audit "
        "miss.",
    )
    # Found by diagnostics.
    UNBOUNDED_FAILS = (
        "unbounded attack fails",
        "Find the step that hides the gradients and give it a rule (BPDA), or estimate gradients "
        "from scores (SPSA).",
        TraitName.ZERO_GRADIENTS,
    )
    EOT_NOT_CONVERGED = (
        "EoT has not converged",
        "Average over more draws, or fix the randomness.",
        TraitName.NOISY_GRADIENTS,
    )
    SILENT_SUCCESS = (
        "silent success",
        "Keep the best point of an attack, not its last; if it does, the target keeps state.",
        TraitName.STATE,
    )
    UNAVAILABLE_GRADIENTS = (
        "unavailable gradients",
        "Find the step with zero gradient and give it a rule (BPDA), or use another loss where "
        "logits saturate.",
        TraitName.ZERO_GRADIENTS,
    )
    INCOMPLETE_OPTIMIZATION = "incomplete optimization", "Give the attack more steps."
    OSCILLATING_LOSS = "oscillating loss", "Use APGD, or a smaller step_size."
    UNSTABLE_PREDICTIONS = (
        "unstable predictions",
        "Average gradients over nearby points, or over more draws (EoT).",
        TraitName.NOISY_GRADIENTS,
    )
    GRADIENTS_DISAGREE = (
        "gradients disagree",
        "Smooth them: average over nearby points, as VMI does, or over draws (EoT).",
        TraitName.NOISY_GRADIENTS,
    )
    OVERSHOOTING = (
        "overshooting",
        "Use smaller steps, or a minimum-norm attack (FAB, FMN).",
    )
    PIECEWISE_CONSTANT = (
        "piecewise constant",
        "Give the quantizing step a rule (BPDA), or rely on attacks without gradients.",
        TraitName.QUANTIZED,
    )
    SOLVER_NOT_CONVERGED = "solver not converged"
    BACKWARD_NOT_CONVERGED = "backward solve not converged"
    # Found in exit games.
    EXPLOITABLE = "exploitable"
    GAIN_IN_NOISE = "NEED's gain is within the noise"
    NO_GENERALIZATION = "the value does not generalize"
    OUTSIDE_ATTACK = "an attack outside the game is stronger"
    LOST_PER_IMAGE = "the gain is lost if the attacker chooses per image"


class ItemName(StrEnum):
    """All items of the checklist, each with what it checks and where the check is from.

    The six steps of Croce et al. 2022 (Sec. 4) and the signs of Carlini et al. 2019. The last two
    are findings about the defense, not about the evaluation.
    """

    description: str

    def __new__(cls, value: str, description: str = "") -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.description = description
        return member

    TESTED = (
        "enough was tested",
        "At least 30 images, one of them classified correctly, and a radius above 0. Otherwise the "
        "number says little about robustness.",
    )
    TRANSFER = (
        "transfer from the static net",
        "Step 1: transfer points of highest loss from the static net. A clean image in place of a "
        "failed attack would flatter the defense.",
    )
    BLACK_BOX = (
        "black-box attacks",
        "Step 2: attack the defense and its static net without gradients. The defense should be "
        "the more robust one.",
    )
    WHITE_BOX = (
        "white-box attacks on the full defense",
        "Step 3: follow gradients of the whole defense, and check that they are not zero.",
    )
    BACKWARD = (
        "approximate backward passes",
        "Step 4: where gradients fail, replace backward passes. Such attacks must find at least "
        "what attacks without gradients find.",
    )
    RANDOMNESS = (
        "randomness averaged or fixed",
        "Step 5: average gradients over random draws, or fix the draws. Too few draws give noise.",
    )
    ADAPTIVE = (
        "adaptive attacks are the strongest",
        "Step 6: attacks made for the defense must be at least as strong as attacks made for a "
        "static net.",
    )
    SINGLE_STEP = (
        "iterative attacks beat single-step attacks",
        "Carlini et al. 2019: a single step that breaks more than many steps shows that the many "
        "steps were badly directed.",
    )
    CONVERGED = (
        "more steps and restarts change nothing",
        "Correctly classified images must stay so after twice the steps from other starts.",
    )
    UNBOUNDED = (
        "an unbounded attack succeeds",
        "Carlini et al. 2019: with a radius that allows a gray image, no image may survive.",
    )
    MASKED = (
        "black-box attacks break nothing more",
        "Carlini et al. 2019: attacks with less information must not break more images.",
    )
    CLEAN = (
        "no attack raises the accuracy",
        "Accuracy under attack above clean accuracy shows an attack that helps the defense.",
    )
    NOT_WEAKER = (
        "not weaker than the static net",
        "The defense against its static net, compared image by image (McNemar's exact test).",
    )
    COST = (
        "cost of a prediction",
        "A defense that costs more than its static net and is not more robust costs too much.",
    )
