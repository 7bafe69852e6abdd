"""DENT, TENT and normalization by the batch: their recursions, what they leave alone, and how fast they are."""

from __future__ import annotations

import copy
import math
import time

import pytest
import torch
from tests.problems import normal, uniform
from torch import Tensor, nn
from torch.func import functional_call

from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.audits.target.check import check
from saddlepoint.defenses import Context, Defense
from saddlepoint.evaluation import (
    Cascade,
    Direct,
    FixedPoint,
    FixedPoints,
    GreedyModelSpace,
    Threat,
    Transfer,
)
from saddlepoint.evaluation.referee import play
from saddlepoint.zoo.transductive import (
    DENT,
    TENT,
    Adam,
    AdaMod,
    BatchStatistics,
    entropy,
    information,
)
from saddlepoint.zoo.transductive.dent import AdaptedRows
from saddlepoint.zoo.transductive.normalization import AdjustableNet, Norm


def small(dropout: float = 0.0, seed: int = 0) -> nn.Sequential:
    """Two convolutions and two normalizations with statistics of their own, in float64 and in evaluation mode."""
    layers = (
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Conv2d(4, 6, 3),
        nn.BatchNorm2d(6),
    )
    net = nn.Sequential(*layers, nn.Tanh(), nn.Flatten(), nn.Linear(24, 5)).double()
    with torch.no_grad():
        for k, tensor in enumerate((*net.parameters(), *net.buffers())):
            if tensor.is_floating_point():
                noise = normal(seed + k, *tensor.shape)
                tensor.copy_(
                    1 + 0.2 * noise.abs()
                    if tensor.ndim == 1
                    else noise / math.sqrt(tensor[0].numel())
                )
        net[-1].weight.mul_(4)
    return net.eval()


NET = small()
X = uniform(0, 8, 2, 4, 4)
Y = NET(X).argmax(1)


def ctx(n: int = len(X), seed: int = 0) -> Context:
    return Context.seeded(seed, n)


def parameters(defense: Defense) -> tuple[Tensor, ...]:
    assert isinstance(defense, AdaptedRows)
    return defense.parameters


# ---- DENT ------------------------------------------------------------------------------------------------------------------------


def test_before_it_adapts_and_with_no_steps_it_is_the_static_network() -> None:
    static = NET(X)
    torch.testing.assert_close(DENT(NET).trace(X, ctx()).last, static)
    torch.testing.assert_close(DENT(NET, steps=0).respond(X, ctx()), static)
    assert not torch.allclose(DENT(NET).respond(X, ctx()), static, atol=1e-3)


def test_a_scale_for_every_row_is_the_usual_normalization_where_rows_share_it() -> None:
    for source, x in (
        (NET[1], uniform(1, 3, 4, 5, 5)),
        (nn.BatchNorm1d(4).double().eval(), uniform(2, 3, 4)),
    ):
        layer = Norm(source)
        torch.testing.assert_close(layer(x), source(x))
        rows = {name: getattr(source, name).detach().expand(3, -1) for name in ("weight", "bias")}
        torch.testing.assert_close(functional_call(layer, rows, (x,)), source(x))


def test_the_first_step_moves_every_parameter_by_two_fifths_of_the_learning_rate() -> None:
    """s starts at 0, so min(r, s) = (1 - b3) r, and r m = lr sign(g) up to eps / |g|: every |g| here is above 1e-5."""
    adapted = DENT(NET, steps=1).adapt(X, ctx())
    start = DENT(NET).predicting.parameters
    moves = torch.cat([(p - q).flatten() for p, q in zip(parameters(adapted), start, strict=True)])
    steps = moves[moves.abs() > 2e-3].abs()
    assert len(steps) > 0.9 * len(moves)
    torch.testing.assert_close(steps, torch.full_like(steps, 0.4 * 6e-3), rtol=0.02, atol=0)


