"""DENT, TENT and batch statistics: their recursions, their state, and their speed."""

from __future__ import annotations

import copy
import math
import time

import pytest
import torch
from tests.probing import probe_target
from tests.problems import normal, uniform
from torch import Tensor, nn
from torch.func import functional_call

from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
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
    """Two convolutions with batch norm and nontrivial statistics, in float64 and eval mode."""
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


def test_before_it_adapts_and_with_no_steps_it_is_the_static_network() -> None:
    static = NET(X)
    torch.testing.assert_close(DENT(NET).trace(X, ctx()).last, static)
    torch.testing.assert_close(DENT(NET, steps=0).respond(X, ctx()), static)
    assert not torch.allclose(DENT(NET).respond(X, ctx()), static, atol=1e-3)


def test_norm_with_equal_currentper_row_is_the_usual_batch_norm() -> None:
    for source, x in (
        (NET[1], uniform(1, 3, 4, 5, 5)),
        (nn.BatchNorm1d(4).double().eval(), uniform(2, 3, 4)),
    ):
        layer = Norm(source)
        torch.testing.assert_close(layer(x), source(x))
        rows = {name: getattr(source, name).detach().expand(3, -1) for name in ("weight", "bias")}
        torch.testing.assert_close(functional_call(layer, rows, (x,)), source(x))


def test_the_first_step_changes_every_parameter_by_two_fifths_of_the_learning_rate() -> None:
    """s starts at 0, so min(r, s) = (1 - b3) r.

    r m = lr sign(g) up to eps / |g|, and every |g| here is above 1e-5.
    """
    adapted = DENT(NET, steps=1).adapt(X, ctx())
    start = DENT(NET).predicting.parameters
    moves = torch.cat([(p - q).flatten() for p, q in zip(parameters(adapted), start, strict=True)])
    steps = moves[moves.abs() > 2e-3].abs()
    assert len(steps) > 0.9 * len(moves)
    torch.testing.assert_close(steps, torch.full_like(steps, 0.4 * 6e-3), rtol=0.02, atol=0)


def test_adamod_matches_its_recursion() -> None:
    """The gradients decrease and increase in size."""
    rule = AdaMod(lr=0.1, betas=(0.9, 0.99), memory=0.5)
    p = normal(0, 4)
    grads = [normal(k, 4) * 10.0 ** (-k % 3) for k in range(6)]
    m = v = s = torch.zeros(4, dtype=torch.float64)
    current = (p,)
    moments = rule.start((p,))
    for t, g in enumerate(grads, start=1):
        m = 0.9 * m + 0.1 * g
        v = 0.99 * v + 0.01 * g**2
        r = 0.1 * math.sqrt(1 - 0.99**t) / (1 - 0.9**t) / (v.sqrt() + 1e-8)
        s = 0.5 * s + 0.5 * r
        p = p - torch.minimum(r, s) * m
        current, moments = rule.step(current, (g,), moments)
    torch.testing.assert_close(current[0], p)


def test_adam_matches_torch() -> None:
    grads = [normal(k, 4) for k in range(5)]
    p = nn.Parameter(normal(9, 4))
    reference = torch.optim.Adam([p], lr=0.05, betas=(0.8, 0.95))
    rule = Adam(0.05, (0.8, 0.95))
    current = (p.detach().clone(),)
    moments = rule.start((p,))
    for g in grads:
        p.grad = g.clone()
        reference.step()
        current, moments = rule.step(current, (g,), moments)
    torch.testing.assert_close(current[0], p.detach())


def test_a_batch_of_copies_of_one_image_gives_the_output_of_the_static_network() -> None:
    """H(p) - H(mean p) is 0 and so is its gradient; AdaMod's eps keeps the rounding error small."""
    x = X[:1].expand(8, -1, -1, -1)
    assert information(NET(x)).abs() < 1e-14
    torch.testing.assert_close(DENT(NET).respond(x, ctx()), NET(x), rtol=0, atol=1e-7)


