"""Tables of networks that are trained in three ways: their states, their gradients, defenses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from saddlepoint.attacks.aims import last_view
from saddlepoint.attacks.losses import margin
from saddlepoint.defenses import Broyden
from saddlepoint.evaluation import Adversary, Direct, MaxLossPoint
from saddlepoint.evaluation.bootstrap import Estimate, bootstrap, mean_of
from saddlepoint.gradients import Implicit
from saddlepoint.papers.cells import accuracy_cell, estimate_cell
from saddlepoint.papers.deq import published
from saddlepoint.papers.deq.experiment import DEQExperiment
from saddlepoint.papers.deq.gradients import Gradient, ready_made, unrolled_final
from saddlepoint.papers.deq.grid import COLUMNS, Grid, with_pgd
from saddlepoint.papers.deq.states import StateResults
from saddlepoint.papers.deq.subjects import DEQSubject
from saddlepoint.papers.result import Cell, Plot, Row, Table
from saddlepoint.zoo.deq import EarlyState, FinalState
from saddlepoint.zoo.deq.model import FINAL

EXACT = "exact"
UNROLLED = "unrolled"
OF_TABLE_1 = "exact-short"  # the network of the paper's Table 1
ACCUMULATION = "ready-made PGD-10: early minus final state"
MASKED = "PGD-10: exact minus unrolled gradient"
MASKED_LONG = "PGD-1000: exact minus unrolled gradient"
MASKED_SQUARE = "exact gradient, PGD-10, minus Square"
EARLY_BROKEN = "early state: unrolled Final minus unrolled Intermediate"
ENSEMBLE = "minimum over attacks: ensemble minus final state"
PER_IMAGE = "ensemble: strongest attack for all images minus strongest attack per image"
WITHOUT_START = "early state: adjoint Intermediate minus the same without z_0"
_BACKWARD = 7  # backward solver steps of the exact gradient of a network trained without it


class Effect(NamedTuple):
    """A difference of two accuracies of one network on the same images."""

    network: str
    text: str
    difference: Estimate
    residual: Cell  # median over the images, of the final state
    paper: float | None = None  # the paper's difference in points


@dataclass(frozen=True)
class Profile:
    """The states of a network under the ready-made attack, and its early state."""

    states: StateResults
    early: EarlyState

    @property
    def subject(self) -> DEQSubject:
        """The network."""
        return self.states.subject

    @property
    def residual(self) -> Cell:
        """The median residual of the final state on clean images."""
        return self.states.residual_cell(FinalState.name)

    @property
    def effect(self) -> Effect:
        """How much more robust the early state is (Sec. 6.2)."""
        early, final = (self._attacked(name) for name in (self.early.name, FinalState.name))
        paper = None
        if self.subject.name == UNROLLED:  # its ready-made attack is a column of Table 2
            column = published.ATTACKS.index("unrolled Final")
            of_early, of_final = (
                published.PGD[UNROLLED][name][column] for name in ("Early", "Final")
            )
            paper = of_early - of_final
        difference = mean_of(early - final)
        return Effect(self.subject.title, ACCUMULATION, difference, self.residual, paper)

    @property
    def finding(self) -> str:
        """Whether there is robustness accumulation, with the residuals of the solver's states."""
        names = [EarlyState(n).name for n in range(1, self.subject.steps + 1)]
        medians = [float(self.states.residual[name].median()) for name in names]
        low = min(medians)
        return (
            f"{self.states.accumulation(self.early)} The median residual of its solver states is "
            f"lowest at z{medians.index(low) + 1}, {low:.2g}; that of the last is {medians[-1]:.2g}"
            "."
        )

    def row(self) -> Row:
        """Return the row of Figure 2."""
        cells = (
            accuracy_cell(self.subject.correct(self.states.clean, FinalState.name)),
            accuracy_cell(self._attacked(FinalState.name)),
            accuracy_cell(self._attacked(self.early.name)),
            Cell((float(self.early.n),)),
            self.states.residual_cell(self.early.name),
            self.residual,
            Cell((float(self.states.residual_attacked[FinalState.name].median()),)),
        )
        return Row((self.subject.title, str(len(self.subject.test.x))), cells)

    def _attacked(self, name: str) -> Tensor:
        return self.subject.correct(self.states.attacked, name)


def profiles_table(profiles: Sequence[Profile]) -> Table:
    """Make the table of Figure 2."""
    columns = (
        "clean",
        "final state",
        "early state",
        "n of the early state",
        "residual, early",
        "residual, final",
        "residual, final, attacked",
    )
    title = "Accuracy under the ready-made PGD-10, % (Figure 2)"
    rows = tuple(profile.row() for profile in profiles)
    return Table(title, ("network", "images"), columns, rows, 0)


