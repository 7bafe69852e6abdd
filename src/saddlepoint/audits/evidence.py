"""Evidence: the outcomes of attacks and diagnostics, and what can be computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from saddlepoint.attacks.history import merge_loss_curves
from saddlepoint.attacks.oracle import grants
from saddlepoint.audits.diagnostics.loss_curve import LossCurve
from saddlepoint.audits.diagnostics.values import Diagnoses
from saddlepoint.audits.planning.plan import Plan
from saddlepoint.defenses import BlackBox, Defense, Plain, innermost
from saddlepoint.evaluation import (
    Adversary,
    AdversaryProperties,
    Episode,
    OnExamples,
    Outcomes,
    Transfer,
)

_AT_LEAST = 0.5  # images, on the mean over draws: a smaller gain is noise


@dataclass(frozen=True)
class Row:
    """One adversary of an audit."""

    name: str
    robust_accuracy: float  # under this adversary alone; a remedy together with all before it
    running: float  # worst case over this adversary and all before it
    gain: float  # decrease of the running worst case
    attacked: int  # attacked images; independent rows only if correct without an attack
    forward: float  # passes per image of the whole set
    backward: float
    seconds: float
    copies: int  # attacked images for which it proposed the clean image
    loss_curve: LossCurve = field(default_factory=LossCurve, repr=False)
    reason: str = ""  # why it was run
    minimum_norm: bool = False  # a part of it minimizes the perturbation, not a loss


@dataclass(frozen=True)
class Group:
    """All attack cells of one group of examples, and the re-evaluation of their worst points."""

    outcomes: Outcomes  # [A, 1, M], without points; the clean images are the first adversary
    winner: tuple[str, ...]  # [M] the adversary of each worst point
    verdict: Episode  # the worst points, evaluated with new randomness


def needs_all_points(plan: Plan) -> bool:
    """Whether a diagnostic evaluates the points of all attacks, not only the worst ones.

    This is so for a defense with a static net from which attacks transfer their points.
    """
    static = plan.job.defense.static
    runs = (AttackRun(a, one) for a, one in enumerate(plan.adversaries) if a)
    return any(run.transfers_from(static) for run in runs)


@dataclass(frozen=True)
class AttackRun:
    """One adversary that was run, with its properties."""

    index: int  # among all adversaries; the clean images have index 0
    adversary: Adversary

    @property
    def name(self) -> str:
        """The name of the adversary."""
        return self.adversary.name

    @property
    def properties(self) -> AdversaryProperties:
        """The properties of the adversary."""
        return self.adversary.properties

    @property
    def remedy(self) -> bool:
        """It was run after the planned attacks, on images that these had not broken."""
        return isinstance(self.adversary, OnExamples)

    @property
    def minimum_norm(self) -> bool:
        """One run of it minimizes the perturbation, not a loss."""
        run = self.adversary.single_run() or self.adversary
        return run.properties.minimum_norm

    def transfers_from(self, static: nn.Module | None) -> bool:
        """Its points are computed on this static net."""
        return static is not None and any(
            isinstance(part, Transfer) and part.source.static is static
            for part in _with_children(self.adversary)
        )

    def adaptive(self, defense: Defense, *, gradients_fail: bool) -> bool:
        """It was made for what this defense does at test time, not for a static net.

        It must follow gradients of the whole defense. Where these fail it needs a rule, where the
        defense is randomized it must average or fix the draws, and where the defense adapts it must
        anticipate the adapted model.
        """
        has = self.properties
        handles_gradients = has.approximate_backward or has.custom_rules
        handles_adaptation = has.through_adaptation or has.anticipates_adaptation
        return (
            has.white_box
            and (not gradients_fail or handles_gradients)
            and (not defense.random or has.handles_randomness)
            and (defense.memory == "none" or handles_adaptation)
        )


def _with_children(adversary: Adversary) -> list[Adversary]:
    found = [adversary]
    for child in adversary.children():
        found += _with_children(child)
    return found


@dataclass(frozen=True)
class Evidence:
    """All outcomes of an audit. Everything here is computed from them, nothing is run."""

    plan: Plan
    groups: tuple[Group, ...]
    points: Tensor  # [N, ...] worst points
    # The results of `plan.cells` with their points, where a diagnostic needs these; none elsewhere.
    # A stored one is read whenever it is used.
    episodes: Sequence[Episode]
    diagnoses: Diagnoses = field(default_factory=Diagnoses)

    @property
    def defense(self) -> Defense:
        """The defense under attack."""
        return self.plan.job.defense

    @cached_property
    def runs(self) -> tuple[AttackRun, ...]:
        """All adversaries except the clean images."""
        return tuple(AttackRun(a, one) for a, one in enumerate(self.plan.adversaries) if a)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """One row per adversary except the clean images, in the order in which they were run."""
        reasons = {choice.name: choice.reason for choice in self.plan.choices}
        rows = []
        before = self._running(1)
        for run in self.runs:
            after = self._running(run.index + 1)
            rows.append(self._row(run, before, after, reasons.get(run.name, "")))
            before = after
        return tuple(rows)

    def _running(self, count: int) -> float:
        parts = [g.outcomes.only(range(count)).worst_case_per_example()[0] for g in self.groups]
        return float(torch.cat(parts).mean())

    def _row(self, run: AttackRun, before: float, after: float, reason: str) -> Row:
        n = len(self.plan.job.x)
        episodes = [g.outcomes.episodes[run.index] for g in self.groups]
        attacked = [e.forward > 1 for e in episodes]  # one pass only decides whether to attack
        alone = float(torch.cat([e.correct[0] for e in episodes]).mean())
        copies = [(e.copies.cpu() & a).sum() for e, a in zip(episodes, attacked, strict=True)]
        return Row(
            name=run.name,
            # A remedy attacks what the others left, so it is counted together with them.
            robust_accuracy=after if run.remedy else alone,
            running=after,
            gain=before - after,
            attacked=sum(int(a.sum()) for a in attacked),
            forward=sum(float(e.forward.sum()) for e in episodes) / n,
            backward=sum(float(e.backward.sum()) for e in episodes) / n,
            seconds=sum(e.seconds for e in episodes),
            copies=sum(int(count) for count in copies),
            loss_curve=LossCurve.of(merge_loss_curves([e.loss_curve for e in episodes])),
            reason=reason,
            minimum_norm=run.properties.minimum_norm,
        )

    def row(self, run: AttackRun) -> Row:
        """The row of an adversary."""
        return self.rows[run.index - 1]

    @cached_property
    def clean(self) -> Tensor:
        """[N] correctness of the clean images."""
        return torch.cat([g.outcomes.correct[0, 0] for g in self.groups])

    @cached_property
    def robust(self) -> Tensor:
        """[N] correctness of the worst points, evaluated with new randomness."""
        return torch.cat([g.verdict.correct[0] for g in self.groups])

    @cached_property
    def smallest(self) -> Tensor:
        """[N] the smallest perturbation known to change a prediction to a wrong one, by its size.

        inf where none is known. [0] for a randomized defense and for coupled rows, where one error
        shows nothing about a single image.
        """
        if self.diagnoses.shrunk is None:
            return torch.zeros(0)
        sizes = [self.diagnoses.shrunk]
        for a in range(len(self.plan.adversaries)):
            episodes = [g.outcomes.episodes[a] for g in self.groups]
            found = [torch.where(e.correct[0] < 0.5, e.size, torch.inf) for e in episodes]
            sizes.append(torch.cat(found))
        return torch.stack(sizes).amin(0).abs()  # the size of a clean image may be -0.0

    def remaining(self, runs: Sequence[AttackRun]) -> Tensor:
        """[N] correctness under the worst of these adversaries alone."""
        chosen = [0, *(run.index for run in runs)]
        parts = [g.outcomes.only(chosen).worst_case_per_example()[0] for g in self.groups]
        return torch.cat(parts)

    def broken_by(self, run: AttackRun) -> float:
        """Images that an adversary broke and no earlier one did.

        A white-box adversary is compared with earlier white-box adversaries only.
        """
        white_box = run.properties.white_box
        earlier = self.runs[: run.index - 1]
        before = [other for other in earlier if other.properties.white_box or not white_box]
        return float((self.remaining(before) - self.remaining([*before, run])).sum())

    @property
    def gradients_granted(self) -> bool:
        """The threat model grants gradients; the target may still have none."""
        return grants(self.plan.job.threat.access, "gradient")

    @property
    def gradients_available(self) -> bool:
        """The threat model grants gradients and the target has them."""
        return self.gradients_granted and grants(self.defense.grants, "gradient")

    @property
    def callable_target(self) -> bool:
        """The target is a plain callable: there is no backward pass to replace."""
        return isinstance(innermost(self.defense), BlackBox)

    @cached_property
    def static(self) -> nn.Module | None:
        """The static net inside a defense; None for a plain net."""
        plain = isinstance(innermost(self.defense), Plain)
        return None if plain else self.defense.static

    @property
    def white_box(self) -> list[AttackRun]:
        """Adversaries that follow gradients of the defense."""
        return [run for run in self.runs if run.properties.white_box]

    @property
    def black_box(self) -> list[AttackRun]:
        """Adversaries that only query the defense."""
        return [run for run in self.runs if run.properties.black_box]

    @property
    def not_black_box(self) -> list[AttackRun]:
        """White-box and transfer adversaries."""
        return [run for run in self.own if not run.properties.black_box]

    @property
    def own(self) -> list[AttackRun]:
        """Adversaries of the audit itself: not points or attacks from elsewhere."""
        return [run for run in self.runs if not run.properties.external]

    def iterative(self, runs: Sequence[AttackRun]) -> list[tuple[AttackRun, Adversary]]:
        """White-box adversaries that maximize a loss step by step, each with one run of it.

        A query search has no steps that all rows make together, even if gradients guide it.
        """
        found = []
        for run in runs:
            single = run.adversary.single_run()
            steps = run.properties.white_box and not run.properties.query_search
            if steps and not run.minimum_norm and single is not None:
                found.append((run, single))
        return found

    @cached_property
    def strongest(self) -> tuple[AttackRun, Adversary] | None:
        """The strongest iterative white-box adversary, with one run of it.

        A remedy attacked what the others left, so it counts only if it broke any of that.
        """
        runs = [run for run in self.runs if not run.remedy or self.broken_by(run) >= _AT_LEAST]
        found = self.iterative(runs)
        if not found:
            return None
        return min(found, key=lambda pair: self.row(pair[0]).robust_accuracy)

    @property
    def strongest_name(self) -> str:
        """The name of the strongest iterative white-box adversary."""
        return self.strongest[0].name if self.strongest else "none"

    @cached_property
    def rows_at_once(self) -> int:
        """The number of rows that fit into memory at once."""
        job = self.plan.job
        if self.defense.unit != "example":
            return job.batch_size
        by_adversary = zip(*(group.outcomes.episodes for group in self.groups), strict=True)
        most = min(max(int(e.batch.bincount().amax()) for e in run) for run in by_adversary)
        return min(most, job.batch_size)

    def sample(self, count: int, among: Tensor | None = None) -> Tensor:
        """The first `count` rows, among those [N] that qualify.

        Rows that influence each other are not separated, so there may be more. Of batches, the one
        with the most rows that qualify is returned; of several such batches the one with the most
        unbroken rows, and of these the one with a row that attacks brought closest to an error. Of
        a stream, all batches up to the row number `count` that qualifies are returned. Nothing is
        returned if no row qualifies.
        """
        job = self.plan.job
        if self.defense.unit != "example":
            parts = self._cells
            if among is None:
                return parts[0]
            return self._start(among, count) if self._is_stream else self._best(parts, among)
        rows = torch.arange(len(job.x)) if among is None else among.cpu().nonzero()[:, 0]
        return rows[: min(count, self.rows_at_once)].to(job.x.device)

    def batch(self, among: Tensor) -> Tensor:
        """The rows of one batch in the given order, chosen as in `sample`; of a stream the first.

        With one round, all rows are one batch.
        """
        job = self.plan.job
        size = len(job.x) if job.threat.rounds == "one" else job.batch_size
        batches = torch.split(self._all_rows, size)
        if self._is_stream:
            batches = tuple(rows for rows in batches if among[rows.cpu()].any())[:1]
        return self._best(batches, among) if batches else self._all_rows[:0]

    def attacked_again(self, rows: Tensor, among: Tensor) -> Tensor:
        """[n] whether a row is in a batch with rows that qualify.

        The other batches of a stream are only played because later ones depend on them.
        """
        if not self._is_stream:
            return torch.ones(len(rows), dtype=torch.bool)
        number = rows.cpu() // len(self._cells[0])
        return torch.isin(number, number[among[rows.cpu()]])

    @property
    def _is_stream(self) -> bool:
        return self.defense.unit == "stream"

    @property
    def _all_rows(self) -> Tensor:
        job = self.plan.job
        return torch.arange(len(job.x), device=job.x.device)

    @property
    def _cells(self) -> Sequence[Tensor]:
        """Rows that the threat model plays together: batches, or windows that are rearranged."""
        job = self.plan.job
        if not self._is_stream:
            return job.groups
        return torch.split(self._all_rows, job.threat.examples_per_cell(len(job.x), job.batch_size))

    def _start(self, among: Tensor, count: int) -> Tensor:
        size = len(self._cells[0])
        found = among.cpu().nonzero()[:count, 0]
        return self._all_rows[: (int(found[-1]) // size + 1) * size if len(found) else 0]

    def _best(self, parts: Sequence[Tensor], among: Tensor) -> Tensor:
        margins = torch.cat([group.verdict.margin[0] for group in self.groups]).cpu()
        unbroken = self.robust.cpu() >= 0.5

        def rank(part: Tensor) -> tuple[int, int, float]:
            rows = part.cpu()
            qualified = rows[among.cpu()[rows]]
            left = qualified[unbroken[qualified]]
            closest = float(margins[left].amax()) if len(left) else -torch.inf
            return len(qualified), len(left), closest

        best = max(parts, key=rank)
        return best if rank(best)[0] else best[:0]
