"""Learned weights: the MLP has the right gradient, and runs can be resumed."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tests.training.multi_exit_problem import CLASSES, SPACE, N, ThreeExits
from torch.testing import assert_close

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.data import load_data
from saddlepoint.evaluation import FixedPoints
from saddlepoint.rng import Keys
from saddlepoint.training import SGD, LearnedWeights, OverExits, PGDTraining, Recipe, Standard, fit
from saddlepoint.training.learned_weights import assign_exits, exit_share_loss
from saddlepoint.zoo.nets import l2w_den, msdnet, resnet18

ROUNDING = {"rtol": 0.0, "atol": 1e-12}  # a few hundred additions of numbers of size one in float64
SUM = (1.0, 1.0, 1.0)


@pytest.fixture
def net():
    return ThreeExits().double()


@pytest.fixture
def batch():
    keys = Keys.of(5, torch.arange(N))
    return (
        keys.uniform((1, 3, 3), torch.float64),
        keys.fold_in(1).integers(CLASSES),
        keys.fold_in(2),
    )


def run(net, rate=0.5, **options):
    return LearnedWeights(hidden=16, **options).begin(3, torch.optim.SGD(net.parameters(), rate), 0)


def test_exits_take_their_most_confident_examples_and_the_last_exit_takes_the_rest():
    confidence = torch.tensor(
        [
            [0.9, 0.1, 0.8, 0.2, 0.7, 0.3, 0.6, 0.4],
            [0.1, 0.9, 0.2, 0.8, 0.3, 0.7, 0.4, 0.6],
            [0.5] * 8,
        ]
    )
    # The softmax confidence grows with the first logit.
    logits = torch.stack([confidence, torch.zeros_like(confidence)], dim=-1) * 5
    assigned = assign_exits(logits, [0.25, 0.45, 0.3])
    # Two of eight, then floor(8 x 0.45) = 3 of the others, then the last three.
    assert assigned[0].nonzero()[:, 0].tolist() == [0, 2]
    assert assigned[1].nonzero()[:, 0].tolist() == [1, 3, 5]
    assert assigned[2].nonzero()[:, 0].tolist() == [4, 6, 7]


def test_an_exit_never_takes_more_examples_than_remain():
    assigned = assign_exits(Keys.of(0, torch.arange(4)).normal((5, 3)), [0.9, 0.9, 0.9, 0.9])
    assert assigned.sum(0).tolist() == [1] * 5
    assert assigned.sum(1).tolist() == [4, 1, 0, 0]


def test_the_validation_loss_sums_the_mean_losses_at_the_assigned_exits(batch):
    logits = batch[2].normal((3, CLASSES), torch.float64).transpose(0, 1)  # [3, N, C]
    y = batch[1]
    total = 0.75 + 0.75**2 + 0.75**3
    assigned = assign_exits(logits, [0.75 / total, 0.75**2 / total, 0.75**3 / total])
    losses = cross_entropy(logits, y)
    expected = sum(losses[k][assigned[k]].mean() for k in range(3))
    assert_close(exit_share_loss(logits, y, 0.75), expected, **ROUNDING)


def test_weights_have_mean_one_and_a_bounded_spread(net):
    run_ = run(net)
    with torch.no_grad():
        for parameter in run_.mlp.parameters():
            parameter.mul_(20)  # as if the MLP had been trained
    weights = run_.weights(Keys.of(1, torch.arange(3)).normal((N,), torch.float64).abs() * 3)
    assert_close(weights.mean(), torch.ones((), dtype=torch.float64), **ROUNDING)
    assert weights.std() > 0.05
    assert (weights - 1).abs().amax() <= 0.3 * 2


def test_without_spread_the_loss_is_the_plain_sum_over_exits(net, batch):
    x, y, keys = batch
    plain = OverExits(Standard(), weights=SUM).loss(net, x, y, SPACE, keys)
    assert_close(run(net, spread=0.0, interval=1).loss(net, x, y, SPACE, keys), plain, **ROUNDING)
    attacked = OverExits(PGDTraining(PGD(steps=3)), weights=SUM).loss(net, x, y, SPACE, keys)
    assert_close(
        run(net, spread=0.0, attack=PGD(steps=3)).loss(net, x, y, SPACE, keys), attacked, **ROUNDING
    )


def test_the_gradient_of_the_mlp_matches_finite_differences(net, batch):
    """Central differences in the bias of the MLP, with the step of the network written out."""
    x, y, _ = batch
    run_ = run(net, rate=0.3)
    half = N // 2
    bias = run_.mlp[2].bias

    def by_hand():
        losses = cross_entropy(torch.stack(net(x[:half])), y[:half])
        v = run_.mlp(losses.detach().T).T
        w = (1 + 0.3 * (v - v.mean())).detach()
        grads = torch.autograd.grad((w * losses).mean(1).sum(), list(net.parameters()))
        moved = {
            name: p - 0.3 * g for (name, p), g in zip(net.named_parameters(), grads, strict=True)
        }
        return exit_share_loss(
            torch.stack(torch.func.functional_call(net, moved, x[half:])), y[half:], 0.75
        ).detach()

    value = run_.validation_loss(net, (x[:half], y[:half]), (x[half:], y[half:]))
    assert_close(value.detach(), by_hand(), **ROUNDING)
    (grad,) = torch.autograd.grad(value, bias)
    differences = []
    tick = 1e-4
    for k in range(3):
        sides = []
        for sign in (1, -1):
            with torch.no_grad():
                bias[k] += sign * tick
            sides.append(by_hand())
            with torch.no_grad():
                bias[k] -= sign * tick
        differences.append((sides[0] - sides[1]) / (2 * tick))
    # The error of central differences is tick^2 = 1e-8 times a third derivative; the values are
    # about 1e-3.
    assert_close(grad, torch.stack(differences), rtol=0, atol=1e-7)
    assert grad.abs().amax() > 1e-4


def test_updates_of_the_mlp_do_not_change_the_network_and_happen_at_the_interval(net, batch):
    x, y, keys = batch
    run_ = run(net, interval=3)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    weights = []
    for _ in range(5):
        run_.loss(net, x, y, SPACE, keys)
        weights.append(run_.mlp[0].weight.detach().clone())
    assert_close(dict(net.state_dict()), before, rtol=0, atol=0)
    assert all(p.grad is None for p in net.parameters())
    changed = [not torch.equal(a, b) for a, b in pairwise(weights)]
    assert changed == [False, False, True, False]  # the first call has changed it too


def test_the_learning_rate_of_the_mlp_follows_the_schedule_of_the_network(net, batch):
    x, y, keys = batch
    optimizer = torch.optim.SGD(net.parameters(), 0.4)
    run_ = LearnedWeights(hidden=4, rate=1e-3).begin(3, optimizer, 0)
    optimizer.param_groups[0]["lr"] = 0.1
    run_.loss(net, x, y, SPACE, keys)
    assert run_.adam.param_groups[0]["lr"] == pytest.approx(2.5e-4)


RECIPE = Recipe(
    name="learned",
    data="digits",
    net=resnet18,
    method=LearnedWeights(hidden=20, interval=2, rate=1e-2),
    space=Linf(0.1),
    epochs=3,
    batch_size=32,
    optimizer=SGD(rate=0.1),
    select=FixedPoints(),
)


@pytest.fixture
def small():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return resnet18(4, (1, 1, 1), in_channels=1)


def test_a_resumed_run_gives_the_same_bits(small, tmp_path):
    data = load_data("digits", split="train", n=120)
    whole = fit(small, data.x, data.y, RECIPE, seed=1)
    assert whole.history[-1].loss < 0.9 * whole.history[0].loss

    def stop(epoch):
        if epoch.number == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fit(small, data.x, data.y, RECIPE, seed=1, out=tmp_path, progress=stop)
    resumed = fit(small, data.x, data.y, RECIPE, seed=1, out=tmp_path)
    assert resumed.history == whole.history
    assert_close(dict(resumed.net.state_dict()), dict(whole.net.state_dict()), rtol=0, atol=0)
    # The learned weights matter, otherwise the test would prove nothing.
    plain = fit(
        small,
        data.x,
        data.y,
        replace(RECIPE, method=OverExits(Standard(), weights=(1.0, 1.0, 1.0))),
        seed=1,
    )
    assert plain.history != whole.history


def test_l2w_den_has_the_architecture_of_msdnet():
    with torch.device("meta"):
        assert l2w_den().state_dict().keys() == msdnet().state_dict().keys()


def test_invalid_settings_raise():
    with pytest.raises(
        ValueError, match="needs q > 0, interval >= 1 and 0 <= spread <= 1, got q=0"
    ):
        LearnedWeights(q=0)