def charts(name: str, profiles: Sequence[Profile]) -> list[Plot]:
    """Plot accuracy and relative error of every state under the ready-made attack."""
    accuracies = {}
    errors = {}
    for profile in profiles:
        states = profile.states
        names = [EarlyState(n).name for n in range(1, profile.subject.steps + 1)]
        correct = [profile.subject.correct(states.attacked, one) for one in names]
        percents = [100 * float(one.mean()) for one in correct]
        medians = [float(states.residual_attacked[one].median()) for one in names]
        title = profile.subject.title
        accuracies[title] = tuple((float(n), value) for n, value in enumerate(percents, 1))
        errors[title] = tuple((float(n), value) for n, value in enumerate(medians, 1))
    attack = "ready-made PGD-10"
    up = "accuracy of every state, %"
    return [
        Plot(f"{name}-accuracy", attack, "state", up, accuracies, joined=True),
        Plot(f"{name}-residual", attack, "state", "median relative error", errors, joined=True),
    ]


@dataclass(frozen=True)
class GradientAttacks:
    """A network under attacks with two gradients and without gradients (Table 1)."""

    profile: Profile
    correct: dict[str, Tensor]  # [N] of the final state, by "PGD-10, exact" and so on

    @property
    def images(self) -> int:
        """Number of attacked images."""
        return len(next(iter(self.correct.values())))

    @property
    def effects(self) -> list[Effect]:
        """How much the exact gradient overstates the accuracy."""
        short, long = published.TABLE_1[EXACT]
        others = published.TABLE_1[UNROLLED]
        pairs = {
            MASKED: ("PGD-10, exact", "PGD-10, unrolled", short - others[0]),
            MASKED_LONG: ("PGD-1000, exact", "PGD-1000, unrolled", long - others[1]),
            MASKED_SQUARE: ("PGD-10, exact", "Square", short - published.TABLE_1_SQUARE),
        }
        return [
            Effect(
                self.profile.subject.title,
                text,
                mean_of(self.correct[first] - self.correct[second]),
                self.profile.residual,
                paper if self.profile.subject.name == OF_TABLE_1 else None,
            )
            for text, (first, second, paper) in pairs.items()
            if first in self.correct and second in self.correct
        ]

    def rows(self) -> list[Row]:
        """Return one row per gradient; what uses no gradient is in the first."""
        subject = self.profile.subject
        clean = subject.correct(self.profile.states.clean, FinalState.name)[: self.images]
        paper = subject.name == OF_TABLE_1
        rows = []
        for gradient in (EXACT, UNROLLED):
            numbers = published.TABLE_1[gradient] if paper else (None, None)
            attacked = (
                self._cell(f"PGD-10, {gradient}", numbers[0]),
                self._cell(f"PGD-1000, {gradient}", numbers[1]),
            )
            first = accuracy_cell(clean, published.TABLE_1_CLEAN if paper else None)
            square = self._cell("Square", published.TABLE_1_SQUARE if paper else None)
            shown = gradient == EXACT
            ends = (first, square) if shown else (None, None)
            cells = (ends[0], *attacked, ends[1], self.profile.residual)
            rows.append(Row((subject.title, gradient, str(self.images)), cells))
        return rows

    def _cell(self, attack: str, paper: float | None) -> Cell | None:
        return accuracy_cell(self.correct[attack], paper) if attack in self.correct else None


def attack_gradients(
    experiment: DEQExperiment, profile: Profile, *, long: bool, square: bool
) -> GradientAttacks:
    """Attack the final state with the exact and with the unrolled gradient.

    Args:
        experiment: runs the attacks on its reduced number of images.
        profile: the attacked network.
        long: run PGD-1000 as well.
        square: run Square as well.
    """
    subject = profile.subject
    setting = experiment.setting
    images = experiment.reduced_images(subject)
    final = FinalState.name
    own, other = (UNROLLED, EXACT) if subject.net.after.steps > 1 else (EXACT, UNROLLED)
    gradients = {
        own: ready_made(subject.net),
        other: _other_gradient(subject, max(setting.unrolled)),
    }
    attacks: dict[str, Adversary] = {f"PGD-10, {other}": gradients[other].pgd(setting.pgd)}
    if long:
        attacks |= {f"PGD-1000, {name}": one.pgd(setting.long) for name, one in gradients.items()}
    if square:
        direct = Direct("square", setting.square, margin, keep=frozenset({final}))
        attacks["Square"] = MaxLossPoint(direct)
    episodes = experiment.play(subject, list(attacks.values()), images)
    named = zip(attacks, episodes, strict=True)
    correct = {name: subject.correct(one, final) for name, one in named}
    # PGD-10 with the gradient of the training is the ready-made attack.
    ready = subject.correct(profile.states.attacked, final)[: len(images.x)]
    return GradientAttacks(profile, {f"PGD-10, {own}": ready, **correct})


