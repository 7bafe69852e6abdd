"""Hidden exits of plain nets are found in every style of code, exposed, and attacked."""

from __future__ import annotations

import pytest
import torch
from tests.audits.probes.toy_targets import probed
from torch import nn

import saddlepoint as sp
from saddlepoint.audits.target.exits import ExposedExits
from saddlepoint.audits.verdict import Level, SymptomName
from saddlepoint.defenses import Context, Plain
from saddlepoint.rng import Keys

GENERATOR = torch.Generator().manual_seed(5)
X = torch.rand(24, 1, 4, 4, generator=GENERATOR)
HEADS = torch.randn(3, 16, 4, generator=GENERATOR)
HEADS = HEADS[:1] + 0.7 * HEADS  # the heads agree on many images, not on all
Y = ((X.flatten(1) - 0.5) @ HEADS.sum(0)).argmax(1)
LINF = sp.Linf(0.1)


class Exits(nn.Module):
    """Three linear heads on one image after the other, or on the batch."""

    def __init__(self):
        super().__init__()
        self.heads = nn.Parameter(HEADS.clone())
        self.eval()

    def head(self, k, x):
        return (x.flatten(1) - 0.5) @ self.heads[k].to(x.dtype)


class PatienceWithMasks(Exits):
    def forward(self, x):
        answer = self.head(0, x)
        previous = answer.argmax(1)
        done = torch.zeros(len(x), dtype=torch.bool)
        for k in (1, 2):
            logits = self.head(k, x)
            answer = torch.where(done[:, None], answer, logits)
            done = done | (logits.argmax(1) == previous)
            previous = logits.argmax(1)
            if done.all():
                break
        return answer


class PatienceOnActiveRows(Exits):
    def forward(self, x):
        answer = x.new_zeros(len(x), 4)
        active = torch.arange(len(x))
        previous = torch.full((len(x),), -1)
        for k in range(3):
            logits = self.head(k, x[active])
            predicted = logits.argmax(1)
            answer[active] = logits
            going = predicted != previous[active]
            previous[active] = predicted
            active = active[going]
            if not len(active):
                break
        return answer


class PatienceByNumbers(Exits):
    def forward(self, x):
        return torch.cat([self.one(image[None]) for image in x])

    def one(self, image):
        previous = None
        for k in range(3):
            logits = self.head(k, image)
            predicted = int(logits.argmax(1))
            if predicted == previous:
                break
            previous = predicted
        return logits


class ConfidenceByItem(Exits):
    def forward(self, x):
        return torch.cat([self.one(image[None]) for image in x])

    def one(self, image):
        for k in range(3):
            logits = self.head(k, image)
            if logits.softmax(1).max().item() > 0.7:
                return logits
        return logits


class ConfidenceByFloat(ConfidenceByItem):
    def one(self, image):
        for k in range(3):
            logits = self.head(k, image)
            if float(logits.detach().softmax(1).max()) > 0.7:
                return logits
        return logits


class VotesInAList(Exits):
    def forward(self, x):
        return torch.cat([self.one(image[None]) for image in x])

    def one(self, image):
        votes = [0, 0, 0, 0]
        for k in range(3):
            logits = self.head(k, image)
            votes[logits.argmax(1).item()] += 1
            if max(votes) == 2:
                break
        return logits


class CascadeOnUnsureRows(Exits):
    def forward(self, x):
        answer = self.head(0, x)
        unsure = answer.softmax(1).amax(1) < 0.7
        if unsure.any():
            answer = answer.clone()
            answer[unsure] = self.head(1, x[unsure])
        return answer


class ConfidenceWithMasks(Exits):
    def forward(self, x):
        answer = self.head(0, x)
        unsure = answer.softmax(1).amax(1) < 0.7
        for k in (1, 2):
            logits = self.head(k, x)
            answer = torch.where(unsure[:, None], logits, answer)
            unsure = unsure & (logits.softmax(1).amax(1) < 0.7)
        return answer


class MeanConfidence(Exits):
    def forward(self, x):
        for k in range(3):
            logits = self.head(k, x)
            if logits.softmax(1).amax(1).mean() > 0.9:
                break
        return logits


class Plainly(Exits):
    def forward(self, x):
        return self.head(0, x)


class PenultimateScores(Exits):
    """An ordinary net of which the last hidden layer has as many outputs as there are classes."""

    def forward(self, x):
        if x.amax() > 2:
            raise ValueError
        return self.head(0, x).relu() @ torch.eye(4)


