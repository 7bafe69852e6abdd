"""How to get the number again, and how to check it with nothing of ours."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from torch import Tensor

from saddlepoint.audits.result import Audit
from saddlepoint.reports.markup import Markup, tag

_BALL = re.compile(r"(Linf|L2|L1) radius ([0-9./e+-]+)")
_ORDER = {"Linf": "float('inf')", "L2": "2", "L1": "1"}


def sha256(values: Tensor) -> str:
    """Of the bytes in memory order, as `hashlib.sha256(x.numpy().tobytes())` gives."""
    return hashlib.sha256(values.detach().cpu().contiguous().numpy().tobytes()).hexdigest()


def python(audit: Audit) -> str:
    """The call that makes this audit; the reader fills in the target."""
    norm, radius = ball(audit)
    data = (
        f"x, y = load_data({audit.data!r}, n={audit.n})"
        if audit.data
        else f"x, y = ...  # the {audit.n} images and labels"
    )
    names = ["audit", *(["load_data"] if audit.data else [])]
    return "\n".join(
        [
            f"from saddlepoint import {', '.join([norm, *names])}",
            "",
            f"target = ...  # {_one_line(audit.target)}",
            data,
            f"result = audit(target, x, y, threat={norm}({radius}), budget={audit.budget!r}, seed={audit.seed})",
            "print(result.summary())",
        ]
    )


def check_again(audit: Audit) -> Iterator[Markup]:
    """The saved points judged by plain torch."""
    yield tag(
        "p",
        "The adversarial inputs are kept in points.safetensors, beside this page if the audit was saved. Whoever has the model can "
        "check that they are allowed and that they fool it:",
    )
    yield tag("pre", verification(audit))
    yield tag(
        "p",
        f"Expected: at most {ball(audit)[1]} but for rounding, and {audit.robust_accuracy:.6g}. A random defense answers to "
        "within its own noise; one that adapts must see the points in the same batches.",
        class_="quiet",
    )


def verification(audit: Audit) -> str:
    """Python that needs torch and safetensors only."""
    norm, _ = ball(audit)
    return "\n".join(
        [
            "import torch",
            "from safetensors.torch import load_file",
            "",
            f"target = ...  # {_one_line(audit.target)}",
            'points = load_file("points.safetensors")',
            'x, y, worst = points["x"], points["y"], points["worst_points"]',
            f"sizes = torch.linalg.vector_norm((worst - x).flatten(1), ord={_ORDER[norm]}, dim=1)",
            'print("largest perturbation", sizes.max().item(), "in", worst.min().item(), "to", worst.max().item())',
            "with torch.no_grad():",
            "    right = target(worst).argmax(1) == y",
            'print("robust accuracy", right.double().mean().item())',
        ]
    )


def ball(audit: Audit) -> tuple[str, str]:
    """The norm and the radius as they stand in the threat: `("Linf", "8 / 255")`."""
    found = _BALL.match(audit.threat)
    return (found[1], found[2].replace("/", " / ")) if found else ("Linf", "...")


def _one_line(text: str) -> str:
    """A name cannot end the comment it stands in."""
    return " ".join(text.split())
