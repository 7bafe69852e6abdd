"""Training of equilibrium networks: warm-up, gradients, attacks, penalty and residuals."""

from dataclasses import dataclass, replace

import pytest
import torch
from tests.problems import keys, normal, uniform
from torch import nn
from torch.testing import assert_close

from saddlepoint import zoo
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.data import load_data
from saddlepoint.defenses import Broyden, Picard
from saddlepoint.evaluation import FixedPoints
from saddlepoint.gradients import Detached, Implicit
from saddlepoint.training import Adam, PGDTraining, Recipe, Standard, fit
from saddlepoint.training.inner_attack import adversarial_examples
from saddlepoint.zoo import rebuild
from saddlepoint.zoo.deq import (
    EquilibriumTraining,
    JacobianPenalty,
    Solved,
    Stack,
    Unrolled,
    digits_deq_exact,
)
from saddlepoint.zoo.nets import DenseDEQNet, MDEQNet

N = 4
SPACE = Linf(0.1)
X = uniform(0, N, 1, 2, 2)
Y = torch.arange(N) % 3
TIGHT = Broyden(steps=60, tolerance=1e-12)
NEVER = JacobianPenalty(probability=0.0)


def dense(**options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = DenseDEQNet(image=(1, 2, 2), size=6, classes=3).double()
    return Solved(net, **options)


def exact():
    return dense(method=TIGHT, rule=Implicit(TIGHT))


def new_run(**options):
    return EquilibriumTraining(**options).begin(1, None, 0)


def test_warm_up_steps_train_the_stack_and_later_steps_the_attacked_equilibrium():
    net = exact()
    attack = PGD(steps=3)
    row_keys = keys(N)
    run = new_run(attack=attack, warmup=2, layers=5, penalty=NEVER)
    losses = [run.loss(net, X, Y, SPACE, row_keys) for _ in range(3)]
    stacked = cross_entropy(Stack(net.net, layers=5)(X), Y)
    assert torch.equal(losses[0], stacked)
    assert torch.equal(losses[1], stacked)
    assert torch.equal(losses[2], PGDTraining(attack).loss(net, X, Y, SPACE, row_keys))


def test_without_an_attack_training_uses_clean_images():
    net = exact()
    loss = new_run(attack=None, warmup=0, penalty=NEVER).loss(net, X, Y, SPACE, keys(N))
    assert torch.equal(loss, Standard().loss(net, X, Y, SPACE, keys(N)))


def test_the_exact_gradient_in_the_weights_matches_finite_differences():
    net = exact()
    losses = cross_entropy(net(X), Y).sum()
    weights = [*net.parameters()]
    grads = torch.autograd.grad(losses, weights)
    directions = [normal(7 + k, *w.shape) for k, w in enumerate(weights)]
    step = 1e-6

    def value_at(distance):
        with torch.no_grad():
            for w, direction in zip(weights, directions, strict=True):
                w.add_(distance * direction)
            value = cross_entropy(net(X), Y).sum()
            for w, direction in zip(weights, directions, strict=True):
                w.sub_(distance * direction)
        return value

    expected = (value_at(step) - value_at(-step)) / (2 * step)
    found = sum((g * direction).sum() for g, direction in zip(grads, directions, strict=True))
    assert_close(found, expected, rtol=1e-6, atol=1e-8)


def test_the_unrolled_gradient_is_that_of_six_steps_from_a_constant_state():
    net = dense(method=TIGHT, after=Unrolled(6, damping=0.5), rule=Detached())
    weights = [*net.parameters()]
    found = torch.autograd.grad(cross_entropy(net(X), Y).sum(), weights)
    inner = net.net
    u = inner.inject(X)
    z = net.equilibrium(X).z
    z = inner.cell(z, u)
    for _ in range(5):
        z = 0.5 * z + 0.5 * inner.cell(z, u)
    expected = torch.autograd.grad(cross_entropy(inner.head(z), Y).sum(), weights)
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, rtol=0, atol=1e-12)


@dataclass(frozen=True)
class Recording(Implicit):
    """Records the mode of the network and the step limit of each differentiated solve."""

    net: nn.Module | None = None
    log: list | None = None

    def attach(self, solve):
        if torch.is_grad_enabled():
            self.log.append((self.net.training, solve.method.steps))
        return super().attach(solve)


def test_the_attack_uses_the_training_gradient_in_eval_mode():
    log = []
    net = exact()
    net.rule = Recording(TIGHT, net=net.net, log=log)
    net.train()
    new_run(attack=PGD(steps=3), warmup=0, penalty=NEVER).loss(net, X, Y, SPACE, keys(N))
    assert log == [(False, 60)] * 3 + [(True, 60)]
    assert net.training


