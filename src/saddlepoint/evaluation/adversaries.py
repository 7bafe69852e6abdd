"""Adversaries: what to aim at, how to differentiate, which optimizer; and combinations of them. Each is a row of the game."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from saddlepoint.attacks.aims import Aim, last
from saddlepoint.attacks.base import Attack, longer
from saddlepoint.attacks.best import AttackResult, BestSoFar, block
from saddlepoint.attacks.early_stopping import StopAtSuccess
from saddlepoint.attacks.ensemble import AVERAGE, LossWeighting, Pool
from saddlepoint.attacks.history import History, RecordingOracle
from saddlepoint.attacks.losses import Loss, TargetedLoss, fooled, margin, refusing, targeted_dlr
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.oracle import Meter, Oracle, grants
from saddlepoint.attacks.spaces import per_example
from saddlepoint.defenses import Access, Context, Defense
from saddlepoint.describe import describe
from saddlepoint.evaluation.threat import Threat
from saddlepoint.gradients import Backprop, Estimator, Evaluation, FixedRandomness, Rule, once
from saddlepoint.rng import Keys
from saddlepoint.solvers import SolverStats

_ATTACKER = 1
_DEFENDER = 2
_REHEARSAL = 3  # each role tosses its own coins
LOOKS = 2  # passes that tell whether averaging over coins is worth anything
_LOOKING = (
    104729  # folded into the attacker's coins: no attack starts from the point that is looked at
)


class Simulation(NamedTuple):
    """What an adversary learns when it plays the defender in its head."""

    evaluation: Evaluation  # mean margin over the draws; success where most of them err
    fallen: Tensor  # [N] bool: every draw errs
    became: tuple[Defense, ...] = ()  # what the defense turned into, once for each draw


@dataclass(frozen=True)
class AttackContext:
    """One batch under one threat: the seat from which an adversary moves."""

    threat: Threat
    meter: Meter
    rows: Tensor  # [N] positions in the metered batch
    ids: Tensor  # [N] example ids: what coins are drawn for
    seed: int
    history: History  # what the oracles of this seat said
    attempt: int = 0  # restarts move from the same seat with other coins of their own
    defender_seed: int | None = (
        None  # None: the same seed, from which the defender tosses coins of its own
    )

    @classmethod
    def open(
        cls, threat: Threat, ids: Tensor, seed: int, defender_seed: int | None = None
    ) -> AttackContext:
        meter = Meter.of(len(ids), threat.queries)
        rows = torch.arange(len(ids))
        history = History(len(ids))
        return cls(threat, meter, rows, ids, seed, history, defender_seed=defender_seed)

    def restrict(self, rows: Tensor) -> AttackContext:
        """A smaller seat on the same meter."""
        return replace(self, rows=self.rows[rows.to(self.rows.device)], ids=self.ids[rows])

    def again(self, salt: int) -> AttackContext:
        """The same seat with other coins of the attacker's own; the first time, with salt 0, they are the usual ones."""
        return replace(self, attempt=self.attempt * 1009 + salt)

    def attacker_keys(self) -> Keys:
        return self._keys(_ATTACKER).fold_in(self.attempt)

    def defender_keys(self, draw: int) -> Keys:
        """What the defender tosses when it answers for the `draw`-th time."""
        seed = self.seed if self.defender_seed is None else self.defender_seed
        if self.threat.randomness == "fixed":
            return Keys.of(seed, torch.zeros_like(self.ids)).fold_in(_DEFENDER).as_root()
        return Keys.of(seed, self.ids).fold_in(_DEFENDER).fold_in(draw).as_root()

    def simulated_keys(self) -> Keys:
        """What the attacker tosses when it plays the defender in its head."""
        if self.threat.randomness_known:
            return self.defender_keys(0)
        return self._keys(_REHEARSAL).fold_in(self.attempt).as_root()

    def draws(self, defense: Defense) -> int:
        """Answers by which this defense is judged: one, if it tosses no coins."""
        return self.threat.draws if defense.random and self.threat.randomness != "fixed" else 1

    def _keys(self, role: int) -> Keys:
        return Keys.of(self.seed, self.ids).fold_in(role)

    def access(self, defense: Defense) -> Access:
        """What may be asked of this defense: what the threat grants, if the defense can give it."""
        return self.threat.access if grants(defense.grants, self.threat.access) else defense.grants

    def simulate(self, defense: Defense, x: Tensor, y: Tensor) -> Simulation:
        """The defender's full response to x, over the draws it will be judged by if coins are public, else over as many others."""
        self.meter.charge(self.rows, self.draws(defense), 0)
        private = self.simulated_keys().fold_in(-1)
        answers = []
        became = []
        for draw in range(self.draws(defense)):
            tossed = (
                self.defender_keys(draw) if self.threat.randomness_known else private.fold_in(draw)
            )
            ctx = Context(tossed, keep=defense.reads)
            with torch.no_grad():
                adapted = defense.adapt(x, ctx)
                answers.append(
                    refusing(adapted.answer(adapted.trace(x, ctx), ctx), y, adapted.rejects)
                )
            became.append(adapted)
        wrong = torch.stack([fooled(z, y) for z in answers])
        value = torch.stack([margin(z, y) for z in answers]).mean(0)
        return Simulation(
            Evaluation(value, wrong.float().mean(0) > 0.5), wrong.all(0), tuple(became)
        )


