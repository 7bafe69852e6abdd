"""Operations without a gradient get one, with values that are exact to the last bit."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import saddlepoint as sp
from saddlepoint.audits.target.operations import Operation, OtherWidth
from saddlepoint.audits.target.saved_copies import SavedCopies
from saddlepoint.audits.target.source_lines import SourceLine
from saddlepoint.audits.target.surrogates import SurrogateOperations, record
from saddlepoint.defenses import Plain
from saddlepoint.rng import Keys

N = 6
WIDTH = 5
X = 0.1 + 0.8 * torch.rand(N, WIDTH, generator=torch.Generator().manual_seed(0))
KEYS = Keys.of(0, torch.arange(N))
TABLE = torch.linspace(0, 1, 9) ** 1.5  # increasing
WORDS = torch.linspace(0, 1, 7)


class Net(nn.Module):
    def __init__(self, code):
        super().__init__()
        self.code = code

    def forward(self, x):
        return self.code(x)


class DroppedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 0 * g


def in_buffer(x):
    buffer = torch.zeros_like(x)
    with torch.no_grad():
        buffer[:] = x
        buffer *= 3
    return buffer


@torch.no_grad()
def decorated(x):
    return x * x


def in_inference_mode(x):
    with torch.inference_mode():
        y = 2 * x
    return y.clone()


def assigned(x):
    y = x.clone()
    y[x > 0.5] = 2.0
    return y


def rows_by_numpy(x):
    rows = [np.sqrt(row.detach().numpy()) for row in x]
    return torch.stack([torch.tensor(row) for row in rows])


def rounded_in_place(x):
    y = 8 * x
    y.round_()
    return y


def masked_in_place(x):
    mask = x > 0.3
    mask &= x > 0.4
    return mask.float()


def in_threads(x):
    with ThreadPoolExecutor(2) as pool:
        return torch.cat(list(pool.map(lambda part: (8 * part).round(), x.split(2))))


def in_a_thread(x):
    found = []
    thread = threading.Thread(target=lambda: found.append((8 * x).round()))
    thread.start()
    thread.join()
    return found[0]


def chosen_by_gather(x):
    words = WORDS.expand(*x.shape, -1)
    index = (x[..., None] - words).abs().argmin(-1, keepdim=True)
    return words.gather(-1, index).squeeze(-1)


INCREASING = {
    "gt": lambda x: (x > 0.5).float(),
    "lt": lambda x: 1 - (x < 0.5).to(x.dtype),
    "round": lambda x: x.mul(255).round().div(255),
    "floor": lambda x: torch.floor(8 * x + 0.5) / 8,
    "remainder": lambda x: x - x % 0.125,
    "floordiv": lambda x: x // 0.125,
    "div": lambda x: torch.div(x, 0.125, rounding_mode="floor"),
    "sign": lambda x: torch.sign(x - 0.5),
    "detach": lambda x: x.detach() * 2,
    "data": lambda x: x.data * 2,
    "long": lambda x: TABLE[(8 * x).long()],
    "to": lambda x: (255 * x).to(torch.uint8).to(x.dtype),
    "bucketize": lambda x: TABLE[torch.bucketize(x, torch.linspace(0.1, 0.9, 8))],
    "searchsorted": lambda x: torch.searchsorted(torch.linspace(0.1, 0.9, 8), x).float(),
    "argmin": lambda x: WORDS[(x[..., None] - WORDS).abs().argmin(-1)],
    "min": lambda x: WORDS[(x[..., None] - WORDS).abs().min(-1).indices],
    "argmin by gather": chosen_by_gather,
    "argmin by embedding": lambda x: functional.embedding(
        (x[..., None] - WORDS).abs().argmin(-1), WORDS[:, None]
    ).squeeze(-1),
    "topk": lambda x: WORDS[(-(x[..., None] - WORDS).abs()).topk(1, -1).indices].squeeze(-1),
    "gt in where": lambda x: torch.where(x > 0.5, 0.8, 0.1),
    "gt in masked_fill": lambda x: torch.zeros_like(x).masked_fill(x > 0.5, 1.0),
    "gt in an assignment": assigned,
    "gt in a logical function": lambda x: (~(x > 0.5) ^ (x > -1)).float(),
    "gt in place": masked_in_place,
    "gt in a sum": lambda x: (x[..., None] > torch.linspace(0.1, 0.9, 8)).sum(-1).float(),
    "gt as any": lambda x: (x[..., None] > torch.linspace(0.1, 0.9, 3)).any(-1).float(),
    "long in one_hot": lambda x: (
        functional.one_hot((8 * x).long(), 9).float() * torch.arange(9.0)
    ).sum(-1),
    "long in an equality": lambda x: (
        ((8 * x).long()[..., None] == torch.arange(9)).float() * torch.arange(9.0)
    ).sum(-1),
    "long and clamp": lambda x: ((8 * x).long() + 1).clamp(max=8).div(8),
    "from_numpy": lambda x: torch.from_numpy(np.sqrt(x.detach().numpy())),
    "tensor": lambda x: torch.tensor(x.detach().tolist()),
    "tensor by row": rows_by_numpy,
    "tensor of numbers": lambda x: torch.tensor([v.item() for v in x.flatten()]).view(x.shape),
    "round in place": rounded_in_place,
    "round in a pool of threads": in_threads,
    "round in a thread": in_a_thread,
    "no_grad": in_buffer,
    "no_grad as decorator": decorated,
    "inference_mode": in_inference_mode,
    "DroppedGradient": lambda x: DroppedGradient.apply(x),
}


def with_default_rules(code):
    """A defense with all operations that were found, and rules for them."""
    plain = Plain(Net(code))
    found = record(plain, X, sp.Context(KEYS))
    periodic = ("remainder",)
    operations = tuple(
        Operation(c.operation.line, c.operation.function, 0.3, c.operation.function not in periodic)
        for c in found.calls.values()
    )
    rules = {str(operation): sp.BPDA() for operation in operations}
    return SurrogateOperations(plain, operations), rules


def output_and_gradient(defense, rules):
    x = X.clone().requires_grad_()
    out = defense.trace(x, sp.Context(KEYS, rules)).last
    (grad,) = torch.autograd.grad(out.sum(), x)
    return out.detach(), grad


@pytest.mark.parametrize("name", INCREASING)
def test_the_gradient_of_an_increasing_function_is_positive_and_its_value_exact(name):
    code = INCREASING[name]
    out, grad = output_and_gradient(*with_default_rules(code))
    assert torch.equal(out, code(X).detach())
    assert (grad > 0).all()


@pytest.mark.parametrize("name", [name for name in INCREASING if name.split()[0] == name])
def test_the_name_of_an_operation_is_its_line_and_function(name):
    name_of_function = "no_grad" if name == "inference_mode" else name
    defense, _ = with_default_rules(INCREASING[name])
    names = [str(operation) for operation in defense.operations]
    assert any(n.startswith("test_operations.py:") and n.endswith(name_of_function) for n in names)


class WithoutGrad(nn.Module):
    """The caller of `forward` is torch, so that no line of this code calls the decorator."""

    @torch.no_grad()
    def forward(self, x):
        return (x > 0.5).float()


def test_a_decorated_forward_pass_is_found_by_the_line_of_its_decorator():
    plain = Plain(WithoutGrad())
    found = record(plain, X, sp.Context(KEYS))
    operations = tuple(
        Operation(c.operation.line, c.operation.function) for c in found.calls.values()
    )
    assert sorted(operation.function for operation in operations) == ["gt", "no_grad"]
    texts = {operation.function: operation.line.text for operation in operations}
    assert texts["no_grad"] == "@torch.no_grad()"
    rules = dict.fromkeys(map(str, operations), sp.BPDA())
    _, grad = output_and_gradient(SurrogateOperations(plain, operations), rules)
    assert (grad > 0).all()


def test_without_rules_gradients_are_those_of_the_code():
    def code(x):
        return x + x.round()

    defense, _ = with_default_rules(code)
    _, grad = output_and_gradient(defense, {})
    assert torch.equal(grad, torch.ones_like(X))


@pytest.mark.parametrize("times", [0.5, 4.0])
def test_a_rule_changes_the_width_of_a_surrogate_and_not_the_value(times):
    """The slope of a sigmoid of width w is s (1 - s) / w at s = sigmoid((x - 0.5) / w)."""
    defense, rules = with_default_rules(lambda x: (x > 0.5).float())
    others = dict.fromkeys(rules, OtherWidth(times=times))
    out, grad = output_and_gradient(defense, others)
    assert torch.equal(out, (X > 0.5).float())
    smooth = ((X - 0.5) / (0.3 * times)).sigmoid()
    torch.testing.assert_close(grad, smooth * (1 - smooth) / (0.3 * times))


def test_a_flipped_backward_pass_becomes_that_of_the_forward_pass():
    class Flipped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x**3

        @staticmethod
        def backward(ctx, g):
            return -g

    _, grad = output_and_gradient(*with_default_rules(lambda x: Flipped.apply(x)))
    torch.testing.assert_close(grad, 3 * X**2)


def test_gradients_of_routing_weights_reach_the_scores():
    scores = torch.randn(WIDTH, 3, generator=torch.Generator().manual_seed(1))

    def code(x):
        weights = functional.one_hot((x @ scores).argmax(1), 3).float()
        return weights * torch.tensor([1.0, 2.0, 3.0])

    out, grad = output_and_gradient(*with_default_rules(code))
    assert torch.equal(out, code(X))
    assert (grad != 0).any(1).all()


def test_a_selection_by_a_mask_has_no_surrogate_and_is_reported():
    def code(x):
        return x + x[x > 0.5].sum()

    found = record(Plain(Net(code)), X, sp.Context(KEYS))
    assert [op.function for op in found.lost.values()] == ["getitem"]
    assert torch.equal(Plain(Net(code)).trace(X, sp.Context(KEYS)).last, code(X))


def test_everything_is_restored_after_a_call():
    before = (torch.from_numpy, torch.autograd.Function.__dict__["apply"])
    enter = torch.inference_mode.__enter__
    with pytest.raises(RuntimeError, match="stop"):
        record(Plain(Net(raises)), X, sp.Context(KEYS))
    assert (torch.from_numpy, torch.autograd.Function.__dict__["apply"]) == before
    assert torch.inference_mode.__enter__ is enter


def raises(x):
    raise RuntimeError("stop")


def test_a_line_is_shown_with_its_code():
    found = record(Plain(Net(lambda x: x.round())), X, sp.Context(KEYS))
    (calls,) = found.calls.values()
    assert calls.operation.line.text.startswith("found = record(Plain(Net(lambda x: x.round()")
    assert str(SourceLine("net.py:3", "x > 1")) == "net.py:3: `x > 1`"


def test_code_without_source_is_named_by_its_function():
    scope = {}
    exec("def unseen(x):\n    return x.round()\n", scope)
    found = record(Plain(Net(scope["unseen"])), X, sp.Context(KEYS))
    assert [str(c.operation) for c in found.calls.values()] == ["unseen round"]


def test_a_pool_of_threads_that_outlives_a_call_is_left_as_it_was():
    with ThreadPoolExecutor(1) as pool:

        def code(x):
            return pool.submit(lambda: (8 * x).round()).result()

        _, grad = output_and_gradient(*with_default_rules(code))
        assert (grad > 0).all()
        x = X.clone().requires_grad_()
        (grad,) = torch.autograd.grad(code(x).sum(), x)
        assert (grad == 0).all()


def test_where_no_surrogate_applies_the_gradient_is_zero():
    def code(x):
        return x.round() if len(x) == N else torch.from_numpy(x.detach().numpy().copy())

    defense, rules = with_default_rules(code)
    x = X[:2].clone().requires_grad_()
    out = defense.trace(x, sp.Context(Keys.of(0, torch.arange(2)), rules)).last
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(out.detach(), X[:2])
    assert (grad == 0).all()


def test_a_constant_is_copied_once_for_each_state_of_its_memory() -> None:
    """A large constant in many operations would otherwise fill the memory."""
    copies = SavedCopies()
    constant = torch.ones(3)
    first = copies(constant)
    assert copies(constant) is first
    assert copies(constant[:2]) is not first
    constant.mul_(2)
    assert copies(constant).tolist() == [2, 2, 2]
    assert first.tolist() == [1, 1, 1]


def test_results_are_copied_and_weights_are_not() -> None:
    copies = SavedCopies()
    weight = torch.ones(3, requires_grad=True)
    result = 2 * weight
    assert copies(weight).data_ptr() == weight.data_ptr()
    assert copies(result).data_ptr() != result.data_ptr()