class Solver(Exits):
    """A fixed point of which the number of steps depends on the image."""

    def forward(self, x):
        return torch.cat([self.one(image[None]) for image in x])

    def one(self, image):
        injected = self.head(0, image)
        z = torch.zeros_like(injected)
        for _ in range(100):
            following = 0.5 * torch.tanh(z) + injected
            change = (following - z).norm().item()
            z = following
            if change < 1e-4:
                break
        return z


class SolverWithBias(Solver):
    """The head adds its bias in a second step."""

    def one(self, image):
        features = torch.cat([super().one(image), image.flatten(1)], 1)
        return features[:, :8] @ torch.ones(8, 4).tril() + torch.arange(4) / 4


class OutsideTorch(Exits):
    """Rows are routed by numbers that no torch function reads."""

    def forward(self, x):
        bright = x.detach().flatten(1).numpy().mean(1) > 0.5
        return torch.cat([self.one(each[None], up) for each, up in zip(x, bright, strict=True)])

    def one(self, image, bright):
        features = image.flatten(1) - 0.5
        features = 2 * features.roll(1, dims=1) if bright else features
        scores = features @ self.heads[0].to(features)
        return scores if scores.amax() < 1e9 else scores.clamp(max=1e9)


@pytest.mark.parametrize(
    ("net", "count"),
    [
        (PatienceWithMasks, 3),
        (PatienceOnActiveRows, 3),
        (PatienceByNumbers, 3),
        (ConfidenceByItem, 3),
        (ConfidenceByFloat, 3),
        (VotesInAList, 3),
        (CascadeOnUnsureRows, 2),
        (ConfidenceWithMasks, 3),
        (MeanConfidence, 3),
    ],
)
def test_every_exit_is_exposed_for_every_image_with_its_gradient(net, count):
    target = net()
    hidden = probed(target, X, Y, LINF).facts.exits
    assert hidden is not None
    exposed = ExposedExits(Plain(target), hidden, Y)
    x = X.clone().requires_grad_()
    trace = exposed.trace(x, Context(Keys.of(0, torch.arange(len(X)))))
    views = {name: trace.select([name]).last for name in trace.names}
    exits = [logits for name, logits in views.items() if name.startswith("exit")]
    assert len(exits) == count
    for k, logits in enumerate(exits):
        torch.testing.assert_close(logits, target.head(k, x))
        assert torch.autograd.grad(logits.sum(), x, retain_graph=True)[0].abs().sum() > 0
    torch.testing.assert_close(trace.last, target(X))


def test_one_image_alone_has_the_exits_that_it_has_in_a_batch():
    target = ConfidenceByItem()
    hidden = probed(target, X, Y, LINF).facts.exits
    exposed = ExposedExits(Plain(target), hidden, Y[:1])
    trace = exposed.trace(X[:1], Context(Keys.of(0, torch.arange(1))))
    for k in range(3):
        torch.testing.assert_close(trace.select([f"exit/{k + 1}"]).last, target.head(k, X[:1]))


def test_a_comparison_is_misclassified_where_it_selects_the_exit():
    target = ConfidenceByItem()
    hidden = probed(target, X, Y, LINF).facts.exits
    exposed = ExposedExits(Plain(target), hidden, Y)
    trace = exposed.trace(X, Context(Keys.of(0, torch.arange(len(X)))))
    selected = trace.select(["selection/1.1"]).last.argmax(1) != Y
    confident = target.head(0, X).softmax(1).amax(1) > 0.7
    assert torch.equal(selected, confident)


@pytest.mark.slow
@pytest.mark.parametrize("net", [Plainly, PenultimateScores, Solver, SolverWithBias])
def test_a_net_without_hidden_exits_gets_no_finding_and_no_attack(net):
    found = probed(net(), X, Y, LINF)
    assert found.facts.exits is None
    assert found.facts.jump is None
    names = {finding.name for finding in found.findings}
    assert not names & {SymptomName.HIDDEN_EXITS, SymptomName.HIDDEN_DECISIONS}


def test_a_jump_between_paths_that_cannot_be_attacked_is_serious():
    found = probed(OutsideTorch(), X, Y, LINF)
    finding = next(f for f in found.findings if f.name is SymptomName.HIDDEN_DECISIONS)
    assert finding.level is Level.SERIOUS
    assert "jumps by" in finding.message
