"""What the probe finds of the nine defenses on the digits, which know nothing of being probed, is what they declare."""

from __future__ import annotations

import copy

import pytest

import saddlepoint as sp
from saddlepoint import zoo
from saddlepoint.data import load_data
from saddlepoint.zoo.adaptive.sodef import Dopri5
from saddlepoint.zoo.embedded.adaptive import ADAPTIVE

# Fewer or longer steps of the same kind: an answer of the contrastive defense takes 160 passes, and a probe asks for some fifty.
SHORTER = {
    "digits-sodef": {"integrator": Dopri5(1e-2)},
    "digits-closed-loop": {"steps": 2},
    "digits-hedge": {"steps": 2},
    "digits-soap": {"steps": 3, "radii": (0.075, 0.225)},
    "digits-contrastive": {"steps": 2, "views": 2},
    "digits-aid": {"steps": 2},
    "digits-denoising": {
        "steps": 3,
        "runs": 1,
        "stop": 0.03,
    },  # rows then end in different steps, which is what couples them
}
WITHOUT_GRADIENTS = (
    "digits-sodef",
    "digits-denoising",
)  # a solver, and a network that gives the direction itself


@pytest.fixture(scope="module", params=[kit.name for kit in ADAPTIVE])
def examined(request):
    name = request.param
    defense = copy.copy(zoo.target(name))
    vars(defense).update(SHORTER.get(name, {}))
    data = load_data("digits", n=6)
    kit = next(kit for kit in ADAPTIVE if kit.name == name)
    return name, defense, kit, sp.probe(defense, data.x, data.y, threat=kit.threat())


def test_nothing_is_denied_and_nothing_is_claimed_that_is_not_there(examined):
    """Both ways: coupling and randomness are seen exactly where they are declared."""
    _, defense, _, traits = examined
    assert [trait.name for trait in traits.denied] == []
    assert traits["random"].present is defense.random
    assert traits["coupled"].present is defense.coupled
    assert (traits["noise per row"].present or traits["noise per batch"].present) is defense.random


def test_no_call_leaves_a_mark_or_knows_that_it_is_watched(examined):
    _, defense, _, traits = examined
    assert defense.memory == "none"
    for trait in (
        "state",
        "changes itself",
        "changes its input",
        "adapts",
        "grad mode",
        "requires grad",
    ):
        assert traits[trait].present is False, traits[trait].evidence


def test_gradients_reach_the_input_through_every_one_and_its_steps_are_named(examined):
    """Differentiable as it is: what BPDA is wanted for is where gradients lead, not that there are none."""
    name, _, kit, traits = examined
    for trait in ("no gradient", "non-finite gradients", "zero gradients"):
        assert traits[trait].present is False, traits[trait].evidence
    around = {site for site, rule in kit.rules().items() if rule == sp.BPDA()}
    assert around <= set(traits["sites"].places) != set()
    assert traits["optimizes inside"].present is (name not in WITHOUT_GRADIENTS)
