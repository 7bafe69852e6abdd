"""Adversaries: what to aim at, how to differentiate, which optimiser; and combinations of them. Each is a row of the game."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from saddlepoint.attack.aim import Aim, last
from saddlepoint.attack.base import Attack, longer
from saddlepoint.attack.best import Best, Found, block
from saddlepoint.attack.early import UntilFooled
from saddlepoint.attack.goal import Goal
from saddlepoint.attack.loss import Loss, TargetedLoss, fooled, margin, refusing, targeted_dlr
from saddlepoint.attack.oracle import Meter, Oracle, grants
from saddlepoint.attack.pool import AVERAGE, Over, Pool
from saddlepoint.attack.space import per_example
from saddlepoint.attack.tape import Tape, Taped
from saddlepoint.coins import Coins
from saddlepoint.defense import Access, Context, Defense
from saddlepoint.describe import describe
from saddlepoint.game.threat import Threat
from saddlepoint.gradients import Backprop, Estimator, FixedCoins, Reading, Rule, once
from saddlepoint.solving import Notes

_ATTACKER, _DEFENDER, _REHEARSAL = 1, 2, 3  # each role tosses its own coins
LOOKS = 2  # passes that tell whether averaging over coins is worth anything
_LOOKING = 104729  # folded into the attacker's coins: no attack starts from the point that is looked at


class Rehearsal(NamedTuple):
    """What an adversary learns when it plays the defender in its head."""

    reading: Reading  # mean margin over the draws; success where most of them err
    fallen: Tensor  # [N] bool: every draw errs
    became: tuple[Defense, ...] = ()  # what the defence turned into, once for each draw


@dataclass(frozen=True)
class Turn:
    """One batch under one threat: the seat from which an adversary moves."""

    threat: Threat
    meter: Meter
    rows: Tensor  # [N] positions in the metered batch
    ids: Tensor  # [N] example ids: what coins are drawn for
    seed: int
    tape: Tape  # what the oracles of this seat said
    attempt: int = 0  # restarts move from the same seat with other coins of their own
    defender_seed: int | None = None  # None: the same seed, from which the defender tosses coins of its own

    @classmethod
    def open(cls, threat: Threat, ids: Tensor, seed: int, defender_seed: int | None = None) -> Turn:
        meter, rows, tape = Meter.of(len(ids), threat.queries), torch.arange(len(ids)), Tape(len(ids))
        return cls(threat, meter, rows, ids, seed, tape, defender_seed=defender_seed)

    def restrict(self, rows: Tensor) -> Turn:
        """A smaller seat on the same meter."""
        return replace(self, rows=self.rows[rows.to(self.rows.device)], ids=self.ids[rows])

    def again(self, salt: int) -> Turn:
        """The same seat with other coins of the attacker's own; the first time, with salt 0, they are the usual ones."""
        return replace(self, attempt=self.attempt * 1009 + salt)

    def attacker_coins(self) -> Coins:
        return self._coins(_ATTACKER).fold(self.attempt)

    def defender_coins(self, draw: int) -> Coins:
        """What the defender tosses when it answers for the `draw`-th time."""
        seed = self.seed if self.defender_seed is None else self.defender_seed
        if self.threat.coins == "fixed":
            return Coins.of(seed, torch.zeros_like(self.ids)).fold(_DEFENDER).rooted()
        return Coins.of(seed, self.ids).fold(_DEFENDER).fold(draw).rooted()

    def simulated_coins(self) -> Coins:
        """What the attacker tosses when it plays the defender in its head."""
        if self.threat.known:
            return self.defender_coins(0)
        return self._coins(_REHEARSAL).fold(self.attempt).rooted()

    def draws(self, defense: Defense) -> int:
        """Answers by which this defence is judged: one, if it tosses no coins."""
        return self.threat.draws if defense.random and self.threat.coins != "fixed" else 1

    def _coins(self, role: int) -> Coins:
        return Coins.of(self.seed, self.ids).fold(role)

    def access(self, defense: Defense) -> Access:
        """What may be asked of this defence: what the threat grants, if the defence can give it."""
        return self.threat.access if grants(defense.grants, self.threat.access) else defense.grants

    def rehearse(self, defense: Defense, x: Tensor, y: Tensor) -> Rehearsal:
        """The defender's full response to x, over the draws it will be judged by if coins are public, else over as many others."""
        self.meter.charge(self.rows, self.draws(defense), 0)
        private = self.simulated_coins().fold(-1)
        answers, became = [], []
        for draw in range(self.draws(defense)):
            tossed = self.defender_coins(draw) if self.threat.known else private.fold(draw)
            ctx = Context(tossed, keep=defense.reads)
            with torch.no_grad():
                adapted = defense.adapt(x, ctx)
                answers.append(refusing(adapted.answer(adapted.trace(x, ctx), ctx), y, adapted.rejects))
            became.append(adapted)
        wrong = torch.stack([fooled(z, y) for z in answers])
        value = torch.stack([margin(z, y) for z in answers]).mean(0)
        return Rehearsal(Reading(value, wrong.float().mean(0) > 0.5), wrong.all(0), tuple(became))


