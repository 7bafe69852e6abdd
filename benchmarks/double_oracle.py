"""The double oracle beside the full game, on networks whose full game can be played.

    python -m benchmarks.double_oracle --models DIR --data DIR --cells DIR \\
        --out benchmarks/records/double-oracle.json
    python -m benchmarks.double_oracle --out benchmarks/records/double-oracle.json \\
        --page docs/results/double-oracle.md

Three networks: the embedded `digits-exits` with four exits; a network with seven exits that is
trained here on the embedded digits; and the released seven-exit network of Hu et al. 2020 from
modules.py in the folder of models. The constants of the stopping rule were chosen on the first two;
the third was not used for it. Every game is played with PGD-10, seed 0, one thread. The full game
attacks every subset of exits. Cells that are in the folder already are not played again, and the
record is written after each network, so the command can be interrupted and started again.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from benchmarks.peer_accuracy import write
from torch import nn

from saddlepoint import zoo
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf, Radii
from saddlepoint.data import load_data
from saddlepoint.defenses import MultiExit, all_subsets
from saddlepoint.games.exit_game import columns_of, exit_game
from saddlepoint.games.matrix import solve
from saddlepoint.games.payoffs import ExitGame
from saddlepoint.runs.cached_play import cached_play
from saddlepoint.training import OverExits, PGDTraining, fit, initial
from saddlepoint.zoo.nets.resnet import seven_exit_resnet

SEED = 0
ATTACK = PGD(10, Radii(1 / 4))


@dataclass(frozen=True)
class Case:
    """A network and the game that is played on it."""

    name: str
    load: Callable[[argparse.Namespace], nn.Module]
    data: str
    n: int  # the first test images
    radius: float
    used_for_tuning: bool


def _embedded(arguments: argparse.Namespace) -> nn.Module:  # noqa: ARG001
    return zoo.load("digits-exits")


def _trained(arguments: argparse.Namespace) -> nn.Module:
    """A network with seven exits, trained here; the weights are kept with the cells."""
    recipe = replace(
        zoo.recipe("digits-exits"),
        name="digits-seven-exits",
        net=_seven_exits,
        method=OverExits(PGDTraining(PGD(steps=3))),
        epochs=15,
    )
    digits = load_data("digits", split="train")
    out = arguments.cells / "nets" / recipe.name
    return fit(initial(recipe, SEED), digits.x, digits.y, recipe, seed=SEED, out=out).net


def _seven_exits() -> nn.Module:
    return seven_exit_resnet(8, in_channels=1)


def _third_party(arguments: argparse.Namespace) -> nn.Module:
    sys.path.insert(0, str(arguments.models))
    net: nn.Module = importlib.import_module("modules").load("cifar10/triplewins_rdi_resnet38")
    return net


CASES = (
    Case("digits-exits", _embedded, "digits", 200, 0.15, True),
    Case("digits-seven-exits", _trained, "digits", 64, 0.15, True),
    Case("cifar10/triplewins_rdi_resnet38", _third_party, "cifar10", 32, 8 / 255, False),
)
NEAR = 0.003  # values that differ by less count as equal
FEW_ROWS = 16


def main() -> None:
    """Measure all networks that are not in the record, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, help="folder with modules.py")
    parser.add_argument("--data", help="folder with CIFAR-10")
    parser.add_argument("--cells", type=Path, help="folder for played cells and trained weights")
    parser.add_argument("--out", type=Path, required=True, help="record to write or to read")
    parser.add_argument("--page", type=Path, help="page to write from the record")
    arguments = parser.parse_args()
    if arguments.page:
        arguments.page.write_text(page(json.loads(arguments.out.read_text())))
        return
    if not (arguments.models and arguments.data and arguments.cells):
        parser.error("specify --models, --data and --cells, or --page")
    torch.set_num_threads(1)
    record = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for case in CASES:
        if case.name not in record:
            record[case.name] = measure(case, arguments)
            write(arguments.out, record)