def test_permuting_the_batch_permutes_the_output() -> None:
    order = torch.tensor([3, 1, 7, 0, 2, 6, 5, 4])
    torch.testing.assert_close(
        DENT(NET).respond(X[order], ctx()), DENT(NET).respond(X, ctx())[order]
    )


def test_examples_adapt_independently_with_entropy_but_not_with_information() -> None:
    """The batch size scales the gradients; AdaMod is invariant to this scale except for eps."""
    for objective, independent in ((entropy, True), (information, False)):
        defense = DENT(NET, objective=objective)
        whole = defense.respond(X, ctx())
        half = defense.respond(X[:4], ctx(4))
        assert torch.allclose(whole[:4], half, atol=1e-4) == independent


def test_adaptation_lowers_its_objective_and_does_not_change_the_network() -> None:
    net = copy.deepcopy(NET).train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    defense = DENT(net)
    assert information(defense.respond(X, ctx())) < information(defense.trace(X, ctx()).last)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert net.training
    assert all(p.requires_grad and p.grad is None for p in net.parameters())
    with torch.no_grad():  # a referee disables gradients, but adaptation needs them
        assert not torch.allclose(
            defense.respond(X, ctx()), defense.trace(X, ctx()).last, atol=1e-3
        )


def test_the_gradient_through_all_steps_matches_finite_differences() -> None:
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


def test_a_dead_channel_does_not_make_the_gradient_of_the_others_nan() -> None:
    net = copy.deepcopy(NET)
    with torch.no_grad():
        net[1].weight[0] = 0.0
        net[1].bias[0] = -9.0  # the ReLU after it is never active: its gradient is exactly 0
    x = X.clone().requires_grad_()
    (grad,) = torch.autograd.grad(DENT(net).respond(x, ctx()).square().sum(), x)
    assert grad.isfinite().all()
    assert (grad != 0).any()


def test_the_adapted_network_has_currentper_row() -> None:
    adapted = DENT(NET).adapt(X, ctx())
    rows = torch.tensor([5, 0])
    whole = adapted.trace(X, ctx()).last
    torch.testing.assert_close(adapted.restrict(rows).trace(X[rows], ctx(2)).last, whole[rows])
    with pytest.raises(
        ValueError,
        match=r"adapted to a batch of 8 examples, row by row, and received 2.*restrict\(rows\)",
    ):
        adapted.trace(X[rows], ctx(2))
    # Attacks that drop rows, alone or in a cascade, select the parameters of the other rows.
    direct = Direct("apgd", APGD(steps=6), cross_entropy, stop_at_success=True)
    cascade = Cascade("all", (direct, Direct("pgd", PGD(steps=3))))
    assert play(DENT(NET), Transfer(cascade, adapted), X, Y, Threat(Linf(0.1))).correct.shape == (
        1,
        8,
    )


def test_dropout_makes_it_random_and_only_the_keys_of_the_batch_matter() -> None:
    defense = DENT(small(dropout=0.3))
    assert defense.random
    assert not DENT(NET).random
    state = torch.random.get_rng_state()
    one, again, other = (defense.respond(X, ctx(seed=seed)) for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.allclose(one, other)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_networks_without_batch_normalization_raise() -> None:
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


def row_by_row(net: nn.Module, x: Tensor, steps: int) -> Tensor:
    """DENT with a separate forward pass for every example."""
    adjustable = AdjustableNet(net, Norm)
    optimizer = AdaMod()
    stacked = [torch.stack([p] * len(x)) for p in adjustable.parameters]
    current = tuple(stacked)
    moments = optimizer.start(stacked)

    def logits_of(rows: tuple[Tensor, ...]) -> Tensor:
        return torch.cat([adjustable(x[i : i + 1], [p[i] for p in rows]) for i in range(len(x))])

    for _ in range(steps):
        current = tuple(p.detach().requires_grad_() for p in current)
        grads = torch.autograd.grad(information(logits_of(current)), current)
        current, moments = optimizer.step(current, grads, moments)
    with torch.no_grad():
        return logits_of(current)


def test_a_batch_adapts_at_least_five_times_as_fast_as_row_by_row() -> None:
    """The logits are equal to 1e-5 in float32.

    The shorter of two process times is used, because other programs may use the machine.
    """
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
    alone, slow = timed(lambda: row_by_row(net, x, 6))
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)
    assert slow > 5 * fast


