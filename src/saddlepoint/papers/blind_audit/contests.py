"""Defenses of four papers, each with the images it is asked about and with what its paper's own attacks leave of it there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from saddlepoint.papers.adaptive.experiment import Lab as Purified
from saddlepoint.papers.adaptive.experiment import right
from saddlepoint.papers.deq.experiment import Lab as Solved
from saddlepoint.papers.deq.grid import Grid
from saddlepoint.papers.deq.states import label
from saddlepoint.papers.multi_exit.experiment import Lab as Exited
from saddlepoint.papers.multi_exit.experiment import aimed
from saddlepoint.papers.registry import Request
from saddlepoint.papers.runner import Images
from saddlepoint.papers.transductive import dent, table_3, table_4
from saddlepoint.papers.transductive.experiment import Lab as Learned
from saddlepoint.papers.transductive.figure_1 import RECIPE as SIGNS
from saddlepoint.papers.transductive.rmc import Masking
from saddlepoint.runs.work import torch_threads
from saddlepoint.zoo.adaptive import TABLE
from saddlepoint.zoo.deq import DEQ, FinalState, MeanState
from saddlepoint.zoo.transductive import DANN, DENT, TADV, URejectron
from saddlepoint.zoo.transductive.tadv import Trainer


@dataclass(frozen=True)
class Contest:
    """One defense. `clean` and `experts` say how often it is right on each image [N], as it is and under the paper's attacks."""

    name: str
    data: str
    defense: Defense
    images: Images
    threat: Threat
    batch: int
    clean: Tensor
    experts: Mapping[str, Tensor]

    @property
    def strongest(self) -> str:
        """The paper's attack that leaves least."""
        return min(self.experts, key=lambda name: float(self.experts[name].mean()))

    @property
    def left(self) -> Tensor:
        return self.experts[self.strongest]


def purified(request: Request) -> Iterator[Contest]:
    """Defenses of Croce et al. 2022 for whose audits a scale has time, each under the attack of its row of Table 1."""
    lab = Purified.open(request)
    for about in (one for one in TABLE if one.name in lab.setting.audited):
        subject = lab.subject(about.name, scored=lab.setting.images(about.name))
        sent = {
            "clean": FixedPoints(),
            about.attack: PAPER[about.name](subject.defense, lab.setting.spend),
        }
        clean, expert = map(right, lab.play(subject, list(sent.values())))
        yield Contest(
            about.name,
            subject.data,
            subject.defense,
            subject.test,
            subject.threat,
            subject.batch,
            clean,
            {about.attack: expert},
        )


def learned(request: Request) -> Iterator[Contest]:
    """The five defenses of Chen et al. 2022, under its attacks."""
    lab = Learned.open(request)
    yield from (made(lab) for made in (_dent, _rmc, _dann, _tadv, _urejectron))


def _dent(lab: Learned) -> Contest:
    found = dent.played(lab, lab.setting.dent.bases[0], by_label=False)
    kind = lab.setting.dent
    experts = {
        name: right(found.episodes[name])
        for name in (dent.ON_MODULE, "AA", "PGD", "FPA", *dent.GREEDY)
    }
    threat = Threat(found.base.space, state_visible=False)
    data = lab.recipe(found.base.name).data
    return Contest(
        "DENT",
        data,
        DENT(found.base.net),
        found.base.images,
        threat,
        kind.batch,
        right(found.episodes["clean"]),
        experts,
    )


DRAWS = 2  # answers by which defenses are judged that learn at random: each is a training
ASKED = 128
KNOWN = (
    4  # images that URejectron is asked about, and so many times as many that it compares them with
)
_STREAM = 12  # images of RMC's sequence: every answer to each of them tunes a network, for every attack that is sent


def _rmc(lab: Learned) -> Contest:
    kind = lab.setting.rmc[0]
    masking = Masking(lab, replace(kind, images=min(kind.images, _STREAM)))
    found = masking.played("Madry", lab.request.seed, everything=True)
    experts = {
        name: right(found.episodes[name]) for name in ("AA", "PGD", "FPA", "GMSA-AVG", "GMSA-MIN")
    }
    threat = Threat(found.base.space, state_visible=False, draws=DRAWS)
    clean = right(found.episodes["clean"])
    return Contest(
        "RMC",
        kind.data,
        masking.defense(found.base.name),
        found.base.images,
        threat,
        1,
        clean,
        experts,
    )


def _dann(lab: Learned) -> Contest:
    kind = lab.setting.dann[0]
    found = table_3.played(lab, kind)
    labeled = lab.training(kind.data, kind.labeled)
    experts = {
        name: right(found.episodes[name]) for name in ("AA", "PGD", "FPA", "GMSA-AVG", "GMSA-MIN")
    }
    defense = DANN(found.base.net, labeled.x, labeled.y, training=kind.training)
    threat = Threat(found.base.space, rounds="one", state_visible=False, draws=DRAWS)
    clean = right(found.episodes["clean"])
    return Contest(
        "DANN", kind.data, defense, found.base.images, threat, kind.images, clean, experts
    )


