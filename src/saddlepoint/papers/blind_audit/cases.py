"""Defenses of four papers with their test images and their accuracy under the papers' attacks."""

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
from saddlepoint.games.exit_attacks import ExitAttack
from saddlepoint.games.need import NEED
from saddlepoint.papers.adaptive.attacks import PAPER_ATTACKS, static
from saddlepoint.papers.adaptive.audit_costs import audit_cost
from saddlepoint.papers.adaptive.defenses import DEFENSES
from saddlepoint.papers.adaptive.experiment import AdaptiveExperiment
from saddlepoint.papers.adaptive.fitting import FITS
from saddlepoint.papers.adaptive.scales import AttackBudgets
from saddlepoint.papers.blind_audit.paper_attack import PaperAttack, budget_share, cost_share
from saddlepoint.papers.budgets import AutoAttackBudget
from saddlepoint.papers.cells import correct_rate
from saddlepoint.papers.deq.experiment import DEQExperiment
from saddlepoint.papers.deq.grid import Grid
from saddlepoint.papers.deq.scales import SETTINGS as DEQ_SETTINGS
from saddlepoint.papers.deq.states import label
from saddlepoint.papers.multi_exit.experiment import MultiExitExperiment, aimer_attack
from saddlepoint.papers.multi_exit.scales import SETTINGS as EXIT_SETTINGS
from saddlepoint.papers.registry import Request
from saddlepoint.papers.runner import Images
from saddlepoint.papers.transductive import dent, table_3, table_4
from saddlepoint.papers.transductive.experiment import Base, TransductiveExperiment
from saddlepoint.papers.transductive.figure_1 import RECIPE as SIGNS
from saddlepoint.papers.transductive.rmc import RMCExperiment
from saddlepoint.papers.transductive.scales import SELECTED_DISCRIMINATOR
from saddlepoint.papers.transductive.scales import SETTINGS as TRANSDUCTIVE_SETTINGS
from saddlepoint.runs.work import torch_threads
from saddlepoint.zoo.adaptive import TABLE
from saddlepoint.zoo.deq import DEQ, FinalState, MeanState
from saddlepoint.zoo.transductive import DANN, DENT, TADV, URejectron
from saddlepoint.zoo.transductive.tadv import Trainer

DRAWS = 2  # random draws over which a defense that trains at test time is scored; each trains once
MAX_TEST_IMAGES = 128  # size of URejectron's test batch, at most
TRAINING_IMAGES_PER_TEST_IMAGE = 4  # training images that URejectron compares each one with
# Images in RMC's stream, at most: every attack fine-tunes a network for every prediction.
_MAX_STREAM = 64
_MODEL_SPACE_ATTACKS = ("FPA", "GMSA-AVG", "GMSA-MIN")
_AIMER_ATTACKS = ("PGD-100", "AutoAttack")


@dataclass(frozen=True)
class AuditCase:
    """A defense to audit, and the attacks of its paper on it."""

    name: str
    data: str  # name of the dataset
    defense: Defense
    images: Images
    threat: Threat
    batch: int  # images per batch
    correct_clean: Tensor  # [N] fraction of correct draws on the clean images
    attacks: Mapping[str, PaperAttack]  # of the paper, by name
    not_compared: str = ""  # why the paper's attack is no measure of an audit; empty: it is

    @property
    def strongest(self) -> str:
        """Name of the paper's attack with the lowest accuracy."""
        return min(self.attacks, key=lambda name: self.attacks[name].accuracy)

    @property
    def attack(self) -> PaperAttack:
        """The paper's strongest attack."""
        return self.attacks[self.strongest]


