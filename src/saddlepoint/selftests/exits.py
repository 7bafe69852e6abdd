"""Plain networks that choose among hidden exits and return only their answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, pairwise, product

import torch
from torch import Tensor, nn

from saddlepoint.selftests.case import Case, Truth
from saddlepoint.selftests.exact import meet
from saddlepoint.selftests.problem import Problem, live, relabeled, toward, two_classes

_PATIENCE = 2  # exits in a row that must confirm an earlier one
_CONFIDENT_MARGIN = 1.0
_HALT = 1.0  # accumulated probability at which a network stops


class LinearHeads(nn.Module):
    """Linear heads on pixels minus 1/2, with two live classes each."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.weights = nn.Parameter(weights.clone())  # [L, d], of the margins

    def head(self, k: int, x: Tensor) -> Tensor:
        """[N, 4] logits of head k."""
        return live((x.flatten(1) - 0.5) @ self.weights[k].to(x.dtype))


class Patience(LinearHeads):
    """Stops when enough exits in a row predict the same class; all rows of a batch at once."""

    def forward(self, x: Tensor) -> Tensor:
        answer = self.head(0, x)
        previous = answer.argmax(1)
        agreed = torch.zeros_like(previous)
        active = torch.arange(len(x), device=x.device)
        for k in range(1, len(self.weights)):
            logits = self.head(k, x[active])
            predicted = logits.argmax(1)
            agreed = torch.where(predicted == previous, agreed + 1, 0)
            answer = answer.index_copy(0, active, logits)
            unsure = agreed < _PATIENCE
            active = active[unsure]
            previous = predicted[unsure]
            agreed = agreed[unsure]
            if len(active) == 0:
                break
        return answer


