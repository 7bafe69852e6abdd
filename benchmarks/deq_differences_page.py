"""The page about differences from the DEQ paper and its released code, from records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def page(records: Path) -> str:
    """Return the page as Markdown.

    Args:
        records: folder with `adjoint.json`, `released.json` and `differences.json`.
    """
    adjoint, released, measured = (
        json.loads((records / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("adjoint", "released", "differences")
    )
    effects: dict[str, list[dict[str, Any]]] = {}
    for one in measured["effects"]:
        effects.setdefault(one["point"], []).append(one)
    lines = ["| what | paper or released code | here | effect |", "|---|---|---|---|"]
    rows = [
        *_adjoint_rows(adjoint, effects),
        *_exact_rows(released, effects),
        *_attack_rows(effects),
        *_UNMEASURED,
    ]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n\n".join([_title(measured), "\n".join(lines)]) + "\n"


def _title(record: dict[str, Any]) -> str:
    return (
        "# Differences: deep equilibrium models\n\n"
        "Where the experiments knowingly differ from Yang, Pang & Liu 2022 or from their released "
        "code, with the effect where it was measured. Results: [deq.md](deq.md).\n\n"
        "Written by `python -m benchmarks.deq_differences --page docs/results/differences-deq.md`; "
        "numbers come from `adjoint.json`, `released.json` and `differences.json` in "
        "`benchmarks/records/equilibria`, each of which has its command. Without another remark "
        f"an effect is measured on {record['images']} digits with `{record['network']}` "
        f"under PGD-10 at radius {record['radius']:g}: theirs → ours, with a 95 % interval of the "
        "change over images."
    )


def _adjoint_rows(adjoint: dict[str, Any], effects: dict[str, Any]) -> list[tuple[str, ...]]:
    paper, ours = adjoint["accuracy, %"].values()
    numbers = [
        ", ".join(f"{table[k - 1][0]:.2f}" for k in (1, 2, 4)) + " %" for table in (paper, ours)
    ]
    cosines = adjoint["mean cosine between the two gradients"].values()
    holds = [
        [f"z_{k}" for k, one in enumerate(table, 1) if one]
        for table in adjoint["u_(n+1) is the strongest on z_n"].values()
    ]
    claims = [" and ".join(names) or "no state" for names in holds]
    first = (
        f"on {adjoint['images']} digits the accuracy of z_1 under u_1, u_2, u_4 is {numbers[0]} "
        f"with z_0, and {numbers[1]} without. The claim of Figure 4, that u_(n+1) is the strongest "
        f"on z_n, holds for {claims[0]} with z_0 and for {claims[1]} without (of z_1 to z_3). Mean "
        f"cosine of the gradients: {min(cosines):.2f} to {max(cosines):.2f}"
    )
    return [
        (
            "adjoint process, first step",
            "the loss of z_0 (Eq. 9)",
            "the same in the paper's columns; the loss of z_1 in columns that say \"without z_0 "
            '(ours)"',
            first,
        ),
        (
            "update of the adjoint",
            "B_n (Eq. 10)",
            "B_n^T; `transpose=False` is Eq. 10 as written",
            _texts(effects["transpose"]),
        ),
        (
            "beta of the adjoint",
            "in an appendix that was not available; 0 < beta < 1 (Remark 4.1)",
            "0.9",
            f"with beta 0.5 in place of theirs: {_texts(effects['beta 0.5'])}",
        ),
    ]


def _exact_rows(released: dict[str, Any], effects: dict[str, Any]) -> list[tuple[str, ...]]:
    code = released["released code, mdeq_large"]
    double = code["float64"]
    written = released["networks"]
    order = (
        "no difference where the backward solve converges. Beside the released code itself, on its "
        f"MDEQ-Large with its own initialization and {double['images']} images in one batch, the "
        f"cosines are {_cosines(double, 'following, coupled batch')} in its order, and "
        f"{_cosines(double, 'best, coupled batch')} for `Implicit()`. Largest difference of "
        f"logits: {_gap(code['float32'])} in single and {_gap(double)} in double precision"
    )
    stopped = written["mdeq_digits"]["8/30"]["cosine"]["following, stopped at 1e3"]
    return [
        (
            "order of the exact gradient",
            "solves for the cotangent of f(z), then passes through f once",
            'the same in the experiments and in exact training, `Implicit(at="following")`; in '
            "audits `Implicit()`, which differentiates f at the best state",
            order,
        ),
        (
            "the exact gradient in single precision",
            "runs in single precision, in which solves that do not converge amplify rounding "
            "errors",
            "the same",
            _rounding(code),
        ),
        (
            "stop of a diverging solve",
            "only if the relative residual grows a thousandfold",
            "the same in the experiments (`divergence=math.inf`); elsewhere a solve stops if its "
            "absolute residual grows a thousandfold",
            "with the stop, the cosine of the released order to the released algorithm, written "
            f"out, is {stopped:.3f} for a small MDEQ at 8/30 steps",
        ),
        (
            "residuals and best state",
            "of the whole batch; the output for an image depends on its batch",
            "per image; `batch_coupled=True` is the released rule",
            f"{_texts(effects['batch'])}. Where no solve converges, the gradients differ: cosines "
            f"to the released code {_cosines(double, 'following, per image')} per image",
        ),
    ]


def _rounding(code: dict[str, Any]) -> str:
    """The effect of single precision on our gradients and on those of the released code."""
    own = code["with itself"]
    groups = " and ".join(f"({_three(move)})" for move in own["8/30"]["moved, single precision"])
    smallest = {
        (setting, name): min(min(move) for move in own[setting][name])
        for setting in ("8/7", "8/30")
        for name in ("moved, single precision", "moved, double precision")
    }
    double = min(value for (_, name), value in smallest.items() if "double" in name)
    return (
        "cosines of our gradients to those of the released code on the same images: "
        f"{_cosines(code['float32'], 'following, coupled batch')}. Solves of 30 steps amplify "
        "rounding errors, and the released code is no closer to itself there: if each pixel moves "
        "by one unit in the last place, its gradients have the cosines "
        f"{groups} to those before, one group for each of {own['moves']} moves; with 8/7 steps "
        f"they are at least {smallest['8/7', 'moved, single precision']:.4f}. The same moves in "
        f"double precision give at least {double:.4f}. Its gradients in single precision have the "
        f"cosines {_three(own['8/30']['single against double precision'])} to its own in double "
        "precision (8/30)"
    )


def _attack_rows(effects: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            "returned point of PGD",
            "the last",
            "the visited point with the highest loss",
            _texts(effects["last point"]),
        ),
        (
            "ensemble gradient",
            "weights 8, 7, ..., 1 in the released code; 1 in Eq. 17",
            "weight 1",
            _texts(effects["ensemble"]),
        ),
        (
            "steps from the best state to the final one",
            "one undamped and 5 damped in the released training, 9 damped in its evaluation",
            "those of the training",
            _texts(effects["steps after"]),
        ),
        (
            "unrolled gradient of an intermediate state",
            "k steps (Eq. 13); the released code takes one undamped step before them",
            "k steps; k = 2 is a candidate as well, which is the released k = 1 without damping",
            f"unrolled from z_1 with k = 1, undamped: {_texts(effects['unrolled steps'])}",
        ),
    ]


_UNMEASURED = [
    (
        "AutoAttack",
        "returns the clean image where it fails on the attacked state; that of the ensemble is the "
        "mean of logits from f(z_2) on, in the released code",
        "both rows are shown, clean copies and points of highest loss; the ensemble is the mean of "
        "states, as under PGD",
        "not measured: no record of Table 3",
    ),
    (
        "start of PGD",
        "uniform in the ball, may leave the image box before the first step",
        "uniform in the ball, then clipped to the box",
        "not measured: every later point is clipped in both",
    ),
    (
        "kept epoch",
        "that of the highest PGD-10 accuracy on test images, in the released code",
        "selected on a part of the training set",
        "not measured: no network was trained at the scale `paper`",
    ),
    (
        "early state and intermediate attacks",
        "selected without a held-out split",
        "selected on held-out training images",
        "not measured: the selection on test images is not reported by the paper",
    ),
    (
        "Jacobian penalty",
        "ends after 90 epochs (JAC_STOP_EPOCH)",
        "the same, `penalty_until`, in steps",
        "none",
    ),
    (
        "networks of the small scale",
        "MDEQ on CIFAR-10",
        "fully connected equilibrium networks on MNIST",
        "both networks of Table 2 converge (its residual column), so effects of solves that do not "
        "converge cannot appear there",
    ),
]


def _texts(found: list[dict[str, Any]]) -> str:
    return "; ".join(
        f"{one['measured']} {one['theirs']:.1f} → {one['ours']:.1f} % ({_interval(one)})"
        for one in found
    )


def _interval(one: dict[str, Any]) -> str:
    low, high = one["interval"]
    return f"{low:+.1f} to {high:+.1f}" if low or high else "no image differs"


def _cosines(found: dict[str, Any], name: str) -> str:
    return " and ".join(
        f"{_three(found[setting]['cosine'][name])} ({setting})" for setting in ("8/7", "8/30")
    )


def _three(cosines: list[float]) -> str:
    return ", ".join(f"{cosine:.3f}" for cosine in cosines)


def _gap(found: dict[str, Any]) -> str:
    return f"{max(found[setting]['largest difference of logits'] for setting in ('8/7', '8/30')):g}"
