"""What the experiments of this paper share: static networks, fitted defenses and attacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from saddlepoint.attacks.spaces import Ball
from saddlepoint.data import load_data
from saddlepoint.data.record import DataError
from saddlepoint.defenses import Defense, Plain
from saddlepoint.evaluation import Adversary, Episode, Threat
from saddlepoint.evaluation.outcomes import Outcomes
from saddlepoint.papers.adaptive import EXPERIMENTS
from saddlepoint.papers.adaptive.attacks import static
from saddlepoint.papers.adaptive.defenses import DEFENSES, StaticModel
from saddlepoint.papers.adaptive.fitting import FITS
from saddlepoint.papers.adaptive.nets import PGD_AT, TRADES_NET, further, recipes
from saddlepoint.papers.adaptive.reductions import reductions
from saddlepoint.papers.adaptive.scales import SETTINGS, AdaptiveSetting
from saddlepoint.papers.experiment import PaperExperiment, describe_net, device_of
from saddlepoint.papers.registry import Experiment, Scale
from saddlepoint.papers.result import Plot, Result, Table
from saddlepoint.papers.runner import Images
from saddlepoint.runs.work import torch_threads

NOTES = (
    "radii and step sizes inside the defenses have the paper's ratio to the attacker's radius; the "
    "anti-adversary's step size is 0.15 as in the paper",
    "static networks and auxiliary networks are trained here; the paper used released weights "
    "where they existed",
)
SODEF_SOLVER = (
    "SODEF is integrated by Runge-Kutta in 20 equal steps, each example independently; the "
    "released solver couples the examples of a batch"
)


@dataclass(frozen=True)
class AdaptiveSubject:
    """A fitted defense and the test images on which it and its static model are attacked."""

    name: str
    base: str  # recipe of the static network
    data: str  # name of the dataset
    defense: Defense
    space: Ball  # allowed perturbations
    test: Images
    draws: int  # answers over which accuracy is averaged if the defense is randomized
    batch: int  # images per batch

    @property
    def static(self) -> Plain:
        """The static model under the defense."""
        return static(self.defense)

    @property
    def threat(self) -> Threat:
        """The threat model: the allowed perturbations and the number of scored draws."""
        return Threat(self.space, draws=self.draws if self.defense.random else 1)

    def worst(self, episodes: Sequence[Episode]) -> Tensor:
        """Return the correct rate [N] under the strongest of these attacks for each unit.

        The unit is an example, or a batch if the defense couples the examples of a batch.
        """
        outcomes = Outcomes.of(list(episodes), ("final",), self.defense.unit)
        return outcomes.worst_case_per_example()[0].double().cpu()


@dataclass(frozen=True)
class AdaptiveExperiment(PaperExperiment[AdaptiveSetting]):
    """Experiments with adaptive test-time defenses.

    Networks and attack results are reused from the output folder; defenses are fitted each time.
    """

    experiments: ClassVar[tuple[Experiment, ...]] = EXPERIMENTS

    bases: dict[str, StaticModel] = field(default_factory=dict)  # networks loaded so far

    @classmethod
    def settings(cls) -> Mapping[Scale, AdaptiveSetting]:
        """Return the settings for each scale."""
        return SETTINGS

    def base(self, name: str) -> StaticModel:
        """Return the trained static network of a recipe and the images to fit defenses on."""
        if name not in self.bases:
            recipe = recipes(self.request.scale)[name]
            images = self.training_images(recipe.data, recipe.n)
            net = self.train(recipe, images)
            fit = FITS[self.request.scale]
            self.bases[name] = StaticModel(
                net,
                train=images.first(fit.images).to(device_of(net)),
                basis=images.first(fit.basis_images).to(device_of(net)),
                space=recipe.space,
                seed=self.request.seed,
                data=recipe.data,
            )
        return self.bases[name]

    def subject(self, name: str, base: str | None = None) -> AdaptiveSubject:
        """Fit a defense on a static network and load its test images.

        Args:
            name: name of the defense.
            base: recipe of the static network; default: the one of the defense.
        """
        defense_recipe = DEFENSES[name]
        setting = self.setting
        recipe = recipes(self.request.scale)[base or defense_recipe.base]
        model = self.base(recipe.name)
        self.request.progress(f"fitting {name} on {recipe.name}, {recipe.data}")
        with torch_threads(setting.threads):
            defense = defense_recipe.make(model, FITS[self.request.scale])
        test = self.test_images(recipe.data, setting.test_images, model.train.x.device)
        coupled = name == "ClosedLoopControl"
        return AdaptiveSubject(
            name=name,
            base=recipe.name,
            data=recipe.data,
            defense=defense,
            space=recipe.space,
            test=test,
            draws=setting.draws,
            batch=setting.closed_loop_batch if coupled else setting.batch,
        )

    def surrogate(self, subject: AdaptiveSubject) -> Plain | None:
        """Return an adversarially trained network on the same data, other than the static one.

        None if this scale has no other one.
        """
        known = recipes(self.request.scale)
        others = (PGD_AT, TRADES_NET, *further(self.request.scale))
        for name in others:
            if known[name].data == subject.data and name != subject.base:
                return Plain(self.base(name).net)
        return None

    def has_data(self, base: str) -> bool:
        """Whether the dataset of a recipe is on this machine."""
        try:
            load_data(
                recipes(self.request.scale)[base].data, split="train", n=1, root=self.request.data
            )
        except DataError as error:
            if "and found none" not in str(error):
                raise
            return False
        return True

    def reductions(self, name: str) -> str:
        """Describe the hyper-parameters of a defense and its attack that are below the paper's."""
        return reductions(name, FITS[self.request.scale], self.setting.attack_budgets)

    def play(
        self,
        subject: AdaptiveSubject,
        adversaries: Sequence[Adversary],
        *,
        threat: Threat | None = None,
        seed: int = 0,
    ) -> list[Episode]:
        """Run each adversary against the defense.

        Args:
            subject: the defense and its images.
            adversaries: the attacks.
            threat: threat model; default: that of the subject.
            seed: added to the seed of the request.
        """
        return self.run_attacks(
            subject.defense,
            adversaries,
            subject.test,
            threat=threat or subject.threat,
            name=f"{subject.name}, {subject.base}",
            seed=self.request.seed + seed,
            batch=subject.batch,
        )

    def play_static(
        self,
        subject: AdaptiveSubject,
        adversaries: Sequence[Adversary],
        *,
        space: Ball | None = None,
    ) -> list[Episode]:
        """Run each adversary against the static model under the defense.

        Args:
            subject: the defense and its images.
            adversaries: the attacks.
            space: allowed perturbations; default: those of the subject.
        """
        return self.run_attacks(
            subject.static,
            adversaries,
            subject.test,
            threat=Threat(space or subject.space),
            name=f"static net of {subject.name}, {subject.base}",
            batch=subject.batch,
        )

    def result(
        self,
        name: str,
        tables: Sequence[Table],
        *,
        subjects: Sequence[AdaptiveSubject],
        notes: Sequence[str] = (),
        findings: Sequence[str] = (),
        charts: Sequence[Plot] = (),
        repeats: int = 1,
    ) -> Result:
        """Assemble the result of one experiment.

        Args:
            name: name of the experiment without the paper, for example "table-1".
            tables: the measured tables.
            subjects: the attacked defenses; their static networks are described in the notes.
            notes: further notes.
            findings: conclusions.
            charts: charts to draw.
            repeats: number of repeated measurements.
        """
        descriptions = dict.fromkeys(self._describe(subject) for subject in subjects)
        return self.runner.result(
            self.entry(name),
            tables,
            notes=(*descriptions, str(self.setting.attack_budgets), *notes, *NOTES),
            findings=findings,
            charts=charts,
            repeats=repeats,
        )

    def _describe(self, subject: AdaptiveSubject) -> str:
        recipe = recipes(self.request.scale)[subject.base]
        count = "all" if recipe.n is None else f"the first {recipe.n}"
        training = (
            f"{recipe.epochs} epochs on {count} training images, of which a share of "
            f"{recipe.dev_share:.2g} is held out to select the epoch"
        )
        return describe_net(subject.base, subject.static.net, subject.data, subject.space, training)