class Adversary(Protocol):
    """A strategy. The referee, not the adversary, says whether its move succeeded."""

    @property
    def name(self) -> str: ...
    @property
    def needs(self) -> Access: ...
    def move(self, turn: Turn, defense: Defense, x: Tensor, y: Tensor) -> Found: ...


@dataclass(frozen=True)
class Direct:
    """One optimiser against one objective."""

    name: str
    attack: Attack[Any]
    loss: Loss = margin
    aim: Aim = last
    rules: Mapping[str, Rule] = field(default_factory=dict)
    estimator: Estimator = field(default_factory=Backprop)
    keep: frozenset[str] | None = None  # names of the views that the aim reads; None: all
    respond: bool = False  # differentiate through the defence's adaptation
    warm: int = 0  # steps of solves inside the defence that go on where this row's last ones ended; 0: all start cold
    stop_at_success: bool = False  # ask no more about a row once it is fooled; for deterministic defences that answer row by row

    @property
    def needs(self) -> Access:
        # An estimator that takes gradients from scores lets a gradient attack play without gradients.
        score_only = self.attack.needs == "gradient" and self.estimator.slope_cost[1] == 0
        return "score" if score_only else self.attack.needs

    def lasting(self, times: int) -> Direct:
        """The same move with `times` as many steps."""
        return self if times == 1 else replace(self, attack=longer(self.attack, times))

    def move(self, turn: Turn, defense: Defense, x: Tensor, y: Tensor) -> Found:
        return self.against([defense], turn, x, y)

    def against(self, pool: Sequence[Defense], turn: Turn, x: Tensor, y: Tensor, over: Over = AVERAGE) -> Found:
        """The move against several defences at once, such as the models a transductive defender has already turned into."""
        for defense in pool:
            if not grants(turn.access(defense), self.needs):
                raise PermissionError(
                    f"{self.name} asks for {self.needs} access, but {turn.access(defense)} access is all there is."
                )
        coupled = any(d.coupled or (self.respond and d.unit != "example") for d in pool)
        notes = Notes.of(len(x), x.device, warm=self.warm)
        goals = [
            self._looked_at(
                Goal(
                    [d],
                    y,
                    self.loss,
                    self.aim,
                    self.rules,
                    self.keep,
                    self.respond,
                    notes if len(pool) == 1 else notes.under(f"model {k}"),
                ),
                turn,
                x,
            )
            for k, d in enumerate(pool)
        ]
        goal = goals[0] if len(pool) == 1 else Pool(tuple(goals), over, coupled)
        objective = (self.loss, self.aim) if len(pool) == 1 else (self.loss, self.aim, over, len(pool))
        # Access was checked above: the oracle grants what the estimator can give.
        estimator = FixedCoins(self.estimator) if turn.threat.coins == "fixed" else self.estimator
        asked = Oracle(goal, estimator, turn.meter, turn.rows, turn.simulated_coins(), self.attack.needs, coupled)
        oracle = Taped(asked, turn.tape, describe(objective), x, turn.threat.space)
        found = self._sent(oracle, x, turn, random=any(d.random for d in pool))
        turn.meter.note(turn.rows, notes.evaluations + notes.products)
        return found

    def _looked_at(self, goal: Goal, turn: Turn, x: Tensor) -> Goal:
        """The goal; `sure` if its defence says that it tosses no coins, or only while it learns, and two looks bear that out.

        They are taken at a point of the set, as the attack will take them. What an attack needs to its last query is not spent.
        """
        (defense,) = goal.defenses
        climbs = self.needs == "gradient"
        due = self.attack.calls * (goal.slope_cost(self.estimator)[0] if climbs else goal.cost(self.estimator))
        tossed = defense.random and (self.respond or defense.memory == "none")
        if tossed or once(self.estimator) == self.estimator or turn.meter.left(turn.rows) < LOOKS + due:
            return goal
        turn.meter.charge(turn.rows, LOOKS, LOOKS * climbs)
        point = turn.threat.space.sample(x, turn.attacker_coins().fold(_LOOKING))
        return goal.looked_at(point, [turn.simulated_coins().fold(k) for k in range(LOOKS)], climbs=climbs)

    def _sent(self, oracle: Taped, x: Tensor, turn: Turn, *, random: bool) -> Found:
        if not self.stop_at_success:
            return self.attack(oracle, x, turn.threat.space, turn.attacker_coins())
        if oracle.coupled or random:
            reason = "rows of this defence answer only together" if oracle.coupled else "a random defence may err once by luck"
            raise ValueError(f"{self.name} stops at the first success, but {reason}. Use stop_at_success=False.")
        early = UntilFooled.of(oracle, x, turn.threat.space)
        return early.settled(self.attack(early, x, turn.threat.space, turn.attacker_coins()))


