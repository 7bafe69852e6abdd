"""Records of games made by hand: the outcomes are drawn, everything else follows from them."""

from __future__ import annotations

import torch

from saddlepoint.audits.result import Symptom
from saddlepoint.defenses import all_subsets, subset_name
from saddlepoint.evaluation.bootstrap import Estimate
from saddlepoint.games.matrix import best_response, solve
from saddlepoint.games.runs.record import Exposed, GameRecord, Played, Solved

DOUBTS = (
    Symptom("clean copies", "note", "one of them did not move."),
    Symptom("NEED's gain is within the noise", "warning", "take more images."),
)


def a_game(exits: int = 3, n: int = 30, **changes) -> GameRecord:
    """A matched attack takes half of the images, any other a fifth."""
    subsets = all_subsets(exits)
    draw = torch.Generator().manual_seed(0)
    count = len(subsets)
    right = torch.rand(count, count, n, generator=draw) > (0.2 + 0.3 * torch.eye(count))[..., None]
    found = solve(right.double().mean(-1))
    payoff = right.double().mean(-1)
    one = Estimate(0.5, 0.4, 0.6, n)
    pure = int(payoff.amin(0).argmax())
    mix = tuple(found.defender.tolist())
    names = (
        "NEED",
        f"best pure answer: {subset_name(subsets[pure])}",
        "per-image mix",
        f"last exit: {exits}",
    )
    rows = tuple(
        Played(f"pgd-20 at {subset_name(subset)}", subset, 21.0, 20.0, 0.5, 0) for subset in subsets
    )
    extra = tuple(Played(f"expected loss of {name}", None, 21.0, 20.0, 0.5, 0) for name in names)
    scored_rows = (Played("clean", None, 0.0, 0.0, 0.0, n), *rows, *extra)
    record = {
        "target": "net.py:make", "threat": "Linf radius 8/255, gradient access", "data": "digits", "n": 2 * n, "built_on": n,
        "exits": exits, "subsets": subsets, "targets": subsets, "value": Estimate(found.value, 0.0, 1.0, n),
        "equilibrium": Solved(mix, found.value, found.gap), "attacker": tuple(found.attacker.tolist()),
        "response": tuple(best_response(payoff, found.defender).tolist()), "mismatch": 0.25, "matched": count, "beaten": 1,
        "exploitability": None, "pure": subsets[pure], "pure_value": float(payoff.amin(0).amax()),
        "per_example": Solved(mix, found.value - 0.1, 0.0),
        "strategies": tuple(Exposed(name, mix, one, found.value, one, one, Estimate(0.3 + k / 100, 0.2, 0.4, n))
                            for k, name in enumerate(names)),
        "gains": {name: Estimate(0.01, -0.02, 0.04, n) for name in ("clean", "aimer", "expected_loss", "per_image")},
        "rows": rows, "scored_rows": scored_rows, "symptoms": (), "seed": 0,
        "spec": {"target": "net.py:make", "data": {"name": "digits", "n": 2 * n, "root": None}},
        "passed": {"target": "net.py:make"},
        "hashes": {"target": "ab" * 32, "images": "cd" * 32}, "versions": {"saddlepoint": "0.1.0"},
        "command": "saddlepoint game net.py:make", "seconds": 12.5, "correct": right,
        "scored": torch.rand(len(scored_rows), count, n, generator=draw) > 0.4,
    }  # fmt: skip
    return GameRecord(**{**record, **changes})
