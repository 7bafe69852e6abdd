"""Attacks and points from elsewhere are evaluated by the referee like all others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.audits.probes.toy_targets import X, Y, net
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint.attacks.losses import margin
from saddlepoint.evaluation import evaluate

RADIUS = 0.1
THREAT = sp.Linf(RADIUS)


def signed_step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """One step along the sign of the gradient: optimal for two classes of a linear net."""
    x.requires_grad_()
    margin(model(x), y).sum().backward()
    return (x + RADIUS * x.grad.sign()).clamp(0, 1)


def accuracy(adversary, target=None):
    return evaluate(target or sp.Plain(net()), [adversary], X, Y, threat=THREAT)


def test_a_function_gets_a_module_with_the_logits_and_gradients_of_the_defense():
    outcomes = accuracy(sp.External("step", signed_step))
    own = accuracy(sp.Direct("fgsm", sp.PGD(steps=1, step_size=RADIUS, random_start=False)))
    assert torch.allclose(outcomes.episodes[0].points, own.episodes[0].points)
    assert torch.equal(outcomes.correct, own.correct)
    assert float(outcomes.accuracy()) < 1


def test_passes_are_counted_and_parameters_get_no_gradients():
    inner = net()
    outcomes = accuracy(sp.External("step", signed_step), sp.Plain(inner))
    assert (outcomes.episodes[0].forward == 1).all()
    assert (outcomes.episodes[0].backward == 1).all()


def test_passes_above_the_query_limit_are_an_error():
    def twice(model, x, y):
        model(x)
        return signed_step(model, x, y)

    threat = sp.Threat(THREAT, queries=1)
    with pytest.raises(RuntimeError, match="allows 1 query"):
        evaluate(sp.Plain(net()), [sp.External("twice", twice)], X, Y, threat=threat)


def test_global_randomness_of_a_function_is_reproducible_and_does_not_leak():
    def noise(model, x, y):
        return (x + RADIUS * (2 * torch.rand_like(x) - 1)).clamp(0, 1)

    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first = accuracy(sp.External("noise", noise)).episodes[0].points
    after = torch.rand(3)
    second = accuracy(sp.External("noise", noise)).episodes[0].points
    assert torch.equal(first, second)
    assert torch.equal(after, expected)


def test_every_call_of_a_randomized_defense_draws_new_numbers():
    class Noisy(sp.Defense):
        random = True

        def trace(self, x, ctx):
            return sp.Trace((sp.View("final", net()(x + ctx.randn_like(x))),))

    outputs = []

    def twice(model, x, y):
        outputs.extend([model(x), model(x), model(x[:2])])
        return x

    accuracy(sp.External("twice", twice), Noisy())
    assert not torch.equal(outputs[0], outputs[1])
    assert len(outputs[2]) == 2


OUTSIDE = (X + 2 * RADIUS).clamp(0, 1)


def test_points_outside_of_the_set_are_an_error_or_are_treated_as_requested():
    def make(outside):
        return sp.Points("far", OUTSIDE, outside=outside)

    with pytest.raises(ValueError, match="left the perturbation set"):
        accuracy(make("error"))
    projected = accuracy(make("project")).episodes[0]
    assert torch.allclose(projected.points, (X + RADIUS).clamp(0, 1))
    skipped = accuracy(make("skip")).episodes[0]
    inside = (OUTSIDE - X).flatten(1).abs().amax(1) <= RADIUS
    assert torch.equal(skipped.points[~inside], X[~inside])


def test_points_may_be_arrays_or_bytes_and_are_given_by_image():
    on_grid = (X * 255).round() / 255
    for points in (on_grid.numpy(), (on_grid * 255).round().byte(), on_grid.tolist()):
        episode = accuracy(sp.Points("saved", points)).episodes[0]
        assert torch.allclose(episode.points, on_grid, atol=1e-6)
    batches = evaluate(
        sp.Plain(net()), [sp.Points("saved", on_grid)], X, Y, threat=THREAT, batch_size=5
    )
    assert torch.equal(batches.episodes[0].points, on_grid)


@pytest.mark.parametrize(
    ("adversary", "error", "message"),
    [
        (sp.External("pair", lambda m, x, y: (x, x)), TypeError, "Return only the points"),
        (sp.External("short", lambda m, x, y: x[:3]), ValueError, "shape of the images"),
        (sp.Points("few", X[:3]), ValueError, "one point per image"),
        (sp.Points("flat", X.flatten(1)), ValueError, "shape of the images"),
        (sp.External("nan", lambda m, x, y: x / 0), ValueError, "finite|outside|left"),
    ],
    ids=["pair", "short", "few", "flat", "not finite"],
)
def test_results_that_are_no_points_are_rejected(adversary, error, message):
    with pytest.raises(error, match=message):
        accuracy(adversary)


def test_arrays_are_accepted():
    episode = accuracy(sp.External("numpy", lambda m, x, y: np.asarray(x))).episodes[0]
    assert torch.equal(episode.points, X)


def test_extra_points_do_not_count_as_attacks_that_the_checklist_requires():
    """Points of unknown origin are no evidence that black-box attacks were run."""
    for adversary in (sp.Points("saved", X), sp.External("own", signed_step)):
        assert not adversary.properties.white_box
        assert not adversary.properties.black_box


def test_extra_adversaries_run_beside_the_others_and_lower_the_number():
    weak = [sp.Direct("weak", sp.PGD(steps=1, step_size=1e-4, random_start=False))]
    alone = sp.audit(net(), X, Y, threat=RADIUS, adversaries=weak, budget="quick")
    both = sp.audit(
        net(),
        X,
        Y,
        threat=RADIUS,
        adversaries=weak,
        extra=[sp.External("step", signed_step)],
        budget="quick",
    )
    assert [row.name for row in both.rows] == ["weak", "step"]
    assert both.robust_accuracy < alone.robust_accuracy
    assert both.examples.winner.count("step") > 0