class Adversary(Protocol):
    """A strategy. The referee, not the adversary, says whether its move succeeded."""

    @property
    def name(self) -> str: ...
    @property
    def needs(self) -> Access: ...
    def move(
        self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor
    ) -> AttackResult: ...


@dataclass(frozen=True)
class Direct:
    """One optimizer against one objective."""

    name: str
    attack: Attack[Any]
    loss: Loss = margin
    aim: Aim = last
    rules: Mapping[str, Rule] = field(default_factory=dict)
    estimator: Estimator = field(default_factory=Backprop)
    keep: frozenset[str] | None = None  # names of the views that the aim reads; None: all
    respond: bool = False  # differentiate through the defense's adaptation
    warm: int = 0  # steps of solves inside the defense that go on where this row's last ones ended; 0: all start cold
    stop_at_success: bool = False  # ask no more about a row once it is fooled; for deterministic defenses that answer row by row

    @property
    def needs(self) -> Access:
        # An estimator that takes gradients from scores lets a gradient attack play without gradients.
        score_only = self.attack.needs == "gradient" and self.estimator.gradient_cost[1] == 0
        return "score" if score_only else self.attack.needs

    def lasting(self, times: int) -> Direct:
        """The same move with `times` as many steps."""
        return self if times == 1 else replace(self, attack=longer(self.attack, times))

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        return self.against([defense], context, x, y)

    def against(
        self,
        pool: Sequence[Defense],
        context: AttackContext,
        x: Tensor,
        y: Tensor,
        over: LossWeighting = AVERAGE,
    ) -> AttackResult:
        """The move against several defenses at once, such as the models a transductive defender has already turned into."""
        for defense in pool:
            if not grants(context.access(defense), self.needs):
                raise PermissionError(
                    f"{self.name} asks for {self.needs} access, but {context.access(defense)} access is all there is."
                )
        coupled = any(d.coupled or (self.respond and d.unit != "example") for d in pool)
        stats = SolverStats.of(len(x), x.device, warm=self.warm)
        objectives = [
            self._looked_at(
                AttackObjective(
                    [d],
                    y,
                    self.loss,
                    self.aim,
                    self.rules,
                    self.keep,
                    self.respond,
                    stats if len(pool) == 1 else stats.under(f"model {k}"),
                ),
                context,
                x,
            )
            for k, d in enumerate(pool)
        ]
        objective = objectives[0] if len(pool) == 1 else Pool(tuple(objectives), over, coupled)
        label: tuple[object, ...] = (self.loss, self.aim)
        if len(pool) > 1:
            label = (*label, over, len(pool))
        # Access was checked above: the oracle grants what the estimator can give.
        estimator = (
            FixedRandomness(self.estimator)
            if context.threat.randomness == "fixed"
            else self.estimator
        )
        asked = Oracle(
            objective,
            estimator,
            context.meter,
            context.rows,
            context.simulated_keys(),
            self.attack.needs,
            coupled,
        )
        oracle = RecordingOracle(asked, context.history, describe(label), x, context.threat.space)
        found = self._sent(oracle, x, context, random=any(d.random for d in pool))
        context.meter.note(context.rows, stats.evaluations + stats.products)
        return found

    def _looked_at(
        self, objective: AttackObjective, context: AttackContext, x: Tensor
    ) -> AttackObjective:
        """The goal; `sure` if its defense says that it tosses no coins, or only while it learns, and two looks bear that out.

        They are taken at a point of the set, as the attack will take them. What an attack needs to its last query is not spent.
        """
        (defense,) = objective.defenses
        climbs = self.needs == "gradient"
        due = self.attack.calls * (
            objective.gradient_cost(self.estimator)[0] if climbs else objective.cost(self.estimator)
        )
        tossed = defense.random and (self.respond or defense.memory == "none")
        if (
            tossed
            or once(self.estimator) == self.estimator
            or context.meter.left(context.rows) < LOOKS + due
        ):
            return objective
        context.meter.charge(context.rows, LOOKS, LOOKS * climbs)
        point = context.threat.space.sample(x, context.attacker_keys().fold_in(_LOOKING))
        return objective.looked_at(
            point, [context.simulated_keys().fold_in(k) for k in range(LOOKS)], climbs=climbs
        )

    def _sent(
        self, oracle: RecordingOracle, x: Tensor, context: AttackContext, *, random: bool
    ) -> AttackResult:
        if not self.stop_at_success:
            return self.attack(oracle, x, context.threat.space, context.attacker_keys())
        if oracle.coupled or random:
            reason = (
                "rows of this defense answer only together"
                if oracle.coupled
                else "a random defense may err once by luck"
            )
            raise ValueError(
                f"{self.name} stops at the first success, but {reason}. Use stop_at_success=False."
            )
        early = StopAtSuccess.of(oracle, x, context.threat.space)
        return early.settled(self.attack(early, x, context.threat.space, context.attacker_keys()))


