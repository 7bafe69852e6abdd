"""Saturated softmax functions inside a target."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saddlepoint.audits.target.saturation import SoftenedDefense, saturation
from saddlepoint.defenses import Context, Plain

N = 8
CLASSES = 3
X = torch.rand(N, 5, generator=torch.Generator().manual_seed(0))


class Retrieval(nn.Module):
    """A softmax over stored patterns, then a linear map of the retrieved pattern."""

    def __init__(self, sharpness: float) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.patterns = torch.rand(6, 5, generator=generator)
        self.weight = torch.randn(CLASSES, 5, generator=generator)
        self.sharpness = sharpness
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        weights = (self.sharpness * x @ self.patterns.T).softmax(1)
        return ((weights @ self.patterns) @ self.weight.T).softmax(1)


def test_only_a_saturated_softmax_is_found() -> None:
    ctx = Context.seeded(0, N)
    assert saturation(Plain(Retrieval(1.0)), X, ctx, CLASSES) is None
    assert saturation(Plain(Retrieval(1000.0)), X, ctx, CLASSES) is not None


def test_the_softmax_over_classes_is_the_prediction_and_not_reported() -> None:
    class Sharp(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (1000 * x[:, :CLASSES]).softmax(1)

    assert saturation(Plain(Sharp().eval()), X, Context.seeded(0, N), CLASSES) is None


def test_softened_gradients_reach_every_image_and_outputs_are_the_same() -> None:
    net = Retrieval(1000.0)
    x = X.clone().requires_grad_()
    ctx = Context.seeded(0, N)
    exact = Plain(net).trace(x, ctx).last
    softened = SoftenedDefense(Plain(net), 1000.0).trace(x, ctx).last
    assert torch.equal(exact, softened)
    sharp, soft = (torch.autograd.grad(out[:, 0].sum(), x)[0] for out in (exact, softened))
    assert float((sharp.abs().amax(1) < 1e-9).float().mean()) > 0.5
    assert float(soft.abs().amax(1).amin()) > 1e-6
