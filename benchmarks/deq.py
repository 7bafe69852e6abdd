"""What deep equilibrium models cost: memory of answers and gradients, evaluations under attack, time of a solve beside torchdeq.

    python -m benchmarks.deq memory                           # -> benchmarks/records/equilibria/memory.json
    python -m benchmarks.deq warm --n 500                     # -> benchmarks/records/equilibria/warm.json
    python -m benchmarks.deq solve  # -> benchmarks/records/equilibria/solve.json; needs `pip install torchdeq`
    python -m benchmarks.deq monotone --models FOLDER --data FOLDER   # -> benchmarks/records/equilibria/monotone.json

`memory` counts the bytes of all tensors alive at once, so that it is a property of the code and not of the machine. `warm` counts
evaluations of f and products with its Jacobian. `solve` runs both libraries in one process, in turns. `monotone` audits a network
that somebody else trained: `--models`, or SADDLEPOINT_MODELS, holds `mnist/mondeq_*.safetensors` with tensors A, B, U, u, C, c and,
in the metadata, m; without it there is nothing to do.
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
from saddlepoint.defenses import Anderson, Broyden, Context, Picard, Solver
from saddlepoint.gradients import Implicit
from saddlepoint.rng import Keys
from saddlepoint.zoo.deq import DEQ, MDEQ, EarlyState, FinalState, MeanState, MonotoneDEQ
from saddlepoint.zoo.nets import ConvDEQNet

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from tests.memory import peak_bytes

RECORDS = Path("benchmarks/records/equilibria")


def context(n: int, **options: Any) -> Context:
    return Context(Keys.of(0, torch.arange(n)), **options)


def memory(asked: argparse.Namespace) -> dict[str, Any]:
    """Peak of answers relative to the plain forward, and of the implicit gradient for 8 and 64 steps of the solver."""
    torch.manual_seed(0)
    net = MDEQ("cifar").net
    x = torch.rand(asked.n, 3, 32, 32)

    def answer(state: FinalState | EarlyState | MeanState) -> int:
        defense = DEQ(net, method=Broyden(steps=8, tolerance=0.0), state=state)
        with torch.no_grad():
            return peak_bytes(lambda: defense.trace(x, context(len(x), keep=defense.reads)))

    def gradient(method: Solver) -> int:
        defense = DEQ(net, method=method)
        live = x.clone().requires_grad_()
        rules = {"solve": Implicit(Picard(steps=10, tolerance=0.0))}
        return peak_bytes(
            lambda: (
                defense.trace(live, context(len(x), rules=rules, keep=defense.reads))
                .last.sum()
                .backward()
            )
        )

    plain = answer(FinalState())
    methods: dict[str, Callable[[int], Solver]] = {
        "picard": lambda steps: Picard(steps=steps, tolerance=0.0),
        "anderson": lambda steps: Anderson(steps=steps, tolerance=0.0),
        "broyden, memory=8": lambda steps: Broyden(steps=steps, tolerance=0.0, memory=8),
        "broyden": lambda steps: Broyden(steps=steps, tolerance=0.0),
    }
    return {
        "net": "MDEQ('cifar'), random weights",
        "images": len(x),
        "unit": "bytes of all tensors that the call made and that were alive at once",
        "forward": {
            "final": plain,
            "early state 3": answer(EarlyState(3)),
            "mean state": answer(MeanState()),
        },
        "forward, relative to final": {
            s.name: round(answer(s) / plain, 3) for s in (EarlyState(3), MeanState())
        },
        "implicit gradient, 64 steps / 8 steps": {
            name: round(gradient(make(64)) / gradient(make(8)), 3) for name, make in methods.items()
        },
    }


def warm(asked: argparse.Namespace) -> dict[str, Any]:
    """An attack of 50 steps with cold solves and with solves that go on where the last ones ended."""
    rows: dict[str, Any] = {}
    for name in asked.target or ["digits-deq-exact", "digits-deq-unrolled"]:
        defense = zoo.target(name)
        data = load_data("digits", split="test", n=asked.n)
        assert isinstance(defense, DEQ)
        for attack in (sp.PGD(50), sp.APGD(50)):
            cold = sp.Direct("cold", attack, loss=sp.cross_entropy)
            for steps in (0, *asked.steps):
                direct = replace(cold, name="cold" if not steps else f"warm={steps}", warm=steps)
                rows.setdefault(f"{name}, {type(attack).__name__}-50", {})[direct.name] = attacked(
                    defense, direct, data.x, data.y
                )
    for found in rows.values():
        for row in found.values():
            row["of cold"] = {
                key: round(row[key] / found["cold"][key], 3) for key in ("evaluations", "in solves")
            }
    return {
        "n": asked.n,
        "threat": "Linf 0.15",
        "evaluations": "of f and products with its Jacobian, per image and attack; the defense and its implicit gradient with "
        "their own tolerances, 1e-3 and 1e-6",
        "in solves": "the same without the steps that the defense makes after its solver, 1 or 6 in every pass",
        "attacks": rows,
    }


def attacked(defense: DEQ, direct: sp.Direct, x: Tensor, y: Tensor) -> dict[str, float]:
    from saddlepoint.evaluation import AttackContext

    threat = sp.Threat(sp.Linf(0.15))
    inner = 0
    after = 0
    right = 0
    for rows in torch.split(torch.arange(len(x)), 125):
        turn = AttackContext.open(threat, rows, 0)
        points = direct.move(turn, defense, x[rows], y[rows]).point
        with torch.no_grad():
            right += int(
                (
                    defense.respond(points, context(len(rows), keep=defense.reads)).argmax(1)
                    == y[rows]
                ).sum()
            )
        inner += int(turn.meter.inner.sum())
        after += defense.after.steps * int(turn.meter.forward.sum())
    return {
        "robust accuracy": right / len(x),
        "evaluations": round(inner / len(x), 1),
        "in solves": round((inner - after) / len(x), 1),
    }


def solve(asked: argparse.Namespace) -> dict[str, Any]:
    """Seconds per example of Broyden to the same relative residual, ours and torchdeq's, in turns in one process."""
    from torchdeq.solver import get_solver

    theirs = get_solver("broyden")
    rows = {}
    for name, net, x in problems(asked.n):
        with torch.no_grad():
            u = net.inject(x)
            start = net.start(u)
        for tolerance in (1e-2, 1e-3, 1e-4):
            method = Broyden(steps=50, tolerance=tolerance)

            def ours(
                net: Any = net, u: Tensor = u, start: Tensor = start, method: Broyden = method
            ) -> Tensor:
                return method(
                    lambda z, rows: net.cell(z, u if len(rows) == len(u) else u[rows]), start
                ).best

            def peer(
                net: Any = net, u: Tensor = u, start: Tensor = start, tolerance: float = tolerance
            ) -> Tensor:
                return theirs(
                    lambda z: net.cell(z, u), start, max_iter=50, tol=tolerance, stop_mode="rel"
                )[0]

            taken: dict[str, list[float]] = {"saddlepoint": [], "torchdeq": []}
            with torch.no_grad():
                residual = {
                    key: far(net, u, run())
                    for key, run in (("saddlepoint", ours), ("torchdeq", peer))
                }
                for _ in range(asked.rounds):
                    for key, run in (("saddlepoint", ours), ("torchdeq", peer)):
                        began = time.process_time()
                        run()
                        taken[key].append((time.process_time() - began) / len(x))
            seconds = {key: statistics.median(values) for key, values in taken.items()}
            rows[f"{name}, tolerance {tolerance:g}"] = {
                "milliseconds per example": {
                    key: round(1e3 * value, 4) for key, value in seconds.items()
                },
                "largest residual": {key: float(f"{value:.2g}") for key, value in residual.items()},
                "ratio": round(
                    statistics.median(
                        a / b for a, b in zip(taken["saddlepoint"], taken["torchdeq"], strict=True)
                    ),
                    3,
                ),
            }
            print(name, tolerance, rows[f"{name}, tolerance {tolerance:g}"], flush=True)
    return {
        "images": asked.n,
        "rounds": asked.rounds,
        "ratio": "median over rounds of our CPU time / theirs",
        "torchdeq": version("torchdeq"),
        "solves": rows,
    }


