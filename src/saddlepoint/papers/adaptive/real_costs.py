"""Tables that were not run at scale real: what they would cost, measured on a few images."""

from __future__ import annotations

from saddlepoint.papers.adaptive import EXPERIMENTS
from saddlepoint.papers.adaptive.nets import ROBUST_NETS
from saddlepoint.papers.adaptive.real import BATCH, attack_cost, robust_base
from saddlepoint.papers.adaptive.robust_net import NAME
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result
from saddlepoint.papers.runner import Runner
from saddlepoint.phrases import count


def table_3(request: Request) -> Result:
    """State the cost of the hedge defense on three networks."""
    number = len(ROBUST_NETS)
    needs = f"{count(number, 'robust network')}, and only {NAME} has over 70 % clean accuracy"
    return _cost_result(request, "table-3", "HedgeDefense", number, needs)


def table_4(request: Request) -> Result:
    """State the cost of AID-purifier, which also needs networks on other datasets."""
    needs = "robust networks on CIFAR-10, CIFAR-100 and SVHN, of which the folder has the first"
    return _cost_result(request, "table-4", "AIDPurifier", 3, needs)


def contrastive(request: Request) -> Result:
    """State the cost of contrastive reversal."""
    needs = "a trained contrastive head"
    return _cost_result(request, "contrastive", "ContrastiveReversal", 1, needs)


def closed_loop(request: Request) -> Result:
    """State where closed-loop control is measured."""
    text = (
        "this scale uses the evaluators' own network: `python -m benchmarks.released_defenses "
        "closed-loop` measures it, in the record adaptive/released-closed-loop."
    )
    return _result(Runner(request, BATCH, threads=1), "closed-loop", text)


def _cost_result(request: Request, name: str, defense: str, networks: int, needs: str) -> Result:
    runner = Runner(request, BATCH, threads=1)
    cost = attack_cost(defense, robust_base(runner), networks)
    return _result(runner, name, f"it needs {needs}: {cost}.")


def _result(runner: Runner, name: str, not_run: str) -> Result:
    return runner.result(
        next(one for one in EXPERIMENTS if one.name == f"adaptive/{name}"),
        (),
        notes=(),
        findings=(),
        charts=(),
        repeats=1,
        not_run=not_run,
    )
