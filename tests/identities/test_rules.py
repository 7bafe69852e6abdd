"""Rules: an attacker may choose the backward pass of a site, but not its forward value."""

from __future__ import annotations

import pytest
import torch
from tests.problems import Purifier, Quantized, Static, keys, normal, smooth, uniform
from torch import Tensor

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.defenses import Context, Defense, Trace
from saddlepoint.gradients import BPDA, Backprop, Checkpointed, Exact, Rule

RULES: tuple[Rule, ...] = (Exact(), Checkpointed(), BPDA(), BPDA(surrogate=torch.sin))
Y = torch.tensor([0, 1, 2, 3, 0])


def gradient(defense: Defense, site: str, rule: Rule, x: Tensor) -> Tensor:
    return (
        Backprop()
        .value_and_grad(
            AttackObjective([defense], Y, cross_entropy, rules={site: rule}), x, keys(len(x))
        )
        .grad
    )


@pytest.mark.parametrize("rule", RULES, ids=["exact", "checkpointed", "bpda", "bpda through sin"])
@pytest.mark.parametrize(
    ("defense", "site"),
    [(Quantized(smooth(0)), "quantize"), (Purifier(smooth(0)), "purify")],
    ids=["rounding", "random"],
)
def test_every_rule_keeps_the_forward_value_bit_for_bit(
    rule: Rule, defense: Defense, site: str
) -> None:
    x = uniform(1, 5, 6).requires_grad_()
    plain = defense.trace(x, Context(keys(5))).logits
    ruled = defense.trace(x, Context(keys(5), {site: rule})).logits
    assert torch.equal(ruled, plain)
    with torch.no_grad():
        assert torch.equal(defense.trace(x, Context(keys(5), {site: rule})).logits, plain)


def test_bpda_with_the_identity_is_the_gradient_at_the_purified_point() -> None:
    net = smooth(2)
    x = uniform(3, 5, 6)
    defense = Quantized(net)
    at_the_purified_point = (
        Backprop()
        .value_and_grad(
            AttackObjective([Static(net)], Y, cross_entropy), defense.quantize(x), keys(5)
        )
        .grad
    )
    torch.testing.assert_close(
        gradient(defense, "quantize", BPDA(), x), at_the_purified_point, rtol=0, atol=1e-15
    )
    # The exact gradient of rounding is zero.
    assert (gradient(defense, "quantize", Exact(), x) == 0).all()


def test_bpda_differentiates_its_surrogate() -> None:
    """With h as surrogate of g, d/dx f(g(x)) becomes h'(x) times the gradient of f at g(x)."""
    net = smooth(2)
    x = uniform(3, 5, 6)
    defense = Quantized(net)
    through_the_identity = gradient(defense, "quantize", BPDA(), x)
    got = gradient(defense, "quantize", BPDA(surrogate=lambda v: v**3), x)
    torch.testing.assert_close(got, 3 * x**2 * through_the_identity, rtol=1e-14, atol=0)


def test_bpda_rejects_a_surrogate_of_another_shape() -> None:
    with pytest.raises(ValueError, match=r"returns shape \(5, 3\), but the site returns \(5, 6\)"):
        gradient(
            Quantized(smooth(2)), "quantize", BPDA(surrogate=lambda v: v[:, :3]), uniform(3, 5, 6)
        )


def test_checkpointed_is_exact_at_random_sites() -> None:
    """The second run of a site draws the numbers of the first, else the gradient is wrong."""
    defense = Purifier(smooth(4), steps=5, noise=0.3)
    x = uniform(5, 5, 6)
    exact = gradient(defense, "purify", Exact(), x)
    torch.testing.assert_close(
        gradient(defense, "purify", Checkpointed(), x), exact, rtol=0, atol=1e-15
    )


def test_checkpointed_draws_the_same_numbers_again_at_nested_sites() -> None:
    drawn: list[Tensor] = []

    class Nested(Defense):
        random = True

        def trace(self, x: Tensor, ctx: Context) -> Trace:
            def inner(v: Tensor) -> Tensor:
                drawn.append(ctx.randn_like(v))
                return (v + drawn[-1]).sin()

            def outer(v: Tensor) -> Tensor:
                return ctx.through("inner", inner, v * ctx.rand_like(v)).cos()

            x = ctx.through("outer", outer, x)
            return Static(smooth(1)).trace(x + 0.1 * ctx.randn_like(x), ctx)

    x = uniform(5, 5, 6)
    exact = gradient(Nested(), "outer", Exact(), x)
    (first,) = drawn
    drawn.clear()
    checkpointed = gradient(Nested(), "outer", Checkpointed(), x)
    assert len(drawn) == 2  # forward, and again in the backward pass
    assert all(torch.equal(d, first) for d in drawn)
    torch.testing.assert_close(checkpointed, exact, rtol=0, atol=1e-15)


def test_checkpointed_replays_randomness_hidden_in_a_module() -> None:
    def hidden(v: Tensor) -> Tensor:
        return torch.nn.functional.dropout(v, 0.5).sin()

    x = normal(6, 4, 3).requires_grad_()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        y = Checkpointed().apply(hidden, x)
        torch.manual_seed(1)
        (got,) = torch.autograd.grad(y.sum(), x)
        torch.manual_seed(0)
        (want,) = torch.autograd.grad(hidden(x).sum(), x)
    assert torch.equal(got, want)


def test_checkpointed_saves_the_inputs_of_steps_only() -> None:
    """The most tensors saved at once, for 40 steps of 6 layers.

    Exact saves at least 240, Checkpointed one per step and those of one step.
    """

    def most_saved(rule: Rule, steps: int) -> int:
        saved = most = 0

        class Saved:  # alive as long as the graph holds the tensor
            def __init__(self, value: Tensor) -> None:
                nonlocal saved, most
                self.value = value
                saved = saved + 1
                most = max(most, saved)

            def __del__(self) -> None:
                nonlocal saved
                saved -= 1

        defense = Purifier(smooth(4), steps=steps, layers=6)
        objective = AttackObjective(
            [defense], Y, cross_entropy, rules={"purify": rule}, keep=frozenset({f"purify/{steps}"})
        )
        with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.value):
            Backprop().value_and_grad(objective, uniform(5, 5, 6), keys(5))
        return most

    assert most_saved(Exact(), 40) >= 40 * 6
    assert most_saved(Checkpointed(), 40) <= 40 + most_saved(Exact(), 2)


def test_a_rule_for_an_unknown_site_raises_an_error() -> None:
    with pytest.raises(
        ValueError,
        match=r"rules were given for \['round'\], but this defense has the sites \['quantize'\]",
    ):
        gradient(Quantized(smooth(0)), "round", BPDA(), uniform(1, 5, 6))
    with pytest.raises(ValueError, match=r"no named sites. Wrap the step in `ctx.through"):
        gradient(Static(smooth(0)), "round", BPDA(), uniform(1, 5, 6))
