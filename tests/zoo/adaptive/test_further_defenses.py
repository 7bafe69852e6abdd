"""Further defenses of Croce et al. 2022, Table 5: outputs compared with explicit equations."""

from __future__ import annotations

import math

import pytest
import torch
from tests.probing import probe_target
from tests.zoo.adaptive.purifiers import CLASSES, build_module, gradient, images, smooth_net
from torch import nn
from torch.testing import assert_close

from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Context
from saddlepoint.gradients import BPDA, Checkpointed
from saddlepoint.rng import Keys
from saddlepoint.zoo.adaptive.fitting import Phase
from saddlepoint.zoo.adaptive.further import (
    JPEG,
    BitDepth,
    DefenseGAN,
    DiffusionPurifier,
    EBMPurifier,
    EnergyNet,
    Generator,
    NoiseNet,
    PixelCNN,
    PixelDefend,
    TotalVariation,
    TransformationDefense,
    WassersteinTraining,
)

N = 3
Y = torch.tensor([0, 1, 2])


class RecordingContext(Context):
    """Context that records its random draws."""

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "drawn", [])

    def randn(self, *shape, dtype=torch.float32):
        self.drawn.append(super().randn(*shape, dtype=dtype))
        return self.drawn[-1]

    def rand(self, *shape, dtype=torch.float32):
        self.drawn.append(super().rand(*shape, dtype=dtype))
        return self.drawn[-1]


def recording_context(n=N):
    """Return a context for n examples that records its random draws."""
    return RecordingContext(Keys.of(0, torch.arange(n)))


def energy():
    return build_module(lambda: EnergyNet(1, width=2))


def noise():
    return build_module(lambda: NoiseNet(1, width=4, blocks=2))


def density(levels=5):
    return build_module(lambda: PixelCNN(levels, width=4, depth=1, kernel=3))


def generator():
    return build_module(lambda: Generator((1, 4, 4), latent=3, hidden=5))


DEFENSES = {
    "bit depth": lambda net: TransformationDefense(net, BitDepth()),
    "jpeg": lambda net: TransformationDefense(net, JPEG()),
    "total variation": lambda net: TransformationDefense(net, TotalVariation(steps=3)),
    "energy": lambda net: EBMPurifier(net, energy(), steps=3, runs=2),
    "diffusion": lambda net: DiffusionPurifier(net, noise(), steps=3, horizon=20),
    "pixels": lambda net: PixelDefend(net, density(), radius=0.3),
    "generator": lambda net: DefenseGAN(net, generator(), search_steps=3, restarts=2),
}


@pytest.mark.parametrize("name", DEFENSES)
def test_the_audit_confirms_the_declarations_and_the_first_view_is_the_network(name):
    net = smooth_net()
    x = images(N)
    defense = DEFENSES[name](net)
    found = probe_target(defense, x, Y, Linf(0.1))
    assert found.classes == CLASSES
    assert defense.unit == "example"
    trace = defense.trace(x, recording_context())
    assert trace.names[0] == "purify/0"
    assert_close(trace.views[0].logits, net(x), rtol=0, atol=0)


@pytest.mark.parametrize("name", DEFENSES)
def test_identity_bpda_gives_every_example_a_gradient(name):
    """This includes transformations with rounding, which have no gradient of their own."""
    defense = DEFENSES[name](smooth_net())
    x = images(N)
    assert (gradient(defense, x, Y, rules={"purify": BPDA()}).flatten(1).abs().amax(1) > 1e-6).all()


@pytest.mark.parametrize("name", ["total variation", "energy", "diffusion", "generator"])
def test_exact_gradients_equal_finite_differences_and_checkpointed_ones(name):
    """Central differences with h = 1e-5: rounding errors of 1e-10 / 1e-5, truncation below that."""
    defense = DEFENSES[name](smooth_net())
    x = images(N)
    grad = gradient(defense, x, Y)
    assert_close(
        gradient(defense, x, Y, rules={"purify": Checkpointed()}), grad, rtol=1e-9, atol=1e-12
    )
    direction = Keys.of(5, torch.arange(N)).normal(tuple(x.shape[1:]), torch.float64)

    def loss(v):
        logits = defense.respond(v, Context(Keys.of(0, torch.arange(N)).as_root()))
        return nn.functional.cross_entropy(logits, Y, reduction="none")

    with torch.no_grad():
        measured = (loss(x + 1e-5 * direction) - loss(x - 1e-5 * direction)) / 2e-5
    assert_close((grad * direction).flatten(1).sum(1), measured, rtol=1e-4, atol=1e-6)


