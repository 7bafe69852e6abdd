"""Attacks on exits: which exits are climbed, which points are handed over, and what is left with one exit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.problems import Affine, Net, Relu, normal, smooth, support, uniform
from torch import Tensor, nn

from saddlepoint.attacks.aims import loss_of_mean
from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.losses import cross_entropy, margin
from saddlepoint.attacks.pgd import FGSM, PGD
from saddlepoint.attacks.spaces import Linf, Radii
from saddlepoint.attacks.vmi import VMI
from saddlepoint.defenses import (
    Confident,
    Context,
    Mix,
    MultiExit,
    Plain,
    Static,
    exit_logits,
    exits_mean,
)
from saddlepoint.evaluation import (
    Adversary,
    AttackContext,
    Cascade,
    CleanCopies,
    Direct,
    MaxLossPoint,
    Threat,
    autoattack,
    evaluate,
)
from saddlepoint.evaluation.referee import play
from saddlepoint.games.exit_attacks import (
    ATTACKS,
    Alone,
    AtExits,
    MaxAverage,
    average,
    expectation,
    lafeat,
    max_average,
    partial,
    stock_autoattack,
    through,
)

L = 3
N = 24
D = 6
C = 4
SPACE = Linf(0.15)
X = uniform(0, N, D)


class Module(nn.Module):
    """A function as a module."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Heads(nn.Module):
    """Exits that share nothing: one function each."""

    def __init__(self, *nets: Net) -> None:
        super().__init__()
        self.nets = nets

    def forward(self, x: Tensor) -> list[Tensor]:
        return [net(x) for net in self.nets]


NETS = tuple(smooth(10 * k) for k in range(L))
EXITS = MultiExit(Heads(*NETS))
Y = exit_logits(EXITS, X).mean(0).argmax(1)
PGD10 = PGD(10)


def moved(
    adversary: Adversary, defense: MultiExit | Plain = EXITS, seed: int = 0, n: int = N
) -> AttackResult:
    return adversary.move(
        AttackContext.open(Threat(SPACE), torch.arange(n), seed), defense, X[:n], Y[:n]
    )


def loss_of(subset: tuple[int, ...], x: Tensor) -> Tensor:
    """[N] the loss averaged over these exits."""
    return cross_entropy(exit_logits(EXITS, x), Y[: len(x)])[[k - 1 for k in subset]].mean(0)


# ---- partial, single, average ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("attack", [PGD10, FGSM(), VMI(4, samples=2)], ids=["pgd", "fgsm", "vmi"])
def test_a_partial_attack_on_one_exit_is_the_attack_on_that_network(
    k: int, attack: PGD | VMI
) -> None:
    single = MaxLossPoint(Direct("single", attack, cross_entropy))
    assert torch.equal(
        moved(partial((k,), attack)).point, moved(single, Plain(Module(NETS[k - 1]))).point
    )


def test_a_partial_attack_on_all_exits_is_the_average_attack() -> None:
    assert torch.equal(moved(partial((1, 2, 3), PGD10)).point, moved(average(PGD10)).point)


def test_on_one_exit_the_loss_of_the_mean_is_the_mean_of_losses() -> None:
    assert torch.equal(
        moved(partial((2,), PGD10, aim=loss_of_mean)).point, moved(partial((2,), PGD10)).point
    )


def test_each_subset_is_hit_hardest_by_the_attack_on_it() -> None:
    """Not for every example, since ascent is local; on average over 24 each attack has the highest loss on its own exits."""
    subsets = ((1,), (2,), (3,), (1, 2), (1, 2, 3))
    points = [moved(partial(subset, PGD(40))).point for subset in subsets]
    table = torch.stack(
        [torch.stack([loss_of(subset, x).mean() for subset in subsets]) for x in points]
    )  # [A, D]
    assert torch.equal(table.argmax(0), torch.arange(len(subsets)))


def test_the_highest_point_is_handed_over_and_not_what_fools_the_defender() -> None:
    """The defender answers with exit 3 and is wrong on the clean images of every other row: exit 1 is climbed all the same."""
    found = moved(partial((1,), PGD10), MultiExit(Heads(*NETS), Static((3,))))
    assert torch.equal(found.point, found.max_loss_point)
    again = moved(partial((1,), PGD10), MultiExit(Heads(*NETS), Mix(((2,), (3,)), (0.5, 0.5))))
    assert torch.equal(
        found.point, again.point
    )  # nor does it matter who answers, or by which coins


