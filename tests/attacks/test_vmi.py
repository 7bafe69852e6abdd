"""VMI against its recursion, and the cost of EoT."""

from __future__ import annotations

import pytest
import torch
from tests.attacks.toys import Halfspace, Noisy, Waves, images, keys, oracle_for, weights

from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import L1, L2, Ball, Linf
from saddlepoint.attacks.vmi import VMI
from saddlepoint.evaluation import Direct, Threat
from saddlepoint.evaluation.referee import play
from saddlepoint.gradients import EoT

SPACES = [
    pytest.param(space, id=name)
    for name, space in (("Linf", Linf(0.05)), ("L2", L2(0.3)), ("L1", L1(0.5)))
]


@pytest.mark.parametrize("space", SPACES)
def test_without_samples_vmi_is_pgd_with_momentum(space: Ball) -> None:
    x = images(6, 1, 5, 5)
    net = Waves(25)
    y = net(x).argmax(1)
    tuned = VMI(steps=7, samples=0)(oracle_for(net, y), x, space, keys(6))
    plain = PGD(steps=7, step_size=space.radius / 7, random_start=False, momentum=1.0)(
        oracle_for(net, y), x, space, keys(6)
    )
    assert torch.equal(tuned.point, plain.point)
    assert torch.equal(tuned.max_loss_point, plain.max_loss_point)


def test_the_second_step_uses_the_mean_gradient_of_the_neighborhood() -> None:
    """It follows grad f(x1) + v0 with v0 = mean grad f(x0 + r) - grad f(x0).

    f is quadratic, so its gradients are known.
    """
    x = images(3, 8, low=0.4, high=0.6)
    space = Linf(0.1)
    queried: list[torch.Tensor] = []

    class Bowl(torch.nn.Module):
        def forward(self, v: torch.Tensor) -> torch.Tensor:
            if v.requires_grad:
                queried.append(v.detach())
            return torch.stack([torch.zeros_like(v[:, 0]), ((v - 0.5) ** 2).sum(1)], dim=1)

    VMI(steps=3, samples=4, neighborhood=1.0)(
        oracle_for(Bowl(), torch.zeros(3).long()), x, space, keys(3)
    )
    x0 = queried[0]
    near = torch.stack(queried[1:5])
    x1 = queried[5]
    x2 = queried[10]
    assert ((near - x0).abs() <= 0.1 + 1e-12).all()
    later = torch.stack(queried[6:10]) - x1
    # 2 steps, 4 neighbors, 3 rows, 8 pixels: all numbers are independent.
    assert len(torch.cat([near - x0, later]).flatten().unique()) > 150

    def gradient(v: torch.Tensor) -> torch.Tensor:
        return 2 * (v - 0.5)

    g0 = gradient(x0) / gradient(x0).abs().mean(1, keepdim=True)
    tuned = gradient(x1) + gradient(near).mean(0) - gradient(x0)
    g1 = g0 + tuned / tuned.abs().mean(1, keepdim=True)
    torch.testing.assert_close(x1, x0 + 0.1 / 3 * g0.sign(), rtol=0, atol=1e-14)
    torch.testing.assert_close(x2, x1 + 0.1 / 3 * g1.sign(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("space", SPACES)
def test_the_worst_case_of_a_linear_model_is_radius_times_dual_norm(space: Ball) -> None:
    """The variance term is zero, and ten steps of a tenth of the radius reach the edge."""
    w = weights(16)
    x = images(4, 16, low=0.45, high=0.55)
    space = Ball(space.p, 0.3)
    dual = {1: w.abs().amax(), 2: w.norm()}.get(space.p, w.abs().sum())
    found = VMI(samples=2)(oracle_for(Halfspace(w, 50.0), torch.zeros(4).long()), x, space, keys(4))
    torch.testing.assert_close(
        ((found.point - x) * w).sum(1), (0.3 * dual).expand(4), rtol=0, atol=1e-12
    )
    assert space.contains(found.point, x).all()


def test_the_number_of_calls_is_the_declared_one() -> None:
    x = images(3, 1, 5, 5)
    net = Waves(25)
    attack = VMI(steps=4, samples=3)
    oracle = oracle_for(net, net(x).argmax(1))
    attack(oracle, x, Linf(0.05), keys(3))
    # The neighbors of the last point are not needed.
    assert oracle.meter.backward.tolist() == [4 + 3 * 3] * 3
    assert oracle.meter.forward.tolist() == [attack.calls] * 3 == [4 + 3 * 3 + 1] * 3


def test_the_result_of_a_row_does_not_depend_on_its_batch() -> None:
    x = images(16, 1, 5, 5)
    net = Waves(25)
    space = Linf(0.03)
    attack = VMI(steps=4, samples=3)
    y = net(x).argmax(1)
    together = attack(oracle_for(net, y), x, space, keys(16)).point
    assert not torch.equal(attack(oracle_for(net, y), x, space, keys(16, seed=1)).point, together)
    backwards = torch.arange(15, -1, -1)
    reversed_order = attack(
        oracle_for(net, y[backwards], ids=backwards), x[backwards], space, keys(16)[backwards]
    ).point
    assert torch.equal(reversed_order[backwards], together)
    for i in range(16):
        one = torch.tensor([i])
        assert torch.equal(
            attack(oracle_for(net, y[one], ids=one), x[one], space, keys(16)[one]).point,
            together[one],
        )


def test_eot_counts_the_passes_of_every_draw() -> None:
    """PGD(3) makes 3 gradients and one evaluation, of 5 draws each."""
    x = images(4, 1, 5, 5)
    net = Waves(25)
    eot = Direct("eot-pgd", PGD(steps=3), estimator=EoT(5))
    episode = play(Noisy(net), eot, x, net(x).argmax(1), Threat(Linf(0.05), draws=2))
    assert episode.forward.tolist() == [5 * (3 + 1)] * 4
    assert episode.backward.tolist() == [5 * 3] * 4
