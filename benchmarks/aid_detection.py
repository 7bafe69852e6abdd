"""Why AID-purifier has no effect on a small CIFAR-10 network: its discriminator is at chance.

    python -m benchmarks.aid_detection --data DIR --out benchmarks/records/aid-detection.json

A small network is trained adversarially on 3000 images, and the discriminator is fitted as in
`saddlepoint reproduce adaptive/table-4 --scale small`. A linear classifier on the pooled outputs of
each layer, fitted by L-BFGS, shows what a discriminator could learn from
them. Detection is how often a natural test image has a higher score than an attacked one, over all
pairs: 0.5 is chance. One thread, seed 0.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.data import load_data
from saddlepoint.defenses import Context, Plain
from saddlepoint.evaluation import AttackContext, Direct, Threat
from saddlepoint.papers.adaptive.nets import recipes
from saddlepoint.papers.runner import Images
from saddlepoint.training import fit, initial
from saddlepoint.zoo.adaptive import AIDPurifier, Discriminator

SPACE = Linf(8 / 255)
TRAINING_IMAGES = 3000
TEST_IMAGES = 200
LAYERS = ("2", "5")
LINEAR_LAYERS = (0, 2, 5, 9, 10)  # of the network; 10 are the logits
LINEAR_IMAGES = 600


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of CIFAR-10")
    parser.add_argument("--out", type=Path, required=True, help="record to write")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    train = Images(*load_data("cifar10", split="train", n=TRAINING_IMAGES, root=arguments.data))
    test = Images(*load_data("cifar10", split="test", n=TEST_IMAGES, root=arguments.data))
    recipe = replace(recipes("small")["PGD-AT cifar10"], n=TRAINING_IMAGES, epochs=3)
    net = fit(initial(recipe, 0), train.x, train.y, recipe, seed=0, device="cpu").net.eval()
    attacked = attack(net, test)
    record: dict[str, Any] = {"images": TEST_IMAGES, "linear": {}}
    record["command"] = "python -m benchmarks.aid_detection --data DIR --out FILE"
    record["discriminator"] = purified(net, train, test, attacked)
    few = train.first(LINEAR_IMAGES)
    vertex = (few.x + 2 * (attack(net, few) - few.x)).clamp(0, 1)
    for layer in LINEAR_LAYERS:
        record["linear"][str(layer)] = linear_detection(
            net, layer, (few.x, vertex), (test.x, attacked)
        )
    arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record, indent=1), flush=True)


def attack(net: nn.Module, data: Images) -> Tensor:
    """Return points of maximal loss by ten steps of PGD."""
    context = AttackContext.open(Threat(SPACE), torch.arange(len(data.x)), 7)
    pgd = Direct("pgd", PGD(10), loss=cross_entropy)
    return pgd.move(context, Plain(net), data.x, data.y).max_loss_point


def purified(net: nn.Module, train: Images, test: Images, attacked: Tensor) -> dict[str, float]:
    """Fit a discriminator; return its detection and what purification changes."""
    discriminator = Discriminator.on(net, LAYERS, train.x[:2], width=64)
    purifier = AIDPurifier(net, discriminator, radius=SPACE.radius)
    purifier = purifier.fit(train.x, train.y, space=SPACE)
    with torch.no_grad():
        before = net(attacked).argmax(1)
        after = purifier.trace(attacked, Context.seeded(0, len(attacked))).last.argmax(1)
    return {
        "detection": purifier.detection_rate(test.x, attacked),
        "changed labels of attacked images": int((before != after).sum()),
        "correct before": int((before == test.y).sum()),
        "correct after": int((after == test.y).sum()),
    }


def linear_detection(
    net: nn.Module, layer: int, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]
) -> float:
    """Fit a linear classifier of natural and attacked images to pooled outputs of a layer.

    Args:
        net: Network.
        layer: Number of the layer.
        train: Natural and attacked images to fit to.
        test: Natural and attacked images to score.
    """
    assert isinstance(net, nn.Sequential)

    def features(x: Tensor) -> Tensor:
        with torch.no_grad():
            h: Tensor = net[: layer + 1](x)
        return h.mean((2, 3)) if h.ndim == 4 else h

    inputs = torch.cat([features(x) for x in train])
    target = torch.arange(2).flip(0).repeat_interleave(len(train[0])).to(inputs)
    mean = inputs.mean(0)
    scale = inputs.std(0) + 1e-6
    weights = torch.zeros(inputs.shape[1], requires_grad=True)
    bias = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights, bias], max_iter=100)

    def score(x: Tensor) -> Tensor:
        return (x - mean) / scale @ weights + bias

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(score(inputs), target)
        loss = loss + 1e-3 * weights.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]
    with torch.no_grad():
        natural, attacked = (score(features(x)) for x in test)
    return float((natural[:, None] > attacked).double().mean())


if __name__ == "__main__":
    main()
