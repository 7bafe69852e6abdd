"""The outcomes of an exit game: payoff matrix, equilibrium, and mismatch of attack and defense."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from saddlepoint.defenses import Subset, membership, subset_name
from saddlepoint.evaluation.bootstrap import Estimate, bootstrap
from saddlepoint.evaluation.episode import Episode
from saddlepoint.evaluation.outcomes import Outcomes
from saddlepoint.games.matrix import (
    Equilibrium,
    PerExample,
    as_distribution,
    best_response,
    solve,
    solve_per_example,
)
from saddlepoint.phrases import count


@dataclass(frozen=True, repr=False)
class ExitGame:
    """The game in which the attacker attacks a subset of exits and the defender answers with one.

    Rows are attacks, columns are subsets of exits, and the payoff is the accuracy of the defender,
    M^d (Xu et al., Eq. 5). The value is that of a restricted game: the attacker has only these rows
    and uses one of them for all examples. `per_example` lets it choose a row per example.

    Args:
        subsets: the columns, [D].
        targets: the exits that each row attacks, [A]; None: the expected loss of a mixed strategy.
        outcomes: outcomes of all rows, columns and examples.
        exits: number of exits of the network.
        exploitability: of the double oracle: the most by which another attack is expected to lower
            the accuracy of the equilibrium strategy; None: all rows were played.
        clean: whether each column is correct on the clean images, [D, N]; None: not evaluated.
    """

    subsets: tuple[Subset, ...]
    targets: tuple[Subset | None, ...]
    outcomes: Outcomes
    exits: int
    exploitability: float | None = None
    clean: Tensor | None = None

    def __repr__(self) -> str:
        rows = count(len(self.targets), "attack")
        columns = count(len(self.subsets), "set of exits", "sets of exits")
        return (
            f"<ExitGame of {count(self.exits, 'exit')}: {rows} x {columns}, "
            f"{count(self.correct.shape[-1], 'image')}>"
        )

    @classmethod
    def of(
        cls,
        subsets: tuple[Subset, ...],
        targets: Sequence[Subset | None],
        episodes: Sequence[Episode],
        exits: int,
        clean: Episode | None = None,
    ) -> ExitGame:
        """The game from the episodes of its rows, and of the clean images."""
        outcomes = Outcomes.of(episodes, tuple(map(subset_name, subsets)), "example")
        clean_correct = None if clean is None else clean.correct
        return cls(subsets, tuple(targets), outcomes, exits, clean=clean_correct)

    @property
    def payoff(self) -> Tensor:
        """The accuracy of each column under each row, [A, D]."""
        return self.outcomes.accuracy()

    @property
    def correct(self) -> Tensor:
        """Whether each output is correct, [A, D, N]."""
        return self.outcomes.correct

    def accuracy(self, strategy: Tensor) -> Tensor:
        """The exact expected accuracy, [A], of a mixed strategy, [D], under each row."""
        distribution = as_distribution(strategy, len(self.subsets))
        return self.payoff @ distribution.to(self.payoff.device)

    def best_response(self, strategy: Tensor) -> Tensor:
        """AIMER's best response, [A], to a mixed strategy, [D] (Xu et al., Eq. 6).

        It is uniform over the rows under which the strategy is least accurate.
        """
        return best_response(self.payoff, strategy)

    def equilibrium(self) -> Equilibrium:
        """The equilibrium, in which the defender plays NEED (Xu et al., Sec. 3.4).

        Of several optimal strategies it is the one with the highest clean accuracy, then with the
        highest mean accuracy over the rows, then with the fewest subsets.
        """
        mean_row = self.payoff.mean(0)
        if self.clean is None:
            return solve(self.payoff, [mean_row])
        return solve(self.payoff, [self.clean.double().mean(-1), mean_row])

    def value(self) -> float:
        """The accuracy that the defender guarantees at equilibrium, against all rows."""
        return solve(self.payoff).value

    def partial_value(self) -> float:
        """The value against the partial attacks alone, the attacker's actions in Xu et al.

        It differs from `value` if the double oracle added attacks on an expected loss, which are
        not partial attacks. Only this value can be compared with that of the full game.
        """
        partial = [a for a, target in enumerate(self.targets) if target is not None]
        return solve(self.payoff[partial]).value

    def per_example(self) -> PerExample:
        """The best mixed strategy against an attacker that chooses a row per example."""
        return solve_per_example(self.correct)

    def mismatch(self, attacker: Tensor, defender: Tensor) -> float:
        """The mismatch rate of two mixed strategies.

        R_mis = sum_ij s_i t_j (1 - |E_i n E_j| / |E_i u E_j|) (Xu et al., Eq. 10-11).

        Args:
            attacker: probabilities of the rows, [A].
            defender: probabilities of the columns, [D].

        Raises:
            ValueError: the attacker plays a row that attacks an expected loss.
        """
        rows = as_distribution(attacker, len(self.targets))
        columns = as_distribution(defender, len(self.subsets))
        if any(t is None and p > 0 for t, p in zip(self.targets, rows.tolist(), strict=True)):
            raise ValueError(
                "a row that attacks an expected loss has no subset of exits, "
                "so its mismatch is not defined."
            )
        targets = [target or self.subsets[0] for target in self.targets]
        return float(rows @ jaccard_distances(targets, self.subsets, self.exits) @ columns)

    def one_hot(self, subset: Subset) -> Tensor:
        """The strategy, [D], that always answers with this subset."""
        if subset not in self.subsets:
            columns = ", ".join(map(subset_name, self.subsets))
            raise ValueError(f"{subset} is not a column of this game, which has {columns}.")
        index = torch.tensor(self.subsets.index(subset))
        return torch.nn.functional.one_hot(index, len(self.subsets)).double()

    def beaten_matches(self) -> int:
        """The columns in which another row is stronger than the row that attacks the same exits.

        Assumption 3.5 of Xu et al. says that there are none.
        """
        count = 0
        for d, subset in enumerate(self.subsets):
            if subset in self.targets:
                column = self.payoff[:, d]
                count += bool(column.amin() < column[self.targets.index(subset)])
        return count

    def interval(
        self, statistic: Callable[[ExitGame], float], *, draws: int = 200, seed: int = 0
    ) -> Estimate:
        """A number of the game with its bootstrap interval over examples.

        Args:
            statistic: for example `ExitGame.value`.
            draws: bootstrap samples.
            seed: seed of the samples.
        """
        examples = self.correct.shape[-1]
        return bootstrap(lambda rows: statistic(self.on(rows)), examples, draws=draws, seed=seed)

    def on(self, examples: Tensor) -> ExitGame:
        """The same game on some of its examples, given by their indices."""
        outcomes = self.outcomes
        correct = outcomes.correct[..., examples]
        shared = outcomes.chosen is outcomes.correct
        part = Outcomes(
            outcomes.adversaries,
            outcomes.answers,
            correct,
            correct if shared else outcomes.chosen[..., examples],
            outcomes.batch[examples],
            outcomes.unit,
        )
        clean = None if self.clean is None else self.clean[:, examples]
        return replace(self, outcomes=part, clean=clean)


def jaccard_distances(rows: Sequence[Subset], columns: Sequence[Subset], exits: int) -> Tensor:
    """The mismatch rates r_mis = 1 - |E_a n E_d| / |E_a u E_d|, [A, D] (Xu et al., Eq. 10)."""
    a = membership(rows, exits).double()
    d = membership(columns, exits).double()
    common = a @ d.T
    return 1 - common / (a.sum(1)[:, None] + d.sum(1)[None] - common)