def problems(n: int) -> list[tuple[str, Any, Tensor]]:
    torch.manual_seed(0)
    digits = load_data("digits", split="test", n=min(n, 500)).x
    trained = [
        (name, zoo.target(name).net, digits) for name in ("digits-deq-exact", "digits-deq-unrolled")
    ]  # type: ignore[union-attr]
    wide = ConvDEQNet(image=(3, 32, 32), channels=32, gain=0.95).eval()
    return [
        *trained,
        ("32x32x32 state, random weights", wide, torch.rand(max(n // 8, 1), 3, 32, 32)),
    ]


def far(net: Any, u: Tensor, z: Tensor) -> float:
    f = net.cell(z, u)
    return float(((f - z).norm(dim=1) / f.norm(dim=1)).max())


def monotone(asked: argparse.Namespace) -> dict[str, Any]:
    """A monotone network trained by others, audited end to end."""
    from safetensors import safe_open

    folder = asked.models or os.environ.get("SADDLEPOINT_MODELS")
    if not folder:
        print(
            "nothing to do: give --models FOLDER, or set SADDLEPOINT_MODELS, with mnist/mondeq_*.safetensors in it"
        )
        raise SystemExit
    index = Path(folder) / "index.json"
    published = (
        {one["name"]: one.get("clean") for one in json.loads(index.read_text())}
        if index.is_file()
        else {}
    )
    data = load_data("mnist", split="test", root=asked.data)
    rows = {}
    for path in sorted(Path(folder).glob("mnist/mondeq_*.safetensors")):
        with safe_open(path, "pt") as file:
            tensors = {key: file.get_tensor(key).float() for key in ("A", "B", "U", "u", "C", "c")}
            told = dict(file.metadata() or {})
        m = json.loads(told["loader"])["m"]
        defense = MonotoneDEQ.from_tensors(**tensors, m=m, mean=(0.1307,), std=(0.3081,))
        clean = sum(
            int((defense.respond(x, context(len(x), keep=defense.reads)).argmax(1) == y).sum())
            for x, y in zip(torch.split(data.x, 1000), torch.split(data.y, 1000), strict=True)
        )
        audit = sp.audit(
            defense,
            data.x[: asked.n],
            data.y[: asked.n],
            threat=sp.Linf(asked.eps),
            budget=asked.budget,
            name=path.stem,
        )
        rows[path.stem] = {
            "source": told.get("source"),
            "m": m,
            f"clean accuracy, {len(data.x)} images": clean / len(data.x),
            "clean accuracy by its own loader": published.get(f"mnist/{path.stem}"),
            "audit": {
                "n": audit.n,
                "threat": audit.threat,
                "budget": audit.budget,
                "clean": audit.clean_accuracy,
                "robust": audit.robust_accuracy,
                "by attack": {row.name: row.robust_accuracy for row in audit.rows},
                "symptoms": [f"{s.name} ({s.level})" for s in audit.symptoms],
                "largest residual": float(
                    f"{defense.settled(data.x[: asked.n]).residual.max():.2g}"
                ),
            },
        }
        print(path.stem, json.dumps(rows[path.stem]), flush=True)
    return {"models": rows}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["memory", "warm", "solve", "monotone"])
    parser.add_argument("--n", type=int, help="images")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 2], help="of a warm solve")
    parser.add_argument(
        "--target", nargs="+", help="models of the zoo that are attacked warm and cold"
    )
    parser.add_argument("--models", help="folder of networks trained by others")
    parser.add_argument("--data", help="folder of the MNIST files")
    parser.add_argument("--eps", type=float, default=0.05)
    parser.add_argument("--budget", default="quick")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.n = asked.n or {"memory": 4, "warm": 500, "solve": 128, "monotone": 200}[asked.what]
    found = {"memory": memory, "warm": warm, "solve": solve, "monotone": monotone}[asked.what](
        asked
    )
    about = {
        "command": f"python -m benchmarks.deq {asked.what} --n {asked.n}"
        + (f" --steps {' '.join(map(str, asked.steps))}" if asked.what == "warm" else ""),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    out = asked.out or RECORDS / f"{asked.what}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"about": about, **found}, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