@dataclass(frozen=True)
class Cascade:
    """Adversaries in turn, the fallen dropped where rows are independent; else the worst whole batch is kept."""

    name: str
    adversaries: tuple[Adversary, ...]

    def __post_init__(self) -> None:
        if not self.adversaries:
            raise ValueError(f"{self.name} combines no adversaries: it would propose the clean images. Give it at least one.")

    @property
    def needs(self) -> Access:
        return max((a.needs for a in self.adversaries), key=("decision", "score", "gradient").index)

    def move(self, turn: Turn, defense: Defense, x: Tensor, y: Tensor) -> Found:
        coupled = defense.unit != "example"
        best, alive = Best(x, coupled), torch.arange(len(x), device=x.device)
        for adversary in self.adversaries:
            seat, there, labels = turn.restrict(alive), defense.restrict(alive), y[alive]
            found = adversary.move(seat, there, x[alive], labels)
            rehearsal = seat.rehearse(there, found.point, labels)
            _offer(best, alive, found.point, rehearsal.reading)
            # Losses of different attacks have different scales: peaks compete by the margin that the defence shows on them. Only
            # rows whose peak is another point pay for it: coins are numbered by what a row has spent, whatever its neighbours do.
            apart = block((found.peak != found.point).flatten(1).any(1).long(), coupled).nonzero()[:, 0]
            if len(apart):
                peak = found.peak[apart]
                again = seat.restrict(apart).rehearse(there.restrict(apart), peak, labels[apart])
                _offer(best, alive[apart], peak, again.reading)
            if not coupled:
                alive = alive[~rehearsal.fallen]
            if not len(alive):
                break
        return best.found


@dataclass(frozen=True)
class Around:
    """Another adversary, sent in another way: under its name, with its needs."""

    adversary: Adversary

    @property
    def name(self) -> str:
        return self.adversary.name

    @property
    def needs(self) -> Access:
        return self.adversary.needs


@dataclass(frozen=True)
class Peak(Around):
    """The adversary's max-value points: what it fooled means nothing where points are scored on another function."""

    def move(self, turn: Turn, defense: Defense, x: Tensor, y: Tensor) -> Found:
        peak = self.adversary.move(turn, defense, x, y).peak
        return Found(peak, peak)


