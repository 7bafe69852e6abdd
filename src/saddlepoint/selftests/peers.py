"""Other libraries as evaluators, each with its strongest predefined evaluation.

The libraries are optional: install those you want to compare with. None of them supports
adaptation, mixtures of exits or rejection, so each receives a plain module from images to logits.
They draw random numbers from the global generators of torch, numpy and Python. These are seeded
before the call and restored after it.
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

from saddlepoint.audits.planning.budget import Budget
from saddlepoint.selftests.evaluator import AuditEvaluator, Evaluator, Report

_QUERIES = 1000  # of ART's Square attack; its AutoAttack uses 5000, which is slow
_STEPS = 100

# (imported module, model, images, labels, Linf radius) -> report
PeerEvaluation = Callable[[Any, nn.Module, Tensor, Tensor, float], Report]


@dataclass(frozen=True)
class Peer:
    """A library as an evaluator."""

    name: str  # in tables
    package: str  # name for pip
    module: str  # name for import
    evaluate: PeerEvaluation = field(repr=False)

    @property
    def versions(self) -> dict[str, str]:
        """The installed version of the package."""
        return {self.package: importlib.metadata.version(self.package)}

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, radius: float) -> Report:
        self.require_installed()
        with _seeded_generators(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.evaluate(importlib.import_module(self.module), model, x, y, radius)

    def require_installed(self) -> None:
        """Raise `ModuleNotFoundError` with advice if the package is not installed."""
        if importlib.util.find_spec(self.module) is None:
            raise ModuleNotFoundError(
                f"{self.name} requires the package {self.package}, which is not installed. Use "
                f"pip install --no-deps {self.package}; tests/references/requirements.txt lists "
                "the versions that were compared."
            )


def evaluators(names: Sequence[str], budget: Budget = "standard", seed: int = 0) -> list[Evaluator]:
    """Look up evaluators by name.

    Args:
        names: Keys of `PEERS`, or "ours" for `saddlepoint.audit`.
        budget: Budget of "ours"; default "standard".
        seed: Seed of "ours"; default 0.

    Raises:
        ValueError: A name is unknown.
        ModuleNotFoundError: A library is not installed.
    """
    unknown = [name for name in names if name not in ("ours", *PEERS)]
    if unknown:
        raise ValueError(
            f"there is no evaluator {unknown[0]!r}; available: ours, {', '.join(PEERS)}."
        )
    for name in names:
        if name in PEERS:
            PEERS[name].require_installed()
    return [AuditEvaluator(budget, seed) if name == "ours" else PEERS[name] for name in names]


@contextlib.contextmanager
def _seeded_generators() -> Iterator[None]:
    """Seed the global generators, so that all libraries get the same numbers; then restore them."""
    python_state = random.getstate()
    numpy_state = np.random.get_state()  # noqa: NPY002
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002


class _WarningCollector(logging.Handler):
    """Collects the log messages of level WARNING and above."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def _autoattack(version: str) -> PeerEvaluation:
    def evaluate(module: Any, model: nn.Module, x: Tensor, y: Tensor, radius: float) -> Report:
        suite = module.AutoAttack(model, norm="Linf", eps=radius, seed=0, version=version)
        # As many targets as there are other classes, as its documentation requires.
        targets = min(_class_count(model, x) - 1, 9)
        suite.apgd_targeted.n_target_classes = targets
        suite.fab.n_target_classes = targets
        collector = _WarningCollector()
        suite.logger.addHandler(collector)
        try:
            predicted = suite.run_standard_evaluation(x, y, batch_size=len(x))[1]
        finally:
            suite.logger.removeHandler(collector)
        # AutoAttack warns that another version should be used or that the defense is dynamic. Both
        # mean that the number may be wrong.
        return Report(
            float((predicted == y).double().mean()),
            verdict="; ".join(collector.messages),
            holds=not collector.messages,
        )

    return evaluate


def _torchattacks(module: Any, model: nn.Module, x: Tensor, y: Tensor, radius: float) -> Report:
    attack = module.AutoAttack(
        model, norm="Linf", eps=radius, version="standard", n_classes=_class_count(model, x), seed=0
    )
    return Report(_accuracy(model, attack(x, y), y))


def _foolbox(module: Any, model: nn.Module, x: Tensor, y: Tensor, radius: float) -> Report:
    """An image counts as robust if none of four Linf attacks reports success."""
    attacks = [
        module.attacks.LinfPGD(steps=_STEPS),
        module.attacks.LInfFMNAttack(steps=_STEPS),
        module.attacks.LinfDeepFoolAttack(steps=_STEPS),
        module.attacks.LinfRepeatedAdditiveUniformNoiseAttack(repeats=_STEPS),
    ]
    wrapped = module.PyTorchModel(model, bounds=(0, 1), device="cpu")
    success = torch.stack([attack(wrapped, x, y, epsilons=radius)[2] for attack in attacks])
    return Report(float((~success.any(0)).double().mean()))


def _art(module: Any, model: nn.Module, x: Tensor, y: Tensor, radius: float) -> Report:
    """The Linf attacks of ART's AutoAttack; an image counts as robust if each of them fails.

    AutoAttack itself is not used, because it requires another package.
    """
    evasion = importlib.import_module(f"{module.__name__}.attacks.evasion")
    classification = importlib.import_module(f"{module.__name__}.estimators.classification")
    net = classification.PyTorchClassifier(
        model,
        loss=nn.CrossEntropyLoss(),
        input_shape=tuple(x.shape[1:]),
        nb_classes=_class_count(model, x),
        clip_values=(0.0, 1.0),
        device_type="cpu",
    )
    shared = {"norm": np.inf, "eps": radius, "batch_size": len(x), "verbose": False}
    attacks = [
        evasion.AutoProjectedGradientDescent(
            net, eps_step=2 * radius, max_iter=_STEPS, nb_random_init=1, loss_type=loss, **shared
        )
        for loss in ("cross_entropy", "difference_logits_ratio")
    ]
    # The first square has round(side sqrt(p_init)) pixels per side and must be smaller than the
    # image. The default p_init of 0.8 violates this for 4x4 images.
    p_init = min(0.8, 0.99 * (1 - 0.5 / min(x.shape[2:])) ** 2)
    attacks.append(evasion.SquareAttack(net, max_iter=_QUERIES, p_init=p_init, **shared))
    robust = np.ones(len(x), dtype=bool)
    for attack in attacks:
        points = attack.generate(x.numpy().copy(), y.numpy())
        robust &= net.predict(points, batch_size=len(x)).argmax(1) == y.numpy()
    return Report(float(robust.mean()))


@torch.no_grad()
def _class_count(model: nn.Module, x: Tensor) -> int:
    return int(model(x).shape[1])


@torch.no_grad()
def _accuracy(model: nn.Module, points: Tensor, y: Tensor) -> float:
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
