"""`attack`, `curve` and `compare` on problems with known answers."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace

import pytest
import torch
from tests.audits.probes.toy_targets import X, Y, net
from torch import nn

import saddlepoint as sp
from saddlepoint.attacks import RayS
from saddlepoint.audits import TargetError
from saddlepoint.audits.comparison import Comparison, _holm

# A linear net with two classes. The smallest Linf perturbation that changes its class is
# |margin| / ||w||_1, and the smallest L2 perturbation is |margin| / ||w||_2.
W = torch.randn(16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
IMAGES = 0.4 + 0.2 * torch.rand(
    40, 1, 4, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64
)
SCORE = (IMAGES.flatten(1) - 0.5) @ W
LABELS = (SCORE > 0).long()


class Linear(nn.Module):
    """Two classes with the margin (x - 0.5) w."""

    def forward(self, x):
        score = (x.flatten(1) - 0.5) @ W.to(x)
        return torch.stack([-score / 2, score / 2], 1)


LINEAR = Linear().eval()


@pytest.mark.parametrize(("norm", "dual"), [(sp.Linf, 1), (sp.L2, 2)])
def test_a_curve_of_a_linear_net_is_exact(norm, dual):
    needed = SCORE.abs() / torch.linalg.vector_norm(W, dual)
    radii = [float(needed.quantile(q)) for q in (0.9, 0.25, 0.5)]
    found = sp.curve(LINEAR, IMAGES, LABELS, radii=radii, norm=norm, steps=40)
    assert found.radii == tuple(sorted(radii))
    exact = tuple(float((needed > radius).double().mean()) for radius in sorted(radii))
    assert found.accuracy == pytest.approx(exact, abs=1e-12)
    within = needed <= max(radii)
    # The bisection of FMN ends after 10 halvings of a radius that is resolved to a thousandth.
    assert torch.allclose(found.sizes[within], needed[within], rtol=0.01)
    assert found.clean_accuracy == 1
    assert found.intervals[0].low < found.accuracy[0] < found.intervals[0].high


def test_a_curve_never_increases_and_counts_clean_errors():
    wrong = torch.where(torch.arange(40) < 4, 1 - LABELS, LABELS)
    found = sp.curve(LINEAR, IMAGES, wrong, radii=["1/255", "2/255", "4/255"], steps=20)
    assert found.clean_accuracy == pytest.approx(0.9)
    assert list(found.accuracy) == sorted(found.accuracy, reverse=True)
    assert (found.sizes[:4] == 0).all()
    assert "1/255" in repr(found)
    assert "<table>" in found._repr_html_()


def test_a_curve_of_a_black_box_uses_square():
    needed = SCORE.abs() / W.abs().sum()
    radius = float(needed.quantile(0.5))
    found = sp.curve(lambda x: LINEAR(x).numpy(), IMAGES, LABELS, radii=[radius], steps=200)
    exact = float((needed > radius).double().mean())
    assert exact <= found.accuracy[0] < 1


def test_a_curve_of_a_coupled_target_or_without_radii_is_an_error():
    with pytest.raises(ValueError, match="independent rows"):
        sp.curve(net(before=lambda x: x - x.mean(0)), X, Y, radii=[0.1])
    with pytest.raises(ValueError, match="at least one radius"):
        sp.curve(LINEAR, IMAGES, LABELS, radii=[])


class Trained(nn.Module):
    """A net with batch normalization and dropout, in training mode."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten(), nn.Linear(16, 3)
        )
        self.layers[2].eval()

    def forward(self, x):
        return self.layers(x)


def test_an_attack_in_a_training_loop_leaves_no_trace_in_the_net():
    torch.manual_seed(0)
    trained = Trained()
    state = {name: value.clone() for name, value in trained.state_dict().items()}
    modes = [module.training for module in trained.modules()]
    generator = torch.get_rng_state()
    points = sp.attack(trained, X, Y, threat="8/255", method=sp.PGD(steps=3))
    assert [module.training for module in trained.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in trained.state_dict().items())
    assert all(parameter.grad is None for parameter in trained.parameters())
    assert torch.equal(torch.get_rng_state(), generator)
    assert not points.requires_grad
    assert (points - X).abs().amax() <= 8 / 255 + 1e-6