@dataclass(frozen=True)
class Cascade:
    """Adversaries in turn, the fallen dropped where rows are independent; else the worst whole batch is kept."""

    name: str
    adversaries: tuple[Adversary, ...]

    def __post_init__(self) -> None:
        if not self.adversaries:
            raise ValueError(
                f"{self.name} combines no adversaries: it would propose the clean images. Give it at least one."
            )

    @property
    def needs(self) -> Access:
        return max((a.needs for a in self.adversaries), key=("decision", "score", "gradient").index)

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        coupled = defense.unit != "example"
        best = BestSoFar(x, coupled)
        alive = torch.arange(len(x), device=x.device)
        for adversary in self.adversaries:
            sub_context = context.restrict(alive)
            there = defense.restrict(alive)
            labels = y[alive]
            found = adversary.move(sub_context, there, x[alive], labels)
            simulation = sub_context.simulate(there, found.point, labels)
            _offer(best, alive, found.point, simulation.evaluation)
            # Losses of different attacks have different scales: peaks compete by the margin that the defense shows on them. Only
            # rows whose peak is another point pay for it: coins are numbered by what a row has spent, whatever its neighbors do.
            apart = block(
                (found.max_loss_point != found.point).flatten(1).any(1).long(), coupled
            ).nonzero()[:, 0]
            if len(apart):
                max_loss_point = found.max_loss_point[apart]
                again = sub_context.restrict(apart).simulate(
                    there.restrict(apart), max_loss_point, labels[apart]
                )
                _offer(best, alive[apart], max_loss_point, again.evaluation)
            if not coupled:
                alive = alive[~simulation.fallen]
            if not len(alive):
                break
        return best.found


@dataclass(frozen=True)
class AdversaryWrapper:
    """Another adversary, sent in another way: under its name, with its needs."""

    adversary: Adversary

    @property
    def name(self) -> str:
        return self.adversary.name

    @property
    def needs(self) -> Access:
        return self.adversary.needs


@dataclass(frozen=True)
class MaxLossPoint(AdversaryWrapper):
    """The adversary's max-value points: what it fooled means nothing where points are scored on another function."""

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        max_loss_point = self.adversary.move(context, defense, x, y).max_loss_point
        return AttackResult(max_loss_point, max_loss_point)