def test_bit_depth_rounds_to_the_levels():
    x = images(N)
    expected = torch.tensor(
        [round(7 * v) / 7 for v in x.flatten().tolist()], dtype=torch.float64
    ).view_as(x)
    assert_close(BitDepth(3)(x, recording_context()), expected, rtol=0, atol=1e-15)


def test_jpeg_quantizes_every_coefficient_of_a_block():
    """The cosine transform by its double sum; quality 75 halves the table and rounds half up."""
    x = images(1, size=8)
    q = JPEG(75)
    assert q.quantization_table()[0].tolist() == [8, 6, 5, 8, 12, 20, 26, 31]
    levels = 255 * x[0, 0] - 128
    table = q.quantization_table()
    decoded = torch.zeros(8, 8, dtype=torch.float64)
    scale = [math.sqrt(1 / 8)] + [0.5] * 7
    wave = [
        [scale[k] * math.cos((2 * n + 1) * k * math.pi / 16) for n in range(8)] for k in range(8)
    ]
    for u in range(8):
        for v in range(8):
            c = sum(
                wave[u][i] * wave[v][j] * float(levels[i, j]) for i in range(8) for j in range(8)
            )
            kept = float(table[u, v]) * round(c / float(table[u, v]))
            decoded += torch.tensor(
                [[kept * wave[u][i] * wave[v][j] for j in range(8)] for i in range(8)],
                dtype=torch.float64,
            )
    expected = ((decoded + 128).round() / 255).clamp(0, 1)
    assert_close(q(x, recording_context(1))[0, 0], expected, rtol=0, atol=1e-12)


def test_jpeg_at_the_best_quality_changes_each_coefficient_by_at_most_half_a_level():
    """Q = 1: each of 64 coefficients changes by at most 1/2, and pixels are rounded once more.

    The transform is orthonormal, so it keeps the norm of the change.
    """
    x = torch.cat([images(2, size=8), 0.9 * images(2, seed=9, size=8)], dim=3)
    change = 255 * (JPEG(100)(x, recording_context(2)) - x)
    blocks = change.unflatten(3, (2, 8)).transpose(2, 3).flatten(3)  # [N, 1, 2, 64]
    assert float(blocks.norm(dim=-1).amax()) <= 8 * 0.5 + 8 * 0.5
    worst = JPEG(1)(x, recording_context(2))
    assert float((worst - x).abs().amax()) > 0.05


def test_jpeg_keeps_the_size_of_images_that_8_does_not_divide():
    assert JPEG()(images(N, size=11), recording_context()).shape == (N, 1, 11, 11)
    flat = torch.full((1, 1, 5, 5), 0.5, dtype=torch.float64)
    assert_close(JPEG(95)(flat, recording_context(1)), flat, rtol=0, atol=1 / 255)


def test_total_variation_minimizes_its_objective_with_a_random_mask():
    x = images(N)
    ctx = recording_context()
    denoise = TotalVariation(weight=0.1, steps=300, smooth=0.1)
    z = denoise(x, ctx)
    kept = (ctx.drawn[0] >= 0.5)[:, None].double()
    assert ctx.drawn[0].shape == (N, 4, 4)

    def objective(v):  # explicit sums
        total = ((kept * (v - x)) ** 2).sum((1, 2, 3)) / 2
        for i in range(1, 4):
            total = total + 0.1 * ((v[:, 0, i] - v[:, 0, i - 1]).square().sum(1) + 0.01).sqrt()
            total = (
                total + 0.1 * ((v[:, 0, :, i] - v[:, 0, :, i - 1]).square().sum(1) + 0.01).sqrt()
            )
        return total

    assert_close(denoise.objective(x, kept)(z), objective(z), rtol=1e-12, atol=0)
    assert (objective(z) < objective(x)).all()
    v = z.clone().requires_grad_()
    (grad_v,) = torch.autograd.grad(objective(v).sum(), v)
    # The objective is convex, so a point with a small gradient is near the minimum.
    assert float(grad_v.abs().amax()) < 1e-3


