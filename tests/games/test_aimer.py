"""Several strategies evaluated at once, and games on any defense with several views."""

from __future__ import annotations

import pytest
import torch
from tests.games.test_exit_game import RADIUS, problem

from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Context, Defense, MultiExit, Trace, View
from saddlepoint.evaluation import Direct
from saddlepoint.evaluation.referee import play
from saddlepoint.evaluation.threat import Threat
from saddlepoint.games.aimer import aimer
from saddlepoint.games.exit_adversaries import OnExits
from saddlepoint.games.exit_attacks import ATTACKS, OPTIMIZERS, AttackSettings
from saddlepoint.games.exit_game import columns_of, exit_game
from saddlepoint.games.exit_views import NumberedExits
from saddlepoint.games.strategy_robustness import evaluate_strategies

HALF = 12
ATTACK = PGD(4)


def setting(rows="all"):
    net, x, y = problem(3)
    game = exit_game(
        MultiExit(net), x[:HALF], y[:HALF], threat=Linf(RADIUS), attack=ATTACK, rows=rows
    )
    answers = columns_of(game.subsets)

    def run_adversaries(adversaries):
        return [
            play(MultiExit(net), a, x[HALF:], y[HALF:], Threat(Linf(RADIUS)), answers=answers)
            for a in adversaries
        ]

    settings = AttackSettings(("exit/1", "exit/2", "exit/3"), ATTACK)
    return net, x[HALF:], y[HALF:], game, settings, run_adversaries


@pytest.mark.parametrize("rows", ["all", "double-oracle"])
def test_one_strategy_has_the_accuracy_that_aimer_gives(rows):
    net, x, y, game, settings, run_adversaries = setting(rows)
    mix = game.equilibrium().defender
    evaluations = evaluate_strategies(game, {"need": mix}, settings, run_adversaries)
    [found] = evaluations.robustness.values()
    known = aimer(MultiExit(net), mix, x, y, threat=Linf(RADIUS), game=game, attack=ATTACK)
    for name in ("clean", "restricted", "aimer", "expected_loss", "per_image"):
        assert getattr(found, name) == pytest.approx(getattr(known, name), abs=1e-12), name
    torch.testing.assert_close(found.correct, known.correct)
    assert found.rows[found.own_row] == "expected loss of need"


def test_every_strategy_is_evaluated_under_the_attacks_on_the_others_too():
    _, _, _, game, settings, run_adversaries = setting()
    mixes = {
        "need": game.equilibrium().defender,
        "last": game.one_hot((3,)),
        "first": game.one_hot((1,)),
    }
    together = evaluate_strategies(game, mixes, settings, run_adversaries)
    assert [e.adversary for e in together.episodes][-3:] == [
        f"expected loss of {name}" for name in mixes
    ]
    for name, mix in mixes.items():
        [alone] = evaluate_strategies(
            game, {name: mix}, settings, run_adversaries
        ).robustness.values()
        found = together.robustness[name]
        assert (found.aimer, found.expected_loss, found.clean) == (
            alone.aimer,
            alone.expected_loss,
            alone.clean,
        )
        assert found.per_image.value <= alone.per_image.value
        assert float(found.response.sum()) == pytest.approx(1)


class Stages(Defense):
    """The exits of a network as views with other names."""

    def __init__(self, net) -> None:
        self.net = net

    def trace(self, x, ctx):
        return Trace(tuple(View(f"stage {k}", z) for k, z in enumerate(self.net(x))))


class LazyStages(Stages):
    """The same, but only views that are kept are computed, and always the last one."""

    def trace(self, x, ctx):
        views = super().trace(x, ctx).views
        return Trace(tuple(v for v in views if ctx.keeps(v.name) or v is views[-1]))


def on_mean(subset):
    """Attacks one logit vector, as AutoAttack does."""
    return OnExits(Direct("pgd", ATTACK), subset)


@pytest.mark.parametrize("exit_attack", [ATTACKS["fgsm"], on_mean], ids=["fgsm", "mean logits"])
@pytest.mark.parametrize("kind", [Stages, LazyStages])
def test_views_with_any_names_are_exits(exit_attack, kind):
    net, x, y = problem(2, n=6)
    settings = {"threat": Linf(RADIUS), "exit_attack": exit_attack}
    games = [exit_game(defense, x, y, **settings) for defense in (kind(net), MultiExit(net))]
    assert torch.equal(games[0].correct, games[1].correct)
    ctx = Context.seeded(0, len(x))
    assert NumberedExits(kind(net)).trace(x, ctx).names == ("exit/1", "exit/2")


def test_every_attack_has_an_optimizer():
    assert list(ATTACKS) == list(OPTIMIZERS)
