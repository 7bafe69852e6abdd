"""The time of attacks of this library relative to those of other libraries ("peers")."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

from tests.references import peers
from torch import Tensor, nn

Run = Callable[[], object]


def seconds(run: Run) -> float:
    """CPU time of a call."""
    started = time.process_time()
    run()
    return time.process_time() - started


def peer_runs(
    kind: str, net: nn.Module, x: Tensor, y: Tensor, radius: float, steps: int
) -> dict[str, Run]:
    """The runs of all installed peers that have an attack, by peer.

    Args:
        kind: a key of `peers.ATTACKS`; "pgd-..." makes steps of a tenth of the radius.
        net: the net.
        x: images, [N, ...].
        y: labels, [N]: those that the net predicts, because some peers leave out other images.
        radius: in units of the input.
        steps: number of steps.
    """
    pgd = {"steps": steps, "step": 0.1}
    budget = pgd if kind.startswith("pgd") else {"steps": steps, "restarts": 1}

    def run(peer: str) -> Run:
        attack = peers.ATTACKS[kind][peer]
        return lambda: attack(net, x.clone(), y.clone(), radius, seed=0, **budget)

    installed = [peer for peer in peers.ATTACKS.get(kind, {}) if peers.why_missing(peer) is None]
    return {peer: run(peer) for peer in installed}


def beside_peers(ours: Run, others: Mapping[str, Run], rounds: int) -> dict[str, object]:
    """The time of our attack relative to each peer, alternately in one process.

    Args:
        ours: runs our attack.
        others: runs of the peers; at least one.
        rounds: measurements of each, after one of each that does not count.

    Returns:
        Sorted ratios by peer, the fastest peer, and the median ratio to it.
    """
    for run in (ours, *others.values()):
        run()  # imports and first allocations
    ratios: dict[str, list[float]] = {peer: [] for peer in others}
    for _ in range(rounds):
        own = seconds(ours)
        for peer, run in others.items():
            ratios[peer].append(round(own / seconds(run), 3))
    medians = {peer: statistics.median(values) for peer, values in ratios.items()}
    fastest = max(medians, key=lambda peer: medians[peer])
    return {
        "fastest": fastest,
        "ratio": round(medians[fastest], 2),
        "ratios": {peer: sorted(values) for peer, values in ratios.items()},
    }
