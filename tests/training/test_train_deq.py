"""Training equilibrium networks: warm-up, gradients, adversaries, penalty and residuals are what they say."""

from dataclasses import dataclass, replace

import pytest
import torch
from tests.problems import keys, normal, uniform
from torch import nn
from torch.testing import assert_close

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.data import load_data
from saddlepoint.defenses import Broyden, Picard
from saddlepoint.evaluation import FixedPoints
from saddlepoint.gradients import Detached, Implicit
from saddlepoint.training import (
    Adam,
    EquilibriumTraining,
    JacobianPenalty,
    PGDTraining,
    Recipe,
    Stack,
    Standard,
    fit,
    rebuild,
)
from saddlepoint.training.inner_attack import craft
from saddlepoint.zoo.deq import Solved, Unrolled
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


def begun(**options):
    return EquilibriumTraining(**options).begin(1, None, 0)


def test_the_first_steps_train_the_stack_and_the_next_the_equilibrium_against_adversaries():
    net = exact()
    attack = PGD(steps=3)
    tossed = keys(N)
    run = begun(attack=attack, warmup=2, layers=5, penalty=NEVER)
    losses = [run.loss(net, X, Y, SPACE, tossed) for _ in range(3)]
    stacked = cross_entropy(Stack(net.net, layers=5)(X), Y)
    assert torch.equal(losses[0], stacked)
    assert torch.equal(losses[1], stacked)
    assert torch.equal(losses[2], PGDTraining(attack).loss(net, X, Y, SPACE, tossed))


def test_without_an_adversary_clean_images_are_trained_on():
    net = exact()
    loss = begun(attack=None, warmup=0, penalty=NEVER).loss(net, X, Y, SPACE, keys(N))
    assert torch.equal(loss, Standard().loss(net, X, Y, SPACE, keys(N)))


def test_the_exact_gradient_in_the_weights_is_that_of_finite_differences():
    net = exact()
    losses = cross_entropy(net(X), Y).sum()
    weights = [*net.parameters()]
    slopes = torch.autograd.grad(losses, weights)
    ways = [normal(7 + k, *w.shape) for k, w in enumerate(weights)]
    step = 1e-6

    def moved(by):
        with torch.no_grad():
            for w, way in zip(weights, ways, strict=True):
                w.add_(by * way)
            value = cross_entropy(net(X), Y).sum()
            for w, way in zip(weights, ways, strict=True):
                w.sub_(by * way)
        return value

    wanted = (moved(step) - moved(-step)) / (2 * step)
    found = sum((slope * way).sum() for slope, way in zip(slopes, ways, strict=True))
    assert_close(found, wanted, rtol=1e-6, atol=1e-8)


def test_the_unrolled_gradient_is_that_of_six_steps_from_a_constant():
    net = dense(method=TIGHT, after=Unrolled(6, damping=0.5), rule=Detached())
    weights = [*net.parameters()]
    found = torch.autograd.grad(cross_entropy(net(X), Y).sum(), weights)
    inner = net.net
    u = inner.inject(X)
    z = net.equilibrium(X).z
    z = inner.cell(z, u)
    for _ in range(5):
        z = 0.5 * z + 0.5 * inner.cell(z, u)
    wanted = torch.autograd.grad(cross_entropy(inner.head(z), Y).sum(), weights)
    for a, b in zip(found, wanted, strict=True):
        assert_close(a, b, rtol=0, atol=1e-12)


@dataclass(frozen=True)
class Seen(Implicit):
    """Writes down in which mode each differentiated solve was made, and how long it might have been."""

    net: nn.Module | None = None
    log: list | None = None

    def attach(self, solve):
        if torch.is_grad_enabled():
            self.log.append((self.net.training, solve.method.steps))
        return super().attach(solve)


