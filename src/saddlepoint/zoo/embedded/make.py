"""Train, evaluate and save the packaged defenses."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.data import load_data
from saddlepoint.defenses import Defense, Plain
from saddlepoint.describe import describe
from saddlepoint.evaluation import (
    Adversary,
    Direct,
    FixedPoints,
    GreedyModelSpace,
    Transfer,
    evaluate,
)
from saddlepoint.gradients import Backprop, EoT
from saddlepoint.training.loop import one_thread
from saddlepoint.zoo.embedded.base import Kit
from saddlepoint.zoo.records import Entry, TrainingCheck, entry, keep, load


def make(kit: Kit, folder: str | Path, *, seed: int = 0) -> Entry:
    """Train and evaluate a defense, and write its weights, if any, and its record.

    The same recipe, seed and machine give the same weights to the last bit.

    Args:
        kit: Recipe of the defense.
        folder: Folder to write to.
        seed: Seed of training and evaluation.

    Returns:
        The record of the defense.
    """
    with one_thread():
        net = load(kit.base)
        data = load_data("digits", split="train")
        weights = kit.learn(net, data.x, data.y, seed)
        check = check_accuracy(kit, kit.defend(net, weights), seed=seed)
    record = Entry(
        name=kit.name,
        net=kit.base,
        parameters=sum(tensor.numel() for tensor in weights.values()),
        training_radius=entry(kit.base).training_radius,
        seed=seed,
        epoch=0,
        sha256="",
        check=check,
        recipe=cast(dict[str, object], describe(kit)),
        defense=kit.kind.__name__,
    )
    return keep(weights, record, folder)


def check_accuracy(kit: Kit, defense: Defense, *, seed: int = 0) -> TrainingCheck:
    """Measure the accuracy under each adversary on the first test digits.

    A rejected image counts as correct.

    Args:
        kit: Recipe of the defense.
        defense: The defense.
        seed: Seed of the evaluation.
    """
    data = load_data("digits", n=kit.measured_on)
    threat = kit.threat()
    outcomes = evaluate(
        defense,
        adversaries(kit, defense),
        data.x,
        data.y,
        threat=threat,
        seed=seed,
        batch_size=kit.measured_on,
    )
    accuracy = dict(zip(outcomes.adversaries, outcomes.accuracy()[:, 0].tolist(), strict=True))
    if defense.rejects:
        accuracy["clean, refused"] = float(outcomes.episodes[0].rejected[0].mean())
    return TrainingCheck(
        data="digits, test",
        n=len(data),
        p=f"{threat.space.p:g}",
        radius=threat.space.radius,
        seed=seed,
        accuracy=accuracy,
        command=f"saddlepoint train {kit.name} --seed {seed}",
    )


def adversaries(kit: Kit, defense: Defense) -> tuple[Adversary, ...]:
    """Return the adversaries of the evaluation.

    They are: no attack, a transfer attack from the static network, and an attack that knows the
    defense.
    """
    assert defense.static is not None
    pgd = Direct("pgd-40", PGD(steps=40), loss=cross_entropy)
    transfer = Transfer(pgd, Plain(defense.static))
    if defense.memory != "none":
        inner = Direct(f"pgd-{kit.attack_steps}", PGD(steps=kit.attack_steps), loss=cross_entropy)
        greedy = GreedyModelSpace(f"gmsa-{kit.rounds}", inner, rounds=kit.rounds)
        return FixedPoints(), transfer, greedy
    adaptive = Direct(
        f"apgd-{kit.attack_steps}",
        APGD(steps=kit.attack_steps),
        rules=kit.rules(),
        estimator=EoT(2) if defense.random else Backprop(),
    )
    return FixedPoints(), transfer, adaptive
