"""Names on the page of all claims that a newcomer cannot know."""

from __future__ import annotations

from collections.abc import Mapping

_ENTRIES: Mapping[str, str] = {
    "AIMER": "the attacker of Xu et al. knows the defender's probabilities of all sets of exits, "
    "and attacks, on all images alike, the set with the lowest expected accuracy.",
    "NEED": "the defender of Xu et al. draws the exits that answer from the equilibrium of this "
    "game, a distribution over sets of exits.",
    "R_mis": "how little the attacked and the answering exits overlap: one minus the size of the "
    "intersection by that of the union, in the mean over both strategies.",
    "FPA": "the fixed point attack of Chen et al. attacks the model that the defender adapted to "
    "the points of the previous round.",
    "GMSA-AVG, GMSA-MIN": "the greedy model space attack of Chen et al. attacks the models of all "
    "previous rounds together, by the mean or by the minimum of their losses.",
    "Clean copies": "AutoAttack returns the clean image where it fails; transferred to another "
    "model, such copies are no attack.",
    "8/7 solver steps": "8 steps of the solver of an equilibrium model in the forward pass and 7 "
    "for the gradient; the same for 18/20, 50/50 and 2/1.",
    "Ready-made PGD-10": "PGD with 10 steps along the gradient that the training of the network "
    "uses, at its final state.",
}


def glossary() -> str:
    """Return a Markdown list of names with one sentence each."""
    return "\n".join(f"- *{name}*: {text}" for name, text in _ENTRIES.items())