def measure(case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    """Play the full game and the double oracle on one network."""
    base = MultiExit(case.load(arguments).eval())
    root = None if case.data == "digits" else arguments.data
    images = load_data(case.data, split="test", n=case.n, root=root)
    with torch.no_grad():
        exits = len(base.net(images.x[:1]))
    run_adversaries = cached_play(
        base,
        images.x,
        images.y,
        threat=Linf(case.radius),
        answers=columns_of(all_subsets(exits)),
        out=arguments.cells / "cells",
        name=case.name,
        seed=SEED,
        batch_size=64,
        threads=1,
    )

    def game(rows: Literal["all", "double-oracle"]) -> ExitGame:
        return exit_game(
            base,
            images.x,
            images.y,
            threat=Linf(case.radius),
            attack=ATTACK,
            rows=rows,
            tolerance=NEAR,
            run_adversaries=run_adversaries,
        )

    settings = {"exits": exits, "n": case.n, "radius": case.radius, "tuned": case.used_for_tuning}
    return {**settings, **compare(game("all"), game("double-oracle"))}


def compare(full: ExitGame, grown: ExitGame) -> dict[str, Any]:
    """The numbers of the double oracle beside those of the full game; accuracies in percent."""
    partial = [a for a, target in enumerate(grown.targets) if target is not None]
    gaps = [
        solve(grown.payoff[partial[:k]]).value - full.value() for k in range(1, len(partial) + 1)
    ]
    exact = exact_gaps(full)
    return {
        "full rows": len(full.targets),
        "full value": 100 * full.value(),
        "best pure value": 100 * float(full.payoff.amin(0).amax()),
        "partial attacks": len(partial),
        "partial value": 100 * grown.partial_value(),
        "expected-loss attacks": grown.targets.count(None),
        "enlarged value": 100 * grown.value(),
        "exploitability": 100 * (grown.exploitability or 0.0),
        "mix in the full game": 100 * float(full.accuracy(grown.equilibrium().defender).amin()),
        "rows until near": _first(gaps),
        "gap at few rows": 100 * gaps[min(FEW_ROWS, len(gaps)) - 1],
        "exact best responses": len(exact),
        "exact best responses until near": _first(exact),
        "targets": ["+".join(map(str, grown.targets[a] or ())) for a in partial],
        "gaps": [100 * gap for gap in gaps],
    }


def exact_gaps(full: ExitGame) -> list[float]:
    """The value above that of the full game after each row of a double oracle that never guesses.

    It adds the exact best response, which only the full game gives, from the row on all exits on.
    """
    payoff = full.payoff
    rows = [full.targets.index(tuple(range(1, full.exits + 1)))]
    value = full.value()
    gaps = []
    while True:
        found = solve(payoff[rows])
        gaps.append(found.value - value)
        best = int((payoff @ found.defender.to(payoff)).argmin())
        if best in rows:
            return gaps
        rows.append(best)


def _first(gaps: Sequence[float]) -> int:
    """The number of rows from which on the gap stays below `NEAR`."""
    return 1 + max((k + 1 for k, gap in enumerate(gaps) if gap > NEAR), default=0)


def page(record: dict[str, Any]) -> str:
    """The page about a record."""
    rows = {
        "exits": ("exits", "d"),
        "images": ("n", "d"),
        "used to choose the constants": ("tuned", ""),
        "partial attacks of the full game": ("full rows", "d"),
        "value of the full game, %": ("full value", ".2f"),
        "**double oracle**: partial attacks": ("partial attacks", "d"),
        "value against partial attacks, %": ("partial value", ".2f"),
        "attacks on an expected loss": ("expected-loss attacks", "d"),
        "value with attacks on an expected loss, %": ("enlarged value", ".2f"),
        "accuracy of its mix in the full game, %": ("mix in the full game", ".2f"),
        "partial attacks until the value is within 0.3 points": ("rows until near", "d"),
        f"points above the full game with {FEW_ROWS} partial attacks": ("gap at few rows", ".2f"),
        "exact best responses until the value is within 0.3 points": (
            "exact best responses until near",
            "d",
        ),
        "exact best responses until no row gains": ("exact best responses", "d"),
    }
    nets = list(record)
    lines = [f"| | {' | '.join(nets)} |", f"|---|{'---:|' * len(nets)}"]
    for title, (key, form) in rows.items():
        cells = (_shown(record[net][key], form) for net in nets)
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join([_INTRODUCTION, *lines, "", *map(_sentence, nets, record.values()), ""])


def _shown(value: Any, form: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format(value, form)


def _sentence(net: str, found: dict[str, Any]) -> str:
    gap = found["partial value"] - found["full value"]
    near = "within" if gap <= 100 * NEAR else "not within"
    return (
        f"* {net}: the value against partial attacks is {near} 0.3 points of the full game "
        f"({gap:+.2f}), with {found['partial attacks']} of {found['full rows']} partial attacks; "
        f"attacks on an expected loss change it by "
        f"{found['enlarged value'] - found['partial value']:+.2f} points."
    )


_INTRODUCTION = """# The double oracle beside the full game

Written from `benchmarks/records/double-oracle.json` by `python -m benchmarks.double_oracle --page`;
the docstring of that module has the command of the measurement. PGD-10, seed 0.

A game with seven exits has 127 partial attacks. The double oracle plays some of them and reports
two values by name:

* *Against partial attacks*: the attacker may use the same attacks as in the full game, but only
  those that were played count. This value can only be above that of the full game; the aim is at
  most 0.3 points.
* *With attacks on an expected loss*: the attacker has an enlarged set, and may also attack the
  expected loss of the defender's mixed strategy. This is the value of another game, and it can be
  below that of the full game. The strategy that is optimal in this other game can also be less
  accurate in the full game, because it gives up accuracy against partial attacks.

The double oracle stops when no subset is forecast to lower the value by 0.3 points, one standard
deviation of the forecast included. This width was chosen on the first two networks; the third one
was not used for it. 16 partial attacks are not enough with seven exits: the table shows how many
are needed, and how far 16 are above the full game. A best response cannot be known without playing
it: even exact best responses, which cost all 127 attacks, need the number of rows in the table, and
most guesses are no best response.
"""


if __name__ == "__main__":
    main()
