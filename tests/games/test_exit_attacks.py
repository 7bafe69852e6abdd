"""Attacks on exits: which exits are attacked and which points are proposed."""

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
from saddlepoint.games.exit_adversaries import MaxAverage, OnExits
from saddlepoint.games.exit_attacks import (
    ATTACKS,
    average,
    expectation,
    lafeat,
    max_average,
    partial_attack,
    stock_autoattack,
    through,
)
from saddlepoint.games.exit_views import MeanOfExits

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
    """Exits without shared layers: one function each."""

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
    """The loss averaged over these exits, [N]."""
    return cross_entropy(exit_logits(EXITS, x), Y[: len(x)])[[k - 1 for k in subset]].mean(0)


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("attack", [PGD10, FGSM(), VMI(4, samples=2)], ids=["pgd", "fgsm", "vmi"])
def test_a_partial_attack_on_one_exit_is_the_attack_on_that_network(
    k: int, attack: PGD | VMI
) -> None:
    single = MaxLossPoint(Direct("single", attack, cross_entropy))
    assert torch.equal(
        moved(partial_attack((k,), attack)).point, moved(single, Plain(Module(NETS[k - 1]))).point
    )


def test_a_partial_attack_on_all_exits_is_the_average_attack() -> None:
    assert torch.equal(moved(partial_attack((1, 2, 3), PGD10)).point, moved(average(PGD10)).point)


def test_on_one_exit_the_loss_of_the_mean_is_the_mean_of_losses() -> None:
    assert torch.equal(
        moved(partial_attack((2,), PGD10, aim=loss_of_mean)).point,
        moved(partial_attack((2,), PGD10)).point,
    )


def test_each_attack_has_the_highest_mean_loss_on_its_own_exits() -> None:
    """On average over 24 examples; not for every example, since gradient ascent is local."""
    subsets = ((1,), (2,), (3,), (1, 2), (1, 2, 3))
    points = [moved(partial_attack(subset, PGD(40))).point for subset in subsets]
    table = torch.stack(
        [torch.stack([loss_of(subset, x).mean() for subset in subsets]) for x in points]
    )  # [A, D]
    assert torch.equal(table.argmax(0), torch.arange(len(subsets)))


def test_the_point_of_highest_loss_is_proposed_whether_or_not_it_is_misclassified() -> None:
    """The answer comes from exit 3, which misclassifies some clean images; exit 1 is attacked."""
    found = moved(partial_attack((1,), PGD10), MultiExit(Heads(*NETS), Static((3,))))
    assert torch.equal(found.point, found.max_loss_point)
    again = moved(
        partial_attack((1,), PGD10), MultiExit(Heads(*NETS), Mix(((2,), (3,)), (0.5, 0.5)))
    )
    assert torch.equal(found.point, again.point)  # the strategy of the defender has no effect


def test_exits_that_are_not_attacked_are_not_differentiated() -> None:
    class Blocked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, z: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
            return z.clone()

        @staticmethod
        def backward(ctx, grad: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
            raise AssertionError("an exit that is not attacked was differentiated")

    net = Heads(NETS[0], lambda x: Blocked.apply(NETS[1](x)), NETS[2])
    for adversary in (partial_attack((1, 3), PGD(3)), OnExits(Direct("pgd", PGD(3)), (1, 3))):
        moved(adversary, MultiExit(net))


def test_max_average_has_the_largest_average_loss_of_all_candidates_on_every_example() -> None:
    everything = max_average(lambda s: partial_attack(s, PGD10), L)
    singles = [moved(partial_attack((k,), PGD10)).point for k in (1, 2, 3)]
    best = moved(everything).point
    losses = torch.stack([loss_of((1, 2, 3), x) for x in singles])  # [L, N]
    torch.testing.assert_close(loss_of((1, 2, 3), best), losses.amax(0), rtol=0, atol=0)
    assert len(losses.argmax(0).unique()) == L  # every exit is chosen somewhere
    assert torch.equal(best, torch.stack(singles)[losses.argmax(0), torch.arange(N)])


def test_max_average_costs_its_candidates_and_one_evaluation_of_each() -> None:
    context = AttackContext.open(Threat(SPACE), torch.arange(N), 0)
    adversary = max_average(lambda s: partial_attack(s, PGD10), L)
    adversary.move(context, EXITS, X, Y)
    assert (context.meter.forward == L * (PGD10.calls + 1)).all()
    assert adversary.cost() == (L * (PGD10.calls + 1), L * (PGD10.calls - 1))


def test_the_expected_margin_of_linear_exits_reaches_its_exact_maximum() -> None:
    """The expected margin is linear, so its maximum over the ball is a support function."""
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
        partial_attack((1,), PGD(40), loss=margin),
        partial_attack((2, 3), PGD(40), loss=margin),
        average(PGD(40), loss=margin),
    ):
        assert (value(rival) < exact - 1e-3).all()


