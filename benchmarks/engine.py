"""Attacks on nets with batch normalization, with and without the engine.

    python -m benchmarks.engine [--nets NAMES] [--images N] [--audit N]

CPU time of PGD-20 and APGD-100 on the given net and on its folded copy, alternately in one process
with one thread, as ratios. Audits with the budget `standard` and the engine on and off then
evaluate the same images. The nets are expected beside the project, in `../shared/models`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.defenses import Plain
from saddlepoint.engine import equal_form
from saddlepoint.evaluation import Direct, Threat
from saddlepoint.evaluation.attack_context import AttackContext

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "records" / "engine.json"
NETS = ("akamaster_resnet20", "chen2021_resnet20", "triplewins_rdi_resnet38", "akamaster_resnet56")
ATTACKS = {"PGD-20": (sp.PGD(20), 3), "APGD-100": (APGD(100), 2)}  # with rounds
RADIUS = {"triplewins_rdi_resnet38": 8 / 255}
_DEFAULT_RADIUS = 1 / 255  # the others were trained without adversarial examples


class LastExit(nn.Module):
    """The last output of a net with several."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)[-1]
        return out


def load(folder: Path, name: str) -> nn.Module:
    """A net of the folder, in eval mode."""
    sys.path.insert(0, str(folder))
    import modules

    net: nn.Module = modules.load(f"cifar10/{name}")
    return LastExit(net).eval() if name.startswith("triplewins") else net


def seconds(run: Callable[[], object]) -> float:
    """CPU time of a call."""
    started = time.process_time()
    run()
    return time.process_time() - started


def timed(net: nn.Module, x: Tensor, y: Tensor, space: sp.Ball) -> dict[str, object]:
    """Time on the folded copy relative to the given net, by attack."""
    prepared = equal_form(net, x[:16])

    def attack(name: str, form: nn.Module) -> None:
        context = AttackContext.open(Threat(space), torch.arange(len(x)), 0)
        Direct(name, ATTACKS[name][0], loss=cross_entropy).move(context, Plain(form), x, y)

    found: dict[str, object] = {"form": prepared.choice, "reason": prepared.reason}
    for name, (_, rounds) in ATTACKS.items():
        ratios = []
        for _ in range(rounds):
            given = seconds(lambda name=name: attack(name, net))
            ratios.append(seconds(lambda name=name: attack(name, prepared.net)) / given)
        found[name] = {
            "ratio": round(statistics.median(ratios), 3),
            "ratios": [round(ratio, 3) for ratio in ratios],
        }
        print(f"  {name}: {found[name]}", flush=True)
    return found


def audited(net: nn.Module, x: Tensor, y: Tensor, space: sp.Ball) -> dict[str, object]:
    """Robust accuracy of two audits that differ in the engine alone."""
    found: dict[str, object] = {}
    for option in ("auto", "off"):
        started = time.process_time()
        audit = sp.audit(net, x, y, threat=space, engine=option, progress=False)
        found[option] = {
            "form": audit.engine.form,
            "robust_accuracy": audit.robust_accuracy,
            "correct": audit.correct.int().tolist(),
            "verdict": str(audit.verdict),
            "passes": float((audit.examples.forward + audit.examples.backward).double().mean()),
            "attack_seconds": round(sum(row.seconds for row in audit.rows), 1),
            "cpu_seconds": round(time.process_time() - started, 1),
        }
        print(f"  {option}: {found[option] | {'correct': None}}", flush=True)
    return found


def main() -> None:
    """Measure, and add the results to the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=ROOT.parent / "shared" / "models")
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--images", type=int, default=32, help="of the timed attacks; 0: none")
    parser.add_argument("--audit", type=int, default=100, help="images of the audits; 0: none")
    options = parser.parse_args()
    torch.set_num_threads(1)
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for name in options.nets.split(","):
        print(name, flush=True)
        net = load(options.models, name)
        space = sp.Linf(RADIUS.get(name, _DEFAULT_RADIUS))
        x, y = sp.load_data("cifar10", n=max(options.images, options.audit))
        entry = {**record.get(name, {}), "threat": str(space)}
        if options.images:
            timing = timed(net, x[: options.images], y[: options.images], space)
            entry |= {"timed_images": options.images, "timed": timing}
        if options.audit:
            accuracy = audited(net, x[: options.audit], y[: options.audit], space)
            entry |= {"audited_images": options.audit, "audited": accuracy}
        record[name] = entry
        RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
