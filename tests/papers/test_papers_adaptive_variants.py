"""Variants in the adaptive experiments: surrogates, seeds, negatives, bases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Context
from saddlepoint.evaluation import Cascade, Direct
from saddlepoint.evaluation.adversary import Adversary
from saddlepoint.gradients import EoT
from saddlepoint.papers import Request
from saddlepoint.papers.adaptive.attacks import (
    on_contrastive,
    on_contrastive_with_known_randomness,
)
from saddlepoint.papers.adaptive.contrastive import fixed_seed
from saddlepoint.papers.adaptive.defenses import (
    DEFENSES,
    HIDDEN_NEGATIVES,
    StaticModel,
    contrastive_with_hidden_negatives,
)
from saddlepoint.papers.adaptive.experiment import AdaptiveExperiment
from saddlepoint.papers.adaptive.fitting import FITS
from saddlepoint.papers.adaptive.nets import recipes
from saddlepoint.papers.adaptive.scales import SETTINGS, AttackBudgets
from saddlepoint.papers.registry import Scale
from saddlepoint.papers.runner import Images
from saddlepoint.papers.transductive.nets import small_cnn
from saddlepoint.training import initial
from saddlepoint.zoo.adaptive import ClosedLoopControl
from saddlepoint.zoo.adaptive.closed_loop import LinearEmbedding
from saddlepoint.zoo.nets import Normalize


@pytest.mark.parametrize(("base", "expected"), [("PGD-AT", "TRADES"), ("TRADES", "PGD-AT")])
def test_a_surrogate_is_another_robust_network_on_the_same_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str, expected: str
) -> None:
    """Sec. 4, first recommendation; the static network itself is the source of other transfers."""
    nets = {name: nn.Identity() for name in recipes("tiny")}
    monkeypatch.setattr(AdaptiveExperiment, "base", lambda _, name: SimpleNamespace(net=nets[name]))
    experiment = AdaptiveExperiment.open(Request(tmp_path))
    subject = SimpleNamespace(base=base, data=recipes("tiny")[base].data)
    found = experiment.surrogate(subject)  # type: ignore[arg-type]
    assert found is not None
    assert found.net is nets[expected]
    elsewhere = SimpleNamespace(base=base, data="other")
    assert experiment.surrogate(elsewhere) is None  # type: ignore[arg-type]


def directs(one: Adversary) -> list[Direct]:
    """All attacks inside an adversary."""
    if isinstance(one, Direct):
        return [one]
    inner = one.adversaries if isinstance(one, Cascade) else [one.adversary]  # type: ignore[attr-defined]
    return [direct for part in inner for direct in directs(part)]


def test_with_a_fixed_seed_randomness_is_known_and_nothing_is_averaged() -> None:
    """Sec. 3.6: a fixed seed without EoT; otherwise 16 draws per step."""
    threat = fixed_seed(SimpleNamespace(space=Linf(0.1)))  # type: ignore[arg-type]
    assert (threat.randomness, threat.draws) == ("fixed", 1)
    known = directs(on_contrastive_with_known_randomness(AttackBudgets()))
    assert known
    assert not any(isinstance(one.estimator, EoT) for one in known)
    unknown = directs(on_contrastive(None, AttackBudgets()))  # type: ignore[arg-type]
    assert {one.estimator for one in unknown} == {EoT(16)}


@pytest.fixture(scope="module")
def base() -> StaticModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = small_cnn(4, 24, side=8).eval()
        x = torch.rand(60, 1, 8, 8)
    train = Images(x, torch.arange(60) % 10)
    return StaticModel(net, train, Linf(0.1), 0, "digits", train)


def test_hidden_negatives_are_training_images_and_make_images_independent(
    base: StaticModel,
) -> None:
    """B.8. With negatives from the batch, another image of the batch changes the answer."""
    hidden = contrastive_with_hidden_negatives(base, FITS["tiny"])
    attacked = DEFENSES["ContrastiveReversal"].make(base, FITS["tiny"])
    assert hidden.negatives is not None
    assert torch.equal(hidden.negatives, base.train.x[:HIDDEN_NEGATIVES])
    x = base.train.x[:3]
    other = torch.cat([x[:1], 1 - x[1:]])

    def first(defense: object, images: Tensor) -> Tensor:
        with torch.no_grad():
            return defense.respond(images, Context.seeded(0, 3))[0]  # type: ignore[attr-defined]

    assert not hidden.coupled
    assert torch.allclose(first(hidden, x), first(hidden, other), rtol=0, atol=1e-5)
    assert attacked.coupled
    assert (first(attacked, x) - first(attacked, other)).abs().max() > 1e-3


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_closed_loop_control_has_the_papers_layers_and_batches(scale: Scale) -> None:
    """B.2: the normalized image, the stem and three stages; batches of 16 in the released code."""
    with torch.device("meta"):
        net = initial(recipes(scale)["ResNet-20"], 0)
    layers = [net.get_submodule(name) for name in FITS[scale].controlled_layers]
    assert layers == [net.get_submodule("0.0"), *(net.get_submodule(str(k)) for k in range(4))]
    assert isinstance(layers[0], Normalize)
    assert SETTINGS[scale].closed_loop_batch == 16


def test_bases_of_closed_loop_control_are_of_the_images_for_bases() -> None:
    """Not of the training images of the other defenses, of which there may be fewer."""
    images = torch.linspace(0, 1, 12 * 4).view(12, 1, 2, 2)
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).eval()
    labels = net(images).argmax(1)
    train, basis = (Images(images[rows], labels[rows]) for rows in (slice(0, 3), slice(3, 12)))
    base = StaticModel(net, train, Linf(0.1), 0, "cifar10", basis)
    fit = replace(FITS["paper"], controlled_layers=("input",))
    defense = DEFENSES["ClosedLoopControl"].make(base, fit)
    assert isinstance(defense, ClosedLoopControl)
    assert defense.embeddings is not None
    (embedding,) = defense.embeddings.values()
    assert isinstance(embedding, LinearEmbedding)
    assert torch.allclose(embedding.mean, basis.x.mean(0))
    assert (defense.steps, defense.rate) == (4, 5e-3)
