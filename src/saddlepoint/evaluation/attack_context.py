"""What an adversary sees besides the defense: threat model, pass counter, ids and random keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from saddlepoint.attacks.history import History
from saddlepoint.attacks.losses import margin, merge_rejection, misclassified
from saddlepoint.attacks.oracle import Meter, grants
from saddlepoint.defenses import Access, Context, Defense
from saddlepoint.evaluation.threat import Threat
from saddlepoint.gradients import Evaluation
from saddlepoint.rng import Keys

# Each role draws from its own random keys.
_ATTACKER = 1
_DEFENDER = 2
_SIMULATION = 3


class Simulation(NamedTuple):
    """What an adversary learns when it simulates the defender's response."""

    evaluation: Evaluation  # mean margin over the draws; success where most draws misclassify
    always_misclassified: Tensor  # [N] bool: every draw misclassifies
    adapted: tuple[Defense, ...] = ()  # the adapted defense of each draw


@dataclass(frozen=True)
class AttackContext:
    """One batch under one threat model, as an adversary sees it."""

    threat: Threat
    meter: Meter
    rows: Tensor  # [N] positions in the metered batch
    ids: Tensor  # [N] example ids, which select the random keys
    seed: int
    history: History  # evaluations of the oracles of this batch
    attempt: int = 0  # restarts use the same context with other attacker keys
    defender_seed: int | None = None  # None: `seed`; the defender has its own keys either way
    # Most rows per call of the defense, if a row occurs several times or rows are independent.
    batch_size: int = 1

    @classmethod
    def open(
        cls,
        threat: Threat,
        ids: Tensor,
        seed: int,
        defender_seed: int | None = None,
        batch_size: int | None = None,
    ) -> AttackContext:
        """The context of a new batch, with an empty pass counter and history.

        Args:
            threat: the threat model.
            ids: example ids, [N].
            seed: seed of the attacker's random keys.
            defender_seed: seed of the defender's random keys; default None, `seed`.
            batch_size: most rows per call; default None, N. Only independent rows may be more.
        """
        return cls(
            threat,
            Meter.of(len(ids), threat.queries),
            torch.arange(len(ids)),
            ids,
            seed,
            History(len(ids)),
            defender_seed=defender_seed,
            batch_size=batch_size or len(ids),
        )

    def restrict(self, rows: Tensor) -> AttackContext:
        """The context of some rows, with the same pass counter."""
        return replace(self, rows=self.rows[rows.to(self.rows.device)], ids=self.ids[rows])

    @property
    def exceeds_a_call(self) -> bool:
        """Whether there are more rows than fit into one call of the defense."""
        return len(self.rows) > self.batch_size

    @property
    def parts(self) -> Sequence[Tensor]:
        """The rows of each call of the defense, [M] each, about as many in each."""
        rows = torch.arange(len(self.rows), device=self.ids.device)
        return torch.tensor_split(rows, math.ceil(len(rows) / self.batch_size))

    def again(self, salt: int) -> AttackContext:
        """The same context with other attacker keys; salt 0 does not change the first attempt."""
        return replace(self, attempt=self.attempt * 1009 + salt)

    def attacker_keys(self) -> Keys:
        """The keys from which an attack draws its starts and directions."""
        return self._keys(_ATTACKER).fold_in(self.attempt)

    def defender_keys(self, draw: int) -> Keys:
        """The keys with which the defender computes its answer number `draw`."""
        seed = self.seed if self.defender_seed is None else self.defender_seed
        if self.threat.randomness == "fixed":
            same = torch.zeros_like(self.ids)
            return Keys.of(seed, same).fold_in(_DEFENDER).as_root()
        return Keys.of(seed, self.ids).fold_in(_DEFENDER).fold_in(draw).as_root()

    def simulated_keys(self) -> Keys:
        """The keys with which the attacker simulates the defender."""
        if self.threat.randomness_known:
            return self.defender_keys(0)
        return self._keys(_SIMULATION).fold_in(self.attempt).as_root()

    def draws(self, defense: Defense) -> int:
        """The draws over which this defense is evaluated: one if it is deterministic."""
        return self.threat.draws if defense.random and self.threat.randomness != "fixed" else 1

    def _keys(self, role: int) -> Keys:
        return Keys.of(self.seed, self.ids).fold_in(role)

    def access(self, defense: Defense) -> Access:
        """The access to this defense: what the threat model grants, as far as it is available."""
        granted = self.threat.access
        return granted if grants(defense.grants, granted) else defense.grants

    def simulate(self, defense: Defense, x: Tensor, y: Tensor) -> Simulation:
        """The defender's full response to `x`, which costs one forward pass per draw.

        With public randomness these are the draws by which the defense is evaluated, else as many
        other draws.
        """
        if self.exceeds_a_call:
            found = [
                self.restrict(rows).simulate(defense.restrict(rows), x[rows], y[rows])
                for rows in self.parts
            ]
            values, successes = zip(*(part.evaluation for part in found), strict=True)
            always = torch.cat([part.always_misclassified for part in found])
            joined = Evaluation(torch.cat(values), torch.cat(successes))
            return Simulation(joined, always, (defense,) * len(found[0].adapted))
        self.meter.charge(self.rows, self.draws(defense), 0)
        private = self.simulated_keys().fold_in(-1)
        answers = []
        models = []
        for draw in range(self.draws(defense)):
            known = self.threat.randomness_known
            keys = self.defender_keys(draw) if known else private.fold_in(draw)
            ctx = Context(keys, keep=defense.reads)
            with torch.no_grad():
                adapted = defense.adapt(x, ctx)
                output = adapted.answer(adapted.trace(x, ctx), ctx)
                answers.append(merge_rejection(output, y, adapted.rejects))
            models.append(adapted)
        wrong = torch.stack([misclassified(logits, y) for logits in answers])
        value = torch.stack([margin(logits, y) for logits in answers]).mean(0)
        mostly = wrong.float().mean(0) > 0.5
        return Simulation(Evaluation(value, mostly), wrong.all(0), tuple(models))