def test_the_points_of_an_attack_on_a_linear_net_are_optimal():
    radius = 0.05
    points = sp.attack(LINEAR, IMAGES, LABELS, threat=radius)
    direction = -(2 * LABELS - 1)[:, None] * W.sign()
    best = (IMAGES.flatten(1) + radius * direction).view_as(IMAGES)
    assert torch.allclose(points, best)


def test_an_attack_accepts_outputs_and_targets_like_an_audit():
    tensors = sp.attack(net(), X, Y, threat=0.1)
    for after in (lambda z: {"logits": z}, lambda z: [z.flip(1), z]):
        assert torch.equal(sp.attack(net(after=after), X.numpy(), Y.tolist(), threat=0.1), tensors)
    inner = net()
    queried = sp.attack(lambda x: inner(x).detach().numpy(), X, Y, threat=0.1, method=sp.Square(60))
    assert (inner(queried).argmax(1) != Y).sum() > (inner(X).argmax(1) != Y).sum()
    labels = sp.attack(lambda x: inner(x).argmax(1), X, Y, threat=0.1, method=RayS(queries=40))
    assert labels.shape == X.shape
    with pytest.raises(TargetError, match="in \\[0, 1\\]"):
        sp.attack(net(), X * 9, Y)


def test_the_seed_changes_the_random_start():
    first, again, other = (
        sp.attack(net(), X, Y, threat=0.1, method=sp.PGD(steps=1, step_size=0.001), seed=seed)
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_comparison_tests_pairs_image_by_image():
    inverted = net(after=lambda z: -z)
    attacks = [sp.Direct("pgd", sp.PGD(steps=3))]
    found = sp.compare(
        {"one": net(), "same": net()}, X, Y, threat=0.02, adversaries=attacks, budget="quick"
    )
    assert found.audits["one"].robust_accuracy == found.audits["same"].robust_accuracy
    (test,) = found.tests
    assert (test.only_first, test.only_second, test.p) == (0, 0, 1.0)
    assert "one against same" in str(found)
    assert "one" in found._repr_html_()
    with pytest.raises(ValueError, match="at least two"):
        sp.compare({"one": inverted}, X, Y)


def test_a_comparison_says_which_target_was_attacked_without_gradients():
    attacks = [sp.Direct("square", sp.Square(5)), sp.Direct("pgd", sp.PGD(steps=1))]
    audits = {
        name: sp.audit(net(), X, Y, threat=0.02, adversaries=[attack], budget="quick")
        for name, attack in zip(("scores", "gradients"), attacks, strict=True)
    }
    lines = str(Comparison.of(audits)).splitlines()
    assert lines[0].endswith(", attacked without gradients")
    assert "without gradients" not in lines[1]


def test_holm_multiplies_the_smallest_p_value_by_the_number_of_tests():
    assert _holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert _holm([0.6, 0.7]) == [1.0, 1.0]


def test_mcnemar_of_a_comparison_is_exact():
    """b = 7 and c = 0 images: p = 2 / 2^7."""
    robust = torch.ones(10)
    broken = torch.cat([torch.zeros(7), torch.ones(3)])
    audits = {"a": SimpleNamespace(correct=robust), "b": SimpleNamespace(correct=broken)}
    (test,) = Comparison.of(audits).tests
    assert (test.only_first, test.only_second) == (7, 0)
    assert math.isclose(test.p, 2 / 2**7)


def test_audits_and_curves_are_drawn_with_matplotlib():
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from matplotlib.figure import Figure

    curve = sp.curve(LINEAR, IMAGES, LABELS, radii=[0.01, 0.02], steps=5)
    axes = curve.plot(Figure().subplots())
    drawn = axes.lines[0].get_xydata()
    assert drawn[:, 0].tolist() == [0, 0.01, 0.02]
    assert drawn[1:, 1].tolist() == pytest.approx([100 * value for value in curve.accuracy])
    rows = [SimpleNamespace(name="pgd", robust_accuracy=0.5, running=0.4)]
    audit = SimpleNamespace(
        rows=rows, clean_accuracy=0.9, robust_accuracy=0.4, target="net", verdict="credible"
    )
    axes = sp.Audit.plot(audit, Figure().subplots())
    assert [label.get_text() for label in axes.get_yticklabels()] == ["clean", "pgd"]
    assert axes.lines[0].get_xdata().tolist() == pytest.approx([90, 40])


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"saddlepoint\[plots\]"):
        sp.Audit.plot(SimpleNamespace())
