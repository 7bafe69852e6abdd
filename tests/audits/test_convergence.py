"""An audit says when what it attacked was no fixed point, forward or backward, and stays silent about twins that settle."""

from __future__ import annotations

import pytest
import torch
from saddlepoint.audits.target.check import TargetError, check
from tests.equilibria import Curved
from tests.equilibria import Equilibrium as Handmade
from tests.problems import normal, uniform

import saddlepoint as sp
from saddlepoint.audits.cells import Job
from saddlepoint.audits.diagnostics.convergence import unsettled
from saddlepoint.audits.planning.suite import TargetFacts, compose
from saddlepoint.defenses import Broyden, Picard
from saddlepoint.evaluation import Threat
from saddlepoint.gradients import Checkpointed, Implicit, Phantom
from saddlepoint.zoo.deq import DEQ, MonotoneDEQ, MonotoneNet, PeacemanRachford

N = 40
INPUTS = 6
STATES = 10
X = uniform(0, N, INPUTS)
SPACE = sp.Linf(0.05)


class Net:
    """z = tanh(gain R z + U x), R a quarter turn in five planes: plain steps converge for gain < 1 and circle beyond it."""

    def __init__(self, gain):
        quarter = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
        self.inner = torch.block_diag(*[quarter] * (STATES // 2))
        self.gain = gain
        self.inputs = 0.1 * normal(2, STATES, INPUTS)
        self.outputs = normal(3, 3, STATES)

    def inject(self, x):
        return x @ self.inputs.T

    def start(self, u):
        return torch.zeros_like(u)

    def cell(self, z, u):
        return (self.gain * z @ self.inner.T + u).tanh()

    def head(self, z):
        return z @ self.outputs.T


class Own(sp.Defense):
    """A user's own equilibrium defense, which knows of no `settled`."""

    def __init__(self, gain, method):
        self.net = Net(gain)
        self.method = method

    def trace(self, x, ctx):
        u = self.net.inject(x)
        best = ctx.solve("mine", self.net.cell, self.net.start(u), u, method=self.method).best
        return sp.Trace((sp.View("final", self.net.head(best)),))


def found(defense, x=X, points=None):
    """What is said of the images and of points nearby, by name."""
    job = Job(
        defense, x, torch.zeros(len(x), dtype=torch.long), Threat(SPACE), seed=0, batch_size=16
    )
    return {
        symptom.name: symptom
        for symptom in unsettled(job, (x + 0.05).clamp(max=1) if points is None else points)
    }


class Learning(Own):
    """Learns from the batch, and cannot from a single image."""

    memory = "batch"
    coupled = True

    def adapt(self, x, ctx):
        if len(x) < 2:
            raise ValueError("there is nothing to learn from one image")
        return Own(3.0 if len(x) == N else 0.7, self.method)


def test_a_defense_that_learns_is_asked_about_whole_batches():
    """In one round the batch is the whole stream: with 40 images together it circles, with 16 at a time it does not."""
    x = X[:39]
    y = torch.zeros(39, dtype=torch.long)
    learns = Learning(0.7, PLAIN_STEPS)
    assert not list(
        unsettled(Job(learns, x[:32], y[:32], Threat(SPACE), seed=0, batch_size=16), x[:32])
    )
    assert not list(
        unsettled(Job(learns, x, y, Threat(SPACE, rounds="one"), seed=0, batch_size=38), x)
    )
    whole = Job(
        learns,
        X,
        torch.zeros(N, dtype=torch.long),
        Threat(SPACE, rounds="one"),
        seed=0,
        batch_size=16,
    )
    assert [symptom.name for symptom in unsettled(whole, X)] == ["no fixed point"]


PLAIN_STEPS = Picard(steps=20, tolerance=1e-3)


@pytest.mark.parametrize(
    "build", [lambda gain: DEQ(Net(gain), method=PLAIN_STEPS), lambda gain: Own(gain, PLAIN_STEPS)]
)
def test_a_solver_that_circles_is_told_and_its_settling_twin_is_not(build):
    assert not found(build(0.7))
    symptom = found(build(3.0))["no fixed point"]
    assert symptom.level == "serious"
    assert "100 % of the clean images" in symptom.message
    assert "100 % of the attacked images" in symptom.message


def test_the_points_that_images_were_moved_to_are_judged_too():
    """Zeros have their fixed point at the start; moved by 0.05 they circle."""
    symptom = found(DEQ(Net(3.0), method=PLAIN_STEPS), torch.zeros_like(X))["no fixed point"]
    assert "clean" not in symptom.message
    assert "attacked images" in symptom.message


def test_a_few_images_without_a_fixed_point_are_a_warning():
    x = torch.zeros_like(X)
    x[:2] = X[:2]
    symptom = found(DEQ(Net(3.0), method=PLAIN_STEPS), x, points=torch.zeros_like(x))[
        "no fixed point"
    ]
    assert symptom.level == "warning"
    assert "5 % of the clean images" in symptom.message


def test_a_backward_solve_that_does_not_converge_is_told():
    """The default backward solve has 50 steps of Broyden; one plain step stops far from its fixed point."""

    class Hasty(DEQ):
        def trace(self, x, ctx):
            return super().trace(
                x,
                sp.Context(
                    ctx.keys, {"solve": Implicit(Picard(steps=1))}, ctx.keep, ctx.solver_stats
                ),
            )

    patient, hasty = (found(kind(Net(0.9), method=Broyden(steps=40))) for kind in (DEQ, Hasty))
    assert not patient
    assert list(hasty) == ["gradient not solved for"]
    assert hasty["gradient not solved for"].level == "serious"
    assert "of 16 images" in hasty["gradient not solved for"].message


def test_the_monotone_defense_tells_its_own_residual():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = MonotoneNet(image=(1, 1, INPUTS), size=STATES, m=0.1).double().eval()
    settling, hasty = (
        found(MonotoneDEQ(net, method=PeacemanRachford(steps=steps)), X.view(N, 1, 1, INPUTS))
        for steps in (500, 1)
    )
    assert not settling
    assert list(hasty) == ["no fixed point"]


def test_a_defense_that_solves_nothing_is_asked_once():
    class Counted(sp.Plain):
        rows = 0

        def trace(self, x, ctx):
            self.rows += len(x)
            return super().trace(x, ctx)

    plain = Counted(torch.nn.Linear(INPUTS, 3).double())
    assert not found(plain)
    assert plain.rows == 1


def test_an_audit_prints_it_above_the_number():
    x = X[:6]
    defense = DEQ(Net(3.0), method=Picard(steps=6))
    with torch.no_grad():
        y = defense.respond(x, sp.Context.seeded(0, len(x))).argmax(1)
    result = sp.audit(defense, x, y, threat=SPACE, adversaries=[sp.Direct("pgd", sp.PGD(2))])
    assert "no fixed point" in [symptom.name for symptom in result.symptoms]
    assert result.verdict == "cannot be told"
    assert "no fixed point" in result.summary()


def test_attacks_through_the_solver_are_sent_where_there_is_one():
    for name, defense in (("solve", DEQ(Net(0.7))), ("mine", Own(0.7, PLAIN_STEPS))):
        checked = check(defense, X, torch.zeros(N, dtype=torch.long), SPACE)
        assert checked.solves == {name}
        known = TargetFacts(checked.traits, checked.solves)
        sent = {
            choice.name: choice.adversary
            for choice in compose(defense, Threat(SPACE), "quick", known)
        }
        assert sent["apgd-through"].rules == {name: Checkpointed()}
        assert isinstance(sent["apgd-unrolled"].rules[name], Phantom)
    assert not check(
        sp.Plain(torch.nn.Linear(INPUTS, 3).double()), X, torch.zeros(N, dtype=torch.long), SPACE
    ).solves


class Broken(Net):
    def __init__(self, how):
        super().__init__(0.7)
        self.how = how

    def cell(self, z, u):
        return self.how(super().cell(z, u))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (lambda f: f * torch.nan, "NaN or infinite logits on 16 of 16 clean images"),
        (
            lambda f: f[:, :3],
            r"f\(z\) must look like z: z has shape \(16, 10\).*f\(z\) has shape \(16, 3\)",
        ),
        (
            lambda f: f.float(),
            r"type torch.float64, f\(z\) has shape \(16, 10\) and type torch.float32",
        ),
    ],
    ids=["nan", "shape", "type"],
)
def test_a_broken_cell_is_refused_with_its_reason(how, message):
    with pytest.raises(TargetError, match=message):
        check(DEQ(Broken(how)), X, torch.zeros(N, dtype=torch.long), SPACE)


def test_a_cell_that_runs_away_is_told():
    """f(z) = 3 z + u never comes back: z grows until it is given up, and what is answered is its least bad state."""

    class Away(Net):
        def cell(self, z, u):
            return 3 * z + u

    assert found(DEQ(Away(1.0), method=PLAIN_STEPS))["no fixed point"].level == "serious"


def test_a_handmade_equilibrium_that_settles_is_not_accused():
    assert not found(
        Handmade(Curved.contractive(3), method=Broyden(steps=30, tolerance=1e-8)), uniform(0, 20, 7)
    )


def test_a_gradient_that_is_cut_before_the_solver_does_not_end_an_audit():
    """Attacks lead around the cut; where plain gradients do not come through, no backward solve can be asked how it ended."""

    class Cut(Own):
        def trace(self, x, ctx):
            return super().trace(ctx.through("cut", torch.Tensor.detach, x), ctx)

    assert not found(Cut(0.5, Broyden(steps=30, tolerance=1e-8)))