def adaptive_cases(request: Request) -> Iterator[AuditCase]:
    """Yield the defenses of Croce et al. 2022, each with the attack of its row of Table 1.

    A scale audits only the defenses that its setting lists, to limit the running time.
    """
    experiment = AdaptiveExperiment.open(request)
    audited = experiment.setting.audited
    for surveyed in (one for one in TABLE if one.name in audited):
        subject = experiment.subject(surveyed.name)
        attack = PAPER_ATTACKS[surveyed.name](subject.defense, experiment.setting.attack_budgets)
        published = PAPER_ATTACKS[surveyed.name](subject.defense, AttackBudgets())
        clean, attacked = experiment.play(subject, [FixedPoints(), attack])
        share = cost_share(attack, published, subject.threat.draws)
        yield AuditCase(
            name=surveyed.name,
            data=subject.data,
            defense=subject.defense,
            images=subject.test,
            threat=subject.threat,
            batch=subject.batch,
            correct_clean=correct_rate(clean),
            attacks={surveyed.attack: PaperAttack.of([attacked], share)},
        )


def not_audited(request: Request) -> list[str]:
    """Say what the audits of the other defenses of Croce et al. 2022 would take."""
    experiment = AdaptiveExperiment.open(request)
    fit = FITS[request.scale]
    others = [row.name for row in TABLE if row.name not in experiment.setting.audited]
    bases = {name: experiment.base(DEFENSES[name].base) for name in others}
    return [f"{name} was not audited: {audit_cost(name, bases[name], fit)}" for name in others]


def transductive_cases(request: Request) -> Iterator[AuditCase]:
    """Yield the five defenses of Chen et al. 2022, each with the paper's attacks on it."""
    experiment = TransductiveExperiment.open(request)
    yield from (build(experiment) for build in (_dent, _rmc, _dann, _tadv, _urejectron))


def _dent(experiment: TransductiveExperiment) -> AuditCase:
    setting = experiment.setting.dent
    published = TRANSDUCTIVE_SETTINGS["paper"].dent
    runs = budget_share(
        setting.steps * (setting.restarts + setting.targets),
        published.steps * (published.restarts + published.targets),
    )
    module = cost_share(experiment.setting.module.attack(), AutoAttackBudget().attack())
    found = dent.evaluate(experiment, setting.bases[0], by_label=False)
    return AuditCase(
        name="DENT",
        data=experiment.recipe(found.base.name).data,
        defense=DENT(found.base.net),
        images=found.base.images,
        threat=Threat(found.base.space, state_visible=False),
        batch=setting.batch,
        correct_clean=correct_rate(found.episodes["clean"]),
        attacks={
            dent.ON_MODULE: PaperAttack.of([found.episodes[dent.ON_MODULE]], module),
            **_attacks(
                experiment, found.base, found.episodes, runs, setting.rounds / published.rounds
            ),
        },
    )


def _rmc(experiment: TransductiveExperiment) -> AuditCase:
    setting = experiment.setting.rmc[0]
    rmc = RMCExperiment(experiment, replace(setting, images=min(setting.images, _MAX_STREAM)))
    found = rmc.evaluate("Madry", experiment.request.seed, all_attacks=True)
    published = TRANSDUCTIVE_SETTINGS["paper"].rmc[0]
    steps = budget_share(setting.attack.steps, published.attack.steps)
    return AuditCase(
        name="RMC",
        data=setting.data,
        defense=rmc.defense(found.base.name),
        images=found.base.images,
        threat=Threat(found.base.space, state_visible=False, draws=DRAWS),
        batch=1,
        correct_clean=correct_rate(found.episodes["clean"]),
        attacks=_attacks(
            experiment, found.base, found.episodes, steps, setting.rounds / published.rounds
        ),
    )


def _dann(experiment: TransductiveExperiment) -> AuditCase:
    setting = experiment.setting.dann[0]
    found = table_3.evaluate(experiment, setting)
    published = TRANSDUCTIVE_SETTINGS["paper"].dann[0]
    steps = budget_share(setting.attack.steps, published.attack.steps)
    labeled = experiment.training_images(setting.data, setting.labeled)
    return AuditCase(
        name="DANN",
        data=setting.data,
        defense=DANN(found.base.net, labeled.x, labeled.y, training=setting.training),
        images=found.base.images,
        threat=Threat(found.base.space, rounds="one", state_visible=False, draws=DRAWS),
        batch=setting.images,
        correct_clean=correct_rate(found.episodes["clean"]),
        attacks=_attacks(
            experiment, found.base, found.episodes, steps, setting.rounds / published.rounds
        ),
    )


