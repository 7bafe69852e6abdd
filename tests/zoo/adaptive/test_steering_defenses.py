"""Common properties of SODEF, closed-loop control, contrastive reversal and ATLD."""

import copy

import pytest
import torch
from tests.memory import peak_bytes
from tests.probing import probe_target
from tests.zoo.adaptive.small_defenses import (
    CLASSES,
    DEFENSES,
    Recording,
    atld,
    build_module,
    closed_loop,
    context,
    images,
    network,
    respond,
    reversal,
    site,
    sodef,
)
from torch import nn
from torch.testing import assert_close

import saddlepoint as sp
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.audits.verdict import SymptomName
from saddlepoint.gradients import Backprop
from saddlepoint.gradients.rule import Checkpointed, Exact
from saddlepoint.zoo.adaptive import ATLD, SODEF, ClosedLoopControl, ContrastiveReversal
from saddlepoint.zoo.adaptive.closed_loop import AutoEncoderLearner, auto_encoder
from saddlepoint.zoo.adaptive.fitting import Phase
from saddlepoint.zoo.adaptive.sodef import Dopri5

EXACT = {"rtol": 0.0, "atol": 0.0}
all_defenses = pytest.mark.parametrize("name", DEFENSES)
LABELS = torch.tensor([0, 1, 2, 3, 0])


@pytest.mark.slow
@all_defenses
def test_the_audit_confirms_the_declared_properties(name):
    probed = probe_target(DEFENSES[name](), images(), LABELS, sp.Linf(8 / 255))
    found = {one.name for one in probed.findings}
    assert found <= {SymptomName.UNUSUAL}  # few images may be at chance


@all_defenses
def test_declared_coupling_and_randomness_are_present(name):
    defense = DEFENSES[name]()
    x = images()
    with torch.no_grad():
        batch = respond(defense, x)
        single = respond(defense, x[:1])
        other_seed = respond(defense, x, seed=1)
    # The step sizes of a solver change outputs within its tolerance 1e-3; float64 rounds at 1e-15.
    assert bool(((batch[:1] - single).abs() > 1e-9).any()) == defense.coupled
    assert bool(((batch - other_seed).abs() > 1e-9).any()) == defense.random


@all_defenses
def test_the_output_of_an_uncoupled_defense_does_not_depend_on_batch_or_order(name):
    defense = DEFENSES[name]()
    x = images()
    order = torch.tensor([3, 0, 4])
    if defense.coupled:
        pytest.skip("declares that rows influence each other")
    keys = context(5).keys
    with torch.no_grad():
        batch = respond(defense, x)
        part = defense.respond(x[order], sp.Context(keys[order]))
    # Matrix products of another batch size round differently.
    assert_close(part, batch[order], rtol=0, atol=1e-12)


@all_defenses
@pytest.mark.parametrize(
    "rule", [Exact(), Checkpointed(), sp.BPDA()], ids=lambda r: type(r).__name__
)
def test_every_rule_keeps_the_forward_value(name, rule):
    defense = DEFENSES[name]()
    x = images()
    with torch.no_grad():
        expected = defense.trace(x, context(5))
    found = defense.trace(x.clone().requires_grad_(), context(5, rules={site(name): rule}))
    assert found.names == expected.names
    assert_close(found.logits.detach(), expected.logits, rtol=0, atol=1e-12)


@all_defenses
def test_exact_gradients_equal_finite_differences(name):
    defense = DEFENSES[name]()
    if name in ("sodef", "sodef, per example"):
        # Adaptive step sizes make the output discontinuous within the tolerance of the solver.
        defense = sodef(integrator=Dopri5(1e-10))
    x = images()
    direction = torch.linspace(-1, 1, 5 * 3 * 64, dtype=torch.float64).view(5, 3, 8, 8)
    weights = torch.linspace(-1, 2, 5 * CLASSES, dtype=torch.float64).view(5, CLASSES)

    def value(v):
        return (respond(defense, v) * weights).sum()

    leaf = x.clone().requires_grad_()
    grad = torch.autograd.grad(value(leaf), leaf)[0]
    # Truncation is h^2 times at most 4e5, where the first Adam step of an entry is steep; rounding
    # is 1e-15 / h.
    h = 1e-7
    with torch.no_grad():
        expected = (value(x + h * direction) - value(x - h * direction)) / (2 * h)
    assert_close((grad * direction).sum(), expected, rtol=0, atol=5e-8)


