"""Defenses of four papers with their test images and their accuracy under the papers' attacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.data import load_data
from saddlepoint.data.signs import prepared
from saddlepoint.defenses import Defense, MultiExit, Static, Subset
from saddlepoint.evaluation import Direct, Episode, FixedPoints, MaxLossPoint, Threat, Transfer
from saddlepoint.games.aimer import NEED
from saddlepoint.papers.adaptive.attacks import PAPER, static
from saddlepoint.papers.adaptive.experiment import Lab as AdaptiveLab
from saddlepoint.papers.adaptive.experiment import right
from saddlepoint.papers.deq.experiment import Lab as EquilibriumLab
from saddlepoint.papers.deq.grid import Grid
from saddlepoint.papers.deq.states import label
from saddlepoint.papers.multi_exit.experiment import Lab as MultiExitLab
from saddlepoint.papers.multi_exit.experiment import aimed
from saddlepoint.papers.registry import Request
from saddlepoint.papers.runner import Images
from saddlepoint.papers.transductive import dent, table_3, table_4
from saddlepoint.papers.transductive.experiment import Lab as TransductiveLab
from saddlepoint.papers.transductive.figure_1 import RECIPE as SIGNS
from saddlepoint.papers.transductive.rmc import RMCExperiment
from saddlepoint.runs.work import torch_threads
from saddlepoint.zoo.adaptive import TABLE
from saddlepoint.zoo.deq import DEQ, FinalState, MeanState
from saddlepoint.zoo.transductive import DANN, DENT, TADV, URejectron
from saddlepoint.zoo.transductive.tadv import Trainer

DRAWS = 2  # random draws over which a defense that trains at test time is scored; each trains once
MAX_TEST_IMAGES = 128  # size of URejectron's test batch, at most
TRAINING_IMAGES_PER_TEST_IMAGE = 4  # training images that URejectron compares each one with
# Images in RMC's stream, at most: every attack fine-tunes a network for every prediction.
_MAX_STREAM = 12
_TRANSDUCTIVE_ATTACKS = ("AA", "PGD", "FPA", "GMSA-AVG", "GMSA-MIN")


@dataclass(frozen=True)
class AuditCase:
    """A defense to audit, and its accuracy under the attacks of its paper.

    The accuracies are given per image: the fraction of random draws that are correct, [N].
    """

    name: str
    data: str  # name of the dataset
    defense: Defense
    images: Images
    threat: Threat
    batch: int  # images per batch
    correct_clean: Tensor  # [N] on the clean images
    correct_under: Mapping[str, Tensor]  # [N] under each attack of the paper

    @property
    def strongest(self) -> str:
        """Name of the paper's attack with the lowest accuracy."""
        return min(self.correct_under, key=lambda name: float(self.correct_under[name].mean()))

    @property
    def correct_under_strongest(self) -> Tensor:
        """[N] fraction of correct draws under the paper's strongest attack."""
        return self.correct_under[self.strongest]


def adaptive_cases(request: Request) -> Iterator[AuditCase]:
    """Yield the defenses of Croce et al. 2022, each with the attack of its row of Table 1.

    A scale audits only the defenses that its setting lists, to limit the running time.
    """
    lab = AdaptiveLab.open(request)
    for about in (one for one in TABLE if one.name in lab.setting.audited):
        subject = lab.subject(about.name, scored=lab.setting.images(about.name))
        attack = PAPER[about.name](subject.defense, lab.setting.spend)
        clean, attacked = map(right, lab.play(subject, [FixedPoints(), attack]))
        yield AuditCase(
            name=about.name,
            data=subject.data,
            defense=subject.defense,
            images=subject.test,
            threat=subject.threat,
            batch=subject.batch,
            correct_clean=clean,
            correct_under={about.attack: attacked},
        )


def transductive_cases(request: Request) -> Iterator[AuditCase]:
    """Yield the five defenses of Chen et al. 2022, each with the paper's attacks on it."""
    lab = TransductiveLab.open(request)
    yield from (build(lab) for build in (_dent, _rmc, _dann, _tadv, _urejectron))


