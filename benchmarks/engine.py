"""Attacks on nets with batch normalization, with and without the engine.

    python -m benchmarks.engine [--nets NAMES] [--images N] [--rounds N] [--peers N] [--audit N]

CPU time of PGD-20 and APGD-100 on the given net and on its folded copy, alternately in one process
with one thread, as ratios. With `--peers`, the same attacks on the copy are compared with those of
other libraries on the given net, on the first images of the batch; APGD only with the peer that is
fastest with 10 steps, because 100 steps of all take long. The fastest peer is also compared with
the attack as audits run it: it makes no further queries of an image that is misclassified. Audits
with the budget `standard` and the engine on and off then evaluate the same images. The nets are
expected beside the project, in `../shared/models`.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from benchmarks.peer_times import beside_peers, peer_runs, seconds
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.defenses import Plain
from saddlepoint.engine import Prepared, equal_form
from saddlepoint.evaluation import Direct, Threat
from saddlepoint.evaluation.attack_context import AttackContext

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "records" / "engine.json"
NETS = ("akamaster_resnet20", "chen2021_resnet20", "triplewins_rdi_resnet38", "akamaster_resnet56")
ATTACKS = {"PGD-20": sp.PGD(20), "APGD-100": APGD(100)}
KINDS = {"PGD-20": "pgd-linf", "APGD-100": "apgd-ce-linf"}  # keys of `peers.ATTACKS`
_TRIAL_STEPS = 10  # of APGD, to find the fastest peer
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


def attack(
    name: str, form: nn.Module, x: Tensor, y: Tensor, space: sp.Ball, *, stop: bool = False
) -> None:
    """Run one of the attacks; with `stop`, on each image until it is misclassified."""
    context = AttackContext.open(Threat(space), torch.arange(len(x)), 0)
    direct = Direct(name, ATTACKS[name], loss=cross_entropy, stop_at_success=stop)
    direct.move(context, Plain(form), x, y)


def timed(
    net: nn.Module, prepared: Prepared, x: Tensor, y: Tensor, space: sp.Ball, rounds: int
) -> dict[str, object]:
    """Time on the folded copy relative to the given net, by attack."""
    found: dict[str, object] = {}
    for name in ATTACKS:
        ratios = []
        for _ in range(rounds):
            given = seconds(lambda name=name: attack(name, net, x, y, space))
            own = seconds(lambda name=name: attack(name, prepared.net, x, y, space))
            ratios.append(round(own / given, 3))
        found[name] = {"ratio": round(statistics.median(ratios), 3), "ratios": ratios}
        print(f"  {name}: {found[name]}", flush=True)
    return found


def timed_peers(
    net: nn.Module, prepared: Prepared, x: Tensor, space: sp.Ball, rounds: int
) -> dict[str, object]:
    """Time on the folded copy relative to peers on the given net, by attack."""
    with torch.no_grad():
        y = net(x).argmax(1)  # peers leave out images that are misclassified
    found: dict[str, object] = {}
    for name, own in ATTACKS.items():
        others = peer_runs(KINDS[name], net, x, y, space.radius, own.steps)
        if name == "APGD-100" and others:
            short = peer_runs(KINDS[name], net, x, y, space.radius, _TRIAL_STEPS)
            fastest = min(short, key=lambda peer: seconds(short[peer]))
            others = {fastest: others[fastest]}
        if not others:
            continue
        run = functools.partial(attack, name, prepared.net, x, y, space)
        whole = beside_peers(run, others, rounds)
        one = {str(whole["fastest"]): others[str(whole["fastest"])]}
        stopped = beside_peers(functools.partial(run, stop=True), one, rounds)
        found[name] = {**whole, "until_success": stopped}
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
    parser.add_argument("--images", type=int, default=32, help="of the timed attacks")
    parser.add_argument("--rounds", type=int, default=2, help="of the given net; 0: none")
    parser.add_argument("--peers", type=int, default=0, help="rounds of peers; default 0, none")
    parser.add_argument("--audit", type=int, default=100, help="images of the audits; 0: none")
    options = parser.parse_args()
    torch.set_num_threads(1)
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for name in options.nets.split(","):
        print(name, flush=True)
        net = load(options.models, name)
        space = sp.Linf(RADIUS.get(name, _DEFAULT_RADIUS))
        x, y = sp.load_data("cifar10", n=max(options.images, options.audit))
        few = x[: options.images]
        prepared = equal_form(net, few[:16])
        about = {"threat": str(space), "form": prepared.choice, "reason": prepared.reason}
        entry = {**record.get(name, {}), **about}
        if options.rounds:
            timing = timed(net, prepared, few, y[: len(few)], space, options.rounds)
            entry |= {"timed_images": len(few), "timed": timing}
        if options.peers:
            beside = timed_peers(net, prepared, few, space, options.peers)
            entry |= {"peer_images": len(few), "peers": beside}
        if options.audit:
            accuracy = audited(net, x[: options.audit], y[: options.audit], space)
            entry |= {"audited_images": options.audit, "audited": accuracy}
        record[name] = entry
        RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
