"""From a recipe to a model of the zoo: train, measure, write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import torch
from torch import nn

from saddlepoint.attacks.aims import loss_of_mean
from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.losses import cross_entropy, dlr
from saddlepoint.attacks.pgd import PGD
from saddlepoint.data import load_data
from saddlepoint.describe import describe
from saddlepoint.evaluation import Adversary, Direct, FixedPoints, evaluate
from saddlepoint.training.descent import initialized
from saddlepoint.training.fit import Progress, fit
from saddlepoint.training.method import Standard
from saddlepoint.training.multi_exit_view import MultiExitView
from saddlepoint.training.recipe import Recipe
from saddlepoint.zoo.models import Entry, Measured, store

ADVERSARIES: tuple[Adversary, ...] = (
    FixedPoints(),
    Direct("pgd-40", PGD(steps=40), loss=cross_entropy, aim=loss_of_mean),
    Direct("apgd-100-dlr", APGD(steps=100), loss=dlr, aim=loss_of_mean),
)


def rebuild(
    recipe: Recipe,
    folder: str | Path,
    *,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = True,
    progress: Progress | None = None,
    adversaries: tuple[Adversary, ...] = ADVERSARIES,
) -> Entry:
    """The recipe trained and measured on the test set; weights and record are written into `folder`.

    The same recipe, seed and machine give the same weights to the last bit. `out` keeps checkpoints to resume from.
    """
    with one_thread():
        data = load_data(recipe.data, split="train", n=recipe.n)
        trained = fit(
            initial(recipe, seed),
            data.x,
            data.y,
            recipe,
            seed=seed,
            out=out,
            resume=resume,
            progress=progress,
        )
        measured = measure(trained.net, recipe, seed=seed, adversaries=adversaries)
    record = Entry(
        name=recipe.name,
        net=recipe.net.__name__,
        parameters=sum(p.numel() for p in trained.net.parameters()),
        training_radius=recipe.space.radius if _adversarial(recipe) else 0.0,
        seed=seed,
        epoch=trained.best.number,
        sha256="",
        measured=measured,
        recipe=cast(dict[str, object], describe(recipe)),
        residuals=tuple(epoch.residual for epoch in trained.history if epoch.residual is not None),
    )
    return store(trained.net, record, folder)


def initial(recipe: Recipe, seed: int) -> nn.Module:
    """The recipe's network with the weights it starts from, a function of the seed."""
    return initialized(recipe.net, seed)


def measure(
    net: nn.Module,
    recipe: Recipe,
    *,
    seed: int = 0,
    adversaries: tuple[Adversary, ...] = ADVERSARIES,
) -> Measured:
    """Accuracy on the test set in the recipe's perturbation set, by adversary."""
    data = load_data(recipe.data, split="test", n=recipe.measured_on)
    outcomes = evaluate(
        MultiExitView(net),
        adversaries,
        data.x,
        data.y,
        threat=recipe.space,
        seed=seed,
        batch_size=500,
    )
    accuracy = dict(zip(outcomes.adversaries, outcomes.accuracy()[:, 0].tolist(), strict=True))
    return Measured(
        data=f"{recipe.data}, test",
        n=len(data),
        p=f"{recipe.space.p:g}",
        radius=recipe.space.radius,
        seed=seed,
        accuracy={**accuracy, "worst case": float(outcomes.worst_case()[0])},
        command=f"python -c \"from saddlepoint.training import rebuild, recipe; rebuild(recipe('{recipe.name}'), '.', seed={seed})\"",
    )


def _adversarial(recipe: Recipe) -> bool:
    """Does an adversary take part? Methods that can do without one have no `attack` then."""
    return (
        not isinstance(recipe.method, Standard)
        and getattr(recipe.method, "attack", recipe.method) is not None
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums that are split over threads round differently: the weights must not depend on how many cores there are."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
