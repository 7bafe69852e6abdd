"""Code shown on the page: reproduce the audit, and verify its points with torch alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from hashlib import sha256

from torch import Tensor

from saddlepoint.attacks.spaces import Ball
from saddlepoint.audits.result import Audit
from saddlepoint.evaluation import Threat
from saddlepoint.phrases import count
from saddlepoint.reports.document import muted
from saddlepoint.reports.markup import Markup, tag
from saddlepoint.reports.threats import read_space, read_threat


def tensor_sha256(values: Tensor) -> str:
    """Return the hash of the bytes in memory order: `sha256(values.numpy().tobytes())`."""
    return sha256(values.detach().cpu().contiguous().numpy().data).hexdigest()


def python_call(audit: Audit) -> str:
    """Return the Python code that repeats the audit; the reader inserts the target.

    Args:
        audit: An audit with a readable threat model: `threats.why_unreadable` returns no reason.
    """
    threat = read_threat(audit.threat_description)
    options = _options(threat)
    names = [norm_name(threat.space), *(["Threat"] if options else []), "audit"]
    names += ["load_data"] if audit.data else []
    data = f"x, y = ...  # the {count(audit.n, 'image')} and labels"
    if audit.data:
        data = f"x, y = load_data({audit.data!r}, n={audit.n})"
    expression = _threat_expression(threat.space, options)
    arguments = f"threat={expression}, budget={audit.budget!r}, seed={audit.seed}"
    return "\n".join(
        [
            f"from saddlepoint import {', '.join(names)}",
            *_class_imports(options),
            "",
            f"target = ...  # {_one_line(audit.target)}",
            data,
            f"result = audit(target, x, y, {arguments})",
            "print(result.summary())",
        ]
    )


def verification_steps(audit: Audit) -> Iterator[Markup]:
    """Yield the code that re-evaluates the saved points with torch alone, and what it prints."""
    space = read_space(audit.threat_description)
    yield tag(
        "p",
        "The adversarial examples are in points.safetensors, in the folder of this page if the "
        "audit was saved. With the model, this code checks that they are within the threat model "
        "and that they are misclassified:",
    )
    yield tag("pre", verification_code(audit))
    size = f"largest perturbation ≤ {_radius(space)} up to rounding, " if space else ""
    yield muted(
        f"Expected: {size}robust accuracy {audit.robust_accuracy:.6g}. For a randomized defense "
        "the accuracy varies with its randomness. A defense that adapts at test time must receive "
        "the points in the same batches."
    )


def verification_code(audit: Audit) -> str:
    """Return Python code that needs torch and safetensors only.

    Without a structured threat (old records) the code does not compute perturbation sizes.
    """
    space = read_space(audit.threat_description)
    return "\n".join(
        [
            "import torch",
            "from safetensors.torch import load_file",
            "",
            f"target = ...  # {_one_line(audit.target)}",
            'points = load_file("points.safetensors")',
            'x, y, worst = points["x"], points["y"], points["worst_points"]',
            *(_size_lines(space) if space else []),
            'print("pixel values from", worst.min().item(), "to", worst.max().item())',
            "with torch.no_grad():",
            "    correct = target(worst).argmax(1) == y",
            'print("robust accuracy", correct.double().mean().item())',
        ]
    )


def in_255ths(space: Ball) -> bool:
    """Return whether the radius is a multiple of 1/255 of an L-infinity ball."""
    return space.p == math.inf and abs(255 * space.radius - round(255 * space.radius)) < 1e-9


def norm_name(space: Ball) -> str:
    """Return `Linf`, `L2` or `L1`, which is also the function that creates the ball."""
    return "Linf" if space.p == math.inf else f"L{space.p:g}"


def _options(threat: Threat) -> dict[str, object]:
    """Return the fields of the threat, except its space, that differ from their defaults."""
    values = {f.name: (getattr(threat, f.name), f.default) for f in fields(threat)}
    return {
        name: value
        for name, (value, default) in values.items()
        if name != "space" and value != default
    }


def _threat_expression(space: Ball, options: Mapping[str, object]) -> str:
    """Return a Python expression for the threat."""
    box = "" if space.box == (0.0, 1.0) else f", box={space.box}"
    ball = f"{norm_name(space)}({_radius(space)}{box})"
    if not options:
        return ball
    arguments = "".join(f", {name}={value!r}" for name, value in options.items())
    return f"Threat({ball}{arguments})"


def _class_imports(options: Mapping[str, object]) -> list[str]:
    """Return the import of the classes that occur in options of the threat, if there are any."""
    objects = [value for value in options.values() if not isinstance(value, str | int | bool)]
    names = sorted({type(value).__name__ for value in objects})
    return [f"from saddlepoint.evaluation import {', '.join(names)}"] if names else []


def _size_lines(space: Ball) -> list[str]:
    order = "float('inf')" if space.p == math.inf else f"{space.p:g}"
    return [
        f"sizes = torch.linalg.vector_norm((worst - x).flatten(1), ord={order}, dim=1)",
        'print("largest perturbation", sizes.max().item())',
    ]


def _radius(space: Ball) -> str:
    """Return an expression for the radius: `8 / 255`, or a decimal number."""
    return f"{round(255 * space.radius)} / 255" if in_255ths(space) else repr(space.radius)


def _one_line(text: str) -> str:
    """Remove line breaks, so that a name cannot end the comment it is written in."""
    return " ".join(text.split())
