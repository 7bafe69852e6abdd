"""What answers and audits of a defense take, measured on few images."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor

from saddlepoint.audits.planning.budget import BUDGETS
from saddlepoint.defenses import Context, Defense
from saddlepoint.papers.adaptive.defenses import DEFENSES, StaticModel
from saddlepoint.papers.adaptive.fitting import FitSetting
from saddlepoint.phrases import count
from saddlepoint.rng import Keys

IMAGES = 64  # for which costs are stated
_MEASURED_ON = 16  # images


def audit_cost(name: str, base: StaticModel, fit: FitSetting) -> str:
    """Fit a defense on few images, and say what an audit would take.

    Args:
        name: name of the defense.
        base: the static network.
        fit: how the defense is fitted.
    """
    defense, seconds = fitted_on_few(name, base, fit)
    return f"{about_answer(seconds)}; {about_audit(defense, seconds)}"


def fitted_on_few(name: str, base: StaticModel, fit: FitSetting) -> tuple[Defense, float]:
    """Return a defense that is fitted on few images, and the processor time of its answer."""
    few = base.train.first(_MEASURED_ON)
    defense = DEFENSES[name].make(replace(base, train=few, basis=few), fit)
    return defense, answer_seconds(defense, few.x)


def answer_seconds(defense: Defense, x: Tensor) -> float:
    """Measure the processor time of one answer per image, without a graph for gradients."""
    started = time.process_time()
    with torch.no_grad():
        defense.respond(x, Context(Keys.of(0, torch.arange(len(x)))))
    return (time.process_time() - started) / len(x)


def about_answer(seconds: float) -> str:
    """Say what an answer takes."""
    return (
        f"an answer takes {1000 * seconds:.1f} ms per image of one core (measured on "
        f"{count(_MEASURED_ON, 'image')})"
    )


def about_audit(defense: Defense, seconds: float) -> str:
    """Say what an audit takes, given the time of an answer."""
    passes = _audit_passes(defense)
    return (
        f"an audit with the budget standard takes at least {passes:,.0f} passes per network, "
        f"{IMAGES * passes * seconds / 3600:,.3g} h for {count(IMAGES, 'image')}"
    )


def _audit_passes(defense: Defense) -> int:
    """Forward passes of an audit at the least: its first two attacks and searches by queries."""
    budget = BUDGETS["standard"]
    draws = budget.draws if defense.random else 1
    return draws * (budget.steps + budget.targets * budget.targeted_steps + budget.queries)