def _tadv(lab: Learned) -> Contest:
    """The paper's attacks are scored on networks that were trained beforehand; an audit meets one that is trained when it asks."""
    kind = lab.setting.tadv[0]
    found = table_4.played(lab, kind)
    experts = {
        name: _mean(found.finals[name]) for name in ("AA", "PGD", "FPA", "GMSA-AVG", "GMSA-MIN")
    }
    recipe = lab.recipe(found.base.name)
    defense = TADV(found.base.net, Trainer(recipe, *lab.training(recipe.data, recipe.n)))
    threat = Threat(found.base.space, rounds="one", state_visible=False, draws=DRAWS)
    return Contest(
        "TADV",
        kind.data,
        defense,
        found.base.images,
        threat,
        kind.images,
        _mean(found.finals["clean"]),
        experts,
    )


def _urejectron(lab: Learned) -> Contest:
    """All images of the batch are the attacker's; PGD on the classifier is the attack of Fig. 1 (a) within the set."""
    kind = lab.setting.signs
    recipe = lab.recipe(SIGNS)
    parts = prepared(
        load_data(kind.data, split="train", n=kind.photographs),
        per_class=kind.per_class,
        seed=lab.request.seed,
    )
    images = Images(*parts.test).first(min(kind.asked or ASKED, ASKED))
    known = parts.train.x[: KNOWN * ASKED]
    with torch_threads(lab.setting.threads):
        net = lab.bench.trained(recipe, Images(parts.train.x, parts.train.y))
    defense = URejectron(net, known, training=kind.training)
    threat = Threat(recipe.space, rounds="one", state_visible=False, draws=DRAWS)
    pgd = Transfer(MaxLossPoint(Direct("pgd", kind.pgd, cross_entropy)), static(defense))
    found = lab.against(
        defense, {"clean": FixedPoints(), "PGD": pgd}, images, threat, batch=len(images.x)
    )
    return Contest(
        "URejectron",
        kind.data,
        defense,
        images,
        threat,
        len(images.x),
        right(found["clean"]),
        {"PGD": right(found["PGD"])},
    )


def exited(request: Request) -> Iterator[Contest]:
    """A multi-exit network that answers in the ways of Xu et al., under AIMER with PGD-100 and with AutoAttack."""
    lab = Exited.open(request)
    subject = lab.subject("resnet-18")
    net = subject.base.net
    game = lab.game(subject)
    images = lab.swept(subject)
    ways: dict[str, tuple[Subset | str | Tensor, MultiExit]] = {
        "third exit": ((3,), MultiExit(net, Static((3,)))),
        **{name: (name, MultiExit(net, gate)) for name, gate in subject.gates.items()},
        "NEED": (game.equilibrium().defender, NEED.of(net, game)),
    }
    for name, (strategy, defense) in ways.items():
        defender = lab.defender(subject, game, strategy)
        sent = {
            f"AIMER, {attack}": aimed(game, defender.known, lab.setting.attacks[attack])
            for attack in ("PGD-100", "AutoAttack")
        }
        episodes = lab.play(subject, [FixedPoints(), *sent.values()], images, seed=request.seed)
        clean, *experts = map(defender.right, episodes)
        threat = Threat(subject.space, draws=20 if defense.random else 1)
        yield Contest(
            f"exits, {name}",
            subject.data,
            defense,
            images,
            threat,
            lab.setting.batch,
            clean,
            dict(zip(sent, experts, strict=True)),
        )


def solved(request: Request) -> Iterator[Contest]:
    """Equilibrium networks that answer with one of three states, under PGD along the six gradients of Yang et al. 2022."""
    lab = Solved.open(request)
    for name in ("unrolled", "exact-long"):
        grid = Grid.of(lab, name)
        subject = grid.subject
        images = lab.swept(grid.subject)
        (clean,) = lab.play(subject, [FixedPoints()], images)
        found: dict[str, Episode] = {}
        for kind, attack in {"PGD-10": lab.setting.pgd, "PGD-1000": lab.setting.long}.items():
            sent = [gradient.pgd(attack) for gradient in grid.gradients.values()]
            episodes = lab.play(subject, sent, images)
            found |= {
                f"{column}, {kind}": episode
                for column, episode in zip(grid.gradients, episodes, strict=True)
            }
        for state in (FinalState(), grid.early, MeanState()):
            defense = DEQ(
                subject.net.net, method=subject.net.method, after=subject.net.after, state=state
            )
            experts = {
                attack: subject.right(episode, state.name) for attack, episode in found.items()
            }
            yield Contest(
                f"{subject.title}, {label(state.name)}", subject.data, defense, images, Threat(subject.space), lab.setting.batch,
                subject.right(clean, state.name), experts,
            )  # fmt: skip


def _mean(episodes: Sequence[Episode]) -> Tensor:
    return torch.stack([right(episode) for episode in episodes]).mean(0)