def test_adamod_is_adam_with_step_sizes_below_their_running_mean() -> None:
    """Against the recursion written out, on gradients that shrink and grow."""
    rule = AdaMod(lr=0.1, betas=(0.9, 0.99), memory=0.5)
    p = normal(0, 4)
    grads = [normal(k, 4) * 10.0 ** (-k % 3) for k in range(6)]
    m = v = s = torch.zeros(4, dtype=torch.float64)
    learned = (p,)
    moments = rule.start((p,))
    for t, g in enumerate(grads, start=1):
        m = 0.9 * m + 0.1 * g
        v = 0.99 * v + 0.01 * g**2
        r = 0.1 * math.sqrt(1 - 0.99**t) / (1 - 0.9**t) / (v.sqrt() + 1e-8)
        s = 0.5 * s + 0.5 * r
        p = p - torch.minimum(r, s) * m
        learned, moments = rule.step(learned, (g,), moments)
    torch.testing.assert_close(learned[0], p)


def test_adam_is_torchs() -> None:
    grads = [normal(k, 4) for k in range(5)]
    p = nn.Parameter(normal(9, 4))
    theirs = torch.optim.Adam([p], lr=0.05, betas=(0.8, 0.95))
    rule = Adam(0.05, (0.8, 0.95))
    learned = (p.detach().clone(),)
    moments = rule.start((p,))
    for g in grads:
        p.grad = g.clone()
        theirs.step()
        learned, moments = rule.step(learned, (g,), moments)
    torch.testing.assert_close(learned[0], p.detach())


def test_a_batch_of_one_image_many_times_is_answered_as_without_defense() -> None:
    """H(p) - H(mean p) is 0 and so is its gradient; what rounding leaves, AdaMod's eps keeps small."""
    x = X[:1].expand(8, -1, -1, -1)
    assert information(NET(x)).abs() < 1e-14
    torch.testing.assert_close(DENT(NET).respond(x, ctx()), NET(x), rtol=0, atol=1e-7)


def test_rows_of_a_batch_may_change_places() -> None:
    order = torch.tensor([3, 1, 7, 0, 2, 6, 5, 4])
    torch.testing.assert_close(
        DENT(NET).respond(X[order], ctx()), DENT(NET).respond(X, ctx())[order]
    )


def test_with_entropy_alone_examples_adapt_each_for_itself_and_with_information_they_do_not() -> (
    None
):
    """The mean over the batch divides gradients by its size, which AdaMod does not feel but for eps."""
    for objective, alike in ((entropy, True), (information, False)):
        defense = DENT(NET, objective=objective)
        whole = defense.respond(X, ctx())
        half = defense.respond(X[:4], ctx(4))
        assert torch.allclose(whole[:4], half, atol=1e-4) == alike


def test_adaptation_lowers_its_objective_and_leaves_the_network_as_it_was() -> None:
    net = copy.deepcopy(NET).train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    defense = DENT(net)
    assert information(defense.respond(X, ctx())) < information(defense.trace(X, ctx()).last)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert net.training
    assert all(p.requires_grad and p.grad is None for p in net.parameters())
    with torch.no_grad():  # a referee asks without gradients; learning needs them
        assert not torch.allclose(
            defense.respond(X, ctx()), defense.trace(X, ctx()).last, atol=1e-3
        )


def test_the_gradient_through_all_steps_is_that_of_finite_differences() -> None:
    defense = DENT(NET, steps=3)
    u = normal(5, *X.shape)

    def value(x: Tensor) -> Tensor:
        return (defense.respond(x, ctx()) * weights).sum()

    weights = normal(6, len(X), 5)
    x = X.clone().requires_grad_()
    (grad,) = torch.autograd.grad(value(x), x)
    h = 1e-6
    difference = (value(X + h * u) - value(X - h * u)) / (2 * h)
    torch.testing.assert_close((grad * u).sum(), difference, rtol=1e-5, atol=1e-6)