@dataclass(frozen=True)
class Standing(Around):
    """The adversary sent only to rows that the defence answers rightly without it; elsewhere the clean image is proposed.

    Only for a deterministic defence with independent rows: elsewhere a row's clean answer settles nothing.
    """

    def move(self, turn: Turn, defense: Defense, x: Tensor, y: Tensor) -> Found:
        if defense.random or defense.unit != "example":
            raise ValueError("Standing needs a deterministic defence with independent rows; send the adversary itself.")
        alive = (~turn.rehearse(defense, x, y).fallen).nonzero()[:, 0]
        if not len(alive):
            return Found(x, x)
        found = self.adversary.move(turn.restrict(alive), defense.restrict(alive), x[alive], y[alive])
        return Found(x.index_copy(0, alive, found.point), x.index_copy(0, alive, found.peak))


@dataclass(frozen=True)
class CleanCopies(Standing):
    """What the stock AutoAttack returns: the clean image where the attacked function was wrong without it, or was not fooled.

    Fair to the function that was attacked, far too kind to any other on which such points are scored. For comparisons with figures
    that were found in this way, and labelled for it.
    """

    @property
    def name(self) -> str:
        return f"{self.adversary.name} (clean copies)"

    def move(self, turn: Turn, defense: Defense, x: Tensor, y: Tensor) -> Found:
        point = super().move(turn, defense, x, y).point
        fallen = turn.rehearse(defense, point, y).fallen
        returned = torch.where(per_example(fallen, x), point, x)
        return Found(returned, returned)


@dataclass(frozen=True)
class Restarts(Around):
    """The same adversary `times` times, each with coins of its own."""

    times: int = 5

    @property
    def name(self) -> str:
        return f"{self.adversary.name} x{self.times}"

    def move(self, turn: Turn, defense: Defense, x: Tensor, y: Tensor) -> Found:
        return Cascade(self.name, tuple(_Again(self.adversary, k) for k in range(self.times))).move(turn, defense, x, y)


@dataclass(frozen=True)
class _Again(Around):
    salt: int

    def move(self, turn: Turn, defense: Defense, x: Tensor, y: Tensor) -> Found:
        return self.adversary.move(turn.again(self.salt), defense, x, y)


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

    def move(self, turn: Turn, defense: Defense, x: Tensor, y: Tensor) -> Found:
        turn.meter.charge(turn.rows, 1, 0)
        with torch.no_grad():
            answered = defense.respond(x, Context(turn.simulated_coins(), keep=defense.reads))
        logits = refusing(answered, y, defense.rejects)
        order = logits.scatter(1, y[:, None], -torch.inf).argsort(1, descending=True)  # [N, C], y itself last
        count = min(self.targets, logits.shape[1] - 1)
        return Cascade(self.name, tuple(_Toward(self, order[:, k], turn.rows) for k in range(count))).move(turn, defense, x, y)


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

    def move(self, turn: Turn, defense: Defense, x: Tensor, y: Tensor) -> Found:
        at = torch.searchsorted(self.rows, turn.rows).to(self.target.device)
        return replace(self.outer.direct, loss=self.outer.loss(self.target[at])).move(turn, defense, x, y)


@dataclass(frozen=True)
class Transfer:
    """Attack `source`, hand the points to the defence: the max-value points, since a success elsewhere means nothing here."""

    adversary: Adversary
    source: Defense

    @property
    def name(self) -> str:
        return f"transfer {self.adversary.name}"

    @property
    def needs(self) -> Access:
        return "decision"  # of the defence that is finally asked; the source is the attacker's own

    def move(self, turn: Turn, defense: Defense, x: Tensor, y: Tensor) -> Found:  # noqa: ARG002
        own = replace(turn, threat=replace(turn.threat, access="gradient", live=False))
        return Peak(self.adversary).move(own, self.source, x, y)


def _offer(best: Best, rows: Tensor, x: Tensor, reading: Reading) -> None:
    """Offer some rows' points to the best of the whole batch; rows that were not asked about are worth nothing."""
    n = len(best.point)
    value = best.value.new_full((n,), -torch.inf).index_copy(0, rows, reading.value.to(best.value))
    success = torch.zeros(n, dtype=torch.bool, device=rows.device).index_copy(0, rows, reading.success)
    best.offer(best.point.index_copy(0, rows, x), Reading(value, success))
