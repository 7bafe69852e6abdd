"""Several mixes scored at once are worth what each is worth alone, and any defence with several views can be played."""

from __future__ import annotations

import pytest
import torch
from test_exit_game import RADIUS, problem

from saddlepoint.attack.pgd import PGD
from saddlepoint.attack.space import Linf
from saddlepoint.defense import Context, Defense, MultiExit, Numbered, Trace, View
from saddlepoint.game import Direct
from saddlepoint.game.aimer import aimer, exposures
from saddlepoint.game.exits import Offence, columns_of, exit_game
from saddlepoint.game.partial import ASCENTS, ATTACKS, AtExits
from saddlepoint.game.play import play
from saddlepoint.game.threat import Threat

HALF, ATTACK = 12, PGD(4)


def setting(rows="all"):
    net, x, y = problem(3)
    game = exit_game(MultiExit(net), x[:HALF], y[:HALF], threat=Linf(RADIUS), attack=ATTACK, rows=rows)
    answers = columns_of(game.subsets)

    def send(adversaries):
        return [play(MultiExit(net), a, x[HALF:], y[HALF:], Threat(Linf(RADIUS)), answers=answers) for a in adversaries]

    offence = Offence(("exit/1", "exit/2", "exit/3"), ATTACK)
    return net, x[HALF:], y[HALF:], game, offence, send


@pytest.mark.parametrize("rows", ["all", "double-oracle"])
def test_one_mix_alone_is_worth_what_aimer_says(rows):
    net, x, y, game, offence, send = setting(rows)
    mix = game.equilibrium().defender
    [found] = exposures(game, {"need": mix}, offence, send).exposures.values()
    known = aimer(MultiExit(net), mix, x, y, threat=Linf(RADIUS), game=game, attack=ATTACK)
    for name in ("clean", "restricted", "aimer", "expected_loss", "per_image"):
        assert getattr(found, name) == pytest.approx(getattr(known, name), abs=1e-12), name
    torch.testing.assert_close(found.correct, known.correct)
    assert found.rows[found.own] == "expected loss of need"


def test_every_mix_faces_the_attacks_on_the_others_too():
    _, _, _, game, offence, send = setting()
    mixes = {"need": game.equilibrium().defender, "last": game.one_hot((3,)), "first": game.one_hot((1,))}
    together = exposures(game, mixes, offence, send)
    assert [e.adversary for e in together.episodes][-3:] == [f"expected loss of {name}" for name in mixes]
    for name, mix in mixes.items():
        [alone] = exposures(game, {name: mix}, offence, send).exposures.values()
        found = together.exposures[name]
        assert (found.aimer, found.expected_loss, found.clean) == (alone.aimer, alone.expected_loss, alone.clean)
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
