"""Table 6: RMC on several streams, each with its own seed for images, attack and defense."""

from __future__ import annotations

from dataclasses import replace

import torch

from saddlepoint.papers.cells import correct_rate
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result, Row, Table
from saddlepoint.papers.transductive import EXPERIMENTS, published
from saddlepoint.papers.transductive.experiment import (
    TransductiveExperiment,
    accuracy,
    format_difference,
)
from saddlepoint.papers.transductive.rmc import BASES, GREEDY, RMCExperiment, RMCResult, units

COLUMNS = ("static, clean", "RMC, clean", "static, AA", *GREEDY)


def run(request: Request) -> Result:
    """Reproduce Table 6."""
    experiment = TransductiveExperiment.open(request)
    experiments = [
        RMCExperiment(experiment, replace(setting, images=setting.table_6_images))
        for setting in experiment.setting.rmc
    ]
    found = {
        (one.setting.data, base): [
            one.evaluate(base, seed, all_attacks=False) for seed in experiment.seeds
        ]
        for one in experiments
        for base in BASES
    }
    n = experiment.setting.rmc[0].table_6_images
    streams = experiment.setting.repeats
    rows = tuple(row(key, results) for key, results in found.items())
    table = Table(
        "Accuracy and robustness, %",
        ("data", "base"),
        COLUMNS,
        rows,
        n * streams,
        units=units(streams, n),
    )
    return experiment.result(
        EXPERIMENTS[5],
        [table],
        notes=[note for one in experiments for note in one.notes()],
        findings=[finding(" ".join(key), results) for key, results in found.items()],
        repeats=streams,
    )


def row(key: tuple[str, str], found: list[RMCResult]) -> Row:
    """Table row of one base network.

    Args:
        key: names of the data and of the base network, a key of `published.TABLE_6` if the paper
            has this row.
        found: our result per stream.

    Returns:
        One cell per column of `COLUMNS`, with one value per stream.
    """
    ours = [
        [one.base.clean for one in found],
        [one.episodes["clean"] for one in found],
        [one.base.auto for one in found],
        *([one.episodes[name] for one in found] for name in GREEDY),
    ]
    papers = published.TABLE_6.get(key, (None,) * len(COLUMNS))
    return Row(
        key, tuple(accuracy(episodes, paper) for episodes, paper in zip(ours, papers, strict=True))
    )


def finding(title: str, found: list[RMCResult]) -> str:
    """Compare RMC with its base network over all streams together.

    Args:
        title: names of the data and of the base network.
        found: our result per stream. The same attack, the stronger one over all streams, is used
            for every stream.

    Returns:
        One sentence.
    """
    totals = {
        name: torch.cat([correct_rate(one.episodes[name]) for one in found]) for name in GREEDY
    }
    lowest = min(GREEDY, key=lambda name: float(totals[name].mean()))
    static = torch.cat([correct_rate(one.base.auto) for one in found])
    return (
        f"{title}: RMC under {lowest} minus its static base under AA is "
        f"{format_difference(totals[lowest], static)}."
    )
