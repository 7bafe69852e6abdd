"""Records of games made by hand: outcomes are drawn at random, the rest is computed from them."""

from __future__ import annotations

from typing import Any

import torch

from saddlepoint.audits.verdict import Level, Symptom, SymptomName
from saddlepoint.defenses import all_subsets, subset_name
from saddlepoint.evaluation.bootstrap import Estimate
from saddlepoint.games.matrix import best_response, solve
from saddlepoint.games.runs.record import (
    AdversaryRecord,
    GameRecord,
    SolvedStrategy,
    StrategyRecord,
)

SYMPTOMS = (
    Symptom(SymptomName.CLEAN_COPIES, Level.NOTE, "one point is the clean image."),
    Symptom(SymptomName.GAIN_IN_NOISE, Level.WARNING, "use more images."),
)


def a_game(exits: int = 3, n: int = 30, **changes: Any) -> GameRecord:
    """A matched attack breaks half of the images, any other attack a fifth."""
    subsets = all_subsets(exits)
    count = len(subsets)
    draw = torch.Generator().manual_seed(0)
    error = (0.2 + 0.3 * torch.eye(count))[..., None]
    correct = torch.rand(count, count, n, generator=draw) > error
    payoff = correct.double().mean(-1)
    equilibrium = solve(payoff)
    pure = int(payoff.amin(0).argmax())
    mix = tuple(equilibrium.defender.tolist())
    names = (
        "NEED",
        f"best pure answer: {subset_name(subsets[pure])}",
        "per-image mix",
        f"last exit: {exits}",
    )
    rows = tuple(
        AdversaryRecord(f"pgd-20 at {subset_name(subset)}", subset, 21.0, 20.0, 0.5, 0)
        for subset in subsets
    )
    extra = tuple(
        AdversaryRecord(f"expected loss of {name}", None, 21.0, 20.0, 0.5, 0) for name in names
    )
    scored_rows = (AdversaryRecord("clean", None, 0.0, 0.0, 0.0, n), *rows, *extra)
    record = {
        "target": "net.py:make",
        "threat": "Linf radius 8/255, gradient access",
        "data": "digits",
        "n": 2 * n,
        "built_on": n,
        "exits": exits,
        "subsets": subsets,
        "targets": subsets,
        "value": Estimate(equilibrium.value, 0.0, 1.0, n),
        "equilibrium": SolvedStrategy(mix, equilibrium.value, equilibrium.gap),
        "attacker": tuple(equilibrium.attacker.tolist()),
        "response": tuple(best_response(payoff, equilibrium.defender).tolist()),
        "mismatch": 0.25,
        "matched": count,
        "beaten": 1,
        "exploitability": None,
        "pure": subsets[pure],
        "pure_value": float(payoff.amin(0).amax()),
        "per_example": SolvedStrategy(mix, equilibrium.value - 0.1, 0.0),
        "strategies": _strategies(names, mix, equilibrium.value, n),
        "gains": _gains(n),
        "rows": rows,
        "scored_rows": scored_rows,
        "symptoms": (),
        **_provenance(n),
        "correct": correct,
        "scored": torch.rand(len(scored_rows), count, n, generator=draw) > 0.4,
    }
    return GameRecord(**{**record, **changes})


def _strategies(
    names: tuple[str, ...], mix: tuple[float, ...], value: float, n: int
) -> tuple[StrategyRecord, ...]:
    half = Estimate(0.5, 0.4, 0.6, n)
    return tuple(
        StrategyRecord(name, mix, half, value, half, half, Estimate(0.3 + k / 100, 0.2, 0.4, n))
        for k, name in enumerate(names)
    )


def _gains(n: int) -> dict[str, Estimate]:
    attackers = ("clean", "aimer", "expected_loss", "per_image")
    return {attacker: Estimate(0.01, -0.02, 0.04, n) for attacker in attackers}


def _provenance(n: int) -> dict[str, Any]:
    return {
        "seed": 0,
        "spec": {"target": "net.py:make", "data": {"name": "digits", "n": 2 * n, "root": None}},
        "passed": {"target": "net.py:make"},
        "hashes": {"target": "ab" * 32, "images": "cd" * 32},
        "versions": {"saddlepoint": "0.1.0"},
        "command": "saddlepoint game net.py:make",
        "seconds": 12.5,
    }
