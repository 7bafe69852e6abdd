"""The probe measures what the nine packaged adaptive defenses declare."""

from __future__ import annotations

import copy

import pytest

import saddlepoint as sp
from saddlepoint import zoo
from saddlepoint.data import load_data
from saddlepoint.zoo.adaptive.sodef import Dopri5
from saddlepoint.zoo.embedded.adaptive import ADAPTIVE

# Fewer or longer steps: a prediction of the contrastive defense takes 160 passes, and a probe makes
# about fifty predictions.
SHORTER = {
    "digits-sodef": {"integrator": Dopri5(1e-2)},
    "digits-closed-loop": {"steps": 2},
    "digits-hedge": {"steps": 2},
    "digits-soap": {"steps": 3, "radii": (0.075, 0.225)},
    "digits-contrastive": {"steps": 2, "views": 2},
    "digits-aid": {"steps": 2},
    # With this threshold examples stop after different numbers of steps, which couples the batch.
    "digits-denoising": {"steps": 3, "runs": 1, "stop": 0.03},
}
# An ODE solver, and a network that predicts the direction of its steps.
WITHOUT_GRADIENTS = ("digits-sodef", "digits-denoising")


@pytest.fixture(scope="module", params=[kit.name for kit in ADAPTIVE])
def probed(request):
    name = request.param
    defense = copy.copy(zoo.target(name))
    vars(defense).update(SHORTER.get(name, {}))
    data = load_data("digits", n=6)
    kit = next(kit for kit in ADAPTIVE if kit.name == name)
    return name, defense, kit, sp.probe(defense, data.x, data.y, threat=kit.threat())


@pytest.mark.slow
def test_coupling_and_randomness_are_measured_exactly_where_they_are_declared(probed):
    _, defense, _, traits = probed
    assert [trait.name for trait in traits.denied] == []
    assert traits["random"].present is defense.random
    assert traits["coupled"].present is defense.coupled
    assert (traits["noise per row"].present or traits["noise per batch"].present) is defense.random


def test_calls_have_no_side_effects_and_do_not_depend_on_gradient_mode(probed):
    _, defense, _, traits = probed
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


def test_every_defense_has_gradients_and_named_sites(probed):
    """All defenses are differentiable; BPDA changes the direction of their gradients."""
    name, _, kit, traits = probed
    for trait in ("no gradient", "non-finite gradients", "zero gradients"):
        assert traits[trait].present is False, traits[trait].evidence
    bypassed = {site for site, rule in kit.rules().items() if rule == sp.BPDA()}
    assert bypassed <= set(traits["sites"].places) != set()
    assert traits["optimizes inside"].present is (name not in WITHOUT_GRADIENTS)