def test_the_output_is_the_mean_over_explicit_langevin_runs():
    net = smooth_net()
    x = images(N)
    u = energy()
    ctx = recording_context()
    logits = EBMPurifier(net, u, steps=3, runs=2, noise=0.1).respond(x, ctx)
    draws = iter(ctx.drawn)  # the two runs alternate
    states = [x, x]
    for _ in range(3):
        for run in range(2):
            v = states[run].detach().requires_grad_()
            (grad_v,) = torch.autograd.grad(u(v).sum(), v)
            states[run] = states[run] - 0.1**2 / 2 * grad_v + 0.1 * next(draws)
    assert next(draws, None) is None
    assert_close(logits, (net(states[0]) + net(states[1])) / 2, rtol=1e-12, atol=1e-13)


def test_a_fitted_energy_is_lower_at_the_data():
    x = images(64)
    trained = EBMPurifier(smooth_net(), energy(), noise=0.1).fit(
        x, phase=Phase(15, 32, 1e-2), steps=5
    )
    other = Keys.of(3, torch.arange(64)).uniform((1, 4, 4), torch.float64)
    with torch.no_grad():
        assert float(trained.energy(x).mean()) < float(trained.energy(other).mean())
    assert not trained.energy.training


def test_diffusion_equals_its_explicit_equations():
    net = smooth_net()
    x = images(N)
    e = noise()
    ctx = recording_context()
    logits = DiffusionPurifier(net, e, steps=3, horizon=20).respond(x, ctx)
    b = [1e-4 + (0.02 - 1e-4) * k / 19 for k in range(20)]
    a = [math.prod(1 - v for v in b[: k + 1]) for k in range(20)]
    v = math.sqrt(a[2]) * (2 * x - 1) + math.sqrt(1 - a[2]) * ctx.drawn[0]
    for k, t in enumerate((3, 2, 1)):
        predicted = e(v, torch.full((N,), t / 20, dtype=torch.float64))
        v = (v - b[t - 1] / math.sqrt(1 - a[t - 1]) * predicted) / math.sqrt(1 - b[t - 1])
        v = v + math.sqrt(b[t - 1]) * ctx.drawn[1 + k] if t > 1 else v
    assert len(ctx.drawn) == 3  # no noise in the last step
    assert_close(logits, net((v + 1) / 2), rtol=1e-12, atol=1e-13)


def test_a_fitted_noise_network_predicts_the_noise():
    """For one repeated image the noise is determined; a zero prediction has a loss of 1."""
    x = images(1).expand(128, -1, -1, -1)
    untrained = DiffusionPurifier(smooth_net(), noise(), steps=20, horizon=20)
    trained = untrained.fit(x, phase=Phase(30, 64, 1e-2))
    n = Keys.of(8, torch.arange(128)).normal((1, 4, 4), torch.float64)
    a = trained.a[19]
    late = torch.ones(128, dtype=torch.float64)
    noisy = math.sqrt(a) * (2 * x - 1) + math.sqrt(1 - a) * n
    with torch.no_grad():
        before, after = (
            float((one.noise_net(noisy, late) - n).square().mean()) for one in (untrained, trained)
        )
    assert after < 0.6 < before


def test_pixels_become_the_most_likely_level_near_them_one_by_one():
    x = images(2)
    p = density()
    found = PixelDefend(smooth_net(), p, radius=0.3).most_likely(x)
    for n in range(2):
        done = x[n].clone()
        for i in range(4):
            for j in range(4):
                logits = p(done[None])[0, :, i, j].detach()
                near = [k for k in range(5) if abs(k / 4 - float(x[n, 0, i, j])) <= 0.3]
                done[0, i, j] = max(near, key=lambda k: float(logits[k])) / 4
        assert_close(found[n], done, rtol=0, atol=1e-12)