def _dent(lab: TransductiveLab) -> AuditCase:
    kind = lab.setting.dent
    found = dent.evaluate(lab, kind.bases[0], by_label=False)
    return AuditCase(
        name="DENT",
        data=lab.recipe(found.base.name).data,
        defense=DENT(found.base.net),
        images=found.base.images,
        threat=Threat(found.base.space, state_visible=False),
        batch=kind.batch,
        correct_clean=right(found.episodes["clean"]),
        correct_under=_correct_under(
            found.episodes, (dent.ON_MODULE, "AA", "PGD", "FPA", *dent.GREEDY)
        ),
    )


def _rmc(lab: TransductiveLab) -> AuditCase:
    kind = lab.setting.rmc[0]
    rmc = RMCExperiment(lab, replace(kind, images=min(kind.images, _MAX_STREAM)))
    found = rmc.evaluate("Madry", lab.request.seed, all_attacks=True)
    return AuditCase(
        name="RMC",
        data=kind.data,
        defense=rmc.defense(found.base.name),
        images=found.base.images,
        threat=Threat(found.base.space, state_visible=False, draws=DRAWS),
        batch=1,
        correct_clean=right(found.episodes["clean"]),
        correct_under=_correct_under(found.episodes, _TRANSDUCTIVE_ATTACKS),
    )


def _dann(lab: TransductiveLab) -> AuditCase:
    kind = lab.setting.dann[0]
    found = table_3.evaluate(lab, kind)
    labeled = lab.training(kind.data, kind.labeled)
    return AuditCase(
        name="DANN",
        data=kind.data,
        defense=DANN(found.base.net, labeled.x, labeled.y, training=kind.training),
        images=found.base.images,
        threat=Threat(found.base.space, rounds="one", state_visible=False, draws=DRAWS),
        batch=kind.images,
        correct_clean=right(found.episodes["clean"]),
        correct_under=_correct_under(found.episodes, _TRANSDUCTIVE_ATTACKS),
    )


def _tadv(lab: TransductiveLab) -> AuditCase:
    """Build the TADV case.

    The paper's attacks are scored on networks that were trained in advance. The audited defense
    trains a network at every query.
    """
    kind = lab.setting.tadv[0]
    found = table_4.evaluate(lab, kind)
    recipe = lab.recipe(found.base.name)
    return AuditCase(
        name="TADV",
        data=kind.data,
        defense=TADV(found.base.net, Trainer(recipe, *lab.training(recipe.data, recipe.n))),
        images=found.base.images,
        threat=Threat(found.base.space, rounds="one", state_visible=False, draws=DRAWS),
        batch=kind.images,
        correct_clean=_mean(found.finals["clean"]),
        correct_under={name: _mean(found.finals[name]) for name in _TRANSDUCTIVE_ATTACKS},
    )


def _urejectron(lab: TransductiveLab) -> AuditCase:
    """Build the URejectron case.

    The attacker controls every image of the batch. The paper's attack is PGD on the classifier,
    the attack of Fig. 1 (a), within the perturbation set.
    """
    kind = lab.setting.signs
    recipe = lab.recipe(SIGNS)
    parts = prepared(
        load_data(kind.data, split="train", n=kind.photographs),
        per_class=kind.per_class,
        seed=lab.request.seed,
    )
    images = Images(*parts.test).first(min(kind.asked or MAX_TEST_IMAGES, MAX_TEST_IMAGES))
    known = parts.train.x[: TRAINING_IMAGES_PER_TEST_IMAGE * MAX_TEST_IMAGES]
    with torch_threads(lab.setting.threads):
        net = lab.bench.trained(recipe, Images(parts.train.x, parts.train.y))
    defense = URejectron(net, known, training=kind.training)
    threat = Threat(recipe.space, rounds="one", state_visible=False, draws=DRAWS)
    pgd = Transfer(MaxLossPoint(Direct("pgd", kind.pgd, cross_entropy)), static(defense))
    episodes = lab.against(
        defense, {"clean": FixedPoints(), "PGD": pgd}, images, threat, batch=len(images.x)
    )
    return AuditCase(
        name="URejectron",
        data=kind.data,
        defense=defense,
        images=images,
        threat=threat,
        batch=len(images.x),
        correct_clean=right(episodes["clean"]),
        correct_under=_correct_under(episodes, ["PGD"]),
    )


