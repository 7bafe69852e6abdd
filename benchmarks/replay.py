"""How often `runs verify --replay 5` finds that one in four attack cells was forged.

    python -m benchmarks.replay --out benchmarks/records/replay.json

An audit of an embedded network has 12 groups of images and 4 attacks. A quarter of its 48 attack
cells is forged in four ways; the outcomes of the forged points are those that the network has
there, so that no other check notices it. Each forgery is tried 20 times with other challenges.
`relative_cost` is the CPU time of the replay divided by that of five cells (the mean of all).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from saddlepoint.audits.cells import AttackCell
from saddlepoint.evaluation import Episode
from saddlepoint.evaluation.referee import FixedPoints
from saddlepoint.rng import Keys
from saddlepoint.runs.replay import Replay, replay_check
from saddlepoint.runs.spec import AttackSpec, DataSpec, RunSpec, ThreatSpec
from saddlepoint.runs.store import versions
from saddlepoint.runs.work import Work, load

CELLS = 5  # of --replay
_FORGED = ("points", "correct", "chosen", "answered", "margin", "size", "copies")
_SCALES = (0.95, 0.9, 0.8, 0.6, 0.4, 0.2, 0.0)  # of a perturbation that no longer fools

Groups = Sequence[int]


def specification() -> RunSpec:
    """12 groups of 10 digits, 4 attacks."""
    attacks = (
        AttackSpec(kind="apgd", name="apgd-ce", loss="ce", steps=20),
        AttackSpec(kind="apgd", name="apgd-dlr", loss="dlr", steps=20),
        AttackSpec(kind="pgd", name="pgd", steps=20),
        AttackSpec(kind="square", name="square", queries=100),
    )
    return RunSpec(
        target="zoo:digits-pgd",
        data=DataSpec(n=120),
        threat=ThreatSpec(eps="0.2"),
        attacks=attacks,
        batch_size=10,
    )


def some_cells(groups: Groups, attacks: Groups, rng: random.Random) -> list[AttackCell]:
    """A quarter of all cells."""
    cells = [(g, a) for g in groups for a in attacks]
    return rng.sample(cells, len(cells) // 4)


def some_images(groups: Groups, attacks: Groups, rng: random.Random) -> list[AttackCell]:
    """All attacks on a quarter of the images."""
    return [(g, a) for g in rng.sample([*groups], len(groups) // 4) for a in attacks]


def one_attack(groups: Groups, attacks: Groups, rng: random.Random) -> list[AttackCell]:
    """One of the four attacks, on all images."""
    attack = rng.choice([*attacks])
    return [(g, attack) for g in groups]


def noise(work: Work, cell: AttackCell, episode: Episode, seed: int) -> Episode:
    """The cell with harmless noise for all points."""
    job = work.plan.job
    points = job.threat.space.sample(job.x, Keys.of(seed, torch.arange(len(job.x))))
    return _with_points(work, cell, episode, points)


def scaled(work: Work, cell: AttackCell, episode: Episode, seed: int) -> Episode:  # noqa: ARG001
    """The cell with perturbations that are scaled until they no longer fool."""
    job = work.plan.job
    rows = job.groups[cell[0]]
    clean = job.x[rows]
    points = job.x.clone()
    best = episode
    found = episode.correct[0].bool()
    current = episode.points.clone()
    for scale in _SCALES:
        current = torch.where(
            found[:, None, None, None], current, clean + scale * (episode.points - clean)
        )
        points[rows] = current
        best = _with_points(work, cell, episode, points)
        found = best.correct[0].bool()
    return best


def _with_points(work: Work, cell: AttackCell, episode: Episode, points: torch.Tensor) -> Episode:
    job = work.plan.job
    played = job.play(FixedPoints("forged", points), job.groups[cell[0]])
    return replace(episode, **{name: getattr(played, name) for name in _FORGED})


FORGERIES = {
    "noise in a quarter of the cells": (some_cells, noise),
    "noise for all attacks on a quarter of the images": (some_images, noise),
    "noise for one of four attacks on all images": (one_attack, noise),
    "all attacks on a quarter of the images, scaled until they no longer fool": (
        some_images,
        scaled,
    ),
}


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/records/replay.json"))
    arguments = parser.parse_args()
    work = load(specification())
    attacks = [*range(1, len(work.plan.adversaries))]
    groups = [*range(len(work.plan.job.groups))]
    honest = {}
    seconds = []
    for cell, key in work.keys.items():
        begun = time.process_time()
        honest[key] = work.compute(cell).episode()
        if cell[1] > 0:
            seconds.append(time.process_time() - begun)
    record: dict[str, Any] = {
        "command": f"python -m benchmarks.replay --tries {arguments.tries}",
        "versions": versions(),
        "attack_cells": len(seconds),
        "replay": CELLS,
        "milliseconds_of_five_cells": round(1000 * CELLS * statistics.mean(seconds), 1),
        "robust_accuracy": _accuracy(work, honest),
        "honest": _tries(work, lambda _: honest, arguments.tries, seconds),
        "forgeries": {},
    }
    for name, (choose, forge) in FORGERIES.items():

        def forged(seed: int, choose: Any = choose, forge: Any = forge) -> dict[str, Episode]:
            cells = choose(groups, attacks, random.Random(seed))
            new = {work.keys[c]: forge(work, c, honest[work.keys[c]], seed) for c in cells}
            return {**honest, **new}

        record["forgeries"][name] = _tries(work, forged, arguments.tries, seconds)
        record["forgeries"][name]["robust_accuracy_of_the_first"] = _accuracy(work, forged(0))
        print(name, record["forgeries"][name], flush=True)
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


def _tries(
    work: Work,
    episodes: Callable[[int], dict[str, Episode]],
    tries: int,
    seconds: Sequence[float],
) -> dict[str, Any]:
    caught = 0
    spent = 0.0
    for seed in range(tries):
        cells = episodes(seed)
        begun = time.process_time()
        caught += not replay_check(work, work.keys, cells, Replay(CELLS, f"try {seed}")).passed
        spent += time.process_time() - begun
    cost = spent / (tries * CELLS * statistics.mean(seconds))
    return {"tries": tries, "caught": caught, "relative_cost": round(cost, 3)}


def _accuracy(work: Work, episodes: dict[str, Episode]) -> float:
    """Robust accuracy that the cells claim."""
    correct = []
    for group in range(len(work.plan.job.groups)):
        cells = [key for (g, _), key in work.keys.items() if g == group]
        correct.append(torch.stack([episodes[key].correct[0].double() for key in cells]).amin(0))
    return round(float(torch.cat(correct).mean()), 4)


if __name__ == "__main__":
    main()