def test_adversaries_climb_the_gradient_that_training_descends_in_eval_mode():
    log = []
    net = exact()
    net.rule = Seen(TIGHT, net=net.net, log=log)
    net.train()
    begun(attack=PGD(steps=3), warmup=0, penalty=NEVER).loss(net, X, Y, SPACE, keys(N))
    assert log == [(False, 60)] * 3 + [(True, 60)]
    assert net.training


def test_a_step_that_pays_the_penalty_pays_it_at_its_equilibrium_with_a_longer_or_shorter_solver():
    log = []
    net = exact()
    net.rule = Seen(TIGHT, net=net.net, log=log)
    penalty = JacobianPenalty(probability=1.0, weight=2.0, offsets=(-7,))
    run = begun(attack=PGD(steps=2), warmup=0, penalty=penalty)
    loss = run.loss(net, X, Y, SPACE, keys(N))
    assert [steps for _, steps in log] == [60, 60, 53]
    free = begun(attack=PGD(steps=2), warmup=0, penalty=replace(penalty, weight=0.0)).loss(
        net, X, Y, SPACE, keys(N)
    )
    u, z = net.longer(-7).equilibrium(craft(net, X, Y, SPACE, keys(N), PGD(steps=2)))
    assert_close(loss - free, penalty(net.net.cell, z, u, keys(N).fold_in(4)), rtol=0, atol=1e-12)
    assert (loss > free).all()


def test_the_solver_keeps_at_least_one_step():
    assert exact().longer(-1000).method.steps == 1
    net = exact()
    assert {id(p) for p in net.longer(1).parameters()} == {id(p) for p in net.parameters()}


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


def test_a_run_resumed_after_the_warm_up_ends_on_the_same_bits(tmp_path):
    """108 examples are three steps an epoch: the warm-up ends within the second."""
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


def test_every_epoch_says_how_near_to_its_equilibrium_the_network_answers():
    data = load_data("digits", split="train", n=120)
    trained = fit(digits_net(), data.x, data.y, replace(RECIPE, epochs=1), seed=1)
    dev = data.x[trained.split.dev]
    assert trained.history[0].residual == pytest.approx(
        float(trained.net.settled(dev).residual.mean()), rel=1e-4
    )
    plain = fit(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
        data.x,
        data.y,
        replace(RECIPE, epochs=1, method=Standard()),
    )
    assert plain.history[0].residual is None


def test_a_record_keeps_the_residuals_and_says_whether_an_adversary_took_part(tmp_path):
    from saddlepoint import zoo
    from saddlepoint.zoo.deq import digits_deq_exact

    coarse = replace(RECIPE, name="coarse", net=digits_deq_exact, epochs=2, n=60, measured_on=10)
    made = rebuild(coarse, tmp_path, adversaries=(FixedPoints(),))
    assert len(made.residuals) == 2
    assert made.training_radius == SPACE.radius
    assert zoo.entry("coarse", tmp_path) == made
    calm = replace(coarse, method=EquilibriumTraining(None, warmup=1), epochs=1)
    assert rebuild(calm, tmp_path, adversaries=(FixedPoints(),)).training_radius == 0


def test_dropout_masks_and_batch_statistics_survive_a_step_with_the_penalty():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        inner = MDEQNet(
            image=(1, 4, 4), channels=(8, 8), planes=(2, 2), width=8, classes=3, dropout=0.3
        )
        net = Solved(inner, method=Broyden(steps=2), rule=Implicit(Picard(steps=2))).train()
        run = begun(attack=PGD(steps=1), warmup=0, penalty=JacobianPenalty(probability=1.0))
        run.loss(net, uniform(1, 4, 1, 4, 4).float(), Y, SPACE, keys(4)).mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


def test_only_solved_networks_can_be_trained_so():
    with pytest.raises(
        TypeError, match=r"trains a Solved network, got Linear\. Wrap it: Solved\(net\)"
    ):
        begun().loss(nn.Linear(2, 2), X, Y, SPACE, keys(N))
    with pytest.raises(ValueError, match="warmup >= 0"):
        EquilibriumTraining(warmup=-1)
