"""How often the interval over batches contains the true accuracy.

    python -m benchmarks.coverage --samples 10000 --out benchmarks/records/coverage.json

Each cell draws the accuracy of every batch from a beta distribution with mean p and variance
r p (1 - p), so that two images of one batch have the correlation r, and then the number of correct
images from a binomial distribution. The last batch has half the size of the others. Three intervals
are compared: `saddlepoint.audits.statistics.batch_bounds`, the t interval of batch means united
with Wilson's, and Wilson's, which assumes independent images. The level is 95 %.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t

from saddlepoint.audits.statistics import Floats, batch_bounds, wilson_bounds

BATCHES = (2, 3, 4, 8, 16, 32)
SIZES = (8, 32, 128)
CORRELATIONS = (0.0, 0.02, 0.05, 0.1, 0.2)
ACCURACIES = (0.05, 0.2, 0.5, 0.8, 0.95)
LEVEL = 0.95


def draw(
    batches: int, size: int, correlation: float, accuracy: float, samples: int, seed: int
) -> tuple[Floats, Floats]:
    """Correct images per batch, [samples, batches], and images per batch, [batches]."""
    rng = np.random.default_rng(seed)
    count = np.full(batches, size)
    count[-1] = size // 2
    share = np.full((samples, batches), accuracy)
    if correlation:
        scale = (1 - correlation) / correlation
        share = rng.beta(accuracy * scale, (1 - accuracy) * scale, share.shape)
    return rng.binomial(count, share).astype(float), count.astype(float)


def t_bounds(total: Floats, count: Floats) -> tuple[Floats, Floats]:
    """The t interval of batch means, united with Wilson's interval of independent images."""
    k = len(count)
    n = count.sum()
    p = total.sum(-1) / n
    variance = k / (k - 1) * ((total - p[:, None] * count) ** 2).sum(-1) / n**2
    half = t.ppf((1 + LEVEL) / 2, k - 1) * variance**0.5
    low, high = wilson_bounds(p, n, LEVEL)
    return np.minimum(low, p - half), np.maximum(high, p + half)


def coverage(
    batches: int, size: int, correlation: float, accuracy: float, samples: int, seed: int = 0
) -> dict[str, Any]:
    """The share of samples in which each interval contains the true accuracy, and mean widths."""
    total, count = draw(batches, size, correlation, accuracy, samples, seed)
    bounds = {
        "batches": batch_bounds(total, total, count, LEVEL),
        "t": t_bounds(total, count),
        "independent": wilson_bounds(total.sum(-1) / count.sum(), count.sum(), LEVEL),
    }
    cell: dict[str, Any] = {
        "batches": batches,
        "size": size,
        "correlation": correlation,
        "accuracy": accuracy,
    }
    for name, (low, high) in bounds.items():
        inside = (low <= accuracy) & (accuracy <= high)
        cell[f"coverage_{name}"] = round(float(inside.mean()), 4)
    low, high = bounds["batches"]
    cell["width_batches"] = round(float((high - low).mean()), 4)
    return cell


def lowest(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lowest coverage of each interval by number of batches, with the mean width."""
    rows = []
    for batches in BATCHES:
        own = [cell for cell in cells if cell["batches"] == batches]
        row: dict[str, Any] = {"batches": batches}
        for name in ("batches", "t", "independent"):
            row[f"lowest_{name}"] = min(cell[f"coverage_{name}"] for cell in own)
        row["width"] = round(float(np.mean([cell["width_batches"] for cell in own])), 4)
        rows.append(row)
    return rows


def main() -> None:
    """Simulate all cells and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=10000, help="samples per cell")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/records/coverage.json"))
    arguments = parser.parse_args()
    grid = itertools.product(BATCHES, SIZES, CORRELATIONS, ACCURACIES)
    cells = [coverage(*settings, arguments.samples, seed) for seed, settings in enumerate(grid)]
    record = {
        "about": {
            "command": f"python -m benchmarks.coverage --samples {arguments.samples}",
            "level": LEVEL,
            "samples": arguments.samples,
            "versions": {"python": platform.python_version(), "scipy": version("scipy")},
        },
        "lowest": lowest(cells),
        "cells": cells,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    for row in record["lowest"]:
        print(json.dumps(row))


if __name__ == "__main__":
    main()