def _tadv(experiment: TransductiveExperiment) -> AuditCase:
    """Build the TADV case.

    The paper's attacks are scored on networks that were trained in advance. The audited defense
    trains a network at every query.
    """
    setting = experiment.setting.tadv[0]
    found = table_4.evaluate(experiment, setting)
    published = TRANSDUCTIVE_SETTINGS["paper"].tadv[0]
    steps = budget_share(setting.attack.steps, published.attack.steps)
    computed = _attacks(
        experiment, found.base, found.attacked, steps, setting.sources / published.sources
    )
    recipe = experiment.recipe(found.base.name)
    images = experiment.training_images(recipe.data, recipe.n)
    return AuditCase(
        name="TADV",
        data=setting.data,
        defense=TADV(found.base.net, Trainer(recipe, *images)),
        images=found.base.images,
        threat=Threat(found.base.space, rounds="one", state_visible=False, draws=DRAWS),
        batch=setting.images,
        correct_clean=_mean(found.finals["clean"]),
        attacks={
            name: replace(one, correct=_mean(found.finals[name])) for name, one in computed.items()
        },
    )


def _urejectron(experiment: TransductiveExperiment) -> AuditCase:
    """Build the URejectron case.

    The attacker controls every image of the batch. The only attack of the paper within the
    perturbation set is PGD on the classifier, Fig. 1 (a), which the paper reports as rejected. The
    attack that breaks the defense, CW of Fig. 1 (b), is unbounded.
    """
    setting = experiment.setting.signs
    recipe = experiment.recipe(SIGNS)
    parts = prepared(
        load_data(setting.data, split="train", n=setting.photographs, root=experiment.request.data),
        per_class=setting.per_class,
        seed=experiment.request.seed,
    )
    images = Images(*parts.test).first(
        min(setting.batch_images or MAX_TEST_IMAGES, MAX_TEST_IMAGES)
    )
    known = parts.train.x[: TRAINING_IMAGES_PER_TEST_IMAGE * MAX_TEST_IMAGES]
    with torch_threads(experiment.setting.threads):
        net = experiment.runner.train(recipe, Images(parts.train.x, parts.train.y))
    training = setting.discriminators[SELECTED_DISCRIMINATOR]
    defense = URejectron(net, known, training=training)
    threat = Threat(recipe.space, rounds="one", state_visible=False, draws=DRAWS)
    pgd = Transfer(MaxLossPoint(Direct("pgd", setting.pgd, cross_entropy)), static(defense))
    episodes = experiment.attack_defense(
        defense, {"clean": FixedPoints(), "PGD": pgd}, images, threat, batch=len(images.x)
    )
    return AuditCase(
        name="URejectron",
        data=setting.data,
        defense=defense,
        images=images,
        threat=threat,
        batch=len(images.x),
        correct_clean=correct_rate(episodes["clean"]),
        attacks={
            "PGD": PaperAttack.of(
                [episodes["PGD"]],
                budget_share(setting.pgd.steps, TRANSDUCTIVE_SETTINGS["paper"].signs.pgd.steps),
            )
        },
        not_compared="the paper reports that URejectron rejects the points of PGD, and the attack "
        "that breaks it, CW, is unbounded",
    )


def multi_exit_cases(request: Request) -> Iterator[AuditCase]:
    """Yield one network with each defender strategy of Xu et al.

    The paper's attacks are AIMER with PGD-100 and AIMER with AutoAttack.
    """
    experiment = MultiExitExperiment.open(request)
    subject = experiment.subject("resnet-18")
    net = subject.base.net
    game = experiment.game(subject)
    images = experiment.reduced_images(subject)
    strategies: dict[str, tuple[Subset | str | Tensor, MultiExit]] = {
        "third exit": ((3,), MultiExit(net, Static((3,)))),
        **{name: (name, MultiExit(net, gate)) for name, gate in subject.gates.items()},
        "NEED": (game.equilibrium().defender, NEED.of(net, game)),
    }
    for name, (strategy, defense) in strategies.items():
        defender = experiment.defender(subject, game, strategy)
        attacks = experiment.setting.attacks
        adversaries = {
            f"AIMER, {attack}": aimer_attack(game, defender.known, attacks[attack])
            for attack in _AIMER_ATTACKS
        }
        clean, *attacked = experiment.play(
            subject, [FixedPoints(), *adversaries.values()], images, seed=request.seed
        )
        yield AuditCase(
            name=f"exits, {name}",
            data=subject.data,
            defense=defense,
            images=images,
            threat=Threat(subject.space, draws=20 if defense.random else 1),
            batch=experiment.setting.batch,
            correct_clean=defender.correct(clean),
            attacks={
                f"AIMER, {attack}": replace(
                    PaperAttack.of([episode], _exit_share(attacks[attack], attack)),
                    correct=defender.correct(episode),
                )
                for attack, episode in zip(_AIMER_ATTACKS, attacked, strict=True)
            },
        )