def multi_exit_cases(request: Request) -> Iterator[AuditCase]:
    """Yield one network with each defender strategy of Xu et al.

    The paper's attacks are AIMER with PGD-100 and AIMER with AutoAttack.
    """
    lab = MultiExitLab.open(request)
    subject = lab.subject("resnet-18")
    net = subject.base.net
    game = lab.game(subject)
    strategies: dict[str, tuple[Subset | str | Tensor, MultiExit]] = {
        "third exit": ((3,), MultiExit(net, Static((3,)))),
        **{name: (name, MultiExit(net, gate)) for name, gate in subject.gates.items()},
        "NEED": (game.equilibrium().defender, NEED.of(net, game)),
    }
    for name, (strategy, defense) in strategies.items():
        defender = lab.defender(subject, game, strategy)
        adversaries = {
            f"AIMER, {attack}": aimed(game, defender.known, lab.setting.attacks[attack])
            for attack in ("PGD-100", "AutoAttack")
        }
        episodes = lab.play(
            subject, [FixedPoints(), *adversaries.values()], lab.swept(subject), seed=request.seed
        )
        clean, *attacked = map(defender.right, episodes)
        yield AuditCase(
            name=f"exits, {name}",
            data=subject.data,
            defense=defense,
            images=lab.swept(subject),
            threat=Threat(subject.space, draws=20 if defense.random else 1),
            batch=lab.setting.batch,
            correct_clean=clean,
            correct_under=dict(zip(adversaries, attacked, strict=True)),
        )


def equilibrium_cases(request: Request) -> Iterator[AuditCase]:
    """Yield deep equilibrium networks that predict from one of three solver states.

    The paper's attacks are PGD-10 and PGD-1000 along the six gradients of Yang et al. 2022.
    """
    lab = EquilibriumLab.open(request)
    for name in ("unrolled", "exact-long"):
        yield from _states_of(lab, Grid.of(lab, name))


def _states_of(lab: EquilibriumLab, grid: Grid) -> Iterator[AuditCase]:
    """Yield one case per state that a network can predict from: final, early and mean state."""
    subject = grid.subject
    images = lab.swept(subject)
    (clean,) = lab.play(subject, [FixedPoints()], images)
    episodes: dict[str, Episode] = {}
    for kind, attack in {"PGD-10": lab.setting.pgd, "PGD-1000": lab.setting.long}.items():
        played = lab.play(subject, [one.pgd(attack) for one in grid.gradients.values()], images)
        episodes |= {
            f"{gradient}, {kind}": episode
            for gradient, episode in zip(grid.gradients, played, strict=True)
        }
    for state in (FinalState(), grid.early, MeanState()):
        net = subject.net
        yield AuditCase(
            name=f"{subject.title}, {label(state.name)}",
            data=subject.data,
            defense=DEQ(net.net, method=net.method, after=net.after, state=state),
            images=images,
            threat=Threat(subject.space),
            batch=lab.setting.batch,
            correct_clean=subject.right(clean, state.name),
            correct_under={
                attack: subject.right(episode, state.name) for attack, episode in episodes.items()
            },
        )


def _correct_under(episodes: Mapping[str, Episode], attacks: Iterable[str]) -> dict[str, Tensor]:
    return {name: right(episodes[name]) for name in attacks}


def _mean(episodes: Sequence[Episode]) -> Tensor:
    """Mean over episodes of the per-image correctness, [N]."""
    return torch.stack([right(episode) for episode in episodes]).mean(0)
