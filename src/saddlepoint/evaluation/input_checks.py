"""Checks of inputs, streams and proposed points, with errors that say what to change."""

from __future__ import annotations

from torch import Tensor

from saddlepoint.attacks.oracle import grants
from saddlepoint.defenses import Defense
from saddlepoint.evaluation.adversary import Adversary
from saddlepoint.evaluation.threat import Threat
from saddlepoint.phrases import count, count_of


def require_defense(defense: object) -> None:
    """Raise TypeError unless `defense` is a `Defense`."""
    if not isinstance(defense, Defense):
        raise TypeError(
            f"play needs a Defense, got {type(defense).__name__}. "
            "Wrap a network in `Plain(net)`, any other callable in `BlackBox(fn)`."
        )


def require_access(adversary: Adversary, defense: Defense, threat: Threat) -> None:
    """Raise PermissionError if the adversary needs more access than is granted."""
    if not (grants(threat.access, adversary.needs) and grants(defense.grants, adversary.needs)):
        raise PermissionError(
            f"{adversary.name} needs {adversary.needs} access; the threat model grants "
            f"{threat.access} access and the defense gives {defense.grants} access."
        )


def require_inputs(x: Tensor, y: Tensor, threat: Threat) -> None:
    """Raise ValueError for missing or invalid inputs or labels."""
    if not len(x) or len(x) != len(y):
        raise ValueError(
            "expected at least one input and a label for each, "
            f"got {count(len(x), 'input')} and {count(len(y), 'label')}."
        )
    if y.ndim != 1 or y.is_floating_point():
        raise ValueError(
            f"labels must be one integer per input, got {y.dtype} of shape {list(y.shape)}."
        )
    if not threat.space.contains(x, x).all():
        low, high = threat.space.box
        raise ValueError(
            f"inputs must lie in the box [{low:g}, {high:g}] of the perturbation set, found "
            f"values from {x.amin().item():.4g} to {x.amax().item():.4g}. Pass pixels and "
            "normalize inside the defense, or give the perturbation set another `box`."
        )


def require_goal(defense: Defense, y: Tensor, threat: Threat) -> None:
    """Raise ValueError if some images have the target class already, or may be rejected."""
    if threat.target_class is None:
        return
    if bool((y == threat.target_class).any()):
        raise ValueError(
            f"{count(int((y == threat.target_class).sum()), 'image')} of the target class "
            f"{threat.target_class} cannot become it. Leave them out: x, y = threat.images(x, y)."
        )
    if defense.rejects:
        raise ValueError("a defense that rejects cannot be attacked with a target class.")


def require_stream(examples: int, threat: Threat, batch_size: int) -> None:
    """Raise ValueError if the order of the threat model does not fit the batches."""
    window = threat.order.window
    if not window:
        return
    if examples < batch_size:
        raise ValueError(
            f"the stream of {count(examples, 'example')} is shorter than one batch of "
            f"{batch_size}, so its order has no effect. Use a smaller batch_size, more examples, "
            "or order=NaturalOrder()."
        )
    if window % batch_size:
        nearest = batch_size * max(window // batch_size, 1)
        raise ValueError(
            f"a window of {count(window, 'example')} is not a multiple of the batch size "
            f"{batch_size}: some batch would mix two windows. Use window={nearest} or another "
            "batch_size."
        )


def require_legal_points(name: str, points: Tensor, x: Tensor, threat: Threat) -> None:
    """Raise ValueError unless the points of an adversary are finite and in the perturbation set.

    Args:
        name: name of the adversary.
        points: proposed points, [N, ...].
        x: clean inputs, [N, ...].
        threat: the threat model.
    """
    if points.shape != x.shape:
        raise ValueError(
            f"{name} proposed points of shape {tuple(points.shape)} for inputs of shape "
            f"{tuple(x.shape)}."
        )
    if not points.isfinite().all():
        raise ValueError(f"{name} proposed points that are not finite numbers.")
    outside = ~threat.space.contains(points, x)
    if outside.any():
        largest = threat.space.size(points - x).amax().item()
        raise ValueError(
            f"{name} left the perturbation set on "
            f"{count_of(int(outside.sum()), len(x), 'example')}: size {largest:.6g}, allowed is "
            f"{threat.space}."
        )
