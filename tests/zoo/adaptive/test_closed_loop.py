"""Closed-loop control: projections, the control loop, fitting, and coupling of the batch."""

import pytest
import torch
from tests.problems import normal, uniform
from tests.zoo.adaptive.small_defenses import (
    LAYERS,
    WIDTHS,
    Recording,
    auto_encoders,
    build_module,
    closed_loop,
    context,
    images,
    network,
    respond,
    subspaces,
)
from torch import nn
from torch.testing import assert_close

import saddlepoint as sp
from saddlepoint.zoo.adaptive import ClosedLoopControl
from saddlepoint.zoo.adaptive.closed_loop import (
    AutoEncoderLearner,
    LinearEmbedding,
    PrincipalComponents,
    auto_encoder,
)
from saddlepoint.zoo.adaptive.fitting import Phase
from saddlepoint.zoo.adaptive.gradient_steps import adam_step

EXACT = {"rtol": 0.0, "atol": 0.0}


def released_loop(net, embeddings, x, steps, rate):
    """Run the released loop with torch's Adam; return the logits and the loss of each pass."""
    pieces = [nn.Identity(), net[:2], net[2:6]]  # "input", "1", "5"
    controls = [
        torch.zeros(len(x), *WIDTHS[name], dtype=x.dtype, requires_grad=True) for name in LAYERS
    ]
    optimizer = torch.optim.Adam(controls, rate)
    lowest = torch.inf
    passes = []
    for _ in range(steps + 1):
        h = x
        loss = torch.zeros((), dtype=x.dtype)
        for piece, control, name in zip(pieces, controls, LAYERS, strict=True):
            h = piece(h) + control
            loss = loss + nn.functional.mse_loss(reconstructed(embeddings[name], h), h)
        passes.append(loss.item())
        if loss < lowest:
            lowest = loss
            logits = net[6:](h)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return logits.detach(), passes


def reconstructed(embedding, h):
    """Return the embedding's reconstruction of activations h."""
    if not isinstance(embedding, LinearEmbedding):
        return embedding.net(h)
    flat = h.flatten(1)
    mean = h.flatten(1).mean(0)
    return ((flat - mean) @ (embedding.basis @ embedding.basis.T) + mean).view_as(h)


@pytest.mark.parametrize("build", [subspaces, auto_encoders], ids=["projections", "auto-encoders"])
def test_the_output_equals_that_of_the_released_loop(build):
    embeddings = build()
    x = images()
    expected, losses = released_loop(network(), embeddings, x, steps=4, rate=5e-3)
    assert losses[-1] < losses[0]  # the controls lower the loss
    # Adam divides gradients by their size: a rounding error of 1e-17 in a gradient of 1e-9 changes
    # a step of 5e-3 by a fraction of 1e-8.
    assert_close(respond(closed_loop(embeddings), x).detach(), expected, rtol=0, atol=1e-9)


def test_the_output_is_that_of_the_pass_with_the_lowest_loss():
    """With this learning rate the loss increases, so zero controls are the best."""
    x = images()
    defense = closed_loop(rate=50.0)
    _, losses = released_loop(network(), subspaces(), x, steps=4, rate=50.0)
    assert min(losses) == losses[0]
    assert_close(respond(defense, x), defense.net(x), **EXACT)


class ConstantEmbedding:
    """Embedding that consists of the constant 1/2."""

    shape = WIDTHS["input"]

    def residual(self, h, *, per_example):
        return h - 0.5


@pytest.mark.parametrize(("per_example", "picks"), [(False, [4, 4, 4]), (True, [0, 4, 4])])
def test_a_coupled_batch_shares_the_best_pass_and_independent_examples_do_not(per_example, picks):
    """Steps of 0.5 bring the two distant examples nearer and move the near one away."""
    start = torch.tensor([0.501, 9.0, 9.0], dtype=torch.float64)
    x = start[:, None, None, None].expand(3, 3, 8, 8)
    defense = ClosedLoopControl(
        network(),
        ["input"],
        embeddings={"input": ConstantEmbedding()},
        rate=0.5,
        per_example=per_example,
    )
    trace = defense.trace(x, context(3))
    assert trace.names == ("control/0", "control/1", "control/2", "control/3", "control/4", "final")
    for n, pick in enumerate(picks):
        assert_close(trace.last[n], trace.views[pick].logits[n], **EXACT)
    assert not torch.allclose(trace.views[0].logits, trace.views[4].logits)