def equilibrium_cases(request: Request) -> Iterator[AuditCase]:
    """Yield deep equilibrium networks that predict from one of three solver states.

    The paper's attacks are PGD-10 and PGD-1000 along the six gradients of Yang et al. 2022.
    """
    experiment = DEQExperiment.open(request)
    for name in ("unrolled", "exact-long"):
        yield from _states_of(experiment, Grid.of(experiment, name))


def _states_of(experiment: DEQExperiment, grid: Grid) -> Iterator[AuditCase]:
    """Yield one case per state that a network can predict from: final, early and mean state."""
    subject = grid.subject
    images = experiment.reduced_images(subject)
    (clean,) = experiment.play(subject, [FixedPoints()], images)
    episodes: dict[str, tuple[Episode, float]] = {}
    published = DEQ_SETTINGS["paper"]
    steps = {"PGD-10": published.pgd.steps, "PGD-1000": published.long.steps}
    attacks = {"PGD-10": experiment.setting.pgd, "PGD-1000": experiment.setting.long}
    for name, attack in attacks.items():
        adversaries = [gradient.pgd(attack) for gradient in grid.gradients.values()]
        episodes |= {
            f"{gradient}, {name}": (episode, budget_share(attack.steps, steps[name]))
            for gradient, episode in zip(
                grid.gradients, experiment.play(subject, adversaries, images), strict=True
            )
        }
    for state in (FinalState(), grid.early, MeanState()):
        net = subject.net
        yield AuditCase(
            name=f"{subject.title}, {label(state.name)}",
            data=subject.data,
            defense=DEQ(net.net, method=net.method, after=net.after, state=state),
            images=images,
            threat=Threat(subject.space),
            batch=experiment.setting.batch,
            correct_clean=subject.correct(clean, state.name),
            attacks={
                name: replace(
                    PaperAttack.of([episode], share), correct=subject.correct(episode, state.name)
                )
                for name, (episode, share) in episodes.items()
            },
        )


def _attacks(
    experiment: TransductiveExperiment,
    base: Base,
    episodes: Mapping[str, Episode],
    runs: float,
    rounds: float,
) -> dict[str, PaperAttack]:
    """The five attacks of Chen et al. 2022 on a defense.

    Args:
        experiment: the experiment.
        base: the attacked static network, on which AA and PGD are computed.
        episodes: the defense under each attack.
        runs: share of the published steps of PGD.
        rounds: rounds of FPA and GMSA, each of which runs PGD, relative to the published ones.
    """
    share = budget_share(runs * rounds, 1)
    auto = cost_share(experiment.setting.auto.attack(), AutoAttackBudget().attack())
    return {
        "AA": PaperAttack.of([episodes["AA"]], auto, base.auto),
        "PGD": PaperAttack.of([episodes["PGD"]], runs, base.pgd),
        **{name: PaperAttack.of([episodes[name]], share) for name in _MODEL_SPACE_ATTACKS},
    }


def _exit_share(used: ExitAttack, name: str) -> float:
    """The share of the published budget of an attack on one exit."""
    return cost_share(used((1,)), EXIT_SETTINGS["paper"].attacks[name]((1,)))


def _mean(episodes: Sequence[Episode]) -> Tensor:
    """Mean over episodes of the per-image correctness, [N]."""
    return torch.stack([correct_rate(episode) for episode in episodes]).mean(0)
