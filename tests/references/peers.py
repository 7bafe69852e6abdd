"""Attacks of other libraries ("peers") with a common signature.

    ATTACKS[kind][peer](net, x, y, radius, seed=0, **budget) -> Tensor

takes a net with inputs in [0, 1], images, labels and a radius, and returns one point per image. The
keywords of the budget depend on the kind of attack and are the same for every peer. Points are
returned unchanged: they are not projected, clipped or replaced by the clean image. A point may
therefore be outside the ball (minimum-norm attacks) or not adversarial; the caller has to check.

Install the peers with `pip install --no-deps -r tests/references/requirements.txt`. If a peer is
missing, `why_missing(peer)` returns the reason.
"""

from __future__ import annotations

from . import adapters_adv_lib as adv_lib
from . import adapters_art as art
from . import adapters_foolbox as foolbox
from . import adapters_pyautoattack as pyautoattack
from . import adapters_torchattacks as torchattacks
from .hosting import MODULES, Adapter, Norm, versions, why_missing

__all__ = ["ATTACKS", "MODULES", "versions", "why_missing"]


def attacks(norm: Norm) -> dict[str, dict[str, Adapter]]:
    """All attacks that exist in both norms, by kind and peer."""
    return {
        "pgd": {
            "torchattacks": torchattacks.pgd(norm),
            "foolbox": foolbox.pgd(norm),
            "adversarial-robustness-toolbox": art.pgd(norm),
        },
        "apgd-ce": {
            "pyautoattack": pyautoattack.apgd(norm, "ce"),
            "torchattacks": torchattacks.apgd(norm, "ce"),
            "adv-lib": adv_lib.apgd(norm, "ce"),
            "adversarial-robustness-toolbox": art.apgd(norm, "cross_entropy"),
        },
        "apgd-dlr": {
            "pyautoattack": pyautoattack.apgd(norm, "dlr"),
            "torchattacks": torchattacks.apgd(norm, "dlr"),
            "adv-lib": adv_lib.apgd(norm, "dlr"),
            "adversarial-robustness-toolbox": art.apgd(norm, "difference_logits_ratio"),
        },
        "apgd-t": {
            "pyautoattack": pyautoattack.apgd_t(norm),
            "torchattacks": torchattacks.apgd_t(norm),
            "adv-lib": adv_lib.apgd_t(norm),
        },
        "fab": {
            "pyautoattack": pyautoattack.fab(norm),
            "torchattacks": torchattacks.fab(norm),
            "adv-lib": adv_lib.fab(norm),
        },
        "fab-t": {
            "pyautoattack": pyautoattack.fab_t(norm),
            "torchattacks": torchattacks.fab_t(norm),
            "adv-lib": adv_lib.fab_t(norm),
        },
        "fmn": {"foolbox": foolbox.fmn(norm), "adv-lib": adv_lib.fmn(norm)},
        "square": {
            "pyautoattack": pyautoattack.square(norm),
            "torchattacks": torchattacks.square(norm),
        },
        "autoattack": {
            "pyautoattack": pyautoattack.standard(norm),
            "torchattacks": torchattacks.standard(norm),
        },
    }


ATTACKS: dict[str, dict[str, Adapter]] = {
    **{f"{kind}-linf": by_peer for kind, by_peer in attacks("Linf").items()},
    **{f"{kind}-l2": by_peer for kind, by_peer in attacks("L2").items()},
    "cw-l2": {
        "torchattacks": torchattacks.cw_l2,
        "foolbox": foolbox.cw_l2,
        "adv-lib": adv_lib.cw_l2,
        "adversarial-robustness-toolbox": art.cw_l2,
    },
}
ATTACKS["apgd-ce-l1"] = {
    "pyautoattack": pyautoattack.apgd_l1,
    "adv-lib": adv_lib.apgd("L1", "ce"),
    "adversarial-robustness-toolbox": art.apgd("L1", "cross_entropy"),
}
ATTACKS["pgd-linf"]["adv-lib"] = adv_lib.pgd_linf
ATTACKS["square-linf"]["adversarial-robustness-toolbox"] = art.square_linf