def _other_gradient(subject: DEQSubject, steps: int) -> Gradient:
    """Return the gradient that is not that of the training: unrolled or exact."""
    if subject.net.after.steps == 1:
        return unrolled_final(subject.net, steps)
    rule = Implicit(Broyden(steps=_BACKWARD, tolerance=1e-3), at="following")
    return Gradient("exact final", frozenset({FinalState.name}), rule, last_view, FINAL)


def attacks_table(attacks: Sequence[GradientAttacks]) -> Table:
    """Make Table 1 for several networks."""
    columns = ("clean", "PGD-10", "PGD-1000", "Square", "residual")
    title = "Accuracy of the final state, % (Table 1)"
    rows = tuple(row for one in attacks for row in one.rows())
    return Table(title, ("network", "gradient", "images"), columns, rows, 0)


def defenses_table(
    experiment: DEQExperiment, grids: Sequence[Grid]
) -> tuple[Table, list[Effect], list[str]]:
    """Make Table 2, with differences between defenses and attacks, and findings."""
    rows = list[Row]()
    effects = list[Effect]()
    findings = list[str]()
    images = experiment.setting.reduced_images
    for grid in grids:
        correct = grid.correct(with_pgd(experiment), grid.subject.test.first(images))
        rows += grid.rows(correct, published.PGD.get(grid.subject.reported, {}))
        effects += grid_effects(grid, correct)
        findings += grid.findings(correct, "PGD-10")[:2]
    title = "Accuracy under PGD-10, % (Table 2)"
    return Table(title, ("network", "defense"), COLUMNS, tuple(rows), images), effects, findings


def grid_effects(grid: Grid, correct: Tensor) -> list[Effect]:
    """Return the differences of Table 2 from correct predictions [A, D, N]."""
    final, early, ensemble = range(len(published.DEFENSES))
    at_final, intermediate = (
        correct[published.ATTACKS.index(f"unrolled {name}"), early]
        for name in ("Final", "Intermediate")
    )

    def ensemble_gain(rows: Tensor) -> float:
        lowest = correct[:, :, rows].mean(-1).amin(0)
        return float(lowest[ensemble] - lowest[final])

    residual = grid.states.residual_cell(FinalState.name)
    title = grid.subject.title
    gain = bootstrap(ensemble_gain, correct.shape[-1])
    papers = published.PGD.get(grid.subject.reported, {})
    broken = gained = None
    if papers:
        before, after = (
            papers["Early"][published.ATTACKS.index(f"unrolled {name}")]
            for name in ("Final", "Intermediate")
        )
        broken = before - after
        gained = min(papers["Ensemble"]) - min(papers["Final"])
    return [
        Effect(title, EARLY_BROKEN, mean_of(at_final - intermediate), residual, broken),
        Effect(title, ENSEMBLE, gain, residual, gained),
    ]


def effects_of_ours(grid: Grid, correct: Tensor, ours: Tensor) -> list[Effect]:
    """Return how much stronger an attacker is that the paper does not consider.

    Args:
        grid: the network with its defenses.
        correct: [A, D, N] correct predictions under the six attacks.
        ours: [2, D, N] correct predictions under the attacks of `grid.OURS`.
    """
    _, early, ensemble = range(len(published.DEFENSES))
    of_ensemble = correct[:, ensemble]

    def per_image(rows: Tensor) -> float:
        chosen = of_ensemble[:, rows]
        return float(chosen.mean(-1).amin() - chosen.amin(0).mean())

    before = correct[published.ATTACKS.index("adjoint Intermediate"), early]
    after = ours[0, early]
    residual = grid.states.residual_cell(FinalState.name)
    title = grid.subject.title
    return [
        Effect(title, PER_IMAGE, bootstrap(per_image, correct.shape[-1]), residual),
        Effect(title, WITHOUT_START, mean_of(before - after), residual),
    ]


def effects_table(effects: Sequence[Effect]) -> Table:
    """Make the table of all differences, each with the residual of its network."""
    rows = tuple(
        Row(
            (effect.network, effect.text, str(effect.difference.n)),
            (estimate_cell(effect.difference, effect.paper), effect.residual),
        )
        for effect in effects
    )
    labels = ("network", "difference", "images")
    return Table("Differences of accuracies", labels, ("points", "residual, final"), rows, 0)
