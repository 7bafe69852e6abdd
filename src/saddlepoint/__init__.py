"""How robust is a dynamic model, really? Adversarial evaluation of models that iterate, choose,
optimize or adapt at test time.

Names are imported on first use, so that `saddlepoint --help` does not wait for torch. The table
below is the whole public interface; `__init__.pyi` repeats it for type checkers.
"""

from __future__ import annotations

from importlib import import_module

_EXPORTS = {
    # Audit a model.
    "api": ("attack", "audit", "compare", "curve", "evaluate", "probe", "verify", "write_report"),
    "audits": ("Audit",),
    "data": ("load_data",),
    "selftests": ("selftest",),
    # Say what the attacker may do.
    "attacks.spaces": ("L1", "L2", "Linf"),
    "evaluation.threat": ("Threat",),
    # Write a defense.
    "defenses": ("BlackBox", "Context", "Defense", "MultiExit", "Plain", "Trace", "View"),
    "zoo.deq": ("DEQ",),
    # Compose and run attacks.
    "attacks.apgd": ("APGD",),
    "attacks.fab": ("FAB",),
    "attacks.pgd": ("PGD",),
    "attacks.square": ("Square",),
    "attacks.losses": ("cross_entropy", "margin"),
    "attacks.aims": ("mean_of_losses",),
    "evaluation": (
        "Direct",
        "External",
        "MultiTarget",
        "Points",
        "Restarts",
        "Transfer",
        "autoattack",
    ),
    "gradients": ("BPDA", "EoT", "Implicit"),
    # Write an attack or an adversary.
    "attacks.base": ("Attack",),
    "evaluation.adversary": ("Adversary",),
    # Play the game of exits.
    "games": ("NEED", "aimer", "exit_game"),
}
_MODULES = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = sorted(_MODULES)

# Names that were public here, and the package that has them.
_MOVED = {
    "Anderson": "solvers",
    "Broyden": "solvers",
    "FGSM": "attacks",
    "GreedyModelSpace": "evaluation",
    "Rule": "gradients",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        return import_module("importlib.metadata").version("saddlepoint")
    if name in _MOVED:
        raise AttributeError(
            f"saddlepoint.{name} has moved: from saddlepoint.{_MOVED[name]} import {name}."
        )
    if name not in _MODULES:
        raise AttributeError(
            f"module 'saddlepoint' has no attribute {name!r}. More names are in "
            "saddlepoint.attacks, .gradients, .evaluation, .games and .zoo."
        )
    return getattr(import_module(f"saddlepoint.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