def test_a_channel_that_is_dead_does_not_spoil_the_gradient_of_the_others() -> None:
    net = copy.deepcopy(NET)
    with torch.no_grad():
        net[1].weight[0] = 0.0
        net[1].bias[0] = -9.0  # the ReLU after it never opens: gradients there are exactly 0
    x = X.clone().requires_grad_()
    (grad,) = torch.autograd.grad(DENT(net).respond(x, ctx()).square().sum(), x)
    assert grad.isfinite().all()
    assert (grad != 0).any()


def test_the_adapted_network_belongs_to_its_rows() -> None:
    adapted = DENT(NET).adapt(X, ctx())
    rows = torch.tensor([5, 0])
    whole = adapted.trace(X, ctx()).last
    torch.testing.assert_close(adapted.restrict(rows).trace(X[rows], ctx(2)).last, whole[rows])
    with pytest.raises(
        ValueError,
        match=r"adapted to a batch of 8 examples, row by row, and was asked about 2.*restrict\(rows\)",
    ):
        adapted.trace(X[rows], ctx(2))
    # Attacks that drop rows, by themselves or in a cascade, take the parameters along.
    direct = Direct("apgd", APGD(steps=6), cross_entropy, stop_at_success=True)
    cascade = Cascade("all", (direct, Direct("pgd", PGD(steps=3))))
    assert play(DENT(NET), Transfer(cascade, adapted), X, Y, Threat(Linf(0.1))).correct.shape == (
        1,
        8,
    )


def test_dropout_makes_it_random_by_the_coins_of_the_batch_and_nothing_else() -> None:
    defense = DENT(small(dropout=0.3))
    assert defense.random
    assert not DENT(NET).random
    state = torch.random.get_rng_state()
    one, again, other = (defense.respond(X, ctx(seed=seed)) for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.allclose(one, other)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_networks_without_anything_to_adapt_are_refused() -> None:
    for net in (
        nn.Linear(2, 2),
        nn.Sequential(nn.BatchNorm1d(3, affine=False)),
        nn.BatchNorm1d(3, track_running_stats=False),
    ):
        with pytest.raises(
            ValueError, match="has no batch normalization with scale, shift and running statistics"
        ):
            DENT(net)
    with pytest.raises(ValueError, match="at least 0 steps, got steps=-1"):
        DENT(NET, steps=-1)


def looped(net: nn.Module, x: Tensor, steps: int) -> Tensor:
    """DENT with a forward pass for every example by itself."""
    answering = AdjustableNet(net, Norm)
    optimizer = AdaMod()
    rows = [answering.parameters for _ in x]
    flat = [torch.stack([row[k] for row in rows]) for k in range(len(rows[0]))]
    learned = tuple(flat)
    moments = optimizer.start(flat)
    for _ in range(steps):
        learned = tuple(p.detach().requires_grad_() for p in learned)
        logits = torch.cat(
            [answering(x[i : i + 1], [p[i] for p in learned]) for i in range(len(x))]
        )
        learned, moments = optimizer.step(
            learned, torch.autograd.grad(information(logits), learned), moments
        )
    with torch.no_grad():
        return torch.cat([answering(x[i : i + 1], [p[i] for p in learned]) for i in range(len(x))])


def test_a_batch_adapts_in_one_call_at_least_five_times_as_fast_as_row_by_row() -> None:
    """Equal logits to 1e-5 in float32; the processor's time, the shorter of two, since others may be using the machine."""
    net = copy.deepcopy(NET).float()
    x = X.float().repeat(16, 1, 1, 1) + 0.1 * uniform(3, 128, 2, 4, 4).float()
    defense = DENT(net)

    def timed(call: object) -> tuple[Tensor, float]:
        assert callable(call)
        best = math.inf
        for _ in range(2):
            started = time.process_time()
            out = call()
            best = min(best, time.process_time() - started)
        return out, best

    with torch.no_grad():
        together, fast = timed(lambda: defense.respond(x, ctx(128)))
    alone, slow = timed(lambda: looped(net, x, 6))
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)
    assert slow > 5 * fast


