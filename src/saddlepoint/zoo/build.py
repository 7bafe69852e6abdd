"""Train a network of the zoo from its recipe, check its accuracy, and store it."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from torch import nn

from saddlepoint.attacks.aims import loss_of_mean
from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.losses import cross_entropy, dlr
from saddlepoint.attacks.pgd import PGD
from saddlepoint.data import load_data
from saddlepoint.describe import describe
from saddlepoint.evaluation import Adversary, Direct, FixedPoints, evaluate
from saddlepoint.training.fit import Progress, fit
from saddlepoint.training.loop import one_thread
from saddlepoint.training.method import Standard
from saddlepoint.training.multi_exit_view import MultiExitView
from saddlepoint.training.recipe import Recipe, initial
from saddlepoint.zoo.records import Entry, TrainingCheck, store

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
    """Train a network, check its accuracy on the test set, and write its weights and record.

    The same recipe, seed and machine give the same weights to the last bit.

    Args:
        recipe: The recipe.
        folder: Where the weights and the record are written.
        seed: Decides everything random.
        out: A folder for checkpoints to resume from. By default none are written.
        resume: Continue from the checkpoint in `out` if there is one.
        progress: Called after every epoch.
        adversaries: The attacks of the check; by default no attack, PGD-40 and APGD-100 on
            the DLR loss.

    Returns:
        The record.
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
        check = check_accuracy(trained.net, recipe, seed=seed, adversaries=adversaries)
    record = Entry(
        name=recipe.name,
        net=recipe.net.__name__,
        parameters=sum(p.numel() for p in trained.net.parameters()),
        training_radius=recipe.space.radius if _is_adversarial(recipe) else 0.0,
        seed=seed,
        epoch=trained.best.number,
        sha256="",
        check=check,
        recipe=cast(dict[str, object], describe(recipe)),
        residuals=tuple(epoch.residual for epoch in trained.history if epoch.residual is not None),
    )
    return store(trained.net, record, folder)


def check_accuracy(
    net: nn.Module,
    recipe: Recipe,
    *,
    seed: int = 0,
    adversaries: tuple[Adversary, ...] = ADVERSARIES,
) -> TrainingCheck:
    """Measure the accuracy of a network on the test set against each adversary.

    Args:
        net: The network, in eval mode.
        recipe: Names the data, the perturbation set and the number of test examples.
        seed: Decides the randomness of the attacks.
        adversaries: The attacks; by default no attack, PGD-40 and APGD-100 on the DLR loss.
    """
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
    return TrainingCheck(
        data=f"{recipe.data}, test",
        n=len(data),
        p=f"{recipe.space.p:g}",
        radius=recipe.space.radius,
        seed=seed,
        accuracy=accuracy,
        command=f"saddlepoint train {recipe.name} --seed {seed}",
    )


def _is_adversarial(recipe: Recipe) -> bool:
    """Return whether training uses an attack; `attack=None` in a method means that it does not."""
    return (
        not isinstance(recipe.method, Standard)
        and getattr(recipe.method, "attack", recipe.method) is not None
    )
