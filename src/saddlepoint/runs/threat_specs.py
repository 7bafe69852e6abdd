"""Builds the threat model that a specification describes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from saddlepoint.attacks.spaces import Ball
from saddlepoint.evaluation import (
    BatchControl,
    Corruption,
    Mask,
    NaturalOrder,
    SortedByLabel,
    Threat,
    WorstCaseOrder,
)
from saddlepoint.evaluation.orders import Order
from saddlepoint.locate import similar_file
from saddlepoint.phrases import count
from saddlepoint.runs.spec import NORMS, SpecError, ThreatSpec, parse_radius

_DEFAULT_WINDOW = 256  # images; two batches of 128, as in App. A.7 of Chen et al. 2022


def threat(spec: ThreatSpec) -> Threat:
    """The threat model of a specification.

    Raises:
        SpecError: A window is given, but the order is natural.
        ValueError: Other settings contradict each other.
    """
    return Threat(
        Ball(NORMS[spec.norm], parse_radius(spec.radius)),
        access=spec.access,
        queries=spec.queries,
        randomness=spec.randomness,
        draws=spec.draws or 1,
        rounds=spec.rounds,
        state_visible=spec.state_visible,
        order=_order(spec),
        batch_control=BatchControl(spec.controlled_fraction, spec.victims),
        online_queries=spec.online_queries,
        target_class=spec.target_class,
        mask=_mask(spec.mask),
        corruption=None if spec.corruption is None else Corruption.parse(spec.corruption),
    )


def _mask(path: str | None) -> Mask | None:
    if path is None:
        return None
    file = Path(path).expanduser()
    if not file.is_file():
        raise SpecError(
            f"there is no mask {path}.{similar_file(file)} Check the path; relative paths start at "
            f"{Path.cwd()}."
        )
    try:
        array = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        # numpy advises to load pickled data, which is unsafe.
        reason = "" if "allow_pickle" in str(error) else f" ({error})"
        raise SpecError(
            f"the mask {path} is no .npy file of plain numbers{reason}. Write it with "
            "np.save(path, mask)."
        ) from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        raise SpecError(f"the mask {path} must be one array [H, W] or [C, H, W], in a .npy file.")
    return Mask.of(array)


def _order(spec: ThreatSpec) -> Order:
    if spec.order == "natural":
        if spec.window is not None:
            raise SpecError(
                f"a window of {count(spec.window, 'image')} needs an order that the attacker "
                "chooses. Set the order to 'by-label' or 'searched', or leave the window out."
            )
        return NaturalOrder()
    window = spec.window or _DEFAULT_WINDOW
    return SortedByLabel(window) if spec.order == "by-label" else WorstCaseOrder(window)
