"""Closed-loop control: projections, the control loop written out, what is fitted, and what the batch has to do with it."""

import pytest
import torch
from tests.problems import normal, uniform
from tests.zoo.adaptive.small_defenses import (
    LAYERS,
    WIDTHS,
    Recording,
    respond,
    closed_loop,
    context,
    auto_encoders,
    images,
    build_module,
    network,
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

EXACT = {"rtol": 0.0, "atol": 0.0}


def written_out(net, embeddings, x, steps, rate):
    """The released loop on the pieces of the sequential network, with torch's own Adam: logits, loss of each pass, controls."""
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
            answered = net[6:](h)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return answered.detach(), passes


def reconstructed(embedding, h):
    if not isinstance(embedding, LinearEmbedding):
        return embedding.net(h)
    flat = h.flatten(1)
    mean = h.flatten(1).mean(0)
    return ((flat - mean) @ (embedding.basis @ embedding.basis.T) + mean).view_as(h)


@pytest.mark.parametrize("make", [subspaces, auto_encoders], ids=["projections", "auto-encoders"])
def test_the_forward_equals_the_released_loop_written_out(make):
    embeddings = make()
    x = images()
    expected, losses = written_out(network(), embeddings, x, steps=4, rate=5e-3)
    assert losses[-1] < losses[0]  # control does something
    # Adam divides gradients by their size: a rounding of 1e-17 on a gradient of 1e-9 comes out as 1e-8 of a step of 5e-3.
    assert_close(respond(closed_loop(embeddings), x).detach(), expected, rtol=0, atol=1e-9)


def test_the_answer_is_the_pass_of_lowest_loss_and_not_the_last():
    """A rate at which the loss rises: the best controls are none."""
    x = images()
    wild = closed_loop(rate=50.0)
    _, losses = written_out(network(), subspaces(), x, steps=4, rate=50.0)
    assert min(losses) == losses[0]
    assert_close(respond(wild, x), wild.net(x), **EXACT)


class Near:
    """An embedding of the test's own: everything is off by its distance from one half."""

    shape = WIDTHS["input"]

    def residual(self, h, *, per_example):
        return h - 0.5


@pytest.mark.parametrize(("per_example", "picks"), [(False, [4, 4, 4]), (True, [0, 4, 4])])
def test_the_batch_keeps_one_pass_and_rows_alone_their_own(per_example, picks):
    """Steps of half a unit bring the far rows nearer each time, and throw the near one away."""
    start = torch.tensor([0.501, 9.0, 9.0], dtype=torch.float64)
    x = start[:, None, None, None].expand(3, 3, 8, 8)
    defense = ClosedLoopControl(
        network(), ["input"], embeddings={"input": Near()}, rate=0.5, per_example=per_example
    )
    trace = defense.trace(x, context(3))
    assert trace.names == ("control/0", "control/1", "control/2", "control/3", "control/4", "final")
    for n, pick in enumerate(picks):
        assert_close(trace.last[n], trace.views[pick].logits[n], **EXACT)
    assert not torch.allclose(trace.views[0].logits, trace.views[4].logits)


def test_under_bpda_the_controls_are_constants():
    """The gradient of the network run with the controls that were used: Croce et al. 2022, Sec. 3.3."""
    x = images()
    defense = closed_loop()
    record = Recording()
    leaf = x.clone().requires_grad_()
    grad = torch.autograd.grad(respond(defense, leaf, control=sp.BPDA()).sum(), leaf)[0]
    with torch.no_grad():
        respond(defense, x, control=record)
    losses = written_out(network(), subspaces(), x, steps=4, rate=5e-3)[1]
    best = losses.index(min(losses))
    used = record.states[best - 1][:, 0].split(
        [torch.Size(WIDTHS[name]).numel() for name in LAYERS], dim=1
    )
    u = [part.reshape(5, *WIDTHS[name]) for part, name in zip(used, LAYERS, strict=True)]
    net = defense.net
    other = x.clone().requires_grad_()
    run = net[6:](net[2:6](net[:2](other + u[0]) + u[1]) + u[2])
    assert_close(grad, torch.autograd.grad(run.sum(), other)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("per_example", [False, True])
def test_with_projections_on_everything_the_static_net_answers(per_example):
    """P = I leaves nothing to correct: loss 0, controls 0. The slope of LeakyReLU is kept, which a rewritten network may lose."""
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
        answered = respond(defense, x, control=record)
    assert_close(answered, net(x), **EXACT)
    assert all((state == 0).all() for state in record.states)


def test_principal_components_project_onto_the_span_of_the_data():
    """Rank 3 data: P is symmetric, idempotent and leaves the data, as they are seen from their mean, where they are."""
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
def test_the_share_is_of_the_sum_of_singular_values(share, rank):
    """Singular values 4, 3, 2, 1, 0, 0: kept until their sum is more than the share of 10, which no sum is of the whole."""
    left = torch.linalg.qr(torch.cat([torch.ones(9, 1, dtype=torch.float64), normal(53, 9, 4)], 1))[
        0
    ][:, 1:]  # of mean zero
    right = torch.linalg.qr(normal(54, 6, 4))[0]
    h = left @ torch.tensor([4.0, 3.0, 2.0, 1.0], dtype=torch.float64).diag() @ right.T
    assert PrincipalComponents(share=share).learn(h, seed=0).basis.shape == (6, rank)


def test_embeddings_are_learnt_from_what_is_answered_rightly():
    net = network()
    x = uniform(60, 40, 3, 8, 8)
    y = net(x).argmax(1)
    wrong = torch.arange(40) % 4 == 0
    labels = torch.where(wrong, (y + 1) % 4, y)
    one = ClosedLoopControl(net, LAYERS).fit(x, labels).embeddings
    two = ClosedLoopControl(net, LAYERS).fit(x[~wrong], y[~wrong]).embeddings
    for name, given in zip(
        LAYERS, (x[~wrong], net[:2](x[~wrong]), net[:6](x[~wrong])), strict=True
    ):
        assert_close(one[name].mean, given.mean(0), rtol=0, atol=1e-14)
        assert_close(one[name].basis, two[name].basis, **EXACT)


def test_only_so_many_samples_are_taken():
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


def test_nothing_to_learn_from_is_refused():
    net = network()
    x = images()
    with pytest.raises(ValueError, match="found 0 among 5"):
        ClosedLoopControl(net, LAYERS).fit(x, (net(x).argmax(1) + 1) % 4)


def test_control_brings_activations_back_to_the_training_data():
    """Data in a plane, a point lifted off it: after control it is nearer to the plane, and the answer nearer to the clean one."""
    net = network()
    plane = 0.5 + 0.02 * (normal(62, 60, 2) @ normal(63, 2, 192)).view(60, 3, 8, 8)
    defense = ClosedLoopControl(net, LAYERS, steps=60, per_example=True).fit(
        plane, net(plane).argmax(1)
    )
    lifted = plane[:8] + 0.1 * normal(64, 8, 3, 8, 8).sign()
    gap = lambda z: (z - net(plane[:8])).norm()  # noqa: E731
    with torch.no_grad():
        assert gap(respond(defense, lifted)) < 0.5 * gap(net(lifted))


def test_auto_encoders_learn_to_reproduce_and_keep_the_network():
    net = network()
    x = images(32, 65)
    y = net(x).argmax(1)
    learner = AutoEncoderLearner(Phase(epochs=20, batch_size=16, rate=0.01))
    new = ClosedLoopControl(net, LAYERS).fit(x, y, learner=AutoEncoderLearner(Phase(0, 16, 0.01)))
    old = ClosedLoopControl(net, LAYERS).fit(x, y, learner=learner)
    for name, h in zip(LAYERS, (x, net[:2](x), net[:6](x)), strict=True):
        before, after = (
            d.embeddings[name].residual(h, per_example=True).square().mean() for d in (new, old)
        )
        assert after < 0.5 * before
        assert not old.embeddings[name].net.training
    assert_close(dict(net.state_dict()), dict(network().state_dict()), **EXACT)


@pytest.mark.parametrize("shape", [(3, 8, 8), (16, 32, 32), (5,), (1,)])
def test_an_auto_encoder_gives_back_the_shape(shape):
    assert auto_encoder(shape).eval()(torch.zeros(2, *shape)).shape == (2, *shape)