def test_exits_that_are_not_attacked_pay_no_backward_pass() -> None:
    class Blocked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, z: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
            return z.clone()

        @staticmethod
        def backward(ctx, grad: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
            raise AssertionError("an exit that nobody attacks was differentiated")

    net = Heads(NETS[0], lambda x: Blocked.apply(NETS[1](x)), NETS[2])
    for adversary in (partial((1, 3), PGD(3)), AtExits(Direct("pgd", PGD(3)), (1, 3))):
        moved(adversary, MultiExit(net))


# ---- max-average -------------------------------------------------------------------------------------------------------------


def test_max_average_loses_at_least_as_much_as_each_candidate_on_every_example() -> None:
    everything = max_average(lambda s: partial(s, PGD10), L)
    singles = [moved(partial((k,), PGD10)).point for k in (1, 2, 3)]
    best = moved(everything).point
    losses = torch.stack([loss_of((1, 2, 3), x) for x in singles])  # [L, N]
    torch.testing.assert_close(loss_of((1, 2, 3), best), losses.amax(0), rtol=0, atol=0)
    assert len(losses.argmax(0).unique()) == L  # every exit is chosen somewhere
    assert torch.equal(best, torch.stack(singles)[losses.argmax(0), torch.arange(N)])


def test_max_average_pays_for_its_candidates_and_one_look_at_each() -> None:
    context = AttackContext.open(Threat(SPACE), torch.arange(N), 0)
    max_average(lambda s: partial(s, PGD10), L).move(context, EXITS, X, Y)
    assert (context.meter.forward == L * (PGD10.calls + 1)).all()


# ---- defenders who draw or choose ----------------------------------------------------------------------------------------------


def test_against_linear_exits_the_expected_margin_is_brought_to_its_exact_maximum() -> None:
    """Margins of linear exits are linear, and so is their expectation: its maximum over the ball is a support function."""
    weights = normal(7, L, D)
    mix = Mix(((1,), (2, 3)), (0.6, 0.4))
    defense = MultiExit(Heads(*(Affine.binary(w) for w in weights)))
    y = torch.zeros(N, dtype=torch.long)
    s = torch.tensor([0.6, 0.2, 0.2], dtype=torch.float64)
    slope = -(s @ weights).expand(N, D)  # the margin of label 0 is -w x
    exact = (slope * X).sum(1) + support(slope, X, SPACE)

    def value(adversary: Adversary) -> Tensor:
        found = adversary.move(AttackContext.open(Threat(SPACE), torch.arange(N), 0), defense, X, y)
        return margin(exit_logits(defense, found.point), y).T @ s

    torch.testing.assert_close(
        value(expectation(mix, L, PGD(40), loss=margin)), exact, rtol=0, atol=1e-12
    )
    for rival in (
        partial((1,), PGD(40), loss=margin),
        partial((2, 3), PGD(40), loss=margin),
        average(PGD(40), loss=margin),
    ):
        assert (value(rival) < exact - 1e-3).all()


def test_expecting_one_subset_is_the_attack_on_its_mean() -> None:
    certain = expectation(Mix(((1, 3),), (1.0,)), L, PGD10)
    torch.testing.assert_close(
        moved(certain).point,
        moved(partial((1, 3), PGD10, aim=loss_of_mean)).point,
        rtol=0,
        atol=1e-12,
    )


def test_a_gate_that_is_never_sure_is_attacked_at_its_last_exit() -> None:
    never = Confident((2.0, 2.0))
    assert torch.equal(
        moved(through(never, PGD10), MultiExit(Heads(*NETS), never)).max_loss_point,
        moved(partial((3,), PGD10), EXITS).max_loss_point,
    )


def test_following_the_gate_beats_every_fixed_exit() -> None:
    """Against 200 rows gated at equal shares: robust accuracy is lowest for the attack that follows, here by more than 5 points."""
    x = uniform(5, 200, D)
    logits = exit_logits(EXITS, x)
    gate = Confident.calibrated(logits)
    defense = MultiExit(Heads(*NETS), gate)
    y = defense.respond(x, Context.seeded(0, 200)).argmax(1)
    fixed = [partial((k,), PGD(20)) for k in (1, 2, 3)]
    accuracy = evaluate(
        defense, [through(gate, PGD(20)), average(PGD(20)), *fixed], x, y, threat=Linf(0.03)
    ).accuracy()[:, 0]
    assert accuracy[0] < accuracy[1:].amin() - 0.05


# ---- one vector of logits --------------------------------------------------------------------------------------------------------

SMALL = Cascade("autoattack", autoattack(steps=5, targets=2, queries=10))


def test_an_attack_at_exits_is_that_on_a_network_that_is_their_mean() -> None:
    mean = Plain(Module(lambda x: torch.stack([NETS[0](x), NETS[2](x)]).mean(0)))
    assert torch.equal(moved(AtExits(SMALL, (1, 3))).point, moved(MaxLossPoint(SMALL), mean).point)
    column = MultiExit(Heads(*NETS), Static((1, 3)))
    ctx = Context.seeded(0, N)
    torch.testing.assert_close(
        Alone(EXITS, (1, 3)).respond(X, ctx), column.respond(X, ctx), rtol=1e-13, atol=1e-14
    )


def test_with_one_exit_everything_is_the_plain_attack() -> None:
    plain = Plain(Module(NETS[0]))
    alone = MultiExit(Heads(NETS[0]))
    pgd = moved(MaxLossPoint(Direct("pgd", PGD10, cross_entropy)), plain).point
    one = Confident(())
    same = (
        partial((1,), PGD10), partial((1,), PGD10, aim=loss_of_mean), average(PGD10), max_average(lambda s: partial(s, PGD10), 1),
        expectation(Mix(((1,),), (1.0,)), 1, PGD10), MaxLossPoint(through(one, PGD10)),
    )  # fmt: skip
    for adversary in same:
        assert torch.equal(moved(adversary, alone).point, pgd), adversary.name
    assert torch.equal(
        moved(AtExits(SMALL, (1,)), alone).point, moved(MaxLossPoint(SMALL), plain).point
    )
    twenty = moved(
        MaxLossPoint(Direct("pgd", PGD(20, SPACE.radius / 4), cross_entropy)), plain
    ).point
    assert torch.equal(moved(ATTACKS["pgd-20"]((1,)), alone).point, twenty)


def test_stock_autoattack_hands_over_clean_images_where_it_has_nothing_to_show() -> None:
    """Wrong from the start, within reach on either side, out of reach: the first and the last are clean copies."""
    line = Affine.binary(torch.ones(D, dtype=torch.float64))
    net = Affine(
        line.weight, -0.5 * line.weight.sum(1)
    )  # the boundary is the plane through the middle of the box
    x = 0.5 + torch.tensor([-0.1, 0.02, -0.02, -0.45], dtype=torch.float64)[:, None].expand(4, D)
    y = net(x).argmax(1)
    y[0] = 1 - y[0]
    defense = MultiExit(Heads(net, net))
    attack = Cascade("fgsm", (Direct("fgsm", FGSM()),))
    stock, sound = (
        play(defense, AtExits(sent, (1,)), x, y, Threat(SPACE))
        for sent in (CleanCopies(attack), attack)
    )
    assert stock.adversary == "fgsm (clean copies) at 1"
    assert stock.copies.tolist() == [True, False, False, True]
    assert not sound.copies.any()
    assert stock.correct.tolist() == sound.correct.tolist() == [[0, 0, 0, 1]]


def test_clean_copies_leave_other_exits_unharmed() -> None:
    """Scored on the attacked exits both agree; scored on the others the stock attack leaves more standing."""
    sent = Cascade("apgd", autoattack(steps=20)[:1])
    answers = {"1": exits_mean((1,)), "3": exits_mean((3,))}
    both = (AtExits(sent, (1,)), AtExits(CleanCopies(sent), (1,)))
    twins = MultiExit(Heads(NETS[0], NETS[1], lambda x: NETS[0](x) + 0.15 * NETS[2](x)))
    y = twins.respond(X, Context.seeded(0, N)).argmax(1)
    sound, stock = evaluate(twins, both, X, y, threat=Linf(0.05), answers=answers).accuracy()
    assert sound[0] == stock[0]
    assert sound[1] < stock[1]


# ---- the paper's attacks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "autoattack"])
def test_the_papers_attacks_fool_within_the_ball_and_are_named_for_their_exits(name: str) -> None:
    adversary = ATTACKS[name]((1, 3))
    assert adversary.name == f"{name} at 1+3"
    episode = play(EXITS, adversary, X, Y, Threat(SPACE))
    assert not episode.copies.any()
    assert (loss_of((1, 3), episode.points) > loss_of((1, 3), X)).all()


def test_two_draws_of_nothing_random_are_one() -> None:
    assert torch.equal(
        moved(ATTACKS["eot-pgd-20"]((1, 2))).point, moved(ATTACKS["pgd-20"]((1, 2))).point
    )


def test_steps_are_a_quarter_of_any_radius() -> None:
    for attack, plain in (
        (PGD(7, Radii(0.25)), PGD(7, 0.15 / 4)),
        (VMI(4, Radii(0.25)), VMI(4, 0.15 / 4)),
    ):
        assert torch.equal(moved(Direct("a", attack)).point, moved(Direct("b", plain)).point)
    paper = ATTACKS["pgd-20"]((1,))
    assert isinstance(paper, MaxLossPoint)
    assert Linf(8 / 255).length(paper.adversary.attack.step_size) == pytest.approx(
        2 / 255, rel=1e-15
    )  # type: ignore[attr-defined]


def test_autoattack_and_its_stock_form_are_at_hand() -> None:
    assert ATTACKS["autoattack"]((2,)).name == "autoattack at 2"
    assert stock_autoattack((1, 2)).name == "autoattack (clean copies) at 1+2"


# ---- lafeat ------------------------------------------------------------------------------------------------------------------


def test_lafeat_sends_every_head_at_every_share_and_nothing_twice() -> None:
    sent = lafeat((3,), L, betas=(0.0, 0.4, 0.8), targets=0)
    assert [a.name for a in sent.adversary.adversaries] == [  # type: ignore[attr-defined]
        "lafeat 0 of 1", "lafeat 0.4 of 1", "lafeat 0.4 of 2", "lafeat 0.8 of 1", "lafeat 0.8 of 2",
    ]  # fmt: skip
    assert sent.name == "lafeat at 3"
    assert len(lafeat((1, 3), L).adversary.adversaries) == 2 * (1 + 9 * 3)  # type: ignore[attr-defined]


def test_lafeat_fools_what_it_is_sent_against() -> None:
    relu = tuple(Relu.random(s, D, 10, C) for s in (1, 5, 9))
    defense = MultiExit(Heads(*relu), Static((2, 3)))
    y = defense.respond(X, Context.seeded(0, N)).argmax(1)
    sent = [
        lafeat((2, 3), L, steps=20, betas=(0.0, 0.5), targets=2),
        partial((2, 3), FGSM(), loss=margin, aim=loss_of_mean),
    ]
    outcomes = evaluate(defense, sent, X, y, threat=Linf(0.1))
    assert not outcomes.episodes[0].copies.any()
    assert outcomes.accuracy()[0, 0] <= outcomes.accuracy()[1, 0] < 1


def test_lafeat_on_one_exit_is_an_ordinary_attack() -> None:
    sent = lafeat((1,), 1, steps=5, targets=0)
    assert [a.name for a in sent.adversary.adversaries] == ["lafeat"]  # type: ignore[attr-defined]
    point = moved(sent, MultiExit(Heads(NETS[0]))).point
    assert (cross_entropy(NETS[0](point), Y) > cross_entropy(NETS[0](X), Y)).all()


# ---- refusals ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attempt", "says"),
    [
        (lambda: partial((), PGD10), "must not be empty"),
        (lambda: partial((2, 1), PGD10), "in increasing order"),
        (lambda: partial((0, 1), PGD10), "from 1 to"),
        (lambda: moved(partial((1, 7), PGD10)), r"no view called \['exit/7'\]"),
        (lambda: moved(AtExits(SMALL, (7,))), r"no view called \['exit/7'\]"),
        (lambda: moved(AtExits(SMALL, ())), "must not be empty"),
        (lambda: MaxAverage("none", ()), "no candidates"),
        (lambda: expectation(Mix(((4,),), (1.0,)), L, PGD10), "from 1 to 3"),
        (lambda: through(Mix(((1,),), (1.0,)), PGD10), "draws"),
        (lambda: moved(through(Confident((0.5,)), PGD10)), "2 for 3 exits, got 1"),
    ],
)
def test_what_cannot_be_meant_is_refused(attempt: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        attempt()


def test_a_network_without_exits_has_none_to_attack() -> None:
    with pytest.raises(TypeError, match="needs a MultiExit; got Plain"):
        moved(AtExits(SMALL, (1,)), Plain(Module(NETS[0])))
