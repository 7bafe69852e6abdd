"""Effects of the places where the DEQ experiments differ from the paper or its released code.

    python -m benchmarks.deq_differences   # -> benchmarks/records/equilibria/differences.json
    python -m benchmarks.deq_differences --page docs/results/differences-deq.md

Measured on the embedded network `digits-deq-unrolled` (8 solver steps), radius 0.15, PGD-10, the
first 300 test digits, seed 0, one thread. The page also reads `adjoint.json` and `released.json`
of the same folder.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from benchmarks.deq_differences_page import page
from torch import Tensor

from saddlepoint import zoo
from saddlepoint.attacks.aims import expected
from saddlepoint.attacks.best import AttackResult, BestSoFar
from saddlepoint.attacks.oracle import Differentiates
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Ball, Linf, Radii
from saddlepoint.data import load_data
from saddlepoint.defenses import view
from saddlepoint.evaluation import Adversary, FixedPoints, evaluate
from saddlepoint.evaluation.bootstrap import mean_of
from saddlepoint.gradients import SimultaneousAdjoint
from saddlepoint.papers.deq.gradients import (
    Gradient,
    adjoint_at,
    ready_made,
    unrolled_at,
    unrolled_ensemble,
)
from saddlepoint.zoo.deq import DEQ, EarlyState, FinalState, MeanState, Solved, Unrolled

RECORDS = Path("benchmarks/records/equilibria")
OUT = RECORDS / "differences.json"
NETWORK = "digits-deq-unrolled"
RADIUS = 0.15
N = 300
BATCH = 96  # images per batch in the released code
PGD_10 = PGD(10, Radii(1 / 4))


@dataclass(frozen=True)
class LastPoint(PGD):
    """PGD that returns its last point, as the released code does."""

    def ascend(
        self,
        oracle: Differentiates,
        center: Tensor,
        space: Ball,
        start: Tensor,
        lengths: Sequence[float],
    ) -> AttackResult:
        """Run the iteration and keep only the last point; arguments as in `PGD.ascend`."""
        x = start
        region = space.around(center)
        for step in lengths:
            _, grad = oracle.gradient(x)
            x = region.project(x.add(space.ascent(grad, x), alpha=step))
        last = BestSoFar(center, oracle.coupled)
        last.update(x, oracle.score(x))
        return last.result


class Bench:
    """The network and its images."""

    def __init__(self, n: int) -> None:
        self.net: Solved = zoo.load(NETWORK)
        self.defense = self.net.defense
        self.steps = self.net.method.steps
        self.names = [EarlyState(k).name for k in range(1, self.steps + 1)]
        test = load_data("digits", split="test", n=n)
        self.x = test.x
        self.y = test.y

    def correct(self, attack: Adversary, defense: DEQ | None = None) -> dict[str, Tensor]:
        """Correct predictions [N] of every state under an attack, by its name."""
        names = [*self.names, MeanState.name, FinalState.name]
        answers = {name: view(name) for name in names}
        found = evaluate(
            defense or self.defense,
            [attack],
            self.x,
            self.y,
            threat=Linf(RADIUS),
            answers=answers,
            batch_size=BATCH,
        )
        return dict(zip(names, found.correct[0].double(), strict=True))


def effect(point: str, measured: str, theirs: Tensor, ours: Tensor) -> dict[str, Any]:
    """One difference: both accuracies in percent, and ours minus theirs on the same images."""
    change = mean_of(ours - theirs)
    return {
        "point": point,
        "measured": measured,
        "theirs": round(100 * float(theirs.mean()), 2),
        "ours": round(100 * float(ours.mean()), 2),
        "interval": [round(100 * change.low, 2), round(100 * change.high, 2)],
    }


def effects(bench: Bench) -> Iterator[dict[str, Any]]:
    """All measured differences."""
    yield from _adjoint(bench)
    yield from _ensemble(bench)
    yield from _last_point(bench)
    yield from _batch(bench)
    yield from _steps_after(bench)
    yield from _unrolled_steps(bench)


def _adjoint(bench: Bench) -> Iterator[dict[str, Any]]:
    for k in (2, 4):
        gradient = adjoint_at(k)
        state = EarlyState(k - 1).name
        ours = bench.correct(gradient.pgd(PGD_10))[state]
        for point, rule in (
            ("transpose", SimultaneousAdjoint(emit=k, transpose=False)),
            ("beta 0.5", SimultaneousAdjoint(emit=k, beta=0.5)),
        ):
            theirs = bench.correct(replace(gradient, rule=rule).pgd(PGD_10))[state]
            yield effect(point, f"z_{k - 1} under u_{k}", theirs, ours)


def _ensemble(bench: Bench) -> Iterator[dict[str, Any]]:
    gradient: Gradient = unrolled_ensemble(bench.net, 1, 1.0)
    weights = torch.arange(bench.steps, 0, -1).double()
    released = replace(gradient, aim=expected(weights / weights.sum()))
    theirs, ours = (bench.correct(one.pgd(PGD_10)) for one in (released, gradient))
    for name, title in ((FinalState.name, "final state"), (MeanState.name, "mean state")):
        yield effect("ensemble", title, theirs[name], ours[name])


def _last_point(bench: Bench) -> Iterator[dict[str, Any]]:
    gradient = ready_made(bench.net)
    last = LastPoint(PGD_10.steps, PGD_10.step_size)
    theirs, ours = (bench.correct(gradient.pgd(attack)) for attack in (last, PGD_10))
    yield effect("last point", "final state", theirs[FinalState.name], ours[FinalState.name])
    early = EarlyState(3).name
    yield effect("last point", "z_3", theirs[early], ours[early])


def _batch(bench: Bench) -> Iterator[dict[str, Any]]:
    """The same points on both defenses: the attack does not see the coupling."""
    method = replace(bench.net.method, batch_coupled=True)
    coupled = DEQ(bench.net.net, method=method, after=bench.net.after)
    for title, attack in (
        ("final state, clean", FixedPoints()),
        ("final state, ready-made attack on each", ready_made(bench.net).pgd(PGD_10)),
    ):
        theirs = bench.correct(attack, coupled)[FinalState.name]
        ours = bench.correct(attack)[FinalState.name]
        yield effect("batch", title, theirs, ours)


def _steps_after(bench: Bench) -> Iterator[dict[str, Any]]:
    """The released evaluation takes ten steps from the best state, its training takes six."""
    longer = DEQ(bench.net.net, method=bench.net.method, after=Unrolled(10, damping=0.5))
    attack = ready_made(bench.net).pgd(PGD_10)
    theirs, ours = (bench.correct(attack, one)[FinalState.name] for one in (longer, bench.defense))
    yield effect("steps after", "final state, ready-made attack on each", theirs, ours)


def _unrolled_steps(bench: Bench) -> Iterator[dict[str, Any]]:
    """The released code takes one undamped step before the k steps of Eq. 13; here k = 1."""
    theirs, ours = (bench.correct(unrolled_at(1, k, 1.0).pgd(PGD_10)) for k in (2, 1))
    for n in (1, 3):
        state = EarlyState(n).name
        yield effect("unrolled steps", f"z_{n}", theirs[state], ours[state])


def main() -> None:
    """Measure and write the record, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=N, help="number of digits")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--page", type=Path, help="write this page from the records instead")
    arguments = parser.parse_args()
    if arguments.page:
        arguments.page.write_text(page(RECORDS), encoding="utf-8")
        return
    torch.set_num_threads(1)
    record = {
        "command": f"python -m benchmarks.deq_differences --n {arguments.n}",
        "torch": version("torch"),
        "python": platform.python_version(),
        "network": NETWORK,
        "images": arguments.n,
        "radius": RADIUS,
        "effects": list(effects(Bench(arguments.n))),
    }
    arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
