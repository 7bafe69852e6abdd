"""Costs of deep equilibrium models: memory, evaluations under attack, solver time beside torchdeq.

    python -m benchmarks.deq memory         # -> benchmarks/records/equilibria/memory.json
    python -m benchmarks.deq warm --n 500   # -> benchmarks/records/equilibria/warm.json
    python -m benchmarks.deq solve          # -> benchmarks/records/equilibria/solve.json
    python -m benchmarks.deq monotone --models FOLDER --data FOLDER
                                            # -> benchmarks/records/equilibria/monotone.json

`memory` counts the bytes of all tensors alive at once, so the result is a property of the code and
not of the machine. `warm` counts evaluations of f and products with its Jacobian. `solve`
alternates between both libraries in one process; it requires `pip install torchdeq`. `monotone`
audits third-party networks. `--models`, or SADDLEPOINT_MODELS, is a folder with
`mnist/mondeq_*.safetensors`: the tensors A, B, U, u, C, c and, in the metadata, m. Without it the
command does nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import saddlepoint as sp
from saddlepoint import zoo
from saddlepoint.data import load_data
from saddlepoint.data.record import Data
from saddlepoint.defenses import Anderson, Broyden, Context, Picard, Solver
from saddlepoint.evaluation import AttackContext
from saddlepoint.gradients import Implicit
from saddlepoint.rng import Keys
from saddlepoint.zoo.deq import DEQ, MDEQ, EarlyState, FinalState, MeanState, MonotoneDEQ
from saddlepoint.zoo.nets import ConvDEQNet

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from tests.memory import peak_bytes

RECORDS = Path("benchmarks/records/equilibria")
DEFAULT_IMAGES = {"memory": 4, "warm": 500, "solve": 128, "monotone": 200}
TENSORS = ("A", "B", "U", "u", "C", "c")


def context(n: int, **options: Any) -> Context:
    """A context with seed 0 for n examples."""
    return Context(Keys.of(0, torch.arange(n)), **options)


def memory(arguments: argparse.Namespace) -> dict[str, Any]:
    """Peak memory of the forward pass per returned state, and of the implicit gradient.

    The forward pass is relative to the final state. The implicit gradient is the ratio of 64 to 8
    solver steps.
    """
    torch.manual_seed(0)
    net = MDEQ("cifar").net
    x = torch.rand(arguments.n, 3, 32, 32)

    def forward_bytes(state: FinalState | EarlyState | MeanState) -> int:
        defense = DEQ(net, method=Broyden(steps=8, tolerance=0.0), state=state)
        with torch.no_grad():
            return peak_bytes(lambda: defense.trace(x, context(len(x), keep=defense.reads)))

    def gradient_bytes(method: Solver) -> int:
        defense = DEQ(net, method=method)
        rules = {"solve": Implicit(Picard(steps=10, tolerance=0.0))}
        with_gradient = x.clone().requires_grad_()

        def backward() -> None:
            ctx = context(len(x), rules=rules, keep=defense.reads)
            defense.trace(with_gradient, ctx).last.sum().backward()

        return peak_bytes(backward)

    final = forward_bytes(FinalState())
    methods: dict[str, Callable[[int], Solver]] = {
        "picard": lambda steps: Picard(steps=steps, tolerance=0.0),
        "anderson": lambda steps: Anderson(steps=steps, tolerance=0.0),
        "broyden, memory=8": lambda steps: Broyden(steps=steps, tolerance=0.0, memory=8),
        "broyden": lambda steps: Broyden(steps=steps, tolerance=0.0),
    }
    return {
        "net": "MDEQ('cifar'), random weights",
        "images": len(x),
        "unit": "bytes of all tensors that the call created and that were alive at once",
        "forward": {
            "final": final,
            "early state 3": forward_bytes(EarlyState(3)),
            "mean state": forward_bytes(MeanState()),
        },
        "forward, relative to final": {
            state.name: round(forward_bytes(state) / final, 3)
            for state in (EarlyState(3), MeanState())
        },
        "implicit gradient, 64 steps / 8 steps": {
            name: round(gradient_bytes(make(64)) / gradient_bytes(make(8)), 3)
            for name, make in methods.items()
        },
    }


def warm(arguments: argparse.Namespace) -> dict[str, Any]:
    """Attacks of 50 steps with cold solves and with solves started at the previous solution."""
    rows: dict[str, Any] = {}
    for name in arguments.target or ["digits-deq-exact", "digits-deq-unrolled"]:
        defense = zoo.target(name)
        data = load_data("digits", split="test", n=arguments.n)
        assert isinstance(defense, DEQ)
        for attack in (sp.PGD(50), sp.APGD(50)):
            cold = sp.Direct("cold", attack, loss=sp.cross_entropy)
            found = rows.setdefault(f"{name}, {type(attack).__name__}-50", {})
            for steps in (0, *arguments.steps):
                direct = replace(cold, name="cold" if not steps else f"warm={steps}", warm=steps)
                found[direct.name] = attack_cost(defense, direct, data.x, data.y)
    for found in rows.values():
        for row in found.values():
            row["of cold"] = {
                key: round(row[key] / found["cold"][key], 3) for key in ("evaluations", "in solves")
            }
    return {
        "n": arguments.n,
        "threat": "Linf 0.15",
        "evaluations": "of f and products with its Jacobian, per image and attack; the defense and "
        "its implicit gradient use their own tolerances, 1e-3 and 1e-6",
        "in solves": "the same without the steps that the defense takes after its solver, 1 or 6 "
        "in every pass",
        "attacks": rows,
    }


def attack_cost(defense: DEQ, direct: sp.Direct, x: Tensor, y: Tensor) -> dict[str, float]:
    """Robust accuracy, and evaluations of f per image, of one attack."""
    threat = sp.Threat(sp.Linf(0.15))
    evaluations = 0
    after_solver = 0
    correct = 0
    for rows in torch.split(torch.arange(len(x)), 125):
        attack_context = AttackContext.open(threat, rows, 0)
        points = direct.move(attack_context, defense, x[rows], y[rows]).point
        correct += count_correct(defense, points, y[rows])
        evaluations += int(attack_context.meter.inner.sum())
        after_solver += defense.after.steps * int(attack_context.meter.forward.sum())
    return {
        "robust accuracy": correct / len(x),
        "evaluations": round(evaluations / len(x), 1),
        "in solves": round((evaluations - after_solver) / len(x), 1),
    }


@torch.no_grad()
def count_correct(defense: DEQ | MonotoneDEQ, x: Tensor, y: Tensor) -> int:
    """Number of images that the defense classifies correctly."""
    logits = defense.respond(x, context(len(x), keep=defense.reads))
    return int((logits.argmax(1) == y).sum())


def solve(arguments: argparse.Namespace) -> dict[str, Any]:
    """CPU time per example of Broyden in saddlepoint and torchdeq, to the same residual."""
    rows = {}
    for name, net, x in problems(arguments.n):
        for tolerance in (1e-2, 1e-3, 1e-4):
            key = f"{name}, tolerance {tolerance:g}"
            rows[key] = compare_solvers(net, x, tolerance, arguments.rounds)
            print(name, tolerance, rows[key], flush=True)
    return {
        "images": arguments.n,
        "rounds": arguments.rounds,
        "ratio": "median over rounds of the CPU time of saddlepoint / torchdeq",
        "torchdeq": version("torchdeq"),
        "solves": rows,
    }


@torch.no_grad()
def compare_solvers(net: Any, x: Tensor, tolerance: float, rounds: int) -> dict[str, Any]:
    """Alternate between the Broyden solvers of both libraries on one problem."""
    from torchdeq.solver import get_solver

    u = net.inject(x)
    start = net.start(u)
    broyden = Broyden(steps=50, tolerance=tolerance)
    torchdeq_broyden = get_solver("broyden")

    def cell_of_rows(z: Tensor, rows: Tensor) -> Tensor:
        return net.cell(z, u if len(rows) == len(u) else u[rows])

    def saddlepoint_solve() -> Tensor:
        return broyden(cell_of_rows, start).best

    def torchdeq_solve() -> Tensor:
        return torchdeq_broyden(
            lambda z: net.cell(z, u), start, max_iter=50, tol=tolerance, stop_mode="rel"
        )[0]

    solvers = {"saddlepoint": saddlepoint_solve, "torchdeq": torchdeq_solve}
    residual = {key: largest_residual(net, u, run()) for key, run in solvers.items()}
    taken: dict[str, list[float]] = {key: [] for key in solvers}
    for _ in range(rounds):
        for key, run in solvers.items():
            began = time.process_time()
            run()
            taken[key].append((time.process_time() - began) / len(x))
    ratios = [a / b for a, b in zip(taken["saddlepoint"], taken["torchdeq"], strict=True)]
    return {
        "milliseconds per example": {
            key: round(1e3 * statistics.median(values), 4) for key, values in taken.items()
        },
        "largest residual": {key: float(f"{value:.2g}") for key, value in residual.items()},
        "ratio": round(statistics.median(ratios), 3),
    }


def problems(n: int) -> list[tuple[str, Any, Tensor]]:
    """Name, network and images of each fixed-point problem."""
    torch.manual_seed(0)
    digits = load_data("digits", split="test", n=min(n, 500)).x
    trained = [
        (name, zoo.target(name).net, digits)  # type: ignore[union-attr]
        for name in ("digits-deq-exact", "digits-deq-unrolled")
    ]
    wide = ConvDEQNet(image=(3, 32, 32), channels=32, gain=0.95).eval()
    images = torch.rand(max(n // 8, 1), 3, 32, 32)
    return [*trained, ("32x32x32 state, random weights", wide, images)]


def largest_residual(net: Any, u: Tensor, z: Tensor) -> float:
    """The largest relative residual |f(z) - z| / |f(z)| of the batch."""
    f = net.cell(z, u)
    return float(((f - z).norm(dim=1) / f.norm(dim=1)).max())


def monotone(arguments: argparse.Namespace) -> dict[str, Any]:
    """Audit third-party monotone networks."""
    folder = arguments.models or os.environ.get("SADDLEPOINT_MODELS")
    if not folder:
        print(
            "nothing to do: specify --models FOLDER or set SADDLEPOINT_MODELS; the folder contains "
            "mnist/mondeq_*.safetensors"
        )
        raise SystemExit
    index = Path(folder) / "index.json"
    entries = json.loads(index.read_text()) if index.is_file() else []
    stated = {entry["name"]: entry.get("clean") for entry in entries}
    data = load_data("mnist", split="test", root=arguments.data)
    rows = {}
    for path in sorted(Path(folder).glob("mnist/mondeq_*.safetensors")):
        rows[path.stem] = audit_monotone(path, data, stated, arguments)
        print(path.stem, json.dumps(rows[path.stem]), flush=True)
    return {"models": rows}


def audit_monotone(
    path: Path, data: Data, stated: dict[str, Any], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Clean accuracy on all images, and an audit on the first n."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        tensors = {key: file.get_tensor(key).float() for key in TENSORS}
        metadata = dict(file.metadata() or {})
    m = json.loads(metadata["loader"])["m"]
    defense = MonotoneDEQ.from_tensors(**tensors, m=m, mean=(0.1307,), std=(0.3081,))
    clean = sum(count_correct(defense, x, y) for x, y in data.batches(1000))
    x = data.x[: arguments.n]
    y = data.y[: arguments.n]
    audit = sp.audit(
        defense, x, y, threat=sp.Linf(arguments.eps), budget=arguments.budget, name=path.stem
    )
    return {
        "source": metadata.get("source"),
        "m": m,
        f"clean accuracy, {len(data.x)} images": clean / len(data.x),
        "clean accuracy by its own loader": stated.get(f"mnist/{path.stem}"),
        "audit": {
            "n": audit.n,
            "threat": audit.threat,
            "budget": audit.budget,
            "clean": audit.clean_accuracy,
            "robust": audit.robust_accuracy,
            "by attack": {row.name: row.robust_accuracy for row in audit.rows},
            "symptoms": [f"{s.name} ({s.level})" for s in audit.symptoms],
            "largest residual": float(f"{defense.convergence(x).residual.max():.2g}"),
        },
    }


def main() -> None:
    """Run one benchmark and write its record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["memory", "warm", "solve", "monotone"])
    parser.add_argument("--n", type=int, help="number of images")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--steps", type=int, nargs="+", default=[1, 2], help="solver steps of a warm solve"
    )
    parser.add_argument(
        "--target", nargs="+", help="zoo models to attack with warm and cold solves"
    )
    parser.add_argument("--models", help="folder of third-party networks")
    parser.add_argument("--data", help="folder of the MNIST files")
    parser.add_argument("--eps", type=float, default=0.05)
    parser.add_argument("--budget", default="quick")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.n = arguments.n or DEFAULT_IMAGES[arguments.what]
    benchmarks = {"memory": memory, "warm": warm, "solve": solve, "monotone": monotone}
    found = benchmarks[arguments.what](arguments)
    command = f"python -m benchmarks.deq {arguments.what} --n {arguments.n}"
    if arguments.what == "warm":
        command += f" --steps {' '.join(map(str, arguments.steps))}"
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    about = {"command": command, "versions": versions}
    out = arguments.out or RECORDS / f"{arguments.what}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"about": about, **found}, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