class PatienceByRow(LinearHeads):
    """The same rule with a loop over images."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.classify(image[None]) for image in x])

    def classify(self, image: Tensor) -> Tensor:
        """[1, 4] logits of one image."""
        agreed = 0
        logits = self.head(0, image)
        previous = logits.argmax(1).item()
        for k in range(1, len(self.weights)):
            logits = self.head(k, image)
            predicted = logits.argmax(1).item()
            agreed = agreed + 1 if predicted == previous else 0
            if agreed >= _PATIENCE:
                return logits
            previous = predicted
        return logits


class ConfidentCascade(LinearHeads):
    """A small net, and a large one for images where the small one is not confident."""

    def forward(self, x: Tensor) -> Tensor:
        rows = []
        for image in x:
            small = self.head(0, image[None])
            best = small.topk(2).values[0]
            if (best[0] - best[1]).item() > _CONFIDENT_MARGIN:
                rows.append(small)
            else:
                rows.append(self.head(1, image[None]))
        return torch.cat(rows)


class Halting(LinearHeads):
    """Stops at the first exit at which the accumulated halting probability is large enough."""

    def __init__(self, weights: Tensor, gates: Tensor) -> None:
        super().__init__(weights)
        self.gates = nn.Parameter(gates.clone())  # [L - 1, d]

    def forward(self, x: Tensor) -> Tensor:
        running = torch.ones(len(x), dtype=torch.bool, device=x.device)
        total = x.new_zeros(len(x))
        answer = self.head(0, x)
        for k in range(len(self.gates)):
            total = total + 0.5 + (x.flatten(1) - 0.5) @ self.gates[k].to(x.dtype)
            running = running & (total < _HALT)
            answer = torch.where(running[:, None], self.head(k + 1, x), answer)
        return answer


class Vote(LinearHeads):
    """The fraction of heads that predict each class."""

    def forward(self, x: Tensor) -> Tensor:
        votes = [self.head(k, x).argmax(1) for k in range(len(self.weights))]
        counts = nn.functional.one_hot(torch.stack(votes), 4).sum(0)
        return counts.to(x.dtype) / len(votes)


def _heads(problem: Problem, count: int) -> Tensor:
    """[count, d] margin weights: those of the problem, and others that are partly random."""
    generator = torch.Generator().manual_seed(29)
    other = torch.randn(count, problem.weight.shape[1], generator=generator)
    own = problem.weight[0] - problem.weight[1]
    return torch.cat([own[None], 0.6 * own + 0.8 * other[1:]])


def _gates(problem: Problem) -> Tensor:
    generator = torch.Generator().manual_seed(31)
    return 0.3 * torch.randn(2, problem.weight.shape[1], generator=generator)


def _reachable(problem: Problem, normals: Tensor, offsets: Tensor) -> Tensor:
    """[N] whether some reachable t = x - 1/2 has n_k t + o_k >= 0 for all k.

    Args:
        normals: n, [K, d] or [N, K, d].
        offsets: o, [K].
    """
    low, high = problem.box()
    each = normals.double().expand(len(low), *normals.shape[-2:])
    return meet(each, offsets.double() - 0.5 * each.sum(2), low, high)


def _wrong(problem: Problem, heads: Tensor) -> Tensor:
    """[N, K, d] normals of the half-spaces in which each of K heads is wrong."""
    return -toward(problem.y)[:, None, None] * heads.double()


def _blocks(problem: Problem) -> Tensor:
    """[4, d] margin weights of four heads, each of its own quarter of the pixels.

    A gradient of one head therefore says nothing about another.
    """
    own = 2 * (problem.weight[0] - problem.weight[1])
    quarter = torch.arange(len(own)) * 4 // len(own)
    return torch.stack([torch.where(quarter == k, own, 0.0) for k in range(4)])


def _patience_truth(problem: Problem) -> Truth:
    """An image is broken if it reaches wrong and right heads with which the answer is wrong.

    Heads read different pixels, so that each can be wrong or right independently of the others.
    """
    low, high = problem.box()
    wrong = _wrong(problem, _blocks(problem))  # [N, 4, d]
    low = low[:, None] - 0.5
    high = high[:, None] - 0.5
    most = torch.maximum(wrong * low, wrong * high).sum(2)  # [N, 4] positive: it can be wrong
    least = torch.minimum(wrong * low, wrong * high).sum(2)
    broken = torch.zeros(len(wrong), dtype=torch.bool)
    for predictions in product((True, False), repeat=4):
        if _patient_answer(predictions):
            chosen = torch.tensor(predictions)
            broken |= torch.where(chosen, most > 0, least < 0).all(1)
    return Truth.of(~broken)


def _patient_answer(predictions: Sequence[bool]) -> bool:
    agreed = 0
    for previous, predicted in pairwise(predictions):
        agreed = agreed + 1 if predicted == previous else 0
        if agreed >= _PATIENCE:
            return predicted
    return predictions[-1]


def _cascade_truth(problem: Problem) -> Truth:
    """Broken: the small net is confident and wrong, or not confident while the large one is."""
    small, large = _heads(problem, 2)
    wrong = _wrong(problem, torch.stack([small, large]))
    threshold = torch.tensor([_CONFIDENT_MARGIN])
    first = _reachable(problem, wrong[:, :1], -threshold)
    unsure = torch.stack([small, -small]).double().expand(len(wrong), -1, -1)
    offsets = torch.tensor([0.0, _CONFIDENT_MARGIN, _CONFIDENT_MARGIN])
    second = _reachable(problem, torch.cat([wrong[:, 1:], unsure], 1), offsets)
    return Truth.of(~(first | second))


def _halting_truth(problem: Problem) -> Truth:
    """Broken: exit k is wrong where the sum of halting probabilities first reaches the limit."""
    wrong = _wrong(problem, _heads(problem, 3))
    sums = _gates(problem).double().cumsum(0).expand(len(wrong), -1, -1)
    left = torch.tensor([0.5 - _HALT, 1.0 - _HALT])  # of the sums at gray
    broken = torch.zeros(len(wrong), dtype=torch.bool)
    for k in range(3):
        running = -sums[:, :k]
        halted = sums[:, k : k + 1]
        normals = torch.cat([wrong[:, k : k + 1], running, halted], 1)
        offsets = torch.cat([torch.zeros(1), -left[:k], left[k : k + 1]])
        broken |= _reachable(problem, normals, offsets)
    return Truth.of(~broken)


def _vote_truth(problem: Problem) -> Truth:
    """Broken: three of five heads can be wrong at one point."""
    heads = _heads(problem, 5)
    broken = torch.zeros(len(problem.x), dtype=torch.bool)
    for majority in map(list, combinations(range(len(heads)), 3)):
        broken |= _reachable(problem, _wrong(problem, heads[majority]), torch.zeros(3))
    return Truth.of(~broken)


def _problem(
    defense: Callable[[Problem], nn.Module], n: int = 100, radius: float = 0.06, side: int = 4
) -> Callable[[], Problem]:
    def problem() -> Problem:
        images = two_classes(n, radius, side)
        return relabeled(images, defense(images))

    return problem


def _patience(problem: Problem) -> nn.Module:
    return Patience(_blocks(problem)).eval()


def _patience_by_row(problem: Problem) -> nn.Module:
    return PatienceByRow(_blocks(problem)).eval()


def _cascade(problem: Problem) -> nn.Module:
    return ConfidentCascade(_heads(problem, 2)).eval()


def _halting(problem: Problem) -> nn.Module:
    return Halting(_heads(problem, 3), _gates(problem)).eval()


def _vote(problem: Problem) -> nn.Module:
    return Vote(_heads(problem, 5)).eval()


CASES = (
    Case(
        "patience",
        "it stops when three hidden exits in a row agree, and returns the last one",
        _problem(_patience, 60, 0.05, 8),
        _patience,
        _patience_truth,
    ),
    Case(
        "patience by row",
        "the same rule in a loop over images, with decisions in Python numbers",
        _problem(_patience_by_row, 25, 0.05, 8),
        _patience_by_row,
        _patience_truth,
    ),
    Case(
        "cascade",
        "a second net answers where a Python number says that the first is not confident",
        _problem(_cascade, 25),
        _cascade,
        _cascade_truth,
    ),
    Case(
        "halting",
        "the first exit at which an accumulated probability reaches a limit answers",
        _problem(_halting),
        _halting,
        _halting_truth,
    ),
    Case(
        "hidden vote",
        "five hidden heads vote, and only the counts are returned",
        _problem(_vote),
        _vote,
        _vote_truth,
    ),
)