def test_under_bpda_the_controls_are_constants():
    """The gradient is that of the network with fixed controls: Croce et al. 2022, Sec. 3.3."""
    x = images()
    defense = closed_loop()
    record = Recording()
    leaf = x.clone().requires_grad_()
    grad = torch.autograd.grad(respond(defense, leaf, control=sp.BPDA()).sum(), leaf)[0]
    with torch.no_grad():
        respond(defense, x, control=record)
    losses = released_loop(network(), subspaces(), x, steps=4, rate=5e-3)[1]
    best = losses.index(min(losses))
    sizes = [torch.Size(WIDTHS[name]).numel() for name in LAYERS]
    used = record.states[best - 1][:, 0].split(sizes, dim=1)
    u = [part.reshape(5, *WIDTHS[name]) for part, name in zip(used, LAYERS, strict=True)]
    net = defense.net
    other = x.clone().requires_grad_()
    logits = net[6:](net[2:6](net[:2](other + u[0]) + u[1]) + u[2])
    assert_close(grad, torch.autograd.grad(logits.sum(), other)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("per_example", [False, True])
def test_with_identity_projections_the_defense_equals_the_static_network(per_example):
    """With P = I the loss and the controls are zero.

    The network has a LeakyReLU; the released code replaces it by a ReLU.
    """
    net = build_module(
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.LeakyReLU(0.1), nn.Flatten(), nn.Linear(256, 4)
        ),
        2,
    )
    eye = {
        name: torch.eye(torch.Size(shape).numel(), dtype=torch.float64)
        for name, shape in WIDTHS.items()
        if name != "5"
    }
    embeddings = {
        name: LinearEmbedding(basis, torch.zeros(WIDTHS[name], dtype=torch.float64))
        for name, basis in eye.items()
    }
    defense = ClosedLoopControl(net, ["input", "1"], embeddings=embeddings, per_example=per_example)
    x = images()
    record = Recording()
    with torch.no_grad():
        logits = respond(defense, x, control=record)
    assert_close(logits, net(x), **EXACT)
    assert all((state == 0).all() for state in record.states)


def test_principal_components_project_onto_the_span_of_the_data():
    """For data of rank 3, P is symmetric and idempotent and keeps the centered data."""
    h = (normal(50, 40, 3) @ normal(51, 3, 12) + normal(52, 12)).view(40, 3, 4)
    embedding = PrincipalComponents(share=0.9999999).learn(h, seed=0)
    projection = embedding.basis @ embedding.basis.T
    assert embedding.basis.shape == (12, 3)
    assert_close(projection, projection.T, rtol=0, atol=1e-14)
    assert_close(projection @ projection, projection, rtol=0, atol=1e-14)
    for per_example in (False, True):
        assert_close(
            embedding.residual(h, per_example=per_example), torch.zeros_like(h), rtol=0, atol=1e-12
        )


@pytest.mark.parametrize(
    ("share", "rank"), [(0.39, 1), (0.41, 2), (0.69, 2), (0.71, 3), (0.91, 4), (1.0, 6)]
)
def test_the_share_is_a_fraction_of_the_sum_of_singular_values(share, rank):
    """Singular values 4, 3, 2, 1, 0, 0 are kept until their sum exceeds the share of 10.

    No sum exceeds the whole, so share 1 keeps all of them.
    """
    columns = torch.cat([torch.ones(9, 1, dtype=torch.float64), normal(53, 9, 4)], 1)
    left = torch.linalg.qr(columns)[0][:, 1:]  # columns with mean zero
    right = torch.linalg.qr(normal(54, 6, 4))[0]
    h = left @ torch.tensor([4.0, 3.0, 2.0, 1.0], dtype=torch.float64).diag() @ right.T
    assert PrincipalComponents(share=share).learn(h, seed=0).basis.shape == (6, rank)


