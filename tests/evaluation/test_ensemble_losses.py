"""Losses of an ensemble of models: average and minimum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.evaluation.batch_problem import NET, PGD5, WEIGHTINGS, N, X, Y, context, objectives
from tests.problems import (
    Centring,
    Static,
    keys,
    normal,
    smooth,
)
from torch import Tensor

from saddlepoint.attacks.base import Repeated, as_attack
from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.ensemble import AverageLoss, Ensemble, LossWeighting, MinLoss
from saddlepoint.attacks.losses import cross_entropy, margin
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.square import Square
from saddlepoint.gradients import Backprop


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=["average", "minimum"])
def test_an_ensemble_of_one_model_is_that_model(weighting: LossWeighting) -> None:
    defense = Static(NET)
    alone = PGD5.move(context(), defense, X, Y)
    ensemble = PGD5.against([defense], context(), X, Y, weighting)
    assert torch.equal(alone.max_loss_point, ensemble.max_loss_point)
    single = Ensemble(objectives(NET), weighting).value_and_grad(Backprop(), X, keys(N))
    plain = Backprop().value_and_grad(objectives(NET)[0], X, keys(N))
    assert torch.equal(single.grad, plain.grad)
    assert torch.equal(single.evaluation.value, plain.evaluation.value)


@dataclass(frozen=True)
class Fixed:
    needs = "decision"
    calls: int = 0

    def __call__(self, oracle: Any, center: Tensor, space: Any, keys: Any) -> AttackResult:
        return AttackResult(center, center)


def test_duplicates_do_not_change_the_average_and_double_the_steps_of_the_minimum() -> None:
    defense = Static(NET)
    single = context()
    double = context()
    alone = PGD5.against([defense], single, X, Y).max_loss_point
    assert torch.equal(alone, PGD5.against([defense, defense], double, X, Y).max_loss_point)
    assert single.meter.forward.tolist() == [6] * N
    assert double.meter.forward.tolist() == [12] * N  # two models at each of six calls
    scaled = PGD5.scaled(MinLoss().step_factor(2))
    assert isinstance(scaled.attack, PGD)
    assert (scaled.attack.steps, scaled.attack.step_size) == (10, 0.03)
    assert AverageLoss().step_factor(7) == 1
    assert Square(queries=30).scaled(3) == Square(queries=90)
    # An attack without a number of steps or queries is repeated instead.
    assert as_attack(Fixed()).scaled(2) == Repeated(as_attack(Fixed()), 2)


def test_the_minimum_loss_is_at_most_the_average_which_is_at_most_the_maximum() -> None:
    nets = [smooth(seed) for seed in (1, 5, 9)]
    values = torch.stack([cross_entropy(net(X), Y) for net in nets])
    average, minimum = (Ensemble(objectives(*nets), w)(X, keys(N)).value for w in WEIGHTINGS)
    assert (minimum <= average + 1e-12).all()
    assert (average <= values.amax(0) + 1e-12).all()
    torch.testing.assert_close(minimum, values.amin(0), rtol=0, atol=0)
    torch.testing.assert_close(average, values.mean(0))


def test_the_gradient_of_the_minimum_is_that_of_the_model_with_the_minimum_loss() -> None:
    nets = [smooth(seed) for seed in (1, 5, 9)]
    each = [Backprop().value_and_grad(objective, X, keys(N)) for objective in objectives(*nets)]
    lowest = torch.stack([result.evaluation.value for result in each]).argmin(0)
    assert len(set(lowest.tolist())) > 1
    found = Ensemble(objectives(*nets), MinLoss()).value_and_grad(Backprop(), X, keys(N))
    expected = torch.stack([result.grad for result in each])[lowest, torch.arange(N)]
    assert torch.equal(found.grad, expected)


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=["average", "minimum"])
def test_the_gradient_model_by_model_is_that_of_the_whole_objective_for_coupled_rows(
    weighting: LossWeighting,
) -> None:
    ensemble = Ensemble(
        tuple(AttackObjective([Centring(smooth(s))], Y, cross_entropy) for s in (1, 5)),
        weighting,
        coupled=True,
    )
    x = X.clone().requires_grad_()
    (whole,) = torch.autograd.grad(ensemble(x, keys(N)).value.sum(), x)
    result = ensemble.value_and_grad(Backprop(), X, keys(N))
    torch.testing.assert_close(result.grad, whole)
    torch.testing.assert_close(result.evaluation.value, ensemble(X, keys(N)).value)
    assert ensemble.gradient_cost(Backprop()) == ((4, 2) if weighting.needs_all_losses else (2, 2))


def test_success_on_an_ensemble_needs_all_models_and_margins_combine_class_by_class() -> None:
    nets = [smooth(seed) for seed in (1, 5)]
    ensemble = Ensemble(objectives(*nets, loss=margin), MinLoss())
    wrong = torch.stack([net(X).argmax(1) != Y for net in nets])
    assert torch.equal(ensemble(X, keys(N)).success, wrong.all(0))
    assert wrong.any(0).sum() > wrong.all(0).sum()
    class_margins = ensemble.class_margin_gradients(Backprop(), X, keys(N))
    each = torch.stack(
        [
            Backprop().value_and_grad(objective.class_margins, X, keys(N)).evaluation.value
            for objective in ensemble.objectives
        ]
    )
    torch.testing.assert_close(class_margins.evaluation.value, each.amin(0))
    assert class_margins.grad.shape == (3, N, 6)


def test_the_activations_of_one_model_at_a_time_are_in_memory() -> None:
    """The peak of bytes saved for backward passes: ten models need as much as one."""
    weights = [(normal(k, 64, 6), normal(k + 50, 4, 64)) for k in range(10)]

    def wide(w: Tensor, v: Tensor) -> Any:
        return lambda x: ((x @ w.T).tanh().sin().tanh()) @ v.T

    def peak_bytes(models: int, compute: Callable[[Ensemble], object]) -> int:
        live = highest = 0

        class Saved:
            def __init__(self, tensor: Tensor) -> None:
                nonlocal live, highest
                self.tensor = tensor
                live += tensor.nbytes
                highest = max(highest, live)

            def __del__(self) -> None:
                nonlocal live
                live -= self.tensor.nbytes

        with torch.autograd.graph.saved_tensors_hooks(Saved, lambda packed: packed.tensor):
            compute(Ensemble(objectives(*[wide(*w) for w in weights[:models]]), MinLoss()))
        assert live == 0
        return highest

    def one_by_one(ensemble: Ensemble) -> object:
        return ensemble.value_and_grad(Backprop(), X, keys(N))

    def at_once(ensemble: Ensemble) -> object:
        return Backprop().value_and_grad(ensemble, X, keys(N))

    alone = peak_bytes(1, one_by_one)
    assert alone > 3 * N * 64 * 8  # three activations of 64 numbers each
    assert peak_bytes(10, one_by_one) <= 1.3 * alone
    assert peak_bytes(10, at_once) > 8 * alone
