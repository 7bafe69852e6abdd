"""Several mixes scored at once are worth what each is worth alone, and any defense with several views can be played."""

from __future__ import annotations

import pytest
import torch
from tests.games.test_exit_game import RADIUS, problem

from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Context, Defense, MultiExit, Numbered, Trace, View
from saddlepoint.evaluation import Direct
from saddlepoint.evaluation.referee import play
from saddlepoint.evaluation.threat import Threat
from saddlepoint.games.aimer import aimer, exposures
from saddlepoint.games.exit_attacks import ASCENTS, ATTACKS, AtExits
from saddlepoint.games.exit_game import Offense, columns_of, exit_game

HALF = 12
ATTACK = PGD(4)


def setting(rows="all"):
    net, x, y = problem(3)
    game = exit_game(
        MultiExit(net), x[:HALF], y[:HALF], threat=Linf(RADIUS), attack=ATTACK, rows=rows
    )
    answers = columns_of(game.subsets)

    def send(adversaries):
        return [
            play(MultiExit(net), a, x[HALF:], y[HALF:], Threat(Linf(RADIUS)), answers=answers)
            for a in adversaries
        ]

    offense = Offense(("exit/1", "exit/2", "exit/3"), ATTACK)
    return net, x[HALF:], y[HALF:], game, offense, send


@pytest.mark.parametrize("rows", ["all", "double-oracle"])
def test_one_mix_alone_is_worth_what_aimer_says(rows):
    net, x, y, game, offense, send = setting(rows)
    mix = game.equilibrium().defender
    [found] = exposures(game, {"need": mix}, offense, send).exposures.values()
    known = aimer(MultiExit(net), mix, x, y, threat=Linf(RADIUS), game=game, attack=ATTACK)
    for name in ("clean", "restricted", "aimer", "expected_loss", "per_image"):
        assert getattr(found, name) == pytest.approx(getattr(known, name), abs=1e-12), name
    torch.testing.assert_close(found.correct, known.correct)
    assert found.rows[found.own] == "expected loss of need"


def test_every_mix_faces_the_attacks_on_the_others_too():
    _, _, _, game, offense, send = setting()
    mixes = {
        "need": game.equilibrium().defender,
        "last": game.one_hot((3,)),
        "first": game.one_hot((1,)),
    }
    together = exposures(game, mixes, offense, send)
    assert [e.adversary for e in together.episodes][-3:] == [
        f"expected loss of {name}" for name in mixes
    ]
    for name, mix in mixes.items():
        [alone] = exposures(game, {name: mix}, offense, send).exposures.values()
        found = together.exposures[name]
        assert (found.aimer, found.expected_loss, found.clean) == (
            alone.aimer,
            alone.expected_loss,
            alone.clean,
        )
        assert found.per_image.value <= alone.per_image.value
        assert float(found.response.sum()) == pytest.approx(1)


class Stages(Defense):
    """The exits of a net under other names."""

    def __init__(self, net) -> None:
        self.net = net

    def trace(self, x, ctx):
        return Trace(tuple(View(f"stage {k}", z) for k, z in enumerate(self.net(x))))


def at_mean(subset):
    """Aims at one vector of logits, as AutoAttack does."""
    return AtExits(Direct("pgd", ATTACK), subset)


@pytest.mark.parametrize("craft", [ATTACKS["fgsm"], at_mean], ids=["fgsm", "of mean logits"])
def test_views_by_any_name_are_exits(craft):
    net, x, y = problem(2, n=6)
    settings = {"threat": Linf(RADIUS), "craft": craft}
    games = [exit_game(defense, x, y, **settings) for defense in (Stages(net), MultiExit(net))]
    assert torch.equal(games[0].correct, games[1].correct)
    assert Numbered(Stages(net)).trace(x, Context.seeded(0, len(x))).names == ("exit/1", "exit/2")


def test_every_attack_has_an_ascent():
    assert list(ATTACKS) == list(ASCENTS)
