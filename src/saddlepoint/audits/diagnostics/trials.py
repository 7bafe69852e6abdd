"""Small trials after the attacks: what they cannot tell of themselves. Each is played on a few images and changes no number."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.base import longer
from saddlepoint.attacks.losses import cross_entropy, fooled, margin
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.oracle import grants
from saddlepoint.attacks.pgd import FGSM
from saddlepoint.audits.cells import Group, Job
from saddlepoint.audits.diagnostics.spied import Seen, spy
from saddlepoint.audits.planning.properties import (
    Sent,
    climbing,
    direct_of,
    everything,
    static_inside,
    varied,
)
from saddlepoint.audits.result import Row
from saddlepoint.audits.target.answer import AgainstAnswer, AnswerView, answer_is_not_last_view
from saddlepoint.audits.verdict import Cost
from saddlepoint.defenses import BlackBox, Context, Defense, Plain
from saddlepoint.evaluation import Adversary, Direct, Episode, Restarts
from saddlepoint.gradients import Backprop, EoT, Estimator
from saddlepoint.rng import Keys

MANY = 64
FEW = 32  # rows of a cheap trial, and of one that takes as long as an attack
_STEPS = 20
_QUICK = 1.0  # seconds of an answer that may be asked for again: one that learns may take minutes
_ONE = 0.5  # image, at least, on the mean over draws
_OTHER = 7919  # added to the seed: another start for every image

Play = Callable[[Job, Adversary, Tensor], Episode]


@dataclass(frozen=True)
class Trials:
    """All that the checklist and the symptoms look at; each trial is played when it is first asked for."""

    job: Job
    adversaries: tuple[Adversary, ...]  # the clean images first
    groups: Sequence[Group]
    rows: tuple[Row, ...]  # one per adversary but the first
    play: Play = Job.play  # how an adversary is played on some rows, unless that is known already

    def after(
        self, adversaries: tuple[Adversary, ...], groups: Sequence[Group], rows: tuple[Row, ...]
    ) -> Trials:
        """The trials once more was sent; those that would only be repeated keep what they showed."""
        later = Trials(self.job, adversaries, groups, rows, self.play)
        same = ["static", "failing", "cost", "clean", "queried"]
        if later.core == self.core:
            same += ["seen", "unbounded", "agreement", "_one_step"]
            same += ["further"] if torch.equal(later.judged, self.judged) else []
        vars(later).update({name: vars(self)[name] for name in same if name in vars(self)})
        return later

    @cached_property
    def sent(self) -> tuple[Sent, ...]:
        return everything(self.adversaries)

    @cached_property
    def static(self) -> nn.Module | None:
        """The static net of a defense that is more than it."""
        found: nn.Module | None = static_inside(self.job.defense)
        return found

    @property
    def open(self) -> bool:
        """Does the threat grant gradients? The target may still have none to give."""
        return grants(self.job.threat.access, "gradient")

    @property
    def graded(self) -> bool:
        return self.open and grants(self.job.defense.grants, "gradient")

    def left(self, which: Sequence[Sent]) -> Tensor:
        """[N] how often each image is answered rightly when these alone are sent."""
        chosen = [0, *(one.index for one in which)]
        return torch.cat([g.outcomes.only(chosen).worst_case_per_example()[0] for g in self.groups])

    def taken(self, one: Sent) -> float:
        """Images that it took from what all before it had left; one that follows gradients, from what those had left that do."""
        before = [
            other for other in self.sent[: one.index - 1] if other.white_box or not one.white_box
        ]
        return float((self.left(before) - self.left([*before, one])).sum())

    @cached_property
    def clean(self) -> Tensor:  # [N]
        return torch.cat([g.outcomes.correct[0, 0] for g in self.groups])

    @cached_property
    def judged(self) -> Tensor:  # [N]
        return torch.cat([g.verdict.correct[0] for g in self.groups])

    @cached_property
    def at_once(self) -> int:
        """As many rows as were asked about together: where memory ran out, fewer than a batch."""
        if self.job.defense.unit != "example":
            return self.job.batch_size
        episodes = zip(
            *(group.outcomes.episodes for group in self.groups), strict=True
        )  # by adversary
        return min(max(int(e.batch.bincount().amax()) for e in sent) for sent in episodes)

    def some(self, count: int, among: Tensor | None = None) -> Tensor:
        """The first rows, among those [N] that qualify; where rows are answered together, the first whole batches instead."""
        job = self.job
        if job.defense.unit == "example":
            rows = torch.arange(len(job.x)) if among is None else among.cpu().nonzero()[:, 0]
            return rows[: min(count, self.at_once)].to(job.x.device)
        return job.groups[0][: job.threat.examples_per_cell(len(job.groups[0]), job.batch_size)]

    @cached_property
    def failing(self) -> float:
        """Share of images on which plain backpropagation of the margin brings nothing: no gradient, zero, or no number."""
        if not grants(self.job.defense.grants, "gradient"):
            return 1.0
        rows = self.some(MANY)
        aimed_at = (
            AnswerView(self.job.defense)
            if answer_is_not_last_view(self.job.defense)
            else self.job.defense
        )
        objective = AttackObjective([aimed_at], self.job.y[rows], margin)
        try:
            grad = (
                Backprop()
                .value_and_grad(objective, self.job.x[rows], Keys.of(self.job.seed, rows))
                .grad.flatten(1)
            )
        except (ValueError, RuntimeError):
            return 1.0
        return float(((grad == 0).all(1) | ~grad.isfinite().all(1)).double().mean())

    @property
    def opaque(self) -> bool:
        """A callable that was handed over as it is: there is no backward pass to replace."""
        innermost = self.job.defense
        while isinstance(held := getattr(innermost, "inner", None), Defense):
            innermost = held
        return isinstance(innermost, BlackBox)

    @cached_property
    def strongest(self) -> tuple[Sent, Adversary] | None:
        """Of the white-box attacks that climb, the one that left least, with one run of it.

        A remedy met what the others had left, and is stronger than they are there if it took any of it.
        """
        found = climbing([one for one in self.sent if not one.remedy or self.taken(one) >= _ONE])
        return (
            min(found, key=lambda pair: self.rows[pair[0].index - 1].robust_accuracy)
            if found
            else None
        )

    @property
    def core(self) -> Adversary | None:
        """One run of the strongest."""
        return self.strongest[1] if self.strongest else None

    @property
    def climber(self) -> str:
        """Its name."""
        return self.strongest[0].name if self.strongest else "none"

    @cached_property
    def seen(self) -> Seen | None:
        """The strongest attack, watched on images that are right without it."""
        rows = self.some(FEW, self.clean >= 0.5)
        return (
            spy(self.job, self.strongest[1], rows)
            if self.strongest is not None and len(rows)
            else None
        )

    @property
    def single(self) -> tuple[Tensor, Tensor] | None:
        """[n] right answers under one step of the strongest attack, and under all that take several."""
        if self._one_step is None:
            return None
        return self._one_step, self.left([one for one, _ in climbing(self.sent)])[
            self.some(MANY).cpu()
        ]

    @cached_property
    def _one_step(self) -> Tensor | None:  # [n]
        if self.core is None:
            return None
        step = varied(
            self.core, lambda direct: replace(direct, attack=FGSM(), stop_at_success=False)
        )
        return self.play(self._free, step, self.some(MANY)).correct[0].cpu()

    @cached_property
    def further(self) -> tuple[Tensor, Tensor] | None:
        """[n] right answers of images that stand, and what is left of them after twice the steps from two other starts."""
        if self.strongest is None:
            return None
        rows = self.some(FEW, self.judged >= 0.5)
        if not len(rows):
            return self.judged[:0], self.judged[:0]
        twice = varied(
            self.strongest[1], lambda direct: replace(direct, attack=longer(direct.attack, 2))
        )
        # Other coins than those of the attack that was sent: it would only be repeated.
        other = replace(self._free, seed=self.job.seed + _OTHER)
        before = self.judged[rows.cpu()]
        if self.job.defense.random:
            # Images that were chosen for having been lucky are less so when asked again, whatever is sent.
            points = torch.cat([g.points for g in self.groups]).to(self.job.x)
            before = other.judge(points, rows).correct[0].cpu()
        return before, self.play(other, Restarts(twice, 2), rows).correct[0].cpu()

    @cached_property
    def unbounded(self) -> tuple[float, float] | None:
        """(radius, accuracy left) of an attack that may turn any image gray; None where the threat allows that anyway."""
        space = self.job.threat.space
        d = self.job.x[0].numel()
        radius = (space.box[1] - space.box[0]) / 2 * d ** (1 / space.p)
        if radius <= space.radius or not self.graded:
            return None
        estimator: Estimator = EoT(8) if self.job.defense.random else Backprop()
        attack: Adversary = Direct(
            "unbounded", APGD(_STEPS), loss=cross_entropy, estimator=estimator
        )
        if self.strongest is not None:
            attack = varied(
                self.strongest[1],
                lambda direct: replace(direct, attack=APGD(_STEPS), stop_at_success=False),
            )
        elif answer_is_not_last_view(self.job.defense):
            attack = AgainstAnswer(attack)
        wide = replace(
            self.job, threat=replace(self._free.threat, space=replace(space, radius=radius))
        )
        return radius, float(self.play(wide, attack, self.some(MANY)).correct.mean())

    @cached_property
    def static_left(self) -> Tensor | None:
        """[N] right answers of the static net on the worst of all points that were sent; None unless some were made on it."""
        if self.static is None or not any(one.from_static(self.job.defense) for one in self.sent):
            return None
        return torch.cat(
            [
                self._worst_static(rows, group)
                for rows, group in zip(self.job.groups, self.groups, strict=True)
            ]
        )

    def _worst_static(self, rows: Tensor, group: Group) -> Tensor:  # [M]
        assert self.static is not None, "asked for only where there is one"
        with torch.no_grad():
            wrong = [
                fooled(self._static_logits(e.points), self.job.y[rows])
                for e in group.outcomes.episodes
            ]
        return 1.0 - torch.stack(wrong).any(0).double().cpu()

    def _static_logits(self, points: Tensor) -> Tensor:
        """In batches: a stream is one group, however long."""
        assert self.static is not None, "asked for only where there is one"
        parts = torch.split(points.to(self.job.x.device), self.at_once)
        return torch.cat([self.static(part) for part in parts])

    @cached_property
    def queried(self) -> tuple[Tensor, Tensor] | None:
        """[n] right answers of the defense, and of its static net, under the attacks without gradients that all images met."""
        sent = [one for one in self.sent if one.black_box and not one.remedy]
        if self.static is None or not sent:
            return None
        rows = self.some(MANY)
        bare = replace(self._free, defense=Plain(self.static))
        answers = [
            self.play(bare, _unwrapped(one.adversary), rows).correct[0].cpu() for one in sent
        ]
        return self.left(sent)[rows.cpu()], torch.stack(answers).amin(0)

    @cached_property
    def agreement(self) -> float | None:
        """Mean cosine of two gradients that a random defense shows the strongest attack at the same images, with other coins."""
        if self.strongest is None or not self.job.defense.random:
            return None
        direct = direct_of(self.strongest[1])
        rows = self.some(FEW)
        defense = (
            AnswerView(self.job.defense)
            if isinstance(self.strongest[1], AgainstAnswer)
            else self.job.defense
        )
        objective = AttackObjective(
            [defense],
            self.job.y[rows],
            margin,
            direct.aim,
            direct.rules,
            direct.keep,
            direct.respond,
        )
        keys = Keys.of(self.job.seed, rows)
        first, second = (
            direct.estimator.value_and_grad(
                objective, self.job.x[rows], keys.fold_in(k)
            ).grad.flatten(1)
            for k in (1, 2)
        )
        # What is no number points nowhere: it counts as zero, not as an average that nobody can compare.
        one, other = (grad.double().nan_to_num(0.0, 0.0, 0.0) for grad in (first, second))
        return float(torch.cosine_similarity(one, other).mean())

    @cached_property
    def cost(self) -> Cost | None:
        """None of a net as it is."""
        if self.static is None:
            return None
        rows = self.some(MANY)
        calls = [0, 0]

        def count(module: nn.Module, given: tuple[Tensor, ...]) -> None:  # noqa: ARG001
            calls[0] += len(given[0])
            calls[1] += len(given[0]) * torch.is_grad_enabled()

        x = self.job.x[rows]
        keys = Keys.of(self.job.seed, rows)
        # A verdict must not depend on who else uses the machine: where this process computes, its own time counts.
        seconds = partial(
            _seconds, clock=time.process_time if x.device.type == "cpu" else time.perf_counter
        )
        hook = self.static.register_forward_pre_hook(count)
        try:
            whole = seconds(
                lambda: self.job.defense.respond(x, Context(keys, keep=self.job.defense.reads)), 1
            )
        finally:
            hook.remove()
        if whole < _QUICK:
            whole = seconds(
                lambda: self.job.defense.respond(x, Context(keys, keep=self.job.defense.reads)), 3
            )
        return Cost(calls[0] / len(x), calls[1] / len(x), whole, seconds(lambda: self.static(x), 3))  # type: ignore[misc]

    @property
    def _free(self) -> Job:
        """A referee's look is not paid for by the attacker's queries."""
        return replace(self.job, threat=replace(self.job.threat, queries=None))


def _unwrapped(adversary: Adversary) -> Adversary:
    return adversary.adversary if isinstance(adversary, AgainstAnswer) else adversary


def _seconds(call: Callable[[], object], times: int, clock: Callable[[], float]) -> float:
    """The shortest of so many, by the given clock: what else the machine does only makes it longer."""
    spent = []
    with torch.no_grad():
        for _ in range(times):
            started = clock()
            call()
            spent.append(clock() - started)
    return max(min(spent), 1e-9)
