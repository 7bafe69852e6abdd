"""Logits and exact gradients of random MDEQs beside the released algorithm, written out in tests.

    python -m benchmarks.released_deq   # -> benchmarks/records/equilibria/released.json
    python -m benchmarks.released_deq --released DIR   # also runs the released code itself

Weights are random, so no solve converges. There the exact gradient depends on the order of its two
operations (`Implicit.at`) and on whether a diverging backward solve is stopped
(`Broyden.divergence`). The cosines are those between our gradient and that of the released
algorithm, the smallest over the images.

DIR is a checkout of github.com/minicheshire/DEQ-White-Box-Robustness. Its MDEQ-Large and ours then
have the weights of its own initialization, and the loss is the cross-entropy. The gradient of the
released code is also compared with itself after a move of all pixels by one unit in the last place
of single precision: what it changes by is what its rounding errors are worth. Needs PyYAML.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import types
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from saddlepoint.defenses import Broyden, Context
from saddlepoint.gradients import Implicit
from saddlepoint.rng import Keys
from saddlepoint.training.loop import initialized
from saddlepoint.zoo.deq import DEQ
from saddlepoint.zoo.nets import MDEQNet, mdeq_digits, mdeq_large

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.zoo.released_deq import released

OUT = Path("benchmarks/records/equilibria/released.json")
FORWARD = 8
BACKWARD = (7, 30)
RULES = {
    "following, no stop": ("following", math.inf),
    "following, stopped at 1e3": ("following", 1e3),
    "best, no stop": ("best", math.inf),
}
# By name: the order, and whether the images of a batch share residuals as in the released code.
CODE_RULES = {
    "following, coupled batch": ("following", True),
    "best, coupled batch": ("best", True),
    "following, per image": ("following", False),
    "best, per image": ("best", False),
}
MOVES = 3  # of all pixels, by one unit in the last place
NETWORKS: dict[str, tuple[Callable[[], MDEQNet], tuple[int, int, int], int]] = {
    "mdeq_digits": (mdeq_digits, (1, 8, 8), 4),
    "mdeq_large": (mdeq_large, (3, 32, 32), 1),
}


def compare(build: Callable[[], MDEQNet], shape: tuple[int, int, int], n: int) -> dict[str, Any]:
    """Compare logits and gradients of one network on n random images, in double precision."""
    net = initialized(build, 0).double().eval()
    x = Keys.of(1, torch.arange(n)).uniform(shape, torch.float64)
    cotangent = Keys.of(3, torch.arange(n)).normal((10,), torch.float64)
    defense = DEQ(net, method=Broyden(steps=FORWARD, tolerance=0.0))
    found: dict[str, Any] = {"images": n}
    for backward in BACKWARD:
        expected = [
            released(net, *pair, FORWARD, backward) for pair in zip(x, cotangent, strict=True)
        ]
        reference = torch.stack([one.grad for one in expected]).flatten(1)
        cosines = {}
        for name, (at, divergence) in RULES.items():
            inputs = x.clone().requires_grad_()
            solver = Broyden(steps=backward, tolerance=0.0, divergence=divergence)
            rule = Implicit(solver, at="following" if at == "following" else "best")
            context = Context(Keys.of(0, torch.arange(n)), {"solve": rule}, frozenset({"final"}))
            logits = defense.trace(inputs, context).last
            (grad,) = torch.autograd.grad(logits, inputs, cotangent)
            cosine = torch.cosine_similarity(grad.flatten(1), reference, dim=1).min()
            cosines[name] = round(float(cosine), 6)
        logit_gap = (logits.detach() - torch.stack([one.logits for one in expected])).abs().max()
        found[f"{FORWARD}/{backward}"] = {
            "cosine": cosines,
            "largest difference of logits": float(f"{float(logit_gap):.2g}"),
        }
    return found


def released_network(directory: Path) -> nn.Module:
    """Build the released MDEQ-Large in eval mode with its own initialization, seed 0.

    Args:
        directory: the checkout of the released code.
    """
    import yaml

    # The released modules import termcolor for colors of messages only.
    colors = types.ModuleType("termcolor")
    colors.__dict__["colored"] = lambda text, *_: text
    sys.modules.setdefault("termcolor", colors)
    root = (directory / "deq-exact-trained").resolve()
    vision = root / "MDEQ-Vision"
    sys.path[:0] = [str(root), str(vision / "lib"), str(vision / "lib" / "models")]
    import mdeq

    text = (vision / "experiments/cifar/cls_mdeq_LARGE_reg.yaml").read_text(encoding="utf-8")
    config = yaml.safe_load(text)
    # The defaults of the released configuration module, which needs a further package.
    config["MODEL"].update(BLOCK_GN_AFFINE=True, FUSE_GN_AFFINE=True)
    torch.manual_seed(0)
    network: nn.Module = mdeq.get_cls_net(config).eval()
    return network


def copied_weights(network: nn.Module) -> MDEQNet:
    """Return our MDEQ-Large with the weights of the released one; both have the same order."""
    ours = mdeq_large().eval()
    theirs = list(network.state_dict().values())
    named = list(ours.state_dict().items())
    shapes = [(tensor.shape, other.shape) for (_, tensor), other in zip(named, theirs, strict=True)]
    assert all(one == other for one, other in shapes), "the released network has other layers"
    ours.load_state_dict({name: t for (name, _), t in zip(named, theirs, strict=True)})
    return ours


def gradient(predict: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits [N, C] and gradients [N, D] of the cross-entropy; image k has label k."""
    inputs = x.clone().requires_grad_()
    logits = predict(inputs)
    loss = cross_entropy(logits, torch.arange(len(x)), reduction="sum")
    (grad,) = torch.autograd.grad(loss, inputs)
    return logits.detach(), grad.flatten(1)