# ---- TENT and normalization by the batch -----------------------------------------------------------------------------------------


def test_tent_answers_with_what_it_learned_before_and_carries_on() -> None:
    """The recursion with torch's own Adam and a network in training mode, over three batches."""
    net = copy.deepcopy(NET)
    for module in net.modules():
        module.train(isinstance(module, nn.BatchNorm2d))
    affine = [p for name, p in net.named_parameters() if name.split(".")[0] in ("1", "5")]
    theirs = torch.optim.Adam(affine, lr=1e-2)
    ours: Defense = TENT(NET, optimizer=Adam(1e-2))
    for k in range(3):
        x = uniform(k, 8, 2, 4, 4)
        logits = net(x)
        theirs.zero_grad()
        entropy(logits).backward()
        theirs.step()
        ours = ours.adapt(x, ctx())
        torch.testing.assert_close(ours.trace(x, ctx()).last, logits.detach())


def test_an_episode_starts_from_the_checkpoint() -> None:
    online = TENT(NET, steps=2)
    episodic = TENT(NET, steps=2, episodic=True)
    assert (online.memory, episodic.memory) == ("stream", "batch")
    other = uniform(7, 8, 2, 4, 4)
    assert torch.equal(episodic.adapt(other, ctx()).respond(X, ctx()), episodic.respond(X, ctx()))
    assert not torch.equal(online.adapt(other, ctx()).respond(X, ctx()), online.respond(X, ctx()))
    assert torch.equal(online.respond(X, ctx()), episodic.respond(X, ctx()))


def test_statistics_of_the_batch_are_those_of_a_network_in_training_and_a_prior_draws_them_back() -> (
    None
):
    training = copy.deepcopy(NET)
    for module in training.modules():
        module.train(isinstance(module, nn.BatchNorm2d))
    respond = lambda prior: BatchStatistics(NET, prior=prior).respond(X, ctx())  # noqa: E731
    torch.testing.assert_close(respond(0.0), training(X))
    torch.testing.assert_close(respond(1e12), NET(X))
    torch.testing.assert_close(TENT(NET).trace(X, ctx()).last, training(X))
    distance = [float((respond(prior) - NET(X)).detach().norm()) for prior in (0.0, 8.0, 80.0)]
    assert distance == sorted(distance, reverse=True)


# ---- in the game -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "defense",
    [DENT(NET), TENT(NET), TENT(NET, episodic=True), BatchStatistics(NET)],
    ids=["dent", "tent", "episodic", "statistics"],
)
def test_what_they_declare_is_what_an_audit_measures(defense: Defense) -> None:
    checked = check(defense, X, Y, Linf(0.1)).defense
    assert (checked.memory, checked.coupled, checked.random) == (
        defense.memory,
        defense.coupled,
        defense.random,
    )
    assert defense.static is NET
    episode = play(defense, FixedPoints(), X, Y, Threat(Linf(0.1)), batch_size=4)
    assert episode.batch.tolist() == [0] * 4 + [1] * 4


@pytest.mark.parametrize("defense", [DENT(NET, steps=2), TENT(NET)], ids=["dent", "tent"])
def test_the_greedy_attack_goes_on_where_a_transfer_ends(defense: Defense) -> None:
    direct = Direct("pgd", PGD(steps=5, step_size=0.05), cross_entropy)
    for build in (FixedPoint, GreedyModelSpace):
        right = [
            float(play(defense, build("a", direct, rounds), X, Y, Threat(Linf(0.2))).correct.sum())
            for rounds in (1, 3)
        ]
        assert (
            right[1] <= right[0]
        )  # DENT tosses no coins and the stream has one batch: what was rehearsed is what happens