def test_embeddings_are_fitted_to_correctly_classified_images():
    net = network()
    x = uniform(60, 40, 3, 8, 8)
    y = net(x).argmax(1)
    wrong = torch.arange(40) % 4 == 0
    labels = torch.where(wrong, (y + 1) % 4, y)
    correct = x[~wrong]
    one = ClosedLoopControl(net, LAYERS).fit(x, labels).embeddings
    two = ClosedLoopControl(net, LAYERS).fit(correct, y[~wrong]).embeddings
    for name, h in zip(LAYERS, (correct, net[:2](correct), net[:6](correct)), strict=True):
        assert_close(one[name].mean, h.mean(0), rtol=0, atol=1e-14)
        assert_close(one[name].basis, two[name].basis, **EXACT)


def test_the_learner_limits_the_number_of_samples():
    net = network()
    x = uniform(61, 40, 3, 8, 8)
    y = net(x).argmax(1)
    few = (
        ClosedLoopControl(net, ["input"])
        .fit(x, y, learner=PrincipalComponents(samples=7))
        .embeddings["input"]
    )
    assert_close(few.mean, x[:7].mean(0), rtol=0, atol=1e-14)
    assert few.basis.shape[1] <= 7


def test_fitting_without_correctly_classified_images_raises():
    net = network()
    x = images()
    with pytest.raises(ValueError, match="found 0 among 5"):
        ClosedLoopControl(net, LAYERS).fit(x, (net(x).argmax(1) + 1) % 4)


def test_control_brings_activations_back_to_the_training_data():
    """The data are in a plane. Control moves the logits of perturbed images to the clean ones."""
    net = network()
    plane = 0.5 + 0.02 * (normal(62, 60, 2) @ normal(63, 2, 192)).view(60, 3, 8, 8)
    defense = ClosedLoopControl(net, LAYERS, steps=60, per_example=True).fit(
        plane, net(plane).argmax(1)
    )
    perturbed = plane[:8] + 0.1 * normal(64, 8, 3, 8, 8).sign()
    with torch.no_grad():
        clean = net(plane[:8])
        before = (net(perturbed) - clean).norm()
        after = (respond(defense, perturbed) - clean).norm()
    assert after < 0.5 * before


def test_fitted_auto_encoders_reconstruct_and_the_network_is_unchanged():
    net = network()
    x = images(32, 65)
    y = net(x).argmax(1)
    learner = AutoEncoderLearner(Phase(epochs=20, batch_size=16, rate=0.01))
    untrained = ClosedLoopControl(net, LAYERS).fit(
        x, y, learner=AutoEncoderLearner(Phase(0, 16, 0.01))
    )
    trained = ClosedLoopControl(net, LAYERS).fit(x, y, learner=learner)
    for name, h in zip(LAYERS, (x, net[:2](x), net[:6](x)), strict=True):
        before, after = (
            d.embeddings[name].residual(h, per_example=True).square().mean()
            for d in (untrained, trained)
        )
        assert after < 0.5 * before
        assert not trained.embeddings[name].net.training
    assert_close(dict(net.state_dict()), dict(network().state_dict()), **EXACT)


@pytest.mark.parametrize("shape", [(3, 8, 8), (16, 32, 32), (5,), (1,)])
def test_an_auto_encoder_keeps_the_shape(shape):
    assert auto_encoder(shape).eval()(torch.zeros(2, *shape)).shape == (2, *shape)


@pytest.mark.parametrize("shape", [(60, 3, 4, 5), (40, 4, 4, 8)], ids=["tall", "wide"])
def test_eigenvectors_of_the_smaller_gram_matrix_project_as_the_svd_does(shape):
    """In float32, as activations are; the singular values decay by a factor of 1e4."""
    m, d = shape[0], torch.Size(shape[1:]).numel()
    left = torch.linalg.qr(normal(70, m, min(m, d)))[0]
    right = torch.linalg.qr(normal(71, d, min(m, d)))[0]
    decay = torch.logspace(0, -4, min(m, d), dtype=torch.float64)
    h = ((left * decay) @ right.T + 0.3).view(shape).float()
    embedding = PrincipalComponents().learn(h, seed=0)
    _, values, vectors = torch.linalg.svd((h - h.mean(0)).flatten(1), full_matrices=False)
    rank = int((values.cumsum(0) / values.sum() <= 0.99).sum()) + 1
    assert embedding.basis.shape == (d, rank)
    projection = vectors[:rank].T @ vectors[:rank]
    assert_close(embedding.basis @ embedding.basis.T, projection, rtol=0, atol=5e-5)