def test_a_penalized_step_adds_the_penalty_at_its_equilibrium_and_changes_the_solver_steps():
    log = []
    net = exact()
    net.rule = Recording(TIGHT, net=net.net, log=log)
    penalty = JacobianPenalty(probability=1.0, weight=2.0, offsets=(-7,))
    run = new_run(attack=PGD(steps=2), warmup=0, penalty=penalty)
    loss = run.loss(net, X, Y, SPACE, keys(N))
    assert [steps for _, steps in log] == [60, 60, 53]
    without = new_run(attack=PGD(steps=2), warmup=0, penalty=replace(penalty, weight=0.0)).loss(
        net, X, Y, SPACE, keys(N)
    )
    u, z = net.with_extra_steps(-7).equilibrium(
        adversarial_examples(net, X, Y, SPACE, keys(N), PGD(steps=2))
    )
    assert_close(
        loss - without, penalty(net.net.cell, z, u, keys(N).fold_in(4)), rtol=0, atol=1e-12
    )
    assert (loss > without).all()


def test_the_penalty_ends_after_its_last_step():
    net = exact()
    always = JacobianPenalty(probability=1.0, offsets=(0,))
    run = new_run(attack=None, warmup=0, penalty=always, penalty_until=2)
    losses = [run.loss(net, X, Y, SPACE, keys(N)) for _ in range(3)]
    plain = new_run(attack=None, warmup=0, penalty=NEVER).loss(net, X, Y, SPACE, keys(N))
    assert (losses[1] > plain).all()
    assert torch.equal(losses[2], plain)


def test_the_solver_keeps_at_least_one_step():
    assert exact().with_extra_steps(-1000).method.steps == 1
    net = exact()
    assert {id(p) for p in net.with_extra_steps(1).parameters()} == {
        id(p) for p in net.parameters()
    }


RECIPE = Recipe(
    "deq",
    "digits",
    lambda: None,
    EquilibriumTraining(PGD(steps=1), warmup=5, penalty=JacobianPenalty(probability=0.5)),
    SPACE,
    epochs=3,
    batch_size=40,
    optimizer=Adam(0.01),
    select=FixedPoints(),
)


def digits_net():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Solved(
            DenseDEQNet(size=16), method=Broyden(steps=8), rule=Implicit(Picard(steps=10))
        )


def test_a_run_resumed_after_the_warm_up_gives_the_same_bits(tmp_path):
    """108 examples are three steps per epoch: the warm-up ends within the second epoch."""
    data = load_data("digits", split="train", n=120)
    whole = fit(digits_net(), data.x, data.y, RECIPE, seed=1)

    def stop(epoch):
        if epoch.number == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fit(digits_net(), data.x, data.y, RECIPE, seed=1, out=tmp_path, progress=stop)
    resumed = fit(digits_net(), data.x, data.y, RECIPE, seed=1, out=tmp_path)
    assert resumed.history == whole.history
    assert_close(dict(resumed.net.state_dict()), dict(whole.net.state_dict()), rtol=0, atol=0)


def test_every_epoch_reports_the_mean_residual_on_the_dev_set():
    data = load_data("digits", split="train", n=120)
    trained = fit(digits_net(), data.x, data.y, replace(RECIPE, epochs=1), seed=1)
    dev = data.x[trained.split.dev]
    assert trained.history[0].residual == pytest.approx(
        float(trained.net.convergence(dev).residual.mean()), rel=1e-4
    )
    plain = fit(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
        data.x,
        data.y,
        replace(RECIPE, epochs=1, method=Standard()),
    )
    assert plain.history[0].residual is None


def test_a_record_contains_the_residuals_and_the_training_radius(tmp_path):
    coarse = replace(RECIPE, name="coarse", net=digits_deq_exact, epochs=2, n=60, measured_on=10)
    record = rebuild(coarse, tmp_path, adversaries=(FixedPoints(),))
    assert len(record.residuals) == 2
    assert record.training_radius == SPACE.radius
    assert zoo.entry("coarse", tmp_path) == record
    standard = replace(coarse, method=EquilibriumTraining(None, warmup=1), epochs=1)
    assert rebuild(standard, tmp_path, adversaries=(FixedPoints(),)).training_radius == 0


def test_a_penalized_step_works_with_dropout_and_batch_norm():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        inner = MDEQNet(
            image=(1, 4, 4), channels=(8, 8), planes=(2, 2), width=8, classes=3, dropout=0.3
        )
        net = Solved(inner, method=Broyden(steps=2), rule=Implicit(Picard(steps=2))).train()
        run = new_run(attack=PGD(steps=1), warmup=0, penalty=JacobianPenalty(probability=1.0))
        run.loss(net, uniform(1, 4, 1, 4, 4).float(), Y, SPACE, keys(4)).mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


def test_other_networks_and_invalid_settings_raise():
    with pytest.raises(
        TypeError, match=r"trains a Solved network, got Linear\. Wrap it: Solved\(net\)"
    ):
        new_run().loss(nn.Linear(2, 2), X, Y, SPACE, keys(N))
    with pytest.raises(ValueError, match="warmup >= 0"):
        EquilibriumTraining(warmup=-1)
