"""Attacks: optimizers over an oracle and a perturbation set.

Names are imported on first use: modules of this package import each other.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from saddlepoint.attacks.apgd import APGD
    from saddlepoint.attacks.base import Attack
    from saddlepoint.attacks.best import AttackResult, BestSoFar
    from saddlepoint.attacks.cw import CW
    from saddlepoint.attacks.fab import FAB
    from saddlepoint.attacks.fmn import FMN
    from saddlepoint.attacks.level_search import LevelSearch
    from saddlepoint.attacks.pgd import FGSM, PGD
    from saddlepoint.attacks.rays import RayS
    from saddlepoint.attacks.spaces import L1, L2, Ball, Linf
    from saddlepoint.attacks.square import Square
    from saddlepoint.attacks.vmi import VMI

_MODULES = {
    "APGD": "apgd",
    "Attack": "base",
    "AttackResult": "best",
    "Ball": "spaces",
    "BestSoFar": "best",
    "CW": "cw",
    "FAB": "fab",
    "FGSM": "pgd",
    "FMN": "fmn",
    "L1": "spaces",
    "L2": "spaces",
    "LevelSearch": "level_search",
    "Linf": "spaces",
    "PGD": "pgd",
    "RayS": "rays",
    "Square": "square",
    "VMI": "vmi",
}
__all__ = [
    "APGD",
    "CW",
    "FAB",
    "FGSM",
    "FMN",
    "L1",
    "L2",
    "PGD",
    "VMI",
    "Attack",
    "AttackResult",
    "Ball",
    "BestSoFar",
    "LevelSearch",
    "Linf",
    "RayS",
    "Square",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'saddlepoint.attacks' has no attribute {name!r}")
    return getattr(import_module(f"saddlepoint.attacks.{_MODULES[name]}"), name)