def test_the_smaller_gram_matrix_decides_what_is_decomposed(monkeypatch):
    """8 examples of 192 activations: a matrix of 8 x 8 and no SVD."""
    sizes = []
    eigh = torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda a: sizes.append(a.shape) or eigh(a))
    monkeypatch.setattr(torch.linalg, "svd", None)
    PrincipalComponents().learn(normal(72, 8, 192), seed=0)
    PrincipalComponents().learn(normal(73, 40, 12), seed=0)
    assert sizes == [(8, 8), (12, 12)]


def test_all_directions_of_few_examples_are_kept_without_their_rounding_errors():
    """Eight centered examples span seven dimensions; the eighth direction would be noise."""
    basis = PrincipalComponents(share=1.0).learn(normal(74, 8, 192), seed=0).basis
    assert basis.shape == (192, 7)
    assert_close(basis.T @ basis, torch.eye(7, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("rules", [{}, {"control": sp.BPDA()}], ids=["inference", "BPDA"])
def test_an_inference_takes_five_forward_and_four_backward_passes(rules):
    """Croce et al. 2022, Sec. 3.3."""
    defense = closed_loop()
    passes = []
    defense.net.register_forward_hook(lambda *_: passes.append("forward"))
    grad = torch.autograd.grad

    def counted_grad(*args, **kwargs):
        passes.append("backward")
        return grad(*args, **kwargs)

    x = images()
    with pytest.MonkeyPatch.context() as patch, torch.set_grad_enabled(bool(rules)):
        patch.setattr(torch.autograd, "grad", counted_grad)
        respond(defense, x.clone().requires_grad_(), **rules)
    assert (passes.count("forward"), passes.count("backward")) == (5, 4)


def test_an_update_away_from_the_last_pass_has_its_own_gradient():
    """A rule may evaluate the site at another state, for example to take differences."""

    class Elsewhere(sp.BPDA):
        def apply(self, fn, x):
            with torch.no_grad():
                return fn(x + 0.01)

    x = images()
    defense = closed_loop(steps=1)
    state = torch.zeros(5, 3, sum(torch.Size(s).numel() for s in WIDTHS.values())).double() + 0.01
    controls = state[:, 0].clone().requires_grad_()
    _, loss = defense._controlled_pass(x, controls, 0)
    (grad,) = torch.autograd.grad(loss.mean(), controls)
    expected = adam_step(state, grad, 1, defense.rate)
    with torch.no_grad():
        end, _ = defense._controlled_pass(x, expected[:, 0], 1)
        trace = defense.trace(x, context(5, rules={"control": Elsewhere()}))
    assert trace.names[1] == "control/1"
    assert_close(trace.views[1].logits, end, rtol=0, atol=1e-12)


@pytest.mark.parametrize("per_example", [False, True])
def test_the_mean_square_of_a_residual_has_its_first_and_second_derivatives(per_example):
    h = normal(80, 4, 6)
    basis = torch.linalg.qr(normal(81, 6, 2))[0]
    embedding = LinearEmbedding(basis, normal(82, 6))

    def short(v):
        return embedding.mean_square(v, per_example=per_example)

    def long(v):
        return embedding.residual(v, per_example=per_example).square().mean(1)

    assert_close(short(h), long(h), rtol=0, atol=1e-14)
    leaf = h.clone().requires_grad_()
    first = [torch.autograd.grad(f(leaf).sum(), leaf)[0] for f in (short, long)]
    assert_close(*first, rtol=0, atol=1e-14)
    assert torch.autograd.gradgradcheck(short, (leaf,))