def test_the_density_of_a_pixel_depends_only_on_earlier_pixels():
    """d logits_ij / d x_kl = 0 unless kl comes before ij in reading order."""
    x = images(1).requires_grad_()
    p = density()
    for i, j in ((0, 0), (1, 2), (3, 3)):
        (grad_v,) = torch.autograd.grad(p(x)[0, :, i, j].square().sum(), x, allow_unused=True)
        after = torch.arange(16).view(4, 4) >= 4 * i + j
        assert float(grad_v[0, 0][after].abs().amax()) == 0
        assert (i, j) == (0, 0) or float(grad_v[0, 0][~after].abs().amax()) > 0


def test_a_fitted_density_prefers_the_frequent_level():
    """All images are 0 everywhere, so level 0 becomes the most likely one."""
    x = torch.zeros(32, 1, 4, 4, dtype=torch.float64)
    trained = PixelDefend(smooth_net(), density()).fit(x, phase=Phase(20, 16, 1e-2)).density
    assert (trained(x).argmax(1) == 0).all()


def test_the_latent_search_is_gradient_descent_from_the_drawn_points():
    net = smooth_net()
    x = images(2)
    g = generator()
    ctx = recording_context(2)
    logits = DefenseGAN(net, g, search_steps=4, restarts=3, step_size=0.2).respond(x, ctx)
    (z,) = ctx.drawn
    assert z.shape == (2, 3, 3)
    for n in range(2):
        ends = []
        for r in range(3):
            v = z[n, r][None]
            for _ in range(4):
                v = v.detach().requires_grad_()
                (grad_v,) = torch.autograd.grad(((g(v) - x[n]) ** 2).sum(), v)
                v = v - 0.2 * grad_v
            ends.append((float(((g(v) - x[n]) ** 2).sum().detach()), g(v)))
        best = min(ends, key=lambda end: end[0])[1]
        assert_close(logits[n], net(best)[0], rtol=1e-12, atol=1e-13)


def test_a_fitted_generator_approaches_the_data():
    """The data are one constant image."""
    x = torch.full((64, 1, 4, 4), 0.9, dtype=torch.float64)
    critic = build_module(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ELU(), nn.Linear(8, 1))
    )
    untrained = DefenseGAN(smooth_net(), generator())
    trained = untrained.fit(x, critic, training=WassersteinTraining(Phase(60, 32, 1e-2)))
    z = Keys.of(4, torch.arange(32)).normal((3,), torch.float64)
    with torch.no_grad():
        before, after = (
            float((defense.generator(z) - 0.9).abs().mean()) for defense in (untrained, trained)
        )
    assert after < before / 2


def test_the_critic_loss_is_a_difference_and_a_gradient_penalty():
    """D(x) = w . x has gradient norm |w| everywhere: the penalty is 10 (|w| - 1)^2."""
    critic = nn.Sequential(nn.Flatten(), nn.Linear(4, 1, bias=False)).double()
    with torch.no_grad():
        critic[1].weight.copy_(torch.tensor([[3.0, 0, 4.0, 0]]))
    real = torch.ones(2, 1, 2, 2, dtype=torch.float64)
    fake = torch.zeros(2, 1, 2, 2, dtype=torch.float64)
    loss = WassersteinTraining().critic_loss(critic, real, fake, Keys.of(0, torch.arange(2)))
    assert_close(
        loss.detach(), torch.full((2,), -7.0 + 10 * 16, dtype=torch.float64), rtol=1e-12, atol=0
    )


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: BitDepth(0), "at least one bit"),
        (lambda: JPEG(101), "between 1 and 100"),
        (lambda: TotalVariation(drop=1.0), "0 <= drop < 1"),
        (lambda: EBMPurifier(smooth_net(), energy(), runs=0), "runs >= 1"),
        (lambda: EBMPurifier(smooth_net(), energy().train()), "training mode"),
        (
            lambda: DiffusionPurifier(smooth_net(), noise(), steps=9, horizon=8),
            "needs steps <= horizon",
        ),
        (
            lambda: DiffusionPurifier(smooth_net(), noise(), steps=0).fit(images(2)),
            "nothing to fit",
        ),
        (
            lambda: PixelDefend(smooth_net(), density()).most_likely(
                images(2).expand(-1, 3, -1, -1)
            ),
            "one channel",
        ),
        (lambda: DefenseGAN(smooth_net(), generator(), restarts=0), "restarts >= 1"),
    ],
)
def test_invalid_arguments_raise(build, message):
    with pytest.raises(ValueError, match=message):
        build()