def test_tent_predicts_with_the_currentbefore_the_step_and_continues() -> None:
    """The recursion with torch's Adam and a network in train mode, over three batches."""
    net = copy.deepcopy(NET)
    for module in net.modules():
        module.train(isinstance(module, nn.BatchNorm2d))
    affine = [p for name, p in net.named_parameters() if name.split(".")[0] in ("1", "5")]
    reference = torch.optim.Adam(affine, lr=1e-2)
    tent: Defense = TENT(NET, optimizer=Adam(1e-2))
    for k in range(3):
        x = uniform(k, 8, 2, 4, 4)
        logits = net(x)
        reference.zero_grad()
        entropy(logits).backward()
        reference.step()
        tent = tent.adapt(x, ctx())
        torch.testing.assert_close(tent.trace(x, ctx()).last, logits.detach())


def test_an_episodic_defense_starts_every_batch_from_the_checkpoint() -> None:
    online = TENT(NET, steps=2)
    episodic = TENT(NET, steps=2, episodic=True)
    assert (online.memory, episodic.memory) == ("stream", "batch")
    other = uniform(7, 8, 2, 4, 4)
    assert torch.equal(episodic.adapt(other, ctx()).respond(X, ctx()), episodic.respond(X, ctx()))
    assert not torch.equal(online.adapt(other, ctx()).respond(X, ctx()), online.respond(X, ctx()))
    assert torch.equal(online.respond(X, ctx()), episodic.respond(X, ctx()))


def test_batch_statistics_are_those_of_train_mode_and_a_prior_mixes_in_the_running_ones() -> None:
    training = copy.deepcopy(NET)
    for module in training.modules():
        module.train(isinstance(module, nn.BatchNorm2d))
    respond = lambda prior: BatchStatistics(NET, prior=prior).respond(X, ctx())  # noqa: E731
    torch.testing.assert_close(respond(0.0), training(X))
    torch.testing.assert_close(respond(1e12), NET(X))
    torch.testing.assert_close(TENT(NET).trace(X, ctx()).last, training(X))
    distance = [float((respond(prior) - NET(X)).detach().norm()) for prior in (0.0, 8.0, 80.0)]
    assert distance == sorted(distance, reverse=True)


@pytest.mark.parametrize(
    "defense",
    [DENT(NET), TENT(NET), TENT(NET, episodic=True), BatchStatistics(NET)],
    ids=["dent", "tent", "episodic", "statistics"],
)
def test_the_declarations_match_what_an_audit_measures(defense: Defense) -> None:
    checked = probe_target(defense, X, Y, Linf(0.1)).defense
    assert (checked.memory, checked.coupled, checked.random) == (
        defense.memory,
        defense.coupled,
        defense.random,
    )
    assert defense.static is NET
    episode = play(defense, FixedPoints(), X, Y, Threat(Linf(0.1)), batch_size=4)
    assert episode.batch.tolist() == [0] * 4 + [1] * 4


@pytest.mark.parametrize("defense", [DENT(NET, steps=2), TENT(NET)], ids=["dent", "tent"])
def test_more_rounds_of_a_transductive_attack_are_at_least_as_strong(defense: Defense) -> None:
    direct = Direct("pgd", PGD(steps=5, step_size=0.05), cross_entropy)
    for build in (FixedPoint, GreedyModelSpace):
        correct = [
            float(play(defense, build("a", direct, rounds), X, Y, Threat(Linf(0.2))).correct.sum())
            for rounds in (1, 3)
        ]
        # DENT is deterministic and the stream has one batch, so the simulation is exact.
        assert correct[1] <= correct[0]