def released_gradient(network: nn.Module, x: Tensor, backward: int) -> tuple[Tensor, Tensor]:
    """Logits and gradients of the released code in the precision of the images."""
    torch.set_default_dtype(x.dtype)  # of the released solver's buffers
    network = network.to(x.dtype)
    options = {"f_thres": FORWARD, "b_thres": backward, "compute_jac_loss": False}
    return gradient(lambda v: network(v, train_step=-1, **options)[0], x)


def rounded_cosines(grad: Tensor, reference: Tensor) -> list[float]:
    """The cosine of each image."""
    cosine = torch.cosine_similarity(grad.double(), reference.double(), dim=1)
    return [round(float(c), 6) for c in cosine]


def rounding(network: nn.Module, n: int = 3) -> dict[str, Any]:
    """Compare gradients of the released code with each other, on images that differ by rounding.

    Args:
        network: the released network.
        n: number of images, which the released solver couples.
    """
    ids = torch.arange(n)
    x = Keys.of(1, ids).uniform((3, 32, 32))
    signs = [Keys.of(10 + move, ids).signs((3, 32, 32)) for move in range(MOVES)]
    moved = [torch.nextafter(x, x + sign) for sign in signs]
    found: dict[str, Any] = {"images": n, "moves": MOVES}
    for backward in BACKWARD:
        _, exact = released_gradient(network, x.double(), backward)
        in_double = [released_gradient(network, m.double(), backward)[1] for m in moved]
        _, single = released_gradient(network, x, backward)
        in_single = [released_gradient(network, m, backward)[1] for m in moved]
        found[f"{FORWARD}/{backward}"] = {
            "moved, double precision": [rounded_cosines(grad, exact) for grad in in_double],
            "moved, single precision": [rounded_cosines(grad, single) for grad in in_single],
            "single against double precision": rounded_cosines(single, exact),
        }
    return found


def compare_with_code(network: nn.Module, dtype: torch.dtype, n: int = 3) -> dict[str, Any]:
    """Compare with the released code on n random images.

    Args:
        network: the released network.
        dtype: precision. The released code runs in single precision, in which a solve that does
            not converge amplifies rounding errors.
        n: number of images, which the released solver couples.
    """
    x = Keys.of(1, torch.arange(n)).uniform((3, 32, 32), dtype)
    found: dict[str, Any] = {"images": n}
    for backward in BACKWARD:
        logits, reference = released_gradient(network, x, backward)
        ours = copied_weights(network)
        cosines = {}
        for name, (at, coupled) in CODE_RULES.items():
            forward = Broyden(steps=FORWARD, tolerance=1e-3, batch_coupled=coupled)
            solver = Broyden(
                steps=backward, tolerance=1e-3, divergence=math.inf, batch_coupled=coupled
            )
            rule = Implicit(solver, at="following" if at == "following" else "best")
            context = Context(Keys.of(0, torch.arange(n)), {"solve": rule}, frozenset({"final"}))
            defense = DEQ(ours, method=forward)
            predicted, grad = gradient(lambda v, d=defense, c=context: d.trace(v, c).last, x)
            cosines[name] = rounded_cosines(grad, reference)
        found[f"{FORWARD}/{backward}"] = {
            "cosine": cosines,
            "largest difference of logits": float(f"{float((predicted - logits).abs().max()):.2g}"),
        }
    return found


def main() -> None:
    """Compare all networks and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--released", type=Path, help="checkout of the released code")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    record = {
        "command": "python -m benchmarks.released_deq"
        + (" --released DIR" if arguments.released else ""),
        "torch": version("torch"),
        "python": platform.python_version(),
        "networks": {name: compare(*setting) for name, setting in NETWORKS.items()},
    }
    if arguments.released:
        network = released_network(arguments.released)
        compared = {
            str(dtype).removeprefix("torch."): compare_with_code(network, dtype)
            for dtype in (torch.float32, torch.float64)
        }
        # Its weights are single precision, and going to double precision and back keeps them.
        record["released code, mdeq_large"] = {**compared, "with itself": rounding(network)}
    arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