@dataclass(frozen=True)
class SkipMisclassified(AdversaryWrapper):
    """The adversary sent only to rows that the defense answers rightly without it; elsewhere the clean image is proposed.

    Only for a deterministic defense with independent rows: elsewhere a row's clean answer settles nothing.
    """

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        if defense.random or defense.unit != "example":
            raise ValueError(
                "Standing needs a deterministic defense with independent rows; send the adversary itself."
            )
        alive = (~context.simulate(defense, x, y).fallen).nonzero()[:, 0]
        if not len(alive):
            return AttackResult(x, x)
        found = self.adversary.move(
            context.restrict(alive), defense.restrict(alive), x[alive], y[alive]
        )
        return AttackResult(
            x.index_copy(0, alive, found.point), x.index_copy(0, alive, found.max_loss_point)
        )


@dataclass(frozen=True)
class CleanCopies(SkipMisclassified):
    """What the stock AutoAttack returns: the clean image where the attacked function was wrong without it, or was not fooled.

    Fair to the function that was attacked, far too kind to any other on which such points are scored. For comparisons with figures
    that were found in this way, and labeled for it.
    """

    @property
    def name(self) -> str:
        return f"{self.adversary.name} (clean copies)"

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        point = super().move(context, defense, x, y).point
        fallen = context.simulate(defense, point, y).fallen
        returned = torch.where(per_example(fallen, x), point, x)
        return AttackResult(returned, returned)


@dataclass(frozen=True)
class Restarts(AdversaryWrapper):
    """The same adversary `times` times, each with coins of its own."""

    times: int = 5

    @property
    def name(self) -> str:
        return f"{self.adversary.name} x{self.times}"

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        return Cascade(self.name, tuple(_Again(self.adversary, k) for k in range(self.times))).move(
            context, defense, x, y
        )


@dataclass(frozen=True)
class _Again(AdversaryWrapper):
    salt: int

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        return self.adversary.move(context.again(self.salt), defense, x, y)


@dataclass(frozen=True)
class MultiTarget:
    """`direct` once per target class, the strongest wrong classes of the clean image first."""

    direct: Direct
    targets: int = 9
    loss: TargetedLoss = targeted_dlr

    @property
    def name(self) -> str:
        return self.direct.name

    @property
    def needs(self) -> Access:
        return self.direct.needs

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        context.meter.charge(context.rows, 1, 0)
        with torch.no_grad():
            answered = defense.respond(x, Context(context.simulated_keys(), keep=defense.reads))
        logits = refusing(answered, y, defense.rejects)
        order = logits.scatter(1, y[:, None], -torch.inf).argsort(
            1, descending=True
        )  # [N, C], y itself last
        count = min(self.targets, logits.shape[1] - 1)
        return Cascade(
            self.name, tuple(_Toward(self, order[:, k], context.rows) for k in range(count))
        ).move(context, defense, x, y)


@dataclass(frozen=True)
class _Toward:
    outer: MultiTarget
    target: Tensor  # [M] a class per row of the outer seat
    rows: Tensor  # [M] the outer seat's rows, increasing

    @property
    def name(self) -> str:
        return self.outer.name

    @property
    def needs(self) -> Access:
        return self.outer.needs

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        at = torch.searchsorted(self.rows, context.rows).to(self.target.device)
        return replace(self.outer.direct, loss=self.outer.loss(self.target[at])).move(
            context, defense, x, y
        )


@dataclass(frozen=True)
class Transfer:
    """Attack `source`, hand the points to the defense: the max-value points, since a success elsewhere means nothing here."""

    adversary: Adversary
    source: Defense

    @property
    def name(self) -> str:
        return f"transfer {self.adversary.name}"

    @property
    def needs(self) -> Access:
        return "decision"  # of the defense that is finally asked; the source is the attacker's own

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:  # noqa: ARG002
        own = replace(
            context, threat=replace(context.threat, access="gradient", online_queries=False)
        )
        return MaxLossPoint(self.adversary).move(own, self.source, x, y)


def _offer(best: BestSoFar, rows: Tensor, x: Tensor, evaluation: Evaluation) -> None:
    """Offer some rows' points to the best of the whole batch; rows that were not asked about are worth nothing."""
    n = len(best.point)
    value = best.value.new_full((n,), -torch.inf).index_copy(
        0, rows, evaluation.value.to(best.value)
    )
    success = torch.zeros(n, dtype=torch.bool, device=rows.device).index_copy(
        0, rows, evaluation.success
    )
    best.offer(best.point.index_copy(0, rows, x), Evaluation(value, success))
