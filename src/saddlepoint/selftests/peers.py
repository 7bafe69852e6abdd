"""Other libraries as evaluators, each with the strongest evaluation that it offers ready-made, and with its own report.

They are not needed by anything else: install those you want to compare with. None of them adapts, mixes exits or rejects, so each
is handed an opaque module; who draws random numbers draws them from torch's, numpy's and Python's generators, which are put back.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import logging
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from saddlepoint.audits.planning.suite import Budget
from saddlepoint.selftests.evaluator import Audited, Evaluator, Report

_QUERIES = 1000  # of the Square attack of ART, which takes 5000 in its AutoAttack and is slow
_STEPS = 100


@dataclass(frozen=True)
class Peer:
    """A library, and how it is asked."""

    name: str
    package: str  # as it is installed
    module: str  # as it is imported
    ask: Callable[[Any, nn.Module, Tensor, Tensor, float], Report] = field(repr=False)

    @property
    def versions(self) -> dict[str, str]:
        return {self.package: importlib.metadata.version(self.package)}

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, radius: float) -> Report:
        self.refuse_missing()
        with _seeded(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.ask(importlib.import_module(self.module), model, x, y, radius)

    def refuse_missing(self) -> None:
        if importlib.util.find_spec(self.module) is None:
            raise ModuleNotFoundError(
                f"{self.name} needs the package {self.package}, which is not installed. Use pip install --no-deps {self.package}; "
                "tests/references/requirements.txt lists versions that were compared."
            )


def evaluators(names: Sequence[str], budget: Budget = "standard") -> list[Evaluator]:
    """By name; "ours" is `saddlepoint.audit` at a budget. A peer that is not installed is refused before anything runs."""
    unknown = [name for name in names if name not in ("ours", *PEERS)]
    if unknown:
        raise ValueError(
            f"there is no evaluator {unknown[0]!r}; there are: ours, {', '.join(PEERS)}."
        )
    for name in names:
        if name in PEERS:
            PEERS[name].refuse_missing()
    return [Audited(budget) if name == "ours" else PEERS[name] for name in names]


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """Peers draw from the global generators: the same numbers for all of them, and none missing afterwards."""
    python = random.getstate()
    numpy = np.random.get_state()  # noqa: NPY002
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


class _Complaints(logging.Handler):
    """What a library warns of while it works."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def _autoattack(version: str) -> Callable[[Any, nn.Module, Tensor, Tensor, float], Report]:
    def ask(module: Any, model: nn.Module, x: Tensor, y: Tensor, radius: float) -> Report:
        suite = module.AutoAttack(model, norm="Linf", eps=radius, seed=0, version=version)
        others = min(_classes(model, x) - 1, 9)  # as many targets as there are, as its manual says
        suite.apgd_targeted.n_target_classes = suite.fab.n_target_classes = others
        heard = _Complaints()
        suite.logger.addHandler(heard)
        try:
            answered = suite.run_standard_evaluation(x, y, batch_size=len(x))[1]
        finally:
            suite.logger.removeHandler(heard)
        # A warning to use another version, or that the defense is dynamic, is a warning that the number may be wrong.
        return Report(
            float((answered == y).double().mean()),
            verdict="; ".join(heard.said),
            holds=not heard.said,
        )

    return ask


def _torchattacks(module: Any, model: nn.Module, x: Tensor, y: Tensor, radius: float) -> Report:
    attack = module.AutoAttack(
        model, norm="Linf", eps=radius, version="standard", n_classes=_classes(model, x), seed=0
    )
    return Report(_right(model, attack(x, y), y))


def _foolbox(module: Any, model: nn.Module, x: Tensor, y: Tensor, radius: float) -> Report:
    """An image counts as robust if none of its Linf attacks claims it."""
    attacks = [
        module.attacks.LinfPGD(steps=_STEPS),
        module.attacks.LInfFMNAttack(steps=_STEPS),
        module.attacks.LinfDeepFoolAttack(steps=_STEPS),
        module.attacks.LinfRepeatedAdditiveUniformNoiseAttack(repeats=_STEPS),
    ]
    wrapped = module.PyTorchModel(model, bounds=(0, 1), device="cpu")
    claimed = torch.stack([attack(wrapped, x, y, epsilons=radius)[2] for attack in attacks])
    return Report(float((~claimed.any(0)).double().mean()))


def _art(module: Any, model: nn.Module, x: Tensor, y: Tensor, radius: float) -> Report:
    """The Linf attacks of its AutoAttack, which itself needs one package more; an image is robust if it withstands each."""
    evasion, estimators = (
        importlib.import_module(f"{module.__name__}.{part}")
        for part in ("attacks.evasion", "estimators")
    )
    net = importlib.import_module(f"{estimators.__name__}.classification").PyTorchClassifier(
        model, loss=nn.CrossEntropyLoss(), input_shape=tuple(x.shape[1:]), nb_classes=_classes(model, x), clip_values=(0.0, 1.0),
        device_type="cpu",
    )  # fmt: skip
    shared = {"norm": np.inf, "eps": radius, "batch_size": len(x), "verbose": False}
    attacks = [
        evasion.AutoProjectedGradientDescent(
            net, eps_step=2 * radius, max_iter=_STEPS, nb_random_init=1, loss_type=loss, **shared
        )
        for loss in ("cross_entropy", "difference_logits_ratio")
    ]
    # Its first square has round(side sqrt(share)) pixels a side and must be smaller than the image, which 0.8 of 4 x 4 is not.
    share = min(0.8, 0.99 * (1 - 0.5 / min(x.shape[2:])) ** 2)
    attacks.append(evasion.SquareAttack(net, max_iter=_QUERIES, p_init=share, **shared))
    right = np.ones(len(x), dtype=bool)
    for attack in attacks:
        points = attack.generate(x.numpy().copy(), y.numpy())
        right &= net.predict(points, batch_size=len(x)).argmax(1) == y.numpy()
    return Report(float(right.mean()))


@torch.no_grad()
def _classes(model: nn.Module, x: Tensor) -> int:
    return int(model(x).shape[1])


@torch.no_grad()
def _right(model: nn.Module, points: Tensor, y: Tensor) -> float:
    return float((model(points).argmax(1) == y).double().mean())


PEERS = {
    "autoattack": Peer(
        "AutoAttack standard", "pyautoattack", "pyautoattack", _autoattack("standard")
    ),
    "autoattack-rand": Peer("AutoAttack rand", "pyautoattack", "pyautoattack", _autoattack("rand")),
    "torchattacks": Peer("torchattacks AutoAttack", "torchattacks", "torchattacks", _torchattacks),
    "foolbox": Peer("foolbox, four attacks", "foolbox", "foolbox", _foolbox),
    "art": Peer("ART, three attacks", "adversarial-robustness-toolbox", "art", _art),
}
