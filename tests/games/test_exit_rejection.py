"""A rejection counts as correct in an exit game, as it does in `evaluate`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Context, Defense, MultiExit, Trace, View, all_subsets
from saddlepoint.evaluation import FixedPoints, evaluate
from saddlepoint.games.aimer import aimer
from saddlepoint.games.exit_game import columns_of, exit_game
from saddlepoint.games.need import NEED

EXITS = 2
CLASSES = 3
SUBSETS = all_subsets(EXITS)
X = torch.rand(8, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.zeros(8, dtype=torch.long)


class Net(nn.Module):
    """Exits that predict class 1 or reject, with logits [N, CLASSES + 1]."""

    def __init__(self, *, reject: bool) -> None:
        super().__init__()
        self.reject = reject

    def forward(self, x: Tensor) -> list[Tensor]:
        row = torch.tensor([0.0, 1.0, 0.0, 2.0 if self.reject else -2.0], dtype=x.dtype)
        return [row + 0 * x.sum(1, keepdim=True) for _ in range(EXITS)]


class RejectingExits(MultiExit):
    """A multi-exit network that may reject."""

    rejects = True


class RejectingStages(Defense):
    """The same network as a defense with views of other names."""

    rejects = True

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        return Trace(tuple(View(f"stage {k}", logits) for k, logits in enumerate(self.net(x))))


@pytest.mark.parametrize("wrap", [RejectingExits, RejectingStages])
@pytest.mark.parametrize("reject", [True, False])
def test_the_payoff_of_an_exit_game_counts_a_rejection_as_correct(wrap, reject: bool) -> None:
    defense = wrap(Net(reject=reject))
    expected = evaluate(defense, [FixedPoints()], X, Y, threat=Linf(0.1)).accuracy()
    assert expected.tolist() == [[1.0 if reject else 0.0]]
    game = exit_game(defense, X, Y, threat=Linf(0.1), attack=PGD(1))
    assert torch.equal(game.payoff, expected.expand(len(SUBSETS), len(SUBSETS)))
    assert game.outcomes.episodes[0].rejected.shape == (2, len(SUBSETS), len(X))
    assert (game.outcomes.episodes[0].rejected == float(reject)).all()


@pytest.mark.parametrize("reject", [True, False])
def test_need_and_aimer_count_a_rejection_as_correct(reject: bool) -> None:
    defense = RejectingExits(Net(reject=reject))
    game = exit_game(defense, X, Y, threat=Linf(0.1), attack=PGD(1))
    need = NEED.of(defense.net, game, rejects=True)
    trace = need.trace(X, Context.seeded(0, len(X)))
    assert need.expected(trace, Y).tolist() == [float(reject)] * len(X)
    mix = game.equilibrium().defender
    found = aimer(defense, mix, X, Y, threat=Linf(0.1), game=game, attack=PGD(1))
    assert found.aimer.value == found.expected_loss.value == float(reject)


def test_every_column_is_the_mean_of_its_exits_with_the_rejection_column_included() -> None:
    """Exit 1 rejects with a lead of 3 over class 1, exit 2 predicts class 1 with a lead of 1."""

    class Mixed(nn.Module):
        def forward(self, x: Tensor) -> list[Tensor]:
            zero = 0 * x.sum(1, keepdim=True)
            first = torch.tensor([0.0, 1.0, 0.0, 4.0], dtype=x.dtype)
            second = torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=x.dtype)
            return [first + zero, second + zero]

    defense = RejectingExits(Mixed())
    game = exit_game(defense, X, Y, threat=Linf(0.1), attack=PGD(1))
    assert game.payoff[0].tolist() == [1.0, 0.0, 1.0]
    direct = evaluate(
        defense, [FixedPoints()], X, Y, threat=Linf(0.1), answers=columns_of(SUBSETS)
    ).accuracy()
    assert torch.equal(game.payoff[:1], direct)