def test_the_expectation_over_one_subset_is_the_attack_on_its_mean() -> None:
    certain = expectation(Mix(((1, 3),), (1.0,)), L, PGD10)
    torch.testing.assert_close(
        moved(certain).point,
        moved(partial_attack((1, 3), PGD10, aim=loss_of_mean)).point,
        rtol=0,
        atol=1e-12,
    )


def test_a_gate_that_never_exits_early_is_attacked_at_its_last_exit() -> None:
    never = Confident((2.0, 2.0))
    assert torch.equal(
        moved(through(never, PGD10), MultiExit(Heads(*NETS), never)).max_loss_point,
        moved(partial_attack((3,), PGD10), EXITS).max_loss_point,
    )


def test_the_attack_through_the_gate_is_stronger_than_attacks_on_fixed_exits() -> None:
    """200 rows, equal shares of all exits: robust accuracy is lower by more than 5 points."""
    x = uniform(5, 200, D)
    logits = exit_logits(EXITS, x)
    gate = Confident.calibrated(logits)
    defense = MultiExit(Heads(*NETS), gate)
    y = defense.respond(x, Context.seeded(0, 200)).argmax(1)
    fixed = [partial_attack((k,), PGD(20)) for k in (1, 2, 3)]
    accuracy = evaluate(
        defense, [through(gate, PGD(20)), average(PGD(20)), *fixed], x, y, threat=Linf(0.03)
    ).accuracy()[:, 0]
    assert accuracy[0] < accuracy[1:].amin() - 0.05


SMALL = Cascade("autoattack", autoattack(steps=5, targets=2, queries=10))


def test_an_attack_on_exits_is_the_attack_on_the_network_that_outputs_their_mean() -> None:
    mean = Plain(Module(lambda x: torch.stack([NETS[0](x), NETS[2](x)]).mean(0)))
    assert torch.equal(moved(OnExits(SMALL, (1, 3))).point, moved(MaxLossPoint(SMALL), mean).point)
    column = MultiExit(Heads(*NETS), Static((1, 3)))
    ctx = Context.seeded(0, N)
    torch.testing.assert_close(
        MeanOfExits(EXITS, (1, 3)).respond(X, ctx), column.respond(X, ctx), rtol=1e-13, atol=1e-14
    )


def test_with_one_exit_every_attack_is_the_plain_attack() -> None:
    plain = Plain(Module(NETS[0]))
    alone = MultiExit(Heads(NETS[0]))
    pgd = moved(MaxLossPoint(Direct("pgd", PGD10, cross_entropy)), plain).point
    one = Confident(())
    same = (
        partial_attack((1,), PGD10),
        partial_attack((1,), PGD10, aim=loss_of_mean),
        average(PGD10),
        max_average(lambda s: partial_attack(s, PGD10), 1),
        expectation(Mix(((1,),), (1.0,)), 1, PGD10),
        MaxLossPoint(through(one, PGD10)),
    )
    for adversary in same:
        assert torch.equal(moved(adversary, alone).point, pgd), adversary.name
    assert torch.equal(
        moved(OnExits(SMALL, (1,)), alone).point, moved(MaxLossPoint(SMALL), plain).point
    )
    twenty = moved(
        MaxLossPoint(Direct("pgd", PGD(20, SPACE.radius / 4), cross_entropy)), plain
    ).point
    assert torch.equal(moved(ATTACKS["pgd-20"]((1,)), alone).point, twenty)


def test_stock_autoattack_proposes_clean_images_where_it_does_not_succeed() -> None:
    """Misclassified without attack, broken, broken, robust: the first and last are clean copies."""
    line = Affine.binary(torch.ones(D, dtype=torch.float64))
    # The decision boundary is the plane through the center of the box.
    net = Affine(line.weight, -0.5 * line.weight.sum(1))
    x = 0.5 + torch.tensor([-0.1, 0.02, -0.02, -0.45], dtype=torch.float64)[:, None].expand(4, D)
    y = net(x).argmax(1)
    y[0] = 1 - y[0]
    defense = MultiExit(Heads(net, net))
    attack = Cascade("fgsm", (Direct("fgsm", FGSM()),))
    stock, sound = (
        play(defense, OnExits(adversary, (1,)), x, y, Threat(SPACE))
        for adversary in (CleanCopies(attack), attack)
    )
    assert stock.adversary == "fgsm (clean copies) at 1"
    assert stock.copies.tolist() == [True, False, False, True]
    assert not sound.copies.any()
    assert stock.correct.tolist() == sound.correct.tolist() == [[0, 0, 0, 1]]