@all_defenses
def test_checkpointed_gradients_equal_exact_ones(name):
    """Recomputed steps use the same random keys; sums in another order differ by 1e-10."""
    defense = DEFENSES[name]()
    x = images()
    exact, checkpointed = (
        Backprop()
        .value_and_grad(
            AttackObjective([defense], LABELS, sp.cross_entropy, rules={site(name): rule}),
            x,
            context(5).keys,
        )
        .grad
        for rule in (Exact(), Checkpointed())
    )
    assert_close(checkpointed, exact, rtol=1e-10, atol=1e-14)
    assert float(exact.abs().amax()) > 0


@pytest.mark.slow
def test_forty_checkpointed_steps_of_a_random_purifier_take_the_memory_of_less_than_three():
    """The peak is below 2.5 times that of one step.

    Every step draws its views, and draws the same ones again in the backward pass.
    """
    x = images()
    keys = context(5).keys

    def objective(steps, rule):
        kept = frozenset({f"reverse/{steps}"})
        return AttackObjective(
            [reversal(steps=steps, views=2)],
            LABELS,
            sp.cross_entropy,
            rules={"reverse": rule},
            keep=kept,
        )

    def grad(steps, rule):
        return Backprop().value_and_grad(objective(steps, rule), x, keys).grad

    one = peak_bytes(lambda: grad(1, Exact()))
    assert peak_bytes(lambda: grad(40, Checkpointed())) <= 2.5 * one
    assert_close(grad(40, Checkpointed()), grad(40, Exact()), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    "name", [name for name in DEFENSES if name.startswith(("reversal", "atld"))]
)
def test_identity_bpda_is_the_gradient_of_the_network_at_the_purified_point(name):
    defense = DEFENSES[name]()
    x = images().requires_grad_()
    record = Recording()
    grad = torch.autograd.grad(respond(defense, x, **{site(name): sp.BPDA()}).sum(), x)[0]
    with torch.no_grad():
        respond(defense, x, **{site(name): record})
    purified = record.states[-1].requires_grad_()
    assert_close(
        grad, torch.autograd.grad(defense.net(purified).sum(), purified)[0], rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize("name", ["reversal", "atld, three steps"])
def test_trajectory_bpda_is_the_mean_of_gradients_at_the_iterates(name):
    defense = DEFENSES[name]()
    x = images()
    record = Recording()
    objective = AttackObjective(
        [defense], LABELS, sp.cross_entropy, sp.mean_of_losses, {site(name): sp.BPDA()}
    )
    found = Backprop().value_and_grad(objective, x, context(5).keys).grad
    with torch.no_grad():
        defense.respond(x, context(5, rules={site(name): record}))
    points = [x, *record.states[-defense.steps :]]
    grads = [
        Backprop()
        .value_and_grad(
            AttackObjective([sp.Plain(defense.net)], LABELS, sp.cross_entropy), p, context(5).keys
        )
        .grad
        for p in points
    ]
    assert_close(found, torch.stack(grads).mean(0), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "defense",
    [
        closed_loop(steps=0),
        closed_loop(steps=0, per_example=True),
        reversal(steps=0),
        atld(steps=0),
        # Without steps no head is needed.
        ContrastiveReversal(network(), negatives=images(6, 70), steps=0),
    ],
    ids=[
        "closed loop",
        "closed loop, per example",
        "reversal",
        "atld",
        "reversal, negatives without head",
    ],
)
def test_without_steps_the_defense_equals_the_static_network(defense):
    x = images()
    assert_close(respond(defense, x), defense.net(x), **EXACT)
    assert (defense.coupled, defense.random) == (False, False)
    assert defense.static is defense.net


@all_defenses
def test_the_first_view_is_the_state_before_any_step(name):
    defense = DEFENSES[name]()
    x = images()
    with torch.no_grad():
        before = (
            defense.body.head(defense.body.embed(defense.features(x)))
            if name.startswith("sodef")
            else defense.net(x)
        )
        first = defense.trace(x, context(5)).views[0]
    assert first.name.endswith("/0")
    assert_close(first.logits, before, **EXACT)


@all_defenses
def test_skipping_views_does_not_change_the_output(name):
    defense = DEFENSES[name]()
    x = images()
    with torch.no_grad():
        full = defense.trace(x, context(5))
        last = defense.trace(x, context(5, keep=frozenset()))
    assert len(last.views) == 1
    assert_close(last.last, full.last, **EXACT)


@all_defenses
def test_a_prediction_has_no_side_effects(name):
    defense = DEFENSES[name]()
    x = images().requires_grad_()
    before = copy.deepcopy(defense.net.state_dict())
    respond(defense, x).sum().backward()
    assert_close(dict(defense.net.state_dict()), dict(before), **EXACT)
    assert not any(m._forward_hooks or m.training for m in defense.net.modules())
    torch.manual_seed(0)
    state = torch.random.get_rng_state()
    respond(defense, x)
    assert torch.equal(torch.random.get_rng_state(), state)  # the global generator is not used


@pytest.mark.parametrize(
    "defense",
    [
        SODEF(network()),
        ClosedLoopControl(network(), ["1"]),
        ContrastiveReversal(network()),
        ATLD(network()),
    ],
    ids=lambda d: type(d).__name__,
)
def test_an_unfitted_defense_raises(defense):
    with pytest.raises(RuntimeError, match=r"Call fit: .*\.fit\(x"):
        respond(defense, images())


@pytest.mark.parametrize(
    "build",
    [
        lambda net: SODEF(net, layer="fc"),
        lambda net: ClosedLoopControl(net, ["input", "fc"]),
        lambda net: ContrastiveReversal(net, layer="fc"),
    ],
    ids=["sodef", "closed loop", "reversal"],
)
def test_the_error_for_an_unknown_layer_names_the_nearest_one(build):
    net = nn.Sequential()
    net.add_module("stem", nn.Flatten())
    net.add_module("fc1", nn.Linear(192, CLASSES))
    with pytest.raises(ValueError, match=r"no layer called 'fc'\. Nearest: 'fc1'"):
        build(net.eval())


@pytest.mark.parametrize(
    "build", [SODEF, ATLD, ContrastiveReversal, lambda net: ClosedLoopControl(net, ["1"])]
)
def test_a_network_in_training_mode_raises(build):
    with pytest.raises(ValueError, match=r"is in training mode.*Call \.eval\(\)"):
        build(network().train())


def test_in_place_layers_do_not_change_recorded_outputs():
    def build(inplace):
        layers = [
            nn.Conv2d(3, 4, 3, padding=1),
            nn.ReLU(inplace=inplace),
            nn.Flatten(),
            nn.Linear(256, CLASSES),
        ]
        return build_module(lambda: nn.Sequential(*layers), 8)

    nets = [build(True), build(False)]
    x = images(24, 9)
    nets[1].load_state_dict(nets[0].state_dict())
    y = nets[0](x).argmax(1)
    learner = AutoEncoderLearner(Phase(2, 8, 0.01))
    controlled = [ClosedLoopControl(net, ["input", "0"]).fit(x, y, learner=learner) for net in nets]
    leaves = [images().requires_grad_() for _ in nets]
    assert_close(
        *[
            torch.autograd.grad(respond(defense, leaf).sum(), leaf)[0]
            for defense, leaf in zip(controlled, leaves, strict=True)
        ],
        **EXACT,
    )
    assert_close(*[SODEF(net, layer="0").features(x) for net in nets], **EXACT)


def test_features_need_a_linear_layer_or_a_name():
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    with pytest.raises(ValueError, match=r"layer='\.\.\.'"):
        SODEF(net)
    features = SODEF(net, layer="0").features(images().float())
    assert features.shape == (5, 4)  # averaged over positions


def test_a_layer_that_is_called_twice_or_never_raises():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.Tanh()
            self.fc = nn.Linear(192, CLASSES)
            self.spare = nn.Tanh()

        def forward(self, x):
            return self.fc(self.act(self.act(x.flatten(1))))

    x = images().float()
    y = LABELS
    net = Twice().eval()
    for layer, message in (("act", "more than once"), ("spare", "never calls")):
        with pytest.raises(ValueError, match=message):
            ClosedLoopControl(net, [layer]).fit(x, net(x).argmax(1))
        with pytest.raises(ValueError, match=message):
            SODEF(net, layer=layer).fit(x, y)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: sodef(time=-1), "time >= 0"),
        (lambda: sodef(segments=0), "segments >= 1"),
        (lambda: closed_loop(steps=-1), "steps >= 0"),
        (lambda: closed_loop(rate=0), "rate > 0"),
        (lambda: ClosedLoopControl(network(), "input"), "list of layer names"),
        (
            lambda: ClosedLoopControl(network(), ["1"], embeddings={}),
            "every layer needs an embedding",
        ),
        (lambda: reversal(views=1), "views >= 2"),
        (lambda: atld(steps=-1), "steps >= 0"),
        (lambda: auto_encoder((3, 6, 8)), "divisible by 4"),
    ],
)
def test_invalid_arguments_raise(build, message):
    with pytest.raises(ValueError, match=message):
        build()