def test_clean_copies_overstate_the_accuracy_of_other_exits() -> None:
    """On the attacked exits both agree; on the others the stock attack is weaker."""
    attack = Cascade("apgd", autoattack(steps=20)[:1])
    answers = {"1": exits_mean((1,)), "3": exits_mean((3,))}
    both = (OnExits(attack, (1,)), OnExits(CleanCopies(attack), (1,)))
    twins = MultiExit(Heads(NETS[0], NETS[1], lambda x: NETS[0](x) + 0.15 * NETS[2](x)))
    y = twins.respond(X, Context.seeded(0, N)).argmax(1)
    sound, stock = evaluate(twins, both, X, y, threat=Linf(0.05), answers=answers).accuracy()
    assert sound[0] == stock[0]
    assert sound[1] < stock[1]


@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "autoattack"])
def test_the_attacks_of_the_paper_increase_the_loss_and_are_named_after_their_exits(
    name: str,
) -> None:
    adversary = ATTACKS[name]((1, 3))
    assert adversary.name == f"{name} at 1+3"
    episode = play(EXITS, adversary, X, Y, Threat(SPACE))
    assert not episode.copies.any()
    assert (loss_of((1, 3), episode.points) > loss_of((1, 3), X)).all()


def test_eot_on_a_deterministic_defense_is_the_attack_without_eot() -> None:
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


def test_autoattack_and_its_stock_version_are_named_after_their_exits() -> None:
    assert ATTACKS["autoattack"]((2,)).name == "autoattack at 2"
    assert stock_autoattack((1, 2)).name == "autoattack (clean copies) at 1+2"


def test_lafeat_uses_every_head_with_every_beta_once() -> None:
    attack = lafeat((3,), L, betas=(0.0, 0.4, 0.8), targets=0)
    assert [a.name for a in attack.adversary.adversaries] == [  # type: ignore[attr-defined]
        "lafeat 0 of 1",
        "lafeat 0.4 of 1",
        "lafeat 0.4 of 2",
        "lafeat 0.8 of 1",
        "lafeat 0.8 of 2",
    ]
    assert attack.name == "lafeat at 3"
    runs = lafeat((1, 3), L).adversary.adversaries  # type: ignore[attr-defined]
    assert len(runs) == 2 * (1 + 9 * 3)


def test_lafeat_is_at_least_as_strong_as_fgsm() -> None:
    relu = tuple(Relu.random(s, D, 10, C) for s in (1, 5, 9))
    defense = MultiExit(Heads(*relu), Static((2, 3)))
    y = defense.respond(X, Context.seeded(0, N)).argmax(1)
    attacks = [
        lafeat((2, 3), L, steps=20, betas=(0.0, 0.5), targets=2),
        partial_attack((2, 3), FGSM(), loss=margin, aim=loss_of_mean),
    ]
    outcomes = evaluate(defense, attacks, X, y, threat=Linf(0.1))
    assert not outcomes.episodes[0].copies.any()
    assert outcomes.accuracy()[0, 0] <= outcomes.accuracy()[1, 0] < 1


def test_lafeat_on_one_exit_is_an_ordinary_attack() -> None:
    attack = lafeat((1,), 1, steps=5, targets=0)
    names = [a.name for a in attack.adversary.adversaries]  # type: ignore[attr-defined]
    assert names == ["lafeat"]
    point = moved(attack, MultiExit(Heads(NETS[0]))).point
    assert (cross_entropy(NETS[0](point), Y) > cross_entropy(NETS[0](X), Y)).all()


@pytest.mark.parametrize(
    ("attempt", "says"),
    [
        (lambda: partial_attack((), PGD10), "must not be empty"),
        (lambda: partial_attack((2, 1), PGD10), "in increasing order"),
        (lambda: partial_attack((0, 1), PGD10), "from 1 to"),
        (lambda: moved(partial_attack((1, 7), PGD10)), r"no view called \['exit/7'\]"),
        (lambda: moved(OnExits(SMALL, (7,))), r"no view called \['exit/7'\]"),
        (lambda: moved(OnExits(SMALL, ())), "must not be empty"),
        (lambda: MaxAverage("none", ()), "no candidates"),
        (lambda: expectation(Mix(((4,),), (1.0,)), L, PGD10), "from 1 to 3"),
        (lambda: through(Mix(((1,),), (1.0,)), PGD10), "Mix is random"),
        (lambda: moved(through(Confident((0.5,)), PGD10)), "2 for 3 exits, got 1"),
    ],
)
def test_invalid_arguments_raise_errors(attempt: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        attempt()


def test_attacks_on_exits_need_a_defense_with_exits() -> None:
    with pytest.raises(TypeError, match="needs a MultiExit; got Plain"):
        moved(OnExits(SMALL, (1,)), Plain(Module(NETS[0])))
